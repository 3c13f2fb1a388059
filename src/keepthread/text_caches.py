"""Caches of text that live as long as their process: `forget` empties all of them.

Every cache whose keys or values hold text of messages, records or questions registers here.
"""

from collections.abc import Callable
from typing import Final, Protocol
from weakref import ref


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
