"""A store that lets another operation run just before one of its calls, or cancels its caller."""

import asyncio
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Any

from keepthread.protocols import Store


class Interleaved:
    """Runs `other` once, just before or after a call: the one with number `at`, or of that name."""

    def __init__(
        self,
        store: Store,
        at: int | str,
        other: Callable[[], Awaitable[object]],
        *,
        after: bool = False,
    ) -> None:
        self.store = store
        self.calls = 0
        self.at = at
        self.other = other
        self.after = after

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)
        if not iscoroutinefunction(method):
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            chosen = self.at in (self.calls, name)
            if chosen:
                self.at = 0
            if chosen and not self.after:
                await self.other()
            answer = await method(*args, **kwargs)
            if chosen and self.after:
                await self.other()
            return answer

        return call


async def cancel_caller(_: object = None) -> None:
    """Cancel the task that calls, at this moment."""
    task = asyncio.current_task()
    assert task
    task.cancel()
    await asyncio.sleep(0)
