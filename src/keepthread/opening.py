"""Opening a store by its address: a file, a server, or this process's own memory."""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeAlias

from keepthread.errors import InvalidInput
from keepthread.protocols import Store

Open: TypeAlias = Callable[..., Awaitable[Store]]
_POSTGRES: Final = ("postgresql", "postgres")
_REDIS: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster")
SERVERS: Final = (*_POSTGRES, *_REDIS)


def store_at(url: str) -> Open:
    """Return what opens the store at an address, given tenant, durability, clock and ids."""
    scheme = scheme_of(url)
    if scheme in _POSTGRES:
        return partial(_postgres, url)
    if scheme in _REDIS:
        return partial(_redis, url)
    path = path_of(url)
    return _ram if path is None else partial(_sqlite, path)


def scheme_of(url: str) -> str:
    """Return the kind of an address, which may be shown: what is behind it may hold a password."""
    return url.partition("://")[0]


def path_of(url: str) -> str | None:
    """Return the path of a SQLite address, None for memory."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "ram" and not rest:
        return None
    if separator and scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return rest[1:]
    raise InvalidInput(
        f"{url!r} is no address of a store; there are sqlite:///relative/path.db,"
        " sqlite:////absolute/path.db, postgresql://…, redis://…, redis+cluster://… and ram://"
    )


# A store is loaded when it is opened: nobody waits for the engines of the others.


async def _ram(**settings: Any) -> Store:
    from keepthread.stores.ram import RamStore  # noqa: PLC0415

    return RamStore(**settings)


async def _sqlite(path: str, **settings: Any) -> Store:
    from keepthread.stores.sqlite import SQLiteStore  # noqa: PLC0415

    return await SQLiteStore.open(path, **settings)


async def _postgres(url: str, **settings: Any) -> Store:
    from keepthread.stores.postgres import PostgresStore  # noqa: PLC0415

    return await PostgresStore.open(url, **settings)


async def _redis(url: str, **settings: Any) -> Store:
    from keepthread.stores.redis import RedisStore  # noqa: PLC0415

    return await RedisStore.open(url, **settings)
