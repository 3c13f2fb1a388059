"""What is known not to be known, so that not every context asks in vain."""

import time
from collections.abc import Callable
from typing import Final

SECONDS: Final = 10.0
"""How long it is remembered that nothing is known of an owner."""
_MOST: Final = 10_000


class Ignorance:
    """Owners of whom one memory knows nothing.

    Another process may learn something meanwhile: after some seconds it is asked again.
    """

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Begin with nobody."""
        self._monotonic = monotonic
        self._since: dict[str, float] = {}

    def of(self, owner: str) -> bool:
        """Tell whether nothing was known of an owner a moment ago."""
        since = self._since.get(owner)
        return since is not None and self._monotonic() - since < SECONDS

    def note(self, owner: str) -> None:
        """Take note that nothing is known of an owner."""
        if len(self._since) >= _MOST:
            self._since.clear()
        self._since[owner] = self._monotonic()

    def end(self, owner: str) -> None:
        """Take note that something may be known now."""
        self._since.pop(owner, None)
