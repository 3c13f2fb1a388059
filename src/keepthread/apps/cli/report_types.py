"""Reports that commands compute and `screen` draws, and how numbers are written for people."""

from dataclasses import dataclass
from typing import Any, Final

from keepthread.context.ranges import counted
from keepthread.context.why import Why

_UNITS: Final = ("kB", "MB", "GB", "TB")


def size_of(count: int) -> str:
    """Return a number of bytes as people read it: `812 bytes`, `1.5 MB`."""
    if count < 1_000:
        return counted(count, "byte")
    size, unit = count / 1_000, 0
    while size >= 999.95 and unit < len(_UNITS) - 1:
        size, unit = size / 1_000, unit + 1
    return f"{size:.1f} {_UNITS[unit]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The result of one check; `advice` is empty if there is nothing to do."""

    what: str
    """The name of the check, for example `durability`."""
    found: str
    advice: str = ""
    """What to do about it."""

    @property
    def ok(self) -> bool:
        """Return whether there is nothing to do."""
        return not self.advice


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextReport:
    """A context to show; `number` is its number in the log, None for the next context."""

    view: str
    why: Why
    number: int | None = None
    turn: int = 0
    at: float = 0.0
    history: int | None = None
    """The budget of the history, to which a chat adds the question; None if it is not known."""

    @property
    def question(self) -> int:
        """Return the tokens of the question that were added to the budget of the history."""
        if self.history is None or self.why.budget <= self.history:
            return 0
        return self.why.sections.get("newest", 0)

    @property
    def tokens(self) -> int:
        """Return the tokens used of the budget."""
        return self.why.tokens - self.question

    @property
    def budget(self) -> int:
        """Return the budget without the question that was added to it."""
        return self.why.budget - self.question

    def usage(self) -> str:
        """Return what was used of the budget, for people."""
        return f"{self.tokens:,} of {self.budget:,} tokens"

    def named(self) -> dict[str, Any]:
        """Return which context it is, as plain JSON."""
        if self.number is None:
            return {"view": self.view}
        kept = {"number": self.number, "turn": self.turn, "at": self.at}
        return {"view": self.view, **kept}
