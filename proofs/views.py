"""Strategies of every kind and setting, sensible and not, each under a name of its own."""

from dataclasses import replace
from itertools import cycle
from typing import Final

from keepthread import Hybrid, Recall, Section, Summarized, View, Window
from keepthread.context.sections import HYBRID, SIMPLE, SUMMARIZED
from keepthread.context.strategies import Overflow

SETTINGS: Final[tuple[tuple[int | None, Overflow, int | None], ...]] = (
    (None, "trim", None),
    (None, "trim", None),
    (0, "trim", None),
    (0, "trim", 40),
    (10, "trim", None),
    (100, "trim", None),
    (100_000, "trim", None),
    (None, "trim", 1),
    (0, "trim", 3),
    (None, "trim", 20),
    (64, "trim", 7),
    (None, "keep", None),
    (0, "keep", 4),
    (None, "raise", None),
    (0, "raise", 5),
)
"""The step, what happens to a newest message that is too large, and the most messages."""
PASTS: Final = ((20, 20), (4, 3), (0, 20), (1, 0), (0, 2))
"""How many messages are recent, and how many exchanges may be told in short."""
GREEDY: Final = tuple(replace(each, most=0.5) for each in HYBRID)
ALL: Final = tuple(replace(each, most=1.0) for each in HYBRID)
NOTHING: Final = tuple(replace(each, least=0.0, most=0.0) for each in HYBRID)
FIXED: Final = tuple(replace(each, least=each.most) for each in HYBRID)
FIRM: Final = tuple(replace(each, least=0.3, most=0.3) for each in HYBRID)
SECTIONS: Final = (
    GREEDY,
    ALL,
    NOTHING,
    FIXED,
    FIRM,
    (),
    SIMPLE,
    SUMMARIZED,
    tuple(reversed(HYBRID)),
    (Section(name="summary", most=0.6),),
    (Section(name="kept", least=0.2, most=0.4), Section(name="live", most=1.0)),
    (Section(name="live", least=1.0, most=1.0),),
    tuple(
        replace(each, least=0.2, most=0.5) if each.name in ("facts", "recalled") else each
        for each in HYBRID
    ),
)


def _every() -> list[Window]:
    pasts = cycle(PASTS)
    found: list[Window] = []
    for step, overflow, most in SETTINGS:
        found.append(Window(step=step, overflow=overflow, max_messages=most))
        scope = "owner" if len(found) % 2 else "session"
        found.append(Recall(step=step, overflow=overflow, max_messages=most, recall=scope))
        for kind in (Summarized, Hybrid):
            recent, told = next(pasts)
            found.append(
                kind(step=step, overflow=overflow, max_messages=most, recent=recent, told=told)
            )
    for sections, (step, overflow, most) in zip(SECTIONS, SETTINGS, strict=False):
        recent, told = next(pasts)
        found.append(Hybrid(sections=sections, recent=recent, told=told))
        found.append(Hybrid(sections=sections, step=0, recent=recent, told=told))
        found.append(Window(sections=sections, step=step, overflow=overflow, max_messages=most))
    return found


STRATEGIES: Final = tuple(_every())
VIEWS: Final = {f"view {n}": View(4096, strategy) for n, strategy in enumerate(STRATEGIES)}
