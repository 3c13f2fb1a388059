"""Sources of an answer: positions that its context showed, summarized or recalled."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Final, NamedTuple

from keepthread.context.hidden import HiddenRanges
from keepthread.context.ranges import Range, merged, without
from keepthread.context.summary import COVERED, IN_SHORT
from keepthread.context.trust import lowest, trust_in
from keepthread.context.window import IN_LINES
from keepthread.types import Origin, Selection

WRITTEN_FROM: Final = "written_from"
"""The name under which an answer's meta has the ranges."""
RECALLED_FROM: Final = "recalled_from"
"""The name under which it has those of other sessions, by their ids."""


class Shown(NamedTuple):
    """The content of a context: its trust, and the messages it came from."""

    trust: Origin
    """The least trusted origin of anything in it."""
    own: Sequence[Range]
    """Positions of the session itself."""
    summarized: int
    """The last position that the summary covers; 0 without a summary."""
    recalled: Mapping[str, Sequence[Range]]
    """Positions of other sessions, by their ids."""
    facts: Sequence[tuple[str, str, int]]
    """Owner, session id and position of each message that a fact comes from."""


def shown_by(selection: Selection, session: str) -> Shown:
    """Return what a context of a session showed."""
    recalled = recalled_sources(selection)
    own = merged([*sources(selection), *recalled.pop(session, ())])
    covered = [c.last for c in selection.choices if not c.section and c.reason == COVERED]
    # The last message that a summary covers may be shown beside it, and is then not left out.
    covered += [made.summary.last for _, made in selection.made if made.summary]
    return Shown(
        trust=lowest(map(trust_in, selection.messages)),
        own=own,
        summarized=max(covered, default=0),
        recalled=recalled,
        facts=selection.facts,
    )


def sources(selection: Selection) -> list[Range]:
    """Return the ranges of positions that a context was made from, without hidden ones."""
    summarized = [
        (c.first, c.last)
        for c in selection.choices
        if not c.section and c.reason in (COVERED, IN_SHORT)
    ]
    ranges = HiddenRanges.of(selection.hidden)
    hidden = [each[:2] for first, last in summarized for each in ranges.within(first, last)]
    shown = [(message.seq, message.seq) for message in selection.messages if message.seq]
    in_lines = [(c.first, c.last) for c in selection.choices if c.reason == IN_LINES]
    return merged([*without(summarized, hidden), *shown, *in_lines])


def recalled_sources(selection: Selection) -> dict[str, list[Range]]:
    """Return the ranges of positions that were recalled, by their sessions' ids."""
    recalled = [c for c in selection.choices if c.session and c.section]
    recalled.sort(key=lambda c: c.session)
    return {
        session: merged((c.first, c.last) for c in choices)
        for session, choices in groupby(recalled, key=lambda c: c.session)
    }
