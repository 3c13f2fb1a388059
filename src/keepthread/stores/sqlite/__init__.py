"""A store in one SQLite file."""

from keepthread.stores.sqlite.store import SQLiteStore

__all__ = ["SQLiteStore"]
