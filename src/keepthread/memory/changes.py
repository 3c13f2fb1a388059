"""Read the feed of changes, and wait for new ones.

A waiting reader polls every 0.05 to 1 second, on every store. One poll is one indexed read.
Notifying readers of every commit would cost all writers more than polling costs the readers.
"""

import asyncio
import time
from typing import Final

from keepthread.errors import InvalidInput
from keepthread.protocols import Store
from keepthread.stores.validation import show
from keepthread.types import Change, Page

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
_LONGEST_WAIT: Final = 3600.0


async def read_changes(
    store: Store, owner: str | None, after: str | None, limit: int, wait: float
) -> Page[Change]:
    """Return the changes after a cursor; if there are none, look again for `wait` seconds.

    Each look continues where the one before ended, so a page that stays empty has a new `next`.
    """
    if type(wait) not in (int, float) or not 0 <= wait <= _LONGEST_WAIT:
        raise InvalidInput(
            f"wait must be a number of seconds from 0 to {_LONGEST_WAIT:.0f}, not {show(wait)}"
        )
    deadline = time.monotonic() + wait
    pause = _FIRST_PAUSE
    while True:
        page = await store.changes(owner=owner, after=after, limit=limit)
        left = deadline - time.monotonic()
        if page or not limit or left <= 0:
            return page
        after = page.next
        await asyncio.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
