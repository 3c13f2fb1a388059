"""Search: index new messages, and find messages related to a question.

The index is a view of the log that is updated in the background. A search first indexes what was
written since, so that it sees the newest message. A context does not wait for a long backlog: it
uses what is indexed, says so in its notes, and the rest is indexed in the background.
"""

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from math import inf
from typing import Any, Final, NamedTuple

from keepthread.context.hidden import HiddenRanges
from keepthread.errors import (
    InvalidInput,
    ReadOnly,
    SessionNotFound,
    Unsupported,
)
from keepthread.memory.material import marks_of
from keepthread.memory.runtime import Background
from keepthread.memory.search.indexing import Indexing
from keepthread.memory.search.ranking import CANDIDATES, SearchScope, ranked
from keepthread.memory.search.vectors import Vectors
from keepthread.protocols import Progress, Recalled, Recollection, Searchable, Store
from keepthread.recall.bm25 import NOTHING
from keepthread.recall.chunks import pieces_of
from keepthread.recall.corpus import CorpusStats
from keepthread.recall.positions import MESSAGE, SEQ_BITS, VIEW, part_of, span
from keepthread.recall.query import Query, query_of
from keepthread.recall.rank import Ranked
from keepthread.recall.snippet import snippet
from keepthread.recall.weights import DEFAULT, Weights
from keepthread.stores.cursors import decode_cursor, encode_cursor
from keepthread.stores.kinds import MARKS
from keepthread.stores.validation import check_count, check_text, show
from keepthread.types import (
    Hidden,
    Message,
    MessageFilter,
    Page,
    Placed,
    Record,
    Role,
    SessionKey,
    Unread,
)

NO_EXCHANGE: Final = -1
_AT_ONCE: Final = 400
"""Maximum backlog that a context indexes before it recalls."""
_LEAST: Final = 120
_SHORT: Final = 10
"""Tokens of a short piece: a context's room divided by it gives the number of candidates."""
_MAX_OWNERS: Final = 10_000
"""Owners whose vectors are known to have been checked."""
_SHOWN: Final = 60
"""Characters of a snippet in the representation of a hit."""
_ROLES: Final = ("user", "assistant", "tool", "system")


class Hit(NamedTuple):
    """A message that a search found."""

    session: str
    """The session's id."""
    owner: str
    message: Message
    score: float
    snippet: str
    reason: str
    """Why it was found, such as the words it shares with the question."""

    def __repr__(self) -> str:
        """Return where the message is, its score and its beginning."""
        text = self.snippet if len(self.snippet) <= _SHOWN else f"{self.snippet[:_SHOWN]}…"
        place = f"session={self.session!r}, owner={self.owner!r}, seq={self.message.seq}"
        return f"Hit({place}, score={self.score:.2f}, snippet={text!r})"


class Filters(NamedTuple):
    """Restrictions of a search; None means no restriction."""

    owner: str | None = None
    session: str | None = None
    since: float | None = None
    until: float | None = None
    roles: Collection[Role] | None = None

    def check(self) -> "Filters":
        """Refuse invalid values."""
        for name, at in (("since", self.since), ("until", self.until)):
            if at is not None and type(at) not in (int, float):
                raise InvalidInput(f"{name} must be seconds since 1970, not {show(at)}")
        for role in self.roles or ():
            if role not in _ROLES:
                raise InvalidInput(f"there is no role {role!r}; there are {', '.join(_ROLES)}")
        return self

    @property
    def only(self) -> MessageFilter | None:
        """Return the filter for single messages, or None if all match."""
        if self.since is None and self.until is None and not self.roles:
            return None
        return MessageFilter(
            -inf if self.since is None else self.since,
            inf if self.until is None else self.until,
            self.roles or None,
        )


class Asker(NamedTuple):
    """The turn in which a model searches: it finds only what a context could recall."""

    session: SessionKey
    turn: int
    """The number of its turn, which the model already sees."""


class Relevant(NamedTuple):
    """Where the messages are that relate to a question, the best first."""

    best: Sequence[Ranked] = ()
    stats: CorpusStats = CorpusStats()
    notes: Sequence[str] = ()
    """Reasons why it may be incomplete."""


class Searching:
    """Finds messages related to a question, in one store."""

    def __init__(
        self,
        store: Store,
        *,
        background: Background,
        vectors: Vectors | None = None,
        weights: Weights | None = None,
    ) -> None:
        """Search a store; `vectors` find other words for the same thing."""
        self.store = store
        self.vectors = vectors
        self.weights = weights or DEFAULT
        self._background = background
        self._indexing = Indexing(store)
        self._read_for: set[str] = set()
        """Owners whose vectors this process has begun to update."""

    async def finder(self) -> Searchable:
        """Return the store's index of words, or raise an error if it has none."""
        found = await self.store.finder()
        if found is None:
            raise Unsupported(
                "this store has no word index, so it does not support search, recall or facts; use "
                "SQLite or PostgreSQL"
            )
        return found

    def warm(self) -> None:
        """Load the embedder in the background, so that the first question has vectors."""
        if vectors := self.vectors:
            self._background.soon("embedder", lambda: vectors.asked("How warm is it?", within=0))

    async def close(self) -> None:
        """Cancel the questions that are being embedded."""
        if self.vectors:
            await self.vectors.close()

    # --- indexing ---

    async def catch_up(
        self,
        *,
        owner: str | None = None,
        session: SessionKey | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Index new messages, by words and by vectors."""
        finder = await self.finder()
        await self._indexing.catch_up(finder, owner=owner, session=session, progress=progress)
        if self.vectors:
            await self.vectors.catch_up(
                self.store, finder, owner=owner, session=session, progress=progress
            )

    def soon(self, owner: str | None) -> None:
        """Index an owner's conversations, or all, in the background."""
        self._background.soon((self, owner), lambda: self.catch_up(owner=owner))

    # --- by hand ---

    async def search(
        self,
        query: str,
        filters: Filters,
        *,
        limit: int,
        cursor: str | None = None,
        progress: Progress | None = None,
        asker: Asker | None = None,
    ) -> Page[Hit]:
        """Return the messages most related to a question, the best first.

        With an `asker`, hidden messages and those of its own turn are left out. The pages are parts
        of one ranking of the best few hundred; it is made again for each of them.
        """
        filters.check()
        of = (*filters[:4], sorted(filters.roles or ()), query)
        check_count(limit, "limit")
        check_text(query, "a query")
        finder = await self.finder()
        session = await self._key(filters)
        with suppress(ReadOnly):  # then only what was indexed before is searched
            await self._indexing.catch_up(
                finder, owner=filters.owner, session=session, progress=progress
            )
        if self.vectors:
            self.soon(filters.owner)
        asked = query_of(query)
        only = filters.only
        ranking = await ranked(
            finder,
            asked,
            SearchScope(filters.owner, session, only),
            vectors=self.vectors,
            weights=self.weights,
            most=max(CANDIDATES, limit),
            neighbours=False,
        )
        start = 0 if cursor is None else _index_after(ranking.ranked, decode_cursor(of, cursor))
        seen: set[tuple[str, bytes]] = set()  # copies in forks count as one hit
        hits: list[tuple[int, int, Hit]] = []  # with its place, and its index in the ranking
        passed = 0
        for page in _paged(ranking.ranked, 2 * limit):
            found = _by_message(await self._placed(finder, page, asker))
            for each in page:
                passed += 1
                placed = found.get(each.place >> MESSAGE)
                if placed is None or not (only is None or only.admits(placed.message)):
                    continue
                key = (placed.message.id, placed.message.digest)
                if key not in seen and passed > start:
                    hits.append((each.place, passed - 1, _hit(placed, each, asked)))
                seen.add(key)
            if len(hits) > limit:
                break
        shown = hits[:limit]
        after = shown[-1][:2] if shown and len(hits) > limit else None
        return Page((hit for *_, hit in shown), cursor=after and encode_cursor(of, after))

    async def _placed(
        self, finder: Searchable, page: Sequence[Ranked], asker: Asker | None
    ) -> Sequence[Placed]:
        """Return the messages for a page of results, without those that the asker may not see."""
        places = [each.place for each in page]
        if asker is None:
            return (await finder.fetch(places))[0]
        placed, records = await finder.fetch(places, kinds=(MARKS,), copies_in=asker.session)
        hidden = _hidden_in(asker.session, records)
        return _shown(_not_hidden(asker.session, placed, hidden, asker.turn), records)

    async def _key(self, filters: Filters) -> SessionKey | None:
        if filters.session is None:
            return None
        info = await self.store.get_session(filters.session, filters.owner or "default")
        if info is None or not info.ready:
            raise SessionNotFound(f"there is no session {filters.session!r}")
        return info.key

    # --- for a context ---

    async def relevant(
        self,
        query: str,
        *,
        owner: str,
        session: SessionKey,
        everywhere: bool,
        before: int,
        room: int,
        relevant_only: bool,
    ) -> Relevant:
        """Rank messages by how they relate to a question, for a context with `room` tokens.

        `before` is the first position of that session that the context shows anyway; `everywhere`
        recalls from all the owner's sessions. `relevant_only` leaves room unused rather than fill
        it with messages that have little to do with the question. `recalled` reads the messages.
        """
        finder = await self.store.finder()
        if finder is None:
            return Relevant(notes=("this store has no word index",))
        scope = None if everywhere else session
        notes: list[str] = []

        async def read_on(unread: Sequence[Unread]) -> bool:
            # The messages that the window shows need not be found.
            due = [u for u in unread if u.session != session or u.until + 1 < before]
            backlog = sum(u.last - u.until for u in due)
            return await self._ready(finder, owner, scope, backlog, notes)

        asked = query_of(query)
        if not asked.words:
            await read_on(await finder.unread(VIEW, owner=owner, session=scope))
            return Relevant(notes=notes)
        first, last = shown = span(int(session), before) if before else NOTHING
        ranking = await ranked(
            finder,
            asked,
            SearchScope(owner, scope),
            vectors=self.vectors,
            weights=self.weights,
            most=max(_LEAST, min(CANDIDATES, room // _SHORT)),
            shown=shown,
            read_on=read_on,
        )
        if self.vectors and not ranking.by_vectors:
            notes.append("the embedder timed out: ranked by words only")
        some = ranking.relevant() if relevant_only else ranking.ranked
        older = [each for each in some if not first <= each.place <= last]
        best = list(ranking.that_may_fit(older, room))
        return Relevant(best, ranking.stats, notes)

    async def recalled(
        self, found: Relevant, session: SessionKey, hidden: Sequence[Hidden] | None = None
    ) -> Recalled:
        """Return the messages that were ranked, without those that a session hides.

        Without `hidden`, these are the ranges that it hides now.
        """
        if not found.best:
            return Recalled(notes=found.notes)
        hits = await self._fetched(await self.finder(), found.best, found.stats, session, hidden)
        return Recalled(hits, found.notes)

    async def _ready(
        self,
        finder: Searchable,
        owner: str,
        session: SessionKey | None,
        backlog: int,
        notes: list[str],
    ) -> bool:
        """Index what is unread, if a context needs some of it and the backlog is short.

        `backlog` are the messages that it needs. Add notes about it, and return whether anything
        was indexed.
        """
        done = False
        with suppress(ReadOnly):
            if 0 < backlog <= _AT_ONCE:
                await self._indexing.catch_up(finder, owner=owner, session=session)
                done = True
        if backlog > _AT_ONCE or (self.vectors and (backlog or owner not in self._read_for)):
            if len(self._read_for) >= _MAX_OWNERS:
                self._read_for.clear()  # at worst an owner's vectors are checked once more
            self._read_for.add(owner)
            self.soon(owner)
        if backlog > _AT_ONCE:
            notes.append(f"{backlog:,} messages are not indexed yet")
        return done

    async def _fetched(
        self,
        finder: Searchable,
        best: Sequence[Ranked],
        stats: CorpusStats,
        session: SessionKey,
        hidden: Sequence[Hidden] | None,
    ) -> list[Recollection]:
        """Return pieces with their messages, without those that a session hides."""
        placed, records = await finder.fetch(
            [each.place for each in best], kinds=(MARKS,), copies_in=session
        )
        if hidden is None:
            hidden = _hidden_in(session, records)
        live = _shown(_not_hidden(session, placed, hidden), records)
        found = {key: (each, pieces_of(each.message)) for key, each in _by_message(live).items()}
        hits: list[Recollection] = []
        for each in best:
            key, part = each.place >> MESSAGE, part_of(each.place)
            if key not in found or part >= len(found[key][1]):
                continue
            (session, id, _, message, epoch), pieces = found[key]
            began = stats.began(key)
            hits.append(
                Recollection(
                    session,
                    id,
                    message,
                    pieces[part],
                    part,
                    # A message that was indexed in the meantime is read from its own index entry.
                    message.created_at if began is None else began,
                    each.score,
                    each.reason,
                    epoch,
                )
            )
        return hits


def _hidden_in(session: SessionKey, records: Sequence[Record]) -> Sequence[Hidden]:
    """Return the ranges that a session hides, by these records."""
    return marks_of([record for record in records if record.scope.session == session]).hidden


def _shown(placed: Sequence[Placed], records: Sequence[Record]) -> list[Placed]:
    """Return the messages that their own sessions do not hide, by these records."""
    marks = {record.scope.session: HiddenRanges.from_json(record.value) for record in records}
    return [
        each
        for each in placed
        if each.session not in marks or not marks[each.session].hides(each.message.seq)
    ]


def _not_hidden(
    session: SessionKey,
    placed: Sequence[Placed],
    hidden: Sequence[Hidden],
    turn: int = NO_EXCHANGE,
) -> list[Placed]:
    """Leave out copies of messages that a session hides, has erased, or has in a turn.

    A fork and its source hold copies of the same messages, and each hides its own.
    """
    marks = HiddenRanges.of(hidden)
    gone = {
        each.message.id
        for each in placed
        if each.session == session
        and (
            each.message.state != "live"
            or marks.hides(each.message.seq)
            or each.message.turn == turn
        )
    }
    return [each for each in placed if each.message.id not in gone]


def _by_message(placed: Sequence[Placed]) -> dict[int, Placed]:
    return {int(each.session) << SEQ_BITS | each.message.seq: each for each in placed}


def _hit(placed: Placed, ranked: Ranked, asked: Query) -> Hit:
    pieces, part = pieces_of(placed.message), part_of(ranked.place)
    text = pieces[part] if part < len(pieces) else placed.message.content
    return Hit(
        placed.id,
        placed.owner,
        placed.message,
        ranked.score,
        snippet(text, asked.words),
        ranked.reason,
    )


def _index_after(ranked: Sequence[Ranked], last: Sequence[Any]) -> int:
    """Return where to continue: after the last hit, or where it was before it was erased."""
    place, index = last
    return next((n for n, each in enumerate(ranked, start=1) if each.place == place), index)


def _paged(ranked: Sequence[Ranked], size: int) -> Iterator[Sequence[Ranked]]:
    for start in range(0, len(ranked), max(1, size)):
        yield ranked[start : start + size]
