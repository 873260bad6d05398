"""Postgres: every operation one statement, on connections of asyncpg."""
