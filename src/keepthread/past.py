"""Looking back: what a context tells of the time before its window, at a cost by what it tells."""

import asyncio
from collections.abc import Sequence
from typing import Any, Final, cast

from keepthread.context.marks import Marks
from keepthread.context.window import Reach
from keepthread.gather import standing_alone
from keepthread.protocols import Material, Past, Store
from keepthread.types import (
    Digest,
    Hidden,
    Importance,
    Message,
    Record,
    Scope,
    SessionKey,
    Span,
    Summary,
)

FOLD: Final = "fold"
DIGEST: Final = "digest"
_AT_ONCE: Final = 2
"""Summaries that are read first: mostly one of them will do."""
_MOST: Final = 16
"""How many are looked at once there is one that would do."""
_MOST_GAP: Final = 120
"""Messages between summary and window that are looked at."""


async def look_back(
    store: Store,
    session: SessionKey,
    material: Material,
    reach: Reach,
    *,
    budget: int,
    digest_from: int,
) -> Past:
    """Return what is known of the messages before a window.

    Nothing that was made after the window's last step is taken, if there is something older, so
    that a context changes at steps alone.
    """
    summary = await newest_summary(
        store, session, material.hidden, before=reach.first, made_by=reach.stepped
    )
    gap, kept, digests = await asyncio.gather(
        _gap(store, session, material, reach.first, summary, budget),
        _kept(store, session, material, summary),
        _digests(store, session, material, reach.first, digest_from),
    )
    return Past(summary, gap, digests, kept)


def position_key(seq: int) -> str:
    """Return the key of a record that belongs to a position; keys are in the positions' order."""
    return f"{seq:016}"


async def newest_summary(
    store: Store,
    session: SessionKey,
    hidden: Sequence[Hidden],
    *,
    before: int,
    made_by: int | None = None,
) -> Summary | None:
    """Return the newest summary that ends before a position and touches nothing hidden.

    One made when the log did not go beyond `made_by` is taken before a newer one.
    """
    scope = Scope(session=session)
    second: Record | None = None
    looked, most = 0, _AT_ONCE
    while second is None or looked < most:
        limit = max(_AT_ONCE, most - looked)
        found = await store.scan(scope, FOLD, before=position_key(before), limit=limit)
        if not looked and made_by is not None:
            most = _made_since(made_by, found)
        for record in reversed(found):
            looked += 1
            value = cast(dict[str, Any], record.value)
            before = value["last"]
            if touched := _touched(record.made_of, hidden):
                before = touched  # no other down to what is hidden is of use
                break
            if made_by is None or value["head"] <= made_by:
                return summary_of(record)
            second = second or record
        if not found:
            break
    return summary_of(second) if second else None


def _made_since(head: int, newest: Sequence[Record]) -> int:
    """Return how many summaries may have been made since the log ended at a position.

    Each takes as many messages as the newest; twice as many are allowed for, and there is an end.
    """
    if len(newest) < _AT_ONCE:
        return len(newest)
    before, last = (cast(dict[str, Any], record.value) for record in newest[-_AT_ONCE:])
    each = max(1, last["last"] - before["last"])
    return min(_MOST, _AT_ONCE + 2 * (last["head"] - head) // each)


def _touched(spans: Sequence[Span], hidden: Sequence[Hidden]) -> int:
    """Return the first hidden position that a summary was made of, or 0."""
    touched = [
        max(span.first, each.first)
        for span in spans
        for each in hidden
        if span.first <= each.last and each.first <= span.last
    ]
    return min(touched, default=0)


def summary_of(record: Record) -> Summary:
    """Return the summary that a fold left."""
    value = cast(dict[str, Any], record.value)
    return Summary(
        text=value["text"],
        last=value["last"],
        tokens=value["tokens"],
        exchange=value["exchange"],
        number=value["number"],
        origin=value["origin"],
        spans=tuple(record.made_of),
        kept=tuple((seq, score, reason) for seq, score, reason in value["kept"]),
        head=value["head"],
        by=value["by"],
    )


async def _gap(
    store: Store,
    session: SessionKey,
    material: Material,
    first: int,
    summary: Summary | None,
    budget: int,
) -> Sequence[Message]:
    """Return the newest visible messages between a summary and a window, oldest first."""
    after = summary.last if summary else material.first - 1
    read = [m for m in material.messages if after < m.seq < first][-_MOST_GAP:]
    upto = read[0].seq if read else first
    left = budget - sum(m.tokens for m in read)
    marks = Marks(hidden=material.hidden)
    while left > 0 and len(read) < _MOST_GAP:
        span = marks.visible_before(upto)
        if span is None or span[1] <= after:
            break
        start, limit = max(after, span[0] - 1), _MOST_GAP - len(read)
        older = await store.tail(session, tokens=left, limit=limit, before=span[1] + 1, after=start)
        read = [*older, *read]
        left -= sum(m.tokens for m in older)
        if not older or older[0].seq > start + 1:
            break
        upto = older[0].seq
    return [m for m in read if m.seq != material.passed]


async def _kept(
    store: Store, session: SessionKey, material: Material, summary: Summary | None
) -> Sequence[tuple[Message, Importance]]:
    """Return the important messages behind a summary."""
    if summary is None or not summary.kept:
        return ()
    marks = {seq: Importance(score, reason) for seq, score, reason in summary.kept}
    found = await store.find(session, seqs=marks)
    return [
        (standing_alone(message, material.counter), marks[message.seq])
        for message in found
        if message.state == "live" and message.seq != material.passed
    ]


async def _digests(
    store: Store, session: SessionKey, material: Material, first: int, size: int
) -> dict[int, Digest]:
    """Return digests of the window's answers; none if no answer is that long."""
    if not any(len(m.content) > size and m.role == "assistant" for m in material.messages):
        return {}
    found = await store.scan(Scope(session=session), DIGEST, after=position_key(first - 1))
    return {int(record.key): Digest(*cast(list[Any], record.value)) for record in found}
