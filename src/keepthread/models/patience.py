"""Patience: how long to wait for a sign of life, and when to ask again."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Final

from keepthread.models.failures import Failure

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 20.0


class Patience:
    """How long one question may go without a sign of life, over all tries together."""

    def __init__(
        self, timeout: float, retries: int, sleep: Callable[[float], Awaitable[object]]
    ) -> None:
        """Begin to wait."""
        self._clock = asyncio.get_running_loop().time
        self._end = self._clock() + timeout
        self._retries = retries
        self._sleep = sleep
        self.tried = 1
        self.instead: dict[str, str | None] = {}
        """What the server would not be told, and what it was told instead."""

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return self._end - self._clock()

    async def again(self, failure: Failure) -> bool:
        """Wait and return True if it is worth asking again, and there is the time for it."""
        drawn = _FIRST_PAUSE * 2 ** (self.tried - 1) * random.uniform(0.5, 1)  # noqa: S311 - so that not all come at once
        pause = max(drawn, failure.after)
        most = min(self.left, _LONGEST_PAUSE)
        if not failure.again or self.tried > self._retries or pause >= most:
            return False
        await self._sleep(pause)
        self.tried += 1
        return True
