"""What an answer was written from: positions that a context showed, told in short or recalled."""

from itertools import groupby
from typing import Final

from keepthread.context.marks import CLEARED, REWOUND
from keepthread.context.ranges import Range, merged, without
from keepthread.context.told import BEHIND, IN_SHORT
from keepthread.types import Selection

WRITTEN_FROM: Final = "written_from"
"""The name under which an answer's meta has the ranges."""
RECALLED_FROM: Final = "recalled_from"
"""The name under which it has those of other sessions, by their ids."""


def sources(selection: Selection) -> list[Range]:
    """Return the ranges of positions that a context stands on, hidden ones left out."""
    told, hidden = (
        [(c.first, c.last) for c in selection.choices if not c.section and c.reason in reasons]
        for reasons in ((BEHIND, IN_SHORT), (CLEARED, REWOUND))
    )
    shown = [(message.seq, message.seq) for message in selection.messages if message.seq]
    return merged([*without(told, hidden), *shown])


def recalled_sources(selection: Selection) -> dict[str, list[Range]]:
    """Return the ranges of positions that were recalled, by their sessions' ids."""
    recalled = [c for c in selection.choices if c.session and c.section]
    recalled.sort(key=lambda c: c.session)
    return {
        session: merged((c.first, c.last) for c in choices)
        for session, choices in groupby(recalled, key=lambda c: c.session)
    }
