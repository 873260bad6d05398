"""Runward: durable agent runs over HTTP."""
