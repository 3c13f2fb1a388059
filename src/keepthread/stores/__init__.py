"""The stores. Each is imported on first use, so that the others' drivers are not needed."""

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
