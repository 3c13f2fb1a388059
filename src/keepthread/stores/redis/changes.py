"""The feed of changes in Redis.

Every session, and the records of every owner, has a stream of its changes, in the same slot; so the
script that changes something also adds the change. Which streams to read is announced before, in
the index of the tenant: for every second, a *period*, the places where something may have changed.
A script that comes too late for its period is refused and announced again. So a period that is over
is complete, and readers go from one to the next.

Links are announced before as well: entries of the index that lead from a session to records and
sessions that may repeat its messages (see `stores.links`).
"""

import json
import logging
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, cast

from keepthread.errors import Damaged, StorageFull
from keepthread.stores.backend import Feed, FeedPage
from keepthread.stores.changes import KEPT, change_of, expired_cursor
from keepthread.stores.cursors import check_position, unreadable_cursor
from keepthread.stores.links import digest_of
from keepthread.stores.redis.engine import LUA, Argument, PeriodOver, RedisCluster, RedisLink
from keepthread.stores.redis.keys import (
    Place,
    changed_place,
    index_of,
    owner_tag,
    place_in_index,
    place_name,
)
from keepthread.types import Change, Scope, SessionKey

_log: Final = logging.getLogger("keepthread")
_MOST_ANNOUNCED: Final = 10_000
_SKEW: Final = 2
"""Seconds by which the clocks of a cluster may differ."""
_PLACES_AT_ONCE: Final = 50
_CHANGES_AT_ONCE: Final = 200
_CHANGES_OF_ONE: Final = 1000
_PERIOD: Final = 10
"""Digits of a period."""


class _Period(NamedTuple):
    number: int
    ends: float
    """On the clock of this process; the script decides by the server's."""


class Announcer:
    """Announces where something is about to change; a place needs it once in a period."""

    def __init__(self, link: RedisLink) -> None:
        """Announce by a link."""
        self.link = link
        self._periods: dict[str, _Period] = {}

    async def period(self, tenant: str, place: Place, owner: str, earliest: int) -> int:
        """Return a period that is announced for a place, none before the earliest."""
        known = self._periods.get(place.changes)
        if known and known.number >= earliest and time.monotonic() < known.ends:
            return known.number
        index = index_of(tenant)
        keys = (index.feed, index.feed_of(owner), index.feed_state)
        args = (place_name(place, owner), earliest, KEPT, owner_tag(owner))
        asked = time.monotonic()
        number, left = await self.link.run(LUA["changed"], keys, args)
        if len(self._periods) >= _MOST_ANNOUNCED:
            self._periods.clear()
        self._periods[place.changes] = _Period(number, asked + left / 1000)
        return number


class PlaceWriter:
    """Runs scripts that change a session, or the records of an owner, and announces the changes."""

    def __init__(
        self, announcer: Announcer, tenant: str, place: Place, owner: str, session: str = ""
    ) -> None:
        """Write at a place; a session has an id."""
        self.link = announcer.link
        self.place = place
        self._announcer = announcer
        self._tenant = tenant
        self._owner = owner
        self._session = session

    async def name(self, ids: Sequence[str]) -> None:
        """Announce that a session names others of its owner."""
        place = place_in_index(Scope(session=self.place.key))
        sources = [named(self._owner, id) for id in ids]
        await enter(self.link, self._tenant, sources, place)

    async def begin(self, id: str, at: float) -> None:
        """Announce the first message of a session."""
        place = place_in_index(Scope(session=self.place.key))
        await enter(self.link, self._tenant, [begun_with(self._owner, id, at)], place)

    async def run(
        self,
        script: str,
        args: Sequence[Argument],
        kind: int | None,
        ids: Sequence[str] = (),
        *,
        again: Sequence[Argument] | None = None,
        frees: bool = False,
    ) -> Any:
        """Run a script that makes a change of some kind; None announces nothing.

        A script that `frees` memory is also run if the memory is too full to announce it.
        """
        place = self.place
        keys = (*place.keys, place.changes)
        change = json.dumps([kind, self._owner, self._session, place.key, [*ids]]).encode()
        period = earliest = 0
        while True:
            if kind is not None:
                try:
                    period = await self._announcer.period(
                        self._tenant, place, self._owner, earliest
                    )
                except StorageFull:
                    if not frees:
                        raise
                    _log.warning("Redis is out of memory: a change is missing from the feed")
                    kind, period = None, 0
            second = None if again is None else (*again, period, change)
            try:
                return await self.link.run(LUA[script], keys, (*args, period, change), again=second)
            except PeriodOver as late:
                earliest = late.period


async def enter(link: RedisLink, tenant: str, sources: Iterable[str], place: str) -> None:
    """Add entries of the index that lead from sources to a place."""
    pairs = [part for source in sources for part in (source, place)]
    if pairs:
        await link.run(LUA["enter"], (index_of(tenant).links,), pairs)


async def entered(link: RedisLink, tenant: str, bounds: Sequence[str]) -> list[bytes]:
    """Return the places that entries between pairs of bounds lead to, each once."""
    found: list[bytes] = await link.run(LUA["entries"], (index_of(tenant).links,), bounds)
    return list(dict.fromkeys(found))


async def withdraw_entries(link: RedisLink, tenant: str, places: Sequence[str]) -> None:
    """Remove the entries that lead to places, or to all within them."""
    if places:
        await link.run(LUA["withdraw"], (index_of(tenant).links,), places)


def named(owner: str, id: str) -> str:
    """Return the source of entries that lead to sessions that name one."""
    return digest_of("named", owner, id)


def begun_with(owner: str, id: str, at: float) -> str:
    """Return the source of entries that lead to sessions with a first message."""
    return digest_of("first", owner, id, repr(at))


def bounds_of(source: str) -> tuple[str, str]:
    """Return the bounds of the entries of one source."""
    return f"[>{source}\0", f"(>{source}\1"


def spans_at(session: SessionKey, node: int) -> str:
    """Return the source of entries that lead to records made of a session."""
    return f"made:{session}:{node}"


def all_spans(session: SessionKey) -> tuple[str, str]:
    """Return the bounds of all entries that lead to records made of a session."""
    return f"[>made:{session}:", f"(>made:{session};"


async def read(link: RedisLink, tenant: str, wanted: Feed) -> FeedPage:
    """Return the changes after a position: `period:place`, and the number of a change there.

    The number 0 means that the period is read to its end at this place.
    """
    place, number = _position(wanted)
    found: list[Change] = []
    if wanted.after is None and not wanted.limit:
        expired, *last = await _places(link, tenant, wanted.owner, "+")
        return FeedPage(found, [last[0] if last else "", 0])
    ahead: list[str] = []
    is_last, width = False, 1
    while len(found) < wanted.limit:
        if not ahead:
            if is_last:
                break
            start = f"{'[' if number else '('}{place}" if place else "-"
            expired, *ahead = await _places(link, tenant, wanted.owner, start)
            if expired and wanted.after is not None:
                raise expired_cursor()
            is_last = len(ahead) < _PLACES_AT_ONCE
        # Several places at once, unless the first has more than is wanted.
        group = ahead[:width]
        most = min(wanted.limit - len(found), _CHANGES_AT_ONCE if width > 1 else _CHANGES_OF_ONE)
        streams = await link.ask_together(
            [_range(tenant, one, number if one == place else 0, most + 1) for one in group]
        )
        width = min(2 * width, _PLACES_AT_ONCE)
        for one, entries in zip(group, streams, strict=True):
            taken = entries[: min(most, wanted.limit - len(found))]
            found += [_decode(entry) for entry in taken]
            if len(taken) < len(entries):  # there is more: continue here
                if taken:
                    place, number = one, int(taken[-1][0].partition(b"-")[2])
                width = 1
                break
            place, number = one, 0
            del ahead[0]
    return FeedPage(found, [place, number])


def _position(wanted: Feed) -> tuple[str, int]:
    if wanted.after is None:
        return "", 0
    check_position(wanted.after, (str, int))
    place, number = cast(tuple[str, int], tuple(wanted.after))
    digits = place[:_PERIOD]
    if place and not (digits.isascii() and digits.isdecimal() and place[_PERIOD:][:1] == ":"):
        raise unreadable_cursor()
    return place, number


async def _places(link: RedisLink, tenant: str, owner: str | None, start: str) -> list[Any]:
    index = index_of(tenant)
    feed = index.feed if owner is None else index.feed_of(owner)
    field = "trimmed" if owner is None else f"trimmed:{owner_tag(owner)}"
    wait = _SKEW if isinstance(link.client, RedisCluster) else 0
    args = (start, KEPT, _PLACES_AT_ONCE, wait, field)
    expired, *places = await link.run(LUA["feed"], (feed, index.feed_state), args)
    return [expired, *(place.decode() for place in places)]


def _range(tenant: str, place: str, number: int, most: int) -> tuple[Argument, ...]:
    """Return the command that reads the changes of one period at one place, after a number."""
    period = int(place[:_PERIOD])
    stream = changed_place(tenant, place[_PERIOD + 1 :])
    return ("XRANGE", stream, f"{period}-{number + 1}", f"{period}", "COUNT", most)


def _decode(entry: tuple[bytes, Any]) -> Change:
    try:
        fields: dict[bytes, bytes] = entry[1]
        kind, owner, session, key, ids = json.loads(fields[b"change"])
        at = float(fields[b"at"])
        return change_of(cast(int, kind), at, owner, session, SessionKey(key), ids)
    except (ValueError, TypeError, KeyError, IndexError):
        raise Damaged("a change in the feed is damaged; continue from the present") from None
