"""The place of a request's connection: what it is worth when there are too many connections."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.types import Scope

PLACE: Final = "keepthread_place"


class ConnectionPlace:
    """The place of one connection, in the state of each of its requests."""

    def __init__(self, changed: Callable[[], object]) -> None:
        """Begin without a credential; `changed` is called once one was accepted."""
        self.is_proven = False
        """Whether a credential was accepted on the connection."""
        self.is_spare = False
        """Whether it was taken although all places are in use."""
        self._changed = changed

    def prove(self) -> None:
        """Note that a credential was accepted."""
        if not self.is_proven:
            self.is_proven = True
            self._changed()


def place_of(scope: "Scope") -> ConnectionPlace | None:
    """Return the place of a request; None outside of a worker."""
    return scope.get("state", {}).get(PLACE)
