"""What the sessions of one memory share in their process: locks, work to do, how time is told."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from keepthread.background import Background
from keepthread.leases import SECONDS, Leases
from keepthread.locks import Locks
from keepthread.protocols import Store
from keepthread.tracing import Spans


class Shared:
    """One for a memory and its tenants; clocks and sleep are given so that tests need no time."""

    def __init__(
        self,
        *,
        spans: Spans | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        lease_seconds: float = SECONDS,
    ) -> None:
        """Begin with no lock held and nothing to do."""
        self.locks = Locks()
        self.background = Background()
        self.spans = spans or Spans()
        self.clock = clock
        self.monotonic = monotonic
        self.sleep = sleep
        self.lease_seconds = lease_seconds

    def leases(self, store: Store) -> Leases:
        """Return the leases on the shelves of a store."""
        return Leases(
            store=store,
            clock=self.clock,
            monotonic=self.monotonic,
            sleep=self.sleep,
            seconds=self.lease_seconds,
        )
