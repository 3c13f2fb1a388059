"""Search in PostgreSQL: words with a GIN index, vectors with pgvector; each is one call."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from keepthread.recall.bm25 import newest
from keepthread.recall.corpus import CorpusStats
from keepthread.recall.positions import LENGTH_BITS, MESSAGE, MOST_LENGTH, MOST_SEQ
from keepthread.stores.postgres import records, sessions, words
from keepthread.stores.postgres import vectors as points
from keepthread.stores.postgres.engine import PgEngine, Rows
from keepthread.stores.postgres.log import decode
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.records import check_filter, check_places, check_segments, role_bits, sid_of
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

_SEGMENTS, _CHANGES, _UNREAD = 0, -1, -2  # not numbers of words; lower ones are of older places
_MESSAGE, _RECORD, _COPY = 1, 2, 3  # types of fetched rows
_UNKNOWN: Final = -1
_AT_ONCE: Final = 50  # sessions removed from an index in one transaction


class PostgresFinder:
    """The `Searchable` of one tenant; `number` returns the tenant's number."""

    def __init__(self, engine: PgEngine, number: Callable[[], Awaitable[int]]) -> None:
        """Search for one tenant."""
        self._engine = engine
        self._number = number

    async def unread(
        self, view: str, *, owner: str | None = None, session: SessionKey | None = None
    ) -> list[Unread]:
        scope = _scope(owner, session)
        values = (await self._number(), _name(view), *scope, MOST_SEQ)
        rows = await self._engine.call(SQL["unread"], values)
        await self._check_session(scope, rows)
        return [_unread(*row) for row in rows]

    async def index(
        self,
        view: str,
        read: Unread,
        until: int,
        parts: Sequence[Part],
        segments: Sequence[Segment],
    ) -> None:
        begun = _begun(view, read, until, [part.place for part in parts])
        check_segments(read, segments)
        tenant = await self._number()
        pieces = [
            [words.at_of(part.place) for part in parts],
            [part.tokens for part in parts],
            [part.flags for part in parts],
            [part.speaker.encode("utf-8", "surrogatepass") for part in parts],
            [words.text_of((tenant, view), part) for part in parts],
        ]
        runs = [[segment[field] for segment in segments] for field in range(1, 7)]
        await self._engine.call(SQL["index_words"], (tenant, *begun, *pieces, *runs))

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
        check_count(max_places, "max_places")
        scope = _scope(owner, session)
        name = _name(view)
        tenant = await self._number()
        asked = list(dict.fromkeys(words))
        cached = None if owner is None or session is not None else (tenant, view, owner)
        known, stats = self._engine.stats.get(cached) if cached else (_UNKNOWN, CorpusStats())
        values = (tenant, name, *_asked((tenant, view), asked), *scope, max_places, known, MOST_SEQ)
        if only is None:
            rows = await self._engine.call(SQL["places"], values)
        else:
            condition = (only.since, only.until, role_bits(only))
            rows = await self._engine.call(SQL["places_within"], (*values, *condition))
        await self._check_session(scope, rows)
        found, changes = _found(asked, rows, max_places, stats)
        if cached and changes is not None:
            self._engine.stats.keep(cached, changes, CorpusStats.of(found.segments))
        return found

    async def parts(self, view: str, places: Sequence[int]) -> list[Part]:
        name = _name(view)
        rows = await self._engine.call(SQL["parts"], (await self._number(), name, *_pieces(places)))
        return [
            Part(
                words.place_of(sid, at), (), tokens, flags, speaker.decode("utf-8", "surrogatepass")
            )
            for sid, at, tokens, flags, speaker in rows
        ]

    async def fetch(
        self,
        places: Sequence[int],
        *,
        kinds: Sequence[str] = (),
        copies_in: SessionKey | None = None,
    ) -> tuple[list[Placed], list[Record]]:
        for kind in kinds:
            check_id(kind, "kind")
        sids, ats = words.split(place >> MESSAGE << MESSAGE for place in places)
        seqs = [at >> MESSAGE for at in ats]
        own = None if copies_in is None else sid_of(copies_in)
        values = (await self._number(), sids, seqs, [kind.encode() for kind in kinds], own)
        rows = await self._engine.call(SQL["fetch"], values)
        found = [_placed(row) for row in rows if row[0] == _MESSAGE]
        placed = [each for each in found if each.message.state == "live"]
        shown = {own, *(int(each.session) for each in placed)}
        placed += [_placed(row) for row in rows if row[0] == _COPY]
        return placed, [_record(row) for row in rows if row[0] == _RECORD and row[1] in shown]

    async def put_vectors(
        self, view: str, read: Unread, until: int, vectors: Mapping[int, Embedding]
    ) -> None:
        begun = _begun(view, read, until, vectors)
        tenant = await self._number()
        columns = points.columns(vectors)
        await self._engine.call(SQL["put_vectors"], (tenant, *begun, *columns))
        await points.see_to_index(self._engine, tenant, _name(view), vectors)

    async def vectors(self, view: str, places: Sequence[int]) -> dict[int, Embedding]:
        values = (_name(view), *_pieces(places))
        rows = await self._engine.call(SQL["vectors_at"], (await self._number(), *values))
        kept = {
            words.place_of(sid, at) >> LENGTH_BITS: points.embedding(*row) for sid, at, *row in rows
        }
        return {p: kept[p >> LENGTH_BITS] for p in places if p >> LENGTH_BITS in kept}

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
        check_count(limit, "limit")
        scope = _scope(owner, session)
        tenant = await self._number()
        found = await points.nearest(self._engine, tenant, _name(view), scope, to, only, limit)
        await self._check_session(scope, found)
        return found

    async def drop_view(self, view: str) -> None:
        name = _name(view)
        tenant = await self._number()
        last: int | None = 0
        while last is not None:
            values = (tenant, name, last, _AT_ONCE)
            ((last,),) = await self._engine.call(SQL["drop_view"], values)

    async def _check_session(
        self, scope: tuple[bytes | None, int | None], found: Sequence[Any]
    ) -> None:
        """Raise `SessionGone` if nothing was found because the session was deleted."""
        if scope[1] is not None and not found:
            await sessions.by_sid(self._engine, await self._number(), scope[1])


def _name(view: str) -> bytes:
    return check_id(view, "view").encode()


def _scope(owner: str | None, session: SessionKey | None) -> tuple[bytes | None, int | None]:
    """Return the owner's name and the session's number, if given."""
    check_filter(owner, "owner")
    return (
        None if owner is None else owner.encode(),
        None if session is None else sid_of(session),
    )


def _begun(view: str, read: Unread, until: int, places: Iterable[int]) -> tuple[Any, ...]:
    """Return the index, the session, its epoch, and the range that was read."""
    name = _name(view)
    check_count(until, "until")
    sid = sid_of(read.session)
    check_places(read, until, places)
    return (name, sid, read.epoch, read.until, until)


def _unread(sid: int, until: int, last: int, epoch: int, *segment: Any) -> Unread:
    key = SessionKey(str(sid))
    begun = None if segment[0] is None else Segment(key, *segment)
    return Unread(key, until, last, epoch, begun)


def _asked(view: tuple[int, str], asked: Sequence[str]) -> tuple[list[str], list[int]]:
    return [words.letters_of(view, word) for word in asked], words.plain_ones(asked)


def _pieces(places: Iterable[int]) -> tuple[list[int], list[int]]:
    """Return the lowest places that the parts at places may have."""
    return words.split(place & ~MOST_LENGTH for place in places)


def _found(
    asked: Sequence[str], rows: Rows, max_places: int, known: CorpusStats
) -> tuple[Found, int | None]:
    """Return what was found, and the scope's count of changes if it has one.

    `known` are the statistics at the count that was sent with the query.
    """
    places: dict[str, list[int]] = {word: [] for word in asked}
    earlier: dict[str, list[int]] = {}
    segments: dict[int, list[Segment]] = {}
    base = CorpusStats()
    unread: list[Unread] = []
    changes: int | None = None
    for number, sid, data in rows:
        if number == _CHANGES:
            changes, base = sid, known if data else base
        elif number == _UNREAD:
            unread.append(words.unread_in(sid, data))
        elif number == _SEGMENTS:
            segments[sid] = list(words.segments_in(sid, data))
        elif number < _UNREAD:
            word = asked[int(_UNREAD - number - 1)]
            earlier.setdefault(word, []).extend(words.places_in(sid, data))
        else:
            places[asked[int(number - 1)]] += words.places_in(sid, data)
    last, older = newest({word: sorted(each) for word, each in places.items()}, max_places)
    for word, each in earlier.items():
        older[word] = sorted({*each, *older.get(word, ())})[-max_places:]
    if not base:
        base = CorpusStats.of([segment for some in segments.values() for segment in some])
    elif segments:
        base = base.changed(segments)
    return Found(last, base, unread or (), older), changes


def _placed(row: tuple[Any, ...]) -> Placed:
    _, sid, session, owner, epoch, _, *message = row
    key = SessionKey(str(sid))
    return Placed(key, session.decode(), owner.decode(), decode(sid, tuple(message)), epoch)


def _record(row: tuple[Any, ...]) -> Record:
    _, sid, _, _, _, intact, version, key, _, value, made_of, _, kind, *_ = row
    if not intact:
        raise records.damaged(kind, key)
    return records.record(sid, b"", kind, key, value, version, made_of)
