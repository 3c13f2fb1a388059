"""A store with hooks around each of its calls, and intents in small parts."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from inspect import iscoroutinefunction
from typing import Any, Final, TypeAlias, cast

from keepthread import Memory, Options
from keepthread.memory.blobs.types import BlobSizes
from keepthread.memory.forgetting import plan
from keepthread.models.tokens import Estimator
from keepthread.protocols import Store
from keepthread.stores.url import store_at

Hook: TypeAlias = Callable[[str, tuple[Any, ...]], Awaitable[None]]
"""Called with the name of a store's method and its arguments."""
SIZES: Final = BlobSizes(chunk=1024, text=2000)


class Interposed:
    """A store that calls a hook before each of its calls, and another one after it."""

    def __init__(self, store: Store, before: Hook | None = None, after: Hook | None = None) -> None:
        self.store = store
        self.before = before
        self.after = after

    def tenant(self, name: str) -> "Interposed":
        return Interposed(self.store.tenant(name), self.before, self.after)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)
        if name == "close" or not iscoroutinefunction(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.before:
                await self.before(name, args)
            answer = await method(*args, **kwargs)
            if self.after:
                await self.after(name, args)
            return answer

        return call


class Once:
    """A hook that runs something at one call: the one with this number, or the first of a name."""

    def __init__(self, at: int | str, run: Callable[[], Awaitable[object]]) -> None:
        self.at = at
        self.run = run
        self.calls = 0

    async def __call__(self, name: str, _: tuple[Any, ...]) -> None:
        self.calls += 1
        if self.at in (self.calls, name):
            self.at = 0
            await self.run()


async def cancel_caller() -> None:
    """Cancel the task that calls, at this moment."""
    task = asyncio.current_task()
    assert task
    task.cancel()
    await asyncio.sleep(0)


def memory_over(store: Store, before: Hook | None = None, **options: Any) -> Memory:
    """Return a memory over an open store, with small blobs and a hook before each call."""
    under = cast(Store, Interposed(store, before)) if before else store
    return Memory(under, Options(counter=Estimator(), blob_sizes=SIZES, **options))


@asynccontextmanager
async def opened_store(url: str) -> AsyncIterator[Store]:
    """Open a store for as long as the block lasts; reading it completes no forgetting."""
    async with await store_at(url)(durability="process") as store:
        yield store


@asynccontextmanager
async def opened(url: str, before: Hook | None = None) -> AsyncIterator[Memory]:
    """Open a memory for as long as the block lasts."""
    async with opened_store(url) as store, memory_over(store, before) as memory:
        yield memory


def store_intents_in_parts_of(entries: int) -> None:
    """Have this process store intents in parts of so many entries, to have several of them."""
    plan.ENTRIES = entries
