"""Locks by name, for what one process must not do twice at the same time."""

import asyncio
from weakref import WeakValueDictionary


class Locks:
    """Each lock is there as long as somebody holds it or waits for it."""

    def __init__(self) -> None:
        """Begin without any."""
        self._locks: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = WeakValueDictionary()

    def of(self, *name: str) -> asyncio.Lock:
        """Return the lock of that name."""
        return self._locks.setdefault(name, asyncio.Lock())
