"""The feed of changes in memory, for `RamStore`."""

import time
from bisect import bisect_right
from collections.abc import Sequence

from keepthread.stores.backend import Feed, FeedPage
from keepthread.stores.changes import (
    READINGS,
    RecordChanges,
    change_of,
    check_trimmed,
    count_expired,
)
from keepthread.stores.cursors import check_position
from keepthread.types import Change, Scope, SessionInfo, SessionKey


class _Changes:
    """The changes of one owner, or of a whole tenant, by number."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.changes: list[Change] = []
        self.trimmed = 0

    def add(self, number: int, change: Change) -> None:
        self.numbers.append(number)
        self.changes.append(change)
        if len(self.changes) % READINGS == 0:
            now = min(each.at for each in self.changes[-READINGS:])
            old = count_expired((each.at for each in self.changes), now)
            if old:
                self.trimmed = self.numbers[old - 1]
                del self.numbers[:old], self.changes[:old]


class RamChanges:
    """The feeds of all tenants."""

    def __init__(self) -> None:
        """Start empty."""
        self._feeds: dict[tuple[str, str | None], _Changes] = {}
        self._of_records: dict[tuple[str, str, str], RecordChanges] = {}
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
        self._last += 1
        about = (session.id, session.key) if session else ("", SessionKey(""))
        change = change_of(kind, time.time(), owner, *about, ids)
        for whose in (owner, None):
            self._feeds.setdefault((tenant, whose), _Changes()).add(self._last, change)

    def note_record(self, tenant: str, scope: Scope, change: int, kind: str, key: str) -> None:
        """Add the change of a record of an owner or of the tenant."""
        self.note(tenant, change, scope.owner, ids=(key,))
        place = (tenant, scope.owner, kind)
        self._of_records[place] = self.of_records(*place).add(key)

    def of_records(self, tenant: str, owner: str, kind: str) -> RecordChanges:
        """Return the last changes of the records of an owner or of the tenant."""
        return self._of_records.get((tenant, owner, kind)) or RecordChanges()

    def drop(self, tenant: str) -> None:
        """Delete the feeds of a tenant."""
        for place in [place for place in self._feeds if place[0] == tenant]:
            del self._feeds[place]
        for known in [known for known in self._of_records if known[0] == tenant]:
            del self._of_records[known]

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
