"""The API from a terminal, as commands of `runward`; `cli` puts them in their places."""
