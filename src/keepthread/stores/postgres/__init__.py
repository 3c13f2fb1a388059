"""A store in a PostgreSQL database."""

from keepthread.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
