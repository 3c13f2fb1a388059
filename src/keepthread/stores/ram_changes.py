"""The feed of changes in memory, for `RamStore`."""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

from keepthread.stores.backend import Feed, FeedPage
from keepthread.stores.changes import CHANGE_KINDS, KEPT, check_trimmed, microseconds
from keepthread.stores.cursors import check_position
from keepthread.types import Change, SessionInfo

_TRIM_EVERY: Final = 64


class _Changes:
    """The changes of one owner, or of a whole tenant, by number."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.changes: list[Change] = []
        self.trimmed = 0

    def add(self, number: int, change: Change) -> None:
        self.numbers.append(number)
        self.changes.append(change)
        if number % _TRIM_EVERY == 0:
            old = bisect_right(self.numbers, number - KEPT * 1_000_000)
            if old:
                self.trimmed = self.numbers[old - 1]
                del self.numbers[:old], self.changes[:old]


class RamChanges:
    """The feeds of all tenants."""

    def __init__(self) -> None:
        """Start empty."""
        self._feeds: dict[tuple[str, str | None], _Changes] = {}
        self._last = 0

    def note(
        self,
        tenant: str,
        kind: int,
        owner: str,
        session: SessionInfo | None = None,
        ids: Sequence[str] = (),
    ) -> None:
        """Add a change to the feeds of its owner and of the tenant."""
        number = self._last = max(self._last + 1, microseconds())
        change = Change(kind=CHANGE_KINDS[kind], at=number / 1e6, owner=owner, ids=tuple(ids))
        if session:
            change = Change(
                kind=change.kind,
                at=change.at,
                owner=owner,
                session=session.id,
                key=session.key,
                ids=change.ids,
            )
        for whose in (owner, None):
            self._feeds.setdefault((tenant, whose), _Changes()).add(number, change)

    def read(self, tenant: str, wanted: Feed) -> FeedPage:
        """Return the changes after a position."""
        feed = self._feeds.get((tenant, wanted.owner)) or _Changes()
        after = feed.trimmed
        if wanted.after is not None:
            check_position(wanted.after, (int,))
            (given,) = wanted.after
            assert isinstance(given, int)
            check_trimmed(given, feed.trimmed)
            after = given
        elif not wanted.limit and feed.numbers:
            after = feed.numbers[-1]
        first = bisect_right(feed.numbers, after)
        end = min(first + wanted.limit, len(feed.numbers))
        return FeedPage(feed.changes[first:end], [feed.numbers[end - 1] if first < end else after])
