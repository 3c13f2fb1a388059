"""Processes that are killed while they forget; this loads little, because each of them loads it."""

import asyncio
import os
from typing import Any

from proofs.interposed import Hook, opened, store_intents_in_parts_of
from tests.dying import WRITES

KILLED = 9


def kill_at(method: str) -> Hook:
    """Return a hook that ends this process before a call of a method."""

    async def hook(name: str, _: tuple[Any, ...]) -> None:
        if name == method:
            os._exit(KILLED)

    return hook


def forget_in_a_process(url: str, tenant: str, id: str | None, **query: Any) -> None:
    """Begin to forget Bob's messages, and die before the first one is erased."""

    async def run() -> None:
        async with opened(url, kill_at("erase")) as memory:
            await memory.tenant(tenant).for_owner("bob").forget(**query, id=id)

    asyncio.run(run())


def forget_with_a_late_fork(url: str, tenant: str, at: int) -> None:
    """Forget Bob's messages while a fork is finished, and die before a write after that."""
    store_intents_in_parts_of(2)
    left, forked = at, False

    async def run() -> None:
        async with opened(url) as beside:

            async def before(name: str, _: tuple[Any, ...]) -> None:
                nonlocal left, forked
                if name == "erase" and not forked:
                    forked = True
                    session = await beside.tenant(tenant).get_session("s", owner="bob")
                    await session.fork(id="twin")
                if forked and name in WRITES:
                    left -= 1
                    if not left:
                        os._exit(KILLED)

            async with opened(url, before) as memory:
                await memory.tenant(tenant).admin.forget(author="bob")

    asyncio.run(run())
