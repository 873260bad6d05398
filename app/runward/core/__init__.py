"""The pure core: values and functions. No clock, no I/O, no asyncio, no randomness, no logging."""
