"""The stores. Each is imported on first use, so that the others' drivers are not needed."""

import importlib
import typing

from keepthread.errors import Unavailable

if typing.TYPE_CHECKING:
    from keepthread.stores.postgres import PostgresStore
    from keepthread.stores.ram import RamStore
    from keepthread.stores.redis import RedisStore
    from keepthread.stores.sqlite import SQLiteStore

__all__ = ["PostgresStore", "RamStore", "RedisStore", "SQLiteStore"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        module = importlib.import_module(f"{__name__}.{name.removesuffix('Store').lower()}")
    except Unavailable as error:
        return _without_driver(name, str(error))
    return getattr(module, name)


def _without_driver(name: str, reason: str) -> type:
    """Return a class in place of a store whose driver is missing; opening it raises the reason.

    `hasattr`, `import *` and `inspect.getmembers` read every name, so reading must not raise.
    """

    async def refuse(*_: object, **__: object) -> typing.NoReturn:
        raise Unavailable(reason)

    values = {"__doc__": f"{reason}.", "__module__": __name__, "open": staticmethod(refuse)}
    return type(name, (), values)
