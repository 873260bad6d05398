"""Hints over Redis 7+, or whatever speaks its protocol. Nothing is stored there: losing, freezing or flushing it costs speed alone."""

from runward.stores.redis.bus import redis_bus

__all__ = ["redis_bus"]
