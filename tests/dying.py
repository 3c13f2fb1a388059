"""A store whose process is killed at one of its writes, to see what another process completes."""

from typing import Any

from keepthread.protocols import Store
from keepthread.stores.kinds import FORGET

WRITES = frozenset(("put", "drop", "erase", "put_session", "delete_session", "clean"))


class Killed(BaseException):
    """The process ends."""


class Dying:
    """A store whose process is killed at a write: before it, or after it."""

    def __init__(self, store: Store, at: int, *, after: bool) -> None:
        self.store = store
        self.left = at
        self.after = after
        self.planned = False
        """Whether the intent of an erasure is stored."""

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.store, name)
        if name not in WRITES:
            return method

        async def call(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0 and not self.after:
                raise Killed
            answer = await method(*args, **kwargs)
            self.planned |= name == "put" and args[1] == FORGET
            if self.left == 0:
                raise Killed
            return answer

        return call
