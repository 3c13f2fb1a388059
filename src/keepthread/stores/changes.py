"""Kinds of changes in the feed, and which records are announced; every backend does the same."""

import time
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol, runtime_checkable

from keepthread.errors import CursorExpired
from keepthread.stores.kinds import FACT, FOLD, MARKS, NOTE, PIN, RECEIPT, SYSTEM
from keepthread.types import Change, ChangeKind, Scope, SessionKey

KEPT: Final = 7 * 86_400
"""Seconds for which changes are kept."""

CHANGE_KINDS: Final[Sequence[ChangeKind]] = (
    "session_created",
    "session_updated",
    "session_deleted",
    "messages_added",
    "messages_erased",
    "fact_changed",
    "forgotten",
)
"""The kinds by the numbers that are stored; a new one is added at the end."""
CREATED, UPDATED, DELETED, ADDED, ERASED, FACT_CHANGED, FORGOTTEN = range(len(CHANGE_KINDS))

_OF_SESSION: Final = frozenset((MARKS, SYSTEM, PIN, NOTE, FOLD))
"""Records of a session that change what its contexts show."""
_OF_OWNER: Final = {FACT: FACT_CHANGED, RECEIPT: FORGOTTEN}
"""Records of an owner or of the tenant, and the change that each announces."""


def change_of_record(scope: Scope, kind: str) -> int | None:
    """Return the number of the change to announce for a record, or None."""
    if scope.session:
        return UPDATED if kind in _OF_SESSION else None
    return _OF_OWNER.get(kind)


READINGS: Final = 64
"""Changes whose times say together what time it is; also, the changes between two trimmings."""


def count_expired(times: Iterable[float], now: float) -> int:
    """Return how many of the oldest changes may be deleted; `times` are theirs, in their order.

    A clock may be wrong for a while, so nothing is deleted by one reading of it: `now` is the
    earliest time of the last `READINGS` changes. A change with a later time was written while the
    clock was ahead; it is deleted with the next one in the feed, which is younger. So a change is
    deleted early only while the clock is ahead for that many changes, and none is kept for good.
    """
    expired = 0
    for count, at in enumerate(times, 1):
        if at < now - KEPT:
            expired = count
        elif at <= now:
            break
    return expired


RECENT: Final = 32
"""Changed keys that are kept with the number of a list of records."""


class RecordChanges(NamedTuple):
    """The last changes of an owner's records of one kind, each with its number, latest last.

    A reader that has kept the records of a number reads again what changed after it. So the change
    is added in the transaction that makes it.
    """

    recent: Sequence[tuple[int, str]] = ()

    @property
    def number(self) -> int:
        """Return the number of the last change; 0 if there was none."""
        return self.recent[-1][0] if self.recent else 0

    def add(self, key: str) -> "RecordChanges":
        """Return the changes after one more.

        The clock only makes sure that numbers do not return after damage: none is read as a time.
        """
        number = max(self.number + 1, time.time_ns() // 1000)
        return RecordChanges([*self.recent[1 - RECENT :], (number, key)])

    def since(self, number: int) -> list[str] | None:
        """Return the keys that changed after a number; None if that is not known."""
        for place, (known, _) in enumerate(self.recent):
            if known == number:
                return list(dict.fromkeys(key for _, key in self.recent[place + 1 :]))
        return None


class FeedHolder(NamedTuple):
    """A transaction after whose beginning no change is shown until it ends."""

    transaction: str
    database: str | None
    """Where it runs; None if that is unknown."""
    seconds: float | None
    """How long it has run; None if the role may not read that."""


@runtime_checkable
class HoldableFeed(Protocol):
    """A store whose feed waits for transactions, which may be those of other programs."""

    async def feed_holder(self) -> FeedHolder | None:
        """Return the oldest transaction that the feed waits for, if there is one."""
        ...


def change_of(
    kind: int, at: float, owner: str, session: str, key: SessionKey, ids: Sequence[str]
) -> Change:
    """Return a change from what a backend stored; the key of a receipt ends with its id."""
    if kind == FORGOTTEN:
        ids = [id.rpartition(":")[2] for id in ids]
    return Change(
        kind=CHANGE_KINDS[kind], at=at, owner=owner, session=session, key=key, ids=tuple(ids)
    )


def join_ids(ids: Sequence[str]) -> str:
    """Return ids as one text; none of them contains a line break."""
    return "\n".join(ids)


def split_ids(text: str) -> tuple[str, ...]:
    """Return the ids that `join_ids` joined."""
    return tuple(text.split("\n")) if text else ()


def check_trimmed(after: int, trimmed: int) -> None:
    """Raise `CursorExpired` if changes after a position were deleted."""
    if after < trimmed:
        raise expired_cursor()


def expired_cursor() -> CursorExpired:
    """Return the error for a cursor after which changes were deleted."""
    return CursorExpired(
        "changes after this cursor were deleted (they are kept for 7 days); read everything, then "
        "continue from the current cursor (`limit=0`)"
    )
