"""SQLite: one thread writes, in groups; a few read."""
