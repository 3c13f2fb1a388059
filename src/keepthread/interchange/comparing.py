"""Comparing what a copy made with what it was made of: position by position, record by record."""

from collections.abc import Iterator, Sequence
from typing import Final

from keepthread.errors import SessionGone
from keepthread.interchange.copying import (
    PAGE,
    Content,
    Contents,
    Copying,
    Difference,
    Pair,
    abreast,
    details,
    mapped,
    shelf,
)
from keepthread.protocols import Progress
from keepthread.types import Message, Scope, SessionInfo

_LAG: Final = 1.0  # a second by which a session's latest activity may lag behind
_IDENTITY: Final = ("owner", "kind", "parent", "forked_from", "created_at")
_COUNTS: Final = ("exchanges", "tokens")
_MESSAGE: Final = (
    *("id", "role", "digest", "exchange", "tokens", "counter", "total", "created_at", "state"),
)


class Comparison:
    """Looks at both stores behind a copy, and notes in what it did all that is not the same."""

    def __init__(self, copying: Copying) -> None:
        """Look at what a copy knows."""
        self._copying = copying
        self._source = copying.source
        self._target = copying.target
        self._done = copying.done
        self._progress: Progress | None = None

    async def run(self, progress: Progress | None = None) -> None:
        """Compare every session, and the shelves of owners and tenant.

        An erasure that the target has not seen yet is carried over.
        """
        self._progress = progress
        pairs = self._copying.pairs
        await abreast(pairs, self._session)
        for owner in await self._source.owners():
            await self._shelf(Scope(owner=owner), Scope(owner=owner), f"owner {owner!r}")
        await self._shelf(Scope(), Scope(), "the tenant")
        if await self._source.scan_sessions(after=pairs[-1].source if pairs else None, limit=1):
            self._note("sessions were made at the source meanwhile: run it again")

    def _note(self, what: str, session: str = "", seq: int = 0) -> None:
        self._done.differences.append(Difference(what, session, seq))

    async def _session(self, pair: Pair) -> None:
        try:
            session = await self._source.describe(pair.source)
        except SessionGone:
            if await self._target.get_session(pair.id):
                self._note("it was deleted at the source meanwhile, and is at the target", pair.id)
            return
        there = await self._target.describe(pair.target)
        sound = await self._log(pair, min(session.messages, there.messages))
        self._done.sessions += 1
        if (more := session.messages - there.messages) > 0:
            self._note(f"{more:,} messages came at the source meanwhile: run it again", pair.id)
            return
        if more < 0:
            self._note(f"{-more:,} messages came at the target meanwhile", pair.id)
        self._record(session, there, _IDENTITY + _COUNTS if sound else _IDENTITY)
        where = f"session {pair.id!r}"
        scopes = (Scope(session=pair.source), Scope(session=pair.target))
        await self._shelf(*scopes, where, pair.id)

    def _record(self, session: SessionInfo, there: SessionInfo, names: Sequence[str]) -> None:
        id = there.id
        if session.state == "damaged":
            self._done.damaged.append(f"the record of session {id!r}: owner, title and more")
            return
        if there.state == "damaged":
            self._note("its record at the target is damaged", id)
            return
        old, new = details(session), details(there)
        wrong = [name for name in old if old[name] != new[name]]
        wrong += [name for name in names if getattr(session, name) != getattr(there, name)]
        if there.updated_at < session.updated_at - _LAG:
            wrong.append("updated_at")
        if wrong:
            self._note(f"{', '.join(wrong)} differ", id)

    # --- messages ---

    async def _log(self, pair: Pair, upto: int) -> bool:
        """Compare two logs up to a position; tell whether nothing of the source's is damaged."""
        sound = True
        wrong: list[int] = []
        erased: list[int] = []
        after = 0
        while after < upto:
            mine = await self._source.read(pair.source, after=after, upto=upto, limit=PAGE)
            theirs = await self._target.read(pair.target, after=after, upto=upto, limit=PAGE)
            for old, new in _aligned(mine, theirs, after):
                if old and new and old.state == "erased" and new.state == "live":
                    erased.append(old.seq)
                elif old is None or new is None or not _same(old, new):
                    wrong.append((old or new or mine[0]).seq)
                if old and old.state == "damaged":
                    sound = False
                    self._done.damaged.append(f"message {old.seq} of session {pair.id!r}")
            after = min(after + PAGE, upto)
            self._done.messages += len(mine)
            if self._progress:
                self._progress(self._done.messages, max(self._copying.total, self._done.messages))
        wrong += await self._erase(pair, erased)
        if wrong:
            first = min(wrong)
            self._note(f"{len(wrong):,} messages differ, the first at {first:,}", pair.id, first)
        return sound

    async def _erase(self, pair: Pair, seqs: Sequence[int]) -> list[int]:
        """Carry erasures over; return the positions that are not the same even then."""
        if not seqs:
            return []
        await self._target.erase(pair.target, seqs)
        self._done.erased += len(seqs)
        old = await self._source.find(pair.source, seqs=seqs)
        new = await self._target.find(pair.target, seqs=seqs)
        return [a.seq for a, b in zip(old, new, strict=True) if not _same(a, b)]

    # --- shelves ---

    async def _shelf(self, source: Scope, target: Scope, where: str, id: str = "") -> None:
        mine, theirs = await shelf(self._source, source), await shelf(self._target, target)
        if mine is None:
            self._done.damaged.append(f"the shelf of {where}, left out")
            return
        self._done.records += len(mine)
        if theirs is None:
            self._note(f"the shelf of {where} is damaged at the target", id)
            return
        wrong = list(_unlike(self._copying.mapped(mine), mapped(theirs), own=bool(id)))
        if wrong:
            self._note(f"{len(wrong):,} records of {where} differ, as {wrong[0]}", id)


def _aligned(
    mine: Sequence[Message], theirs: Sequence[Message], after: int
) -> Iterator[tuple[Message | None, Message | None]]:
    """Yield what both logs hold at each position of a page."""
    old, new = ({message.seq: message for message in page} for page in (mine, theirs))
    for seq in range(after + 1, max([*old, *new], default=after) + 1):
        yield old.get(seq), new.get(seq)


def _same(mine: Message, theirs: Message) -> bool:
    if mine.state == "damaged":  # what it once was, nobody knows
        return theirs.state == "damaged"
    return all(getattr(mine, name) == getattr(theirs, name) for name in _MESSAGE)


def _unlike(mine: Contents, theirs: Contents, *, own: bool) -> Iterator[str]:
    """Yield the places of a shelf that differ; one that is not its own may hold more."""
    for place in mine.keys() | theirs.keys() if own else mine:
        old: Content | None = mine.get(place)
        new: Content | None = theirs.get(place)
        if old != new:
            only = "only at the target" if old is None else "missing" if new is None else "another"
            yield f"{'/'.join(place)} ({only})"
