"""Locks by name, for what one event loop must not do twice at the same time.

Between loops and processes a lease in the store decides.
"""

import asyncio
from weakref import WeakValueDictionary


class Locks:
    """Each lock exists as long as somebody holds it or waits for it."""

    def __init__(self) -> None:
        """Begin without any."""
        self._locks: WeakValueDictionary[tuple[object, ...], asyncio.Lock] = WeakValueDictionary()

    def of(self, *name: str) -> asyncio.Lock:
        """Return the lock of that name in the running loop."""
        key = (asyncio.get_running_loop(), *name)
        return self._locks.setdefault(key, asyncio.Lock())
