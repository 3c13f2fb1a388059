"""A store on a Redis server or a Redis Cluster."""

from keepthread.stores.redis.engine import Timeouts
from keepthread.stores.redis.store import RedisStore

__all__ = ["RedisStore", "Timeouts"]
