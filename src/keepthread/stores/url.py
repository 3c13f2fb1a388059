"""Open a store by its URL: a file, a server, or the memory of this process."""

import importlib
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path, PurePath
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlencode, urlsplit

from keepthread import stores
from keepthread.errors import InvalidInput
from keepthread.stores.front import Front
from keepthread.stores.validation import show

Open: TypeAlias = Callable[..., Awaitable[Front[Any]]]
POSTGRES: Final = ("postgresql", "postgres")
REDIS: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster")
SERVERS: Final = (*POSTGRES, *REDIS)
_TIMEOUT: Final = 5.0  # seconds that a call waits for a server if there is an outbox


def store_at(url: str, outbox: str | None = None, timeout: float | None = None) -> Open:
    """Return a function that opens the store at a URL, given tenant, durability, clock and ids.

    With the path of an outbox, messages are queued there while the store is unavailable. `timeout`
    is the number of seconds that a call waits for a busy or absent store; None means the engine's
    default.
    """
    _check_text(url)
    if outbox is not None:
        return partial(_queued, outbox, url, timeout)
    scheme = scheme_of(url)
    waiting = {} if timeout is None else _waiting(url, timeout)
    if scheme in SERVERS:
        _check_encoded(url)
        return partial(_postgres if scheme in POSTGRES else _redis, url, **waiting)
    path = path_of(url)
    return _ram if path is None else partial(_sqlite, path, **waiting)


def _check_text(url: object) -> None:
    """Raise `InvalidInput` for a path, or anything else that is not the text of a URL."""
    if isinstance(url, PurePath):
        raise InvalidInput(
            f"a store is opened by its URL, not by a path; write {f'sqlite:///{url}'!r}"
        )
    if not isinstance(url, str):
        raise InvalidInput(
            f"a store is opened by its URL, such as 'sqlite:///chat.db', not by {show(url)}"
        )


def scheme_of(url: str) -> str:
    """Return the scheme of a URL, which may be shown; the rest may contain a password."""
    return url.partition("://")[0]


def shown(url: str) -> str:
    """Return a URL for display: for a server only scheme and host, without a password."""
    scheme, separator, rest = url.partition("://")
    if scheme in ("sqlite", "ram") or (not separator and ":" not in url.partition("@")[0]):
        return url
    host, path = _host_of(rest)
    if not separator or "@" in path:
        return f"{scheme}://…" if separator else "…"
    return f"{scheme}://{host.rpartition('@')[2]}/…"


def _host_of(rest: str) -> tuple[str, str]:
    """Return the part of a URL before its path, and the rest."""
    end = min((place for mark in "/?#" if (place := rest.find(mark)) >= 0), default=len(rest))
    return rest[:end], rest[end:]


def _check_encoded(url: str) -> None:
    """Raise if a driver may mistake part of the password for a host, which errors would show."""
    host, path = _host_of(url.partition("://")[2])
    if host.count("@") > 1 or "@" in path:
        raise InvalidInput(
            f"{scheme_of(url)}://… contains an extra @: in a user name or password, write"
            " @ as %40, / as %2F, ? as %3F and # as %23"
        )


def path_of(url: str) -> str | None:
    """Return the path of a SQLite URL, None for memory."""
    scheme, separator, rest = url.partition("://")
    if separator and scheme == "ram" and not rest:
        return None
    if separator and scheme == "sqlite" and rest.startswith("/") and len(rest) > 1:
        return rest[1:]
    raise InvalidInput(
        f"{shown(url)!r} is not a store URL{_meant(url)}; use sqlite:///relative/path.db,"
        " sqlite:////absolute/path.db, postgresql://…, redis://…, redis+cluster://… or ram://"
    )


def _meant(url: str) -> str:
    """Return a question about the URL that was probably meant, if it looks like a path."""
    path = url.removeprefix("sqlite://")
    return f" (did you mean {f'sqlite:///{path}'!r}?)" if path and ":" not in path else ""


async def _ram(**settings: Any) -> Front[Any]:
    return stores.RamStore(**settings)


async def _sqlite(path: str, **settings: Any) -> Front[Any]:
    return await stores.SQLiteStore.open(path, **settings)


async def _postgres(url: str, **settings: Any) -> Front[Any]:
    return await stores.PostgresStore.open(url, **settings)


async def _redis(url: str, **settings: Any) -> Front[Any]:
    return await stores.RedisStore.open(url, **settings)


async def _queued(path: str, url: str, seconds: float | None, **settings: Any) -> Front[Any]:
    # Imports all of SQLite, which a store without an outbox may not need.
    from keepthread.stores.outbox.store import OutboxStore  # noqa: PLC0415

    if seconds is None and scheme_of(url) in SERVERS:
        seconds = _TIMEOUT
    opened = partial(store_at(url, timeout=seconds), **settings)
    return await OutboxStore.open(path, opened, target=target_of(url), **settings)


def _waiting(url: str, seconds: float) -> dict[str, Any]:
    """Return the settings for this timeout; raise now if the driver is missing."""
    if scheme_of(url) in POSTGRES:
        importlib.import_module("keepthread.stores.postgres")
        return {"deadline": seconds}
    if scheme_of(url) in REDIS:
        # Needs the driver, which is optional.
        from keepthread.stores.redis import Timeouts  # noqa: PLC0415

        return {"timeouts": Timeouts(again=seconds)}
    return {} if path_of(url) is None else {"busy_timeout": seconds}


_PLACES: Final = frozenset(("host", "hostaddr", "port", "dbname", "db"))
_SAME: Final = {"postgres": "postgresql"}


def target_of(url: str) -> str:
    """Return scheme, hosts, ports and database of a URL, without user and password."""
    scheme, _, rest = url.partition("://")
    if scheme == "ram":
        raise InvalidInput("an in-memory store is always available; leave out the outbox")
    if scheme == "sqlite":
        return f"sqlite:///{Path(rest.removeprefix('/')).absolute()}"
    parts = urlsplit(url)
    hosts = parts.netloc.rpartition("@")[2].lower()
    query = [(name, value) for name, value in parse_qsl(parts.query) if name in _PLACES]
    suffix = f"?{urlencode(sorted(query))}" if query else ""
    return f"{_SAME.get(scheme, scheme)}://{hosts}{parts.path.rstrip('/')}{suffix}"
