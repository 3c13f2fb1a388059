"""Caches that live as long as their process: all are bounded, and `forget` empties those with text.

Every cache whose keys or values hold text of messages, records or questions registers here.
"""

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Final, Generic, Protocol, TypeVar
from weakref import ref

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class LeastRecent(Generic[K, V]):
    """Up to `limit` values by their keys; the least recently used one is evicted first.

    Threads may share it without a lock: at worst an entry is missing for a moment, or one goes too
    early. Its users work without an entry.
    """

    def __init__(self, limit: int) -> None:
        """Start empty."""
        self._limit = limit
        self._kept: dict[K, V] = {}

    def __len__(self) -> int:
        """Return the number of values."""
        return len(self._kept)

    def get(self, key: K) -> V | None:
        """Return the value of a key, which counts as used now."""
        value = self._kept.pop(key, None)
        if value is not None:
            self._kept[key] = value
        return value

    def put(self, key: K, value: V) -> None:
        """Keep a value."""
        self._kept.pop(key, None)
        self._kept[key] = value
        with suppress(RuntimeError, StopIteration, KeyError):  # another thread did it
            while len(self._kept) > self._limit:
                del self._kept[next(iter(self._kept))]

    def discard(self, key: K) -> None:
        """Remove a key."""
        self._kept.pop(key, None)

    def clear_texts(self) -> None:
        """Remove all values; `register_object` lets `forget` do it."""
        self._kept = {}


class TextCache(Protocol):
    """An object that remembers text."""

    def clear_texts(self) -> None:
        """Discard all text."""
        ...


# Any thread may add to these lists at any time: appending and copying a list are atomic.
_clears: Final[list[Callable[[], object]]] = []
_objects: Final[list["ref[TextCache]"]] = []


def register_cache(*clears: Callable[[], object]) -> None:
    """Register functions that empty a module's caches; call once, when the module is imported."""
    _clears.extend(clears)


def register_object(cache: TextCache) -> None:
    """Register an object for as long as it lives."""
    _objects.append(ref(cache, _objects.remove))


def clear_text_caches() -> None:
    """Empty every cache of text in this process; they fill again as they are used."""
    for clear in _clears.copy():
        clear()
    for each in _objects.copy():
        if (cache := each()) is not None:
            cache.clear_texts()
