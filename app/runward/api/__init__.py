"""The HTTP door: it translates requests into commands and queries, and their answers into responses. It decides nothing."""
