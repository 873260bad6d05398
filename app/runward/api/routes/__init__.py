"""What can be asked: one function per route, and their list."""
