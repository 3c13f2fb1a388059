"""The backends: each keeps a log and a shelf, and none knows another.

One is loaded when it is first asked for: nobody waits for the engines of the others.
"""

import importlib
import typing

if typing.TYPE_CHECKING:
    from keepthread.stores.postgres import PostgresStore
    from keepthread.stores.ram import RamStore
    from keepthread.stores.redis import RedisStore
    from keepthread.stores.sqlite import SQLiteStore

__all__ = ["PostgresStore", "RamStore", "RedisStore", "SQLiteStore"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{name.removesuffix('Store').lower()}")
    return getattr(module, name)
