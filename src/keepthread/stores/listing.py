"""Pages of sessions by activity, with filters, over any backend; and pages of records."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from keepthread.protocols import Store
from keepthread.stores.backend import Backend, Listing, Position
from keepthread.stores.cursors import (
    check_position,
    decode_cursor,
    decode_name,
    encode_cursor,
    unreadable_cursor,
)
from keepthread.stores.validation import check_count, check_text, check_time
from keepthread.types import JSON, Page, Record, Scope, SessionInfo, SessionKey

_BATCH: Final = 200
_MOST_PASSED: Final = 1000
"""Maximum number of non-matching sessions that one call skips."""


class _State(NamedTuple):
    """How far the pages have come.

    First they go down from the latest activity. A session that becomes active in the meantime moves
    up, perhaps from below to above the place reached. So at the end they go up from where they
    began: there, a session that moves again stays ahead.
    """

    top: Position | None = None
    """Where the first page began; None before it."""
    last: Position | None = None
    """The last session that was read."""
    goes_up: bool = False

    def listing(self, limit: int) -> Listing:
        if self.goes_up:
            return Listing(limit, after=self.last)
        return Listing(limit, before=self.last)

    def past(self, place: Position) -> "_State":
        return self._replace(top=self.top or place, last=place)


class SessionListing:
    """A list of sessions, of one owner or of all, that is read in pages."""

    def __init__(
        self, backend: Backend, tenant: str, owner: str | None, tag: str | None, title: str | None
    ) -> None:
        """Take the filters; None means no filter."""
        self._backend = backend
        self._tenant = tenant
        self._owner = owner
        self._tag = None if tag is None else check_text(tag, "tag")
        self._title = None if title is None else check_text(title, "title").casefold()
        self._is_filtered = tag is not None or title is not None
        self._of: Sequence[JSON] = ("sessions", tenant, owner, self._tag, self._title)

    async def page(self, limit: int, cursor: str | None) -> Page[SessionInfo]:
        """Return a page from the start, or from a cursor."""
        state = _State() if cursor is None else self._state(decode_cursor(self._of, cursor))
        found: Page[SessionInfo] = Page()
        read = 0
        while limit and read - len(found) < _MOST_PASSED:
            size = limit - len(found) + 1  # one more, to know whether there is more
            if self._is_filtered:
                size = _BATCH
            rows = await self._backend.list_sessions(self._tenant, self._owner, state.listing(size))
            for place, session in rows:
                if self._matches(session):
                    if len(found) == limit:
                        found.next = self._cursor(state)
                        return found
                    found.append(session)
                state = state.past(place)
            read += len(rows)
            if len(rows) < size:
                is_first = cursor is None and read == len(rows)
                if state.goes_up or state.top is None or is_first:
                    return found
                state = _State(state.top, state.top, goes_up=True)
        if limit:
            found.next = self._cursor(state)
        return found

    def _matches(self, session: SessionInfo) -> bool:
        if self._tag is not None and self._tag not in session.tags:
            return False
        return self._title is None or self._title in session.title.casefold()

    def _cursor(self, state: _State) -> str:
        assert state.top
        assert state.last
        return encode_cursor(self._of, [*state.top, *state.last, state.goes_up])

    def _state(self, position: Sequence[object]) -> _State:
        try:
            at, key, last_at, last_key, goes_up = position
            top = Position(check_time(at, "at"), SessionKey(check_text(key, "key")))
            last = Position(check_time(last_at, "at"), SessionKey(check_text(last_key, "key")))
        except ValueError:
            raise unreadable_cursor() from None
        return _State(top, last, goes_up is True)


_FIRST_BATCH: Final = 8
_FIRST: Final = Position(0.0, SessionKey("0"))


async def idle_page(
    backend: Backend, tenant: str, before: float, limit: int, cursor: str | None
) -> Page[SessionInfo]:
    """Return a page of the sessions without activity since a time: the listed ones, then others."""
    of: Sequence[JSON] = ("idle", tenant, before)
    unlisted, last = False, _FIRST
    if cursor is not None:
        position = decode_cursor(of, cursor)
        check_position(position, (bool, float, str))
        unlisted, last = position[0], Position(check_time(position[1], "at"), position[2])
    found: Page[SessionInfo] = Page()
    size = _FIRST_BATCH  # if nothing is idle, only a little is read
    while len(found) < limit:
        wanted = Listing(min(size, limit - len(found)), after=last, unlisted=unlisted)
        size *= 4
        rows = await backend.list_sessions(tenant, None, wanted)
        idle = [row for row in rows if row[0].at < before]
        found += [session for _, session in idle if session.updated_at < before]
        last = idle[-1][0] if idle else last
        if len(idle) < wanted.limit:
            if unlisted:
                return found
            unlisted, last = True, _FIRST
    if limit:
        found.next = encode_cursor(of, [unlisted, *last])
    return found


async def record_page(
    store: Store, scope: Scope, kind: str, of: Sequence[JSON], limit: int, cursor: str | None
) -> Page[Record]:
    """Return a page of the records of one kind, the last key first; `of` names the list."""
    before = None if cursor is None else decode_name(of, cursor)
    if not check_count(limit, "limit"):
        return Page()
    found = await store.scan(scope, kind, before=before, limit=limit + 1)
    page = found[::-1][:limit]
    more = len(found) > limit
    return Page(page, cursor=encode_cursor(of, [page[-1].key]) if more else None)
