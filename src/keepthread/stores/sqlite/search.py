"""Search in a SQLite file: words with FTS5, vectors by comparing all of them."""

import sqlite3
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from json import dumps
from typing import TypeVar

from keepthread.errors import Damaged, KeepthreadError
from keepthread.recall.positions import MESSAGE, SEQ_BITS
from keepthread.stores.codec import decode
from keepthread.stores.records import check_filter, check_places, check_segments, sid_of
from keepthread.stores.sqlite import index, records, sessions, watermarks
from keepthread.stores.sqlite import vectors as embeddings
from keepthread.stores.sqlite.engine import Engine
from keepthread.stores.sqlite.index import SegmentCache
from keepthread.stores.sqlite.log import find
from keepthread.stores.sqlite.schema import SQL
from keepthread.stores.sqlite.watermarks import IndexScope
from keepthread.stores.validation import check_count, check_id
from keepthread.types import (
    Embedding,
    Found,
    MessageFilter,
    Part,
    Placed,
    Record,
    Segment,
    SessionKey,
    Unread,
)

T = TypeVar("T")
_PART_BYTES = 500  # about what a part takes in the write-ahead log


class SQLiteFinder:
    """The `Searchable` of one tenant in one file."""

    def __init__(self, engine: Engine, tenant: str, segments: SegmentCache) -> None:
        """Search for one tenant; the cache of segments is shared by all tenants."""
        self._engine = engine
        self._tenant = tenant
        self._segments = segments

    async def unread(
        self, view: str, *, owner: str | None = None, session: SessionKey | None = None
    ) -> list[Unread]:
        check_id(view, "view")
        scope = self._scope(owner, session)
        return await self._engine.read(lambda db: watermarks.unread(db, scope, view))

    async def index(
        self,
        view: str,
        read: Unread,
        until: int,
        parts: Sequence[Part],
        segments: Sequence[Segment],
    ) -> None:
        sid = _sid(view, read, until, [part.place for part in parts])
        check_segments(read, segments)
        tenant = self._tenant
        work = self._engine.write(
            lambda db: index.index(db, tenant, view, read, sid, until, parts, segments),
            len(parts) * _PART_BYTES,
        )
        await self._or_anew(work)

    async def places(
        self,
        view: str,
        words: Sequence[str],
        *,
        owner: str | None = None,
        session: SessionKey | None = None,
        only: MessageFilter | None = None,
        max_places: int = 5000,
    ) -> Found:
        check_id(view, "view")
        check_count(max_places, "max_places")
        scope = self._scope(owner, session)
        known = self._segments

        def find_places(db: sqlite3.Connection) -> Found:
            if only is None:
                found = index.places(db, known, scope, view, words, max_places)
            else:
                found = index.places_within(db, known, scope, view, words, only, max_places)
            return found._replace(unread=watermarks.unread(db, scope, view))

        return await self._or_anew(self._at_one_moment(find_places))

    async def parts(self, view: str, places: Sequence[int]) -> list[Part]:
        check_id(view, "view")
        return await self._engine.read(lambda db: index.parts(db, self._tenant, view, places))

    async def fetch(
        self,
        places: Sequence[int],
        *,
        kinds: Sequence[str] = (),
        copies_in: SessionKey | None = None,
    ) -> tuple[list[Placed], list[Record]]:
        own = None if copies_in is None else sid_of(copies_in)
        return await self._at_one_moment(lambda db: _fetch(db, self._tenant, places, kinds, own))

    async def put_vectors(
        self, view: str, read: Unread, until: int, vectors: Mapping[int, Embedding]
    ) -> None:
        sid = _sid(view, read, until, vectors)
        tenant = self._tenant
        await self._engine.write(
            lambda db: embeddings.put(db, tenant, view, read, sid, until, vectors),
            sum(len(each.vectors) for each in vectors.values()),
        )

    async def vectors(self, view: str, places: Sequence[int]) -> dict[int, Embedding]:
        check_id(view, "view")
        return await self._engine.read(lambda db: embeddings.get(db, self._tenant, view, places))

    async def nearest(
        self,
        view: str,
        to: Embedding,
        *,
        owner: str | None = None,
        session: SessionKey | None = None,
        only: MessageFilter | None = None,
        limit: int = 300,
    ) -> list[int]:
        check_id(view, "view")
        check_count(limit, "limit")
        scope = self._scope(owner, session)
        return await self._engine.read(
            lambda db: embeddings.nearest(db, scope, view, to, only, limit)
        )

    async def drop_view(self, view: str) -> None:
        check_id(view, "view")
        await self._engine.write(lambda db: _drop_view(db, self._tenant, view))

    def _scope(self, owner: str | None, session: SessionKey | None) -> IndexScope:
        check_filter(owner, "owner")
        return IndexScope(self._tenant, owner, None if session is None else sid_of(session))

    async def _or_anew(self, work: Awaitable[T]) -> T:
        """Run a job on the word index; if the index is damaged, drop it and build it again."""
        try:
            return await work
        except Damaged:
            with suppress(KeepthreadError):
                await self._engine.write(index.drop)
            raise

    async def _at_one_moment(self, work: Callable[[sqlite3.Connection], T]) -> T:
        def run(db: sqlite3.Connection) -> T:
            db.execute("BEGIN")
            try:
                return work(db)
            finally:
                db.execute("COMMIT")

        return await self._engine.read(run)


def _sid(view: str, read: Unread, until: int, places: Iterable[int]) -> int:
    check_id(view, "view")
    check_count(until, "until")
    sid = sid_of(read.session)
    check_places(read, until, places)
    return sid


def _drop_view(db: sqlite3.Connection, tenant: str, view: str) -> None:
    row = db.execute(SQL["view"], (view,)).fetchone()
    if row is not None and row[1]:
        index.drop(db)  # other tenants' too: removing one by one would take far longer
    elif row is not None:
        embeddings.drop(db, tenant, row[0])


def _fetch(
    db: sqlite3.Connection,
    tenant: str,
    places: Sequence[int],
    kinds: Sequence[str],
    own: int | None,
) -> tuple[list[Placed], list[Record]]:
    messages = sorted({place >> MESSAGE for place in places})
    sids = dict.fromkeys(message >> SEQ_BITS for message in messages)
    named = {sid: sessions.readable(db, tenant, sid) for sid in sids}
    named = {sid: its for sid, its in named.items() if its}
    read = [message for message in messages if message >> SEQ_BITS in named]
    placed: list[Placed] = []
    for sid, *row in db.execute(SQL["messages_at"], (dumps(read),)):
        found = decode(sid, tuple(row))
        if found.state == "live":
            id, owner, epoch = named[sid]
            placed.append(Placed(SessionKey(str(sid)), id, owner, found, epoch))
    if own is not None:
        ids = [each.message.id for each in placed if each.session != str(own)]
        placed += _copies(db, tenant, own, ids) if ids else []
    with_records = named.keys() if own is None else named.keys() | {own}
    return placed, records.scan_sessions(db, tenant, sorted(with_records), kinds)


def _copies(db: sqlite3.Connection, tenant: str, sid: int, ids: Sequence[str]) -> list[Placed]:
    """Return the messages of a session with some ids."""
    key = SessionKey(str(sid))
    id, owner, epoch = sessions.readable(db, tenant, sid) or ("", "", 0)
    return [Placed(key, id, owner, each, epoch) for each in find(db, tenant, sid, ids, ())]
