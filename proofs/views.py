"""Strategies of every kind and setting, sensible and not, each under a name of its own."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import cycle
from typing import Any, Final, NamedTuple, TypedDict

from keepthread import Hybrid, Recall, Section, Summarized, View, Window
from keepthread.context.strategies import Overflow
from proofs.laws import HYBRID, RECALL, SUMMARIZED, WINDOW, Limits, Rules, ToolCalls

Shares = Mapping[str, Limits]

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
PASTS: Final = ((None, 20), (4, 3), (0, 20), (1, 0), (None, 2), (20, 20))
"""How many messages are shown word for word, and how many turns may be told in short."""
TOOL_CALLS: Final[tuple[ToolCalls, ...]] = ("all", "recent", "all", "none", "recent")
"""Which calls are shown, in turn."""
GREEDY: Final = {name: each._replace(max_share=0.5) for name, each in HYBRID.items()}
ALL: Final = {name: each._replace(max_share=1.0) for name, each in HYBRID.items()}
NOTHING: Final = {
    name: each._replace(min_share=0.0, max_share=0.0) for name, each in HYBRID.items()
}
FIXED: Final = {name: each._replace(min_share=each.max_share) for name, each in HYBRID.items()}
FIRM: Final = {name: each._replace(min_share=0.3, max_share=0.3) for name, each in HYBRID.items()}
SECTIONS: Final[tuple[Shares, ...]] = (
    GREEDY,
    ALL,
    NOTHING,
    FIXED,
    FIRM,
    {},
    WINDOW,
    SUMMARIZED,
    dict(reversed(list(HYBRID.items()))),
    {"summary": Limits(0.0, 0.6)},
    {"important": Limits(0.2, 0.4), "tools": Limits(0.0, 1.0)},
    {"tools": Limits(1.0, 1.0)},
    {
        name: each._replace(min_share=0.2, max_share=0.5) if name in ("facts", "recalled") else each
        for name, each in HYBRID.items()
    },
)


class Settings(TypedDict):
    """The settings that all strategies have."""

    step: int | None
    overflow: Overflow
    max_messages: int | None
    tool_calls: ToolCalls


class Tried(NamedTuple):
    """A strategy, and the rules that its contexts are held against."""

    strategy: Window
    rules: Rules


def tried(strategy: Window, limits: Shares) -> Tried:
    """Return a strategy with its rules: one that tells the past takes longer steps."""
    most_step = 0.62 if isinstance(strategy, Summarized) else 0.38
    if strategy.tool_calls == "none":  # nor are those that are remembered
        limits = {name: each for name, each in limits.items() if name != "tools"}
    newest = strategy.verbatim_messages if isinstance(strategy, Summarized) else None
    rules = Rules(
        limits=limits,
        step=strategy.step,
        max_messages=strategy.max_messages,
        most_step=most_step,
        verbatim=newest or 0,
        tool_calls=strategy.tool_calls,
    )
    return Tried(strategy, rules)


def _settings(limits: Limits) -> dict[str, Any]:
    return {name: value for name, value in limits._asdict().items() if name != "spare"}


def sections(limits: Shares) -> tuple[Section, ...]:
    """Return sections with these limits, for strategies that do not take our own."""
    return tuple(Section(name=name, **_settings(each)) for name, each in limits.items())  # pyright: ignore[reportArgumentType]


def _every() -> list[Tried]:
    pasts, calls = cycle(PASTS), cycle(TOOL_CALLS)
    found: list[Tried] = []
    for n, (step, overflow, most) in enumerate(SETTINGS):
        usual: Settings = {
            "step": step,
            "overflow": overflow,
            "max_messages": most,
            "tool_calls": next(calls),
        }
        found.append(tried(Window(**usual), WINDOW))
        found.append(tried(Recall(**usual, recall="session" if n % 2 else "owner"), RECALL))
        for kind, limits in ((Summarized, SUMMARIZED), (Hybrid, HYBRID)):
            recent, told = next(pasts)
            found.append(tried(kind(**usual, verbatim_messages=recent, brief_turns=told), limits))
    for limits, (step, overflow, most) in zip(SECTIONS, SETTINGS, strict=False):
        own, (recent, told) = sections(limits), next(pasts)
        hybrid = Hybrid(
            sections=own, verbatim_messages=recent, brief_turns=told, tool_calls=next(calls)
        )
        window = Window(sections=own, step=step, overflow=overflow, max_messages=most)
        found += [tried(each, limits) for each in (hybrid, replace(hybrid, step=0), window)]
    return found


STRATEGIES: Final = tuple(_every())
VIEWS: Final = {f"view {n}": View(4096, each.strategy) for n, each in enumerate(STRATEGIES)}
