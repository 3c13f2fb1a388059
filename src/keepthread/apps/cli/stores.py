"""The stores that the command opens: by address, quickly, and nothing is made by looking."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

from keepthread.errors import InvalidInput, Unavailable
from keepthread.protocols import Store
from keepthread.stores.url import POSTGRES, SERVERS, path_of, scheme_of, shown, store_at

TIMEOUT: Final = 5.0
"""For how many seconds a server may keep the command from beginning."""
_TO_MAKE: Final = 60.0  # others may be making the same database ready


def is_server(url: str) -> bool:
    """Return whether an address is a server's."""
    return scheme_of(url) in SERVERS


def store_url(text: str) -> str:
    """Return the address of a store; a path alone is that of a SQLite file."""
    if not text or "://" in text or shown(text) != text:  # it may hold a password
        return text
    return f"sqlite:///{Path(text).expanduser()}"


def place_of(url: str) -> str:
    """Return what to call a store: its path, or a server without what is secret of it."""
    return shown(url) if is_server(url) else str(file_of(url))


def file_of(url: str) -> Path:
    """Return the path of a store in a file."""
    path = path_of(url)
    if path is None:
        raise InvalidInput(
            "an in-memory store is lost when its program ends; use a file: sqlite:///…"
        )
    return Path(path)


@asynccontextmanager
async def opened(url: str, *, tenant: str, create: bool = False) -> AsyncGenerator[Store]:
    """Open the store at an address; a missing one is created only with `create`."""
    store = await (_reach if is_server(url) else _open)(url, tenant, create)
    try:
        yield store
    finally:
        await store.close()


async def _open(url: str, tenant: str, create: bool) -> Store:
    path = file_of(url)
    if not create and not path.is_file():
        raise InvalidInput(
            f"there is no store at {path} yet: `keepthread chat` or `keepthread import` creates "
            "one; if it should exist, check the path"
        )
    return await store_at(url)(tenant=tenant)


async def _reach(url: str, tenant: str, create: bool) -> Store:
    settings: dict[str, Any] = {"migrate": create} if scheme_of(url) in POSTGRES else {}
    seconds = _TO_MAKE if create and settings else TIMEOUT
    try:
        async with asyncio.timeout(seconds):
            return await store_at(url)(tenant=tenant, **settings)
    except TimeoutError:
        raise Unavailable(
            f"{shown(url)} did not answer within {seconds:g} seconds; is it running?"
        ) from None
