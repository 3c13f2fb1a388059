"""What an acknowledged write survives, from the least to the most."""

from typing import Final

from keepthread.types import Durability

_LEVELS: Final[tuple[Durability, ...]] = ("memory", "process", "power", "replicated")


def strength(level: Durability) -> int:
    """Return a number that is larger the more a write survives."""
    return _LEVELS.index(level)
