"""The reason for each choice, as values, as words, and drawn as a bar."""

from typing import Any, Final

from keepthread.types import Choice, Selection

_WIDTH: Final = 48
_MARKS: Final = {"system": "S", "pins": "P", "window": "w", "newest": "N"}
_SPARE: Final = "·"


class Why:
    """What is in a context and what is out; neighbours that share a fate share a line."""

    def __init__(self, selection: Selection) -> None:
        """Read a selection."""
        self.budget = selection.budget
        self.tokens = selection.tokens
        self.choices = tuple(sorted(selection.choices, key=lambda c: (not c.section, c.first)))

    @property
    def shown(self) -> tuple[Choice, ...]:
        """Return what is in."""
        return tuple(choice for choice in self.choices if choice.section)

    @property
    def left_out(self) -> tuple[Choice, ...]:
        """Return what is out."""
        return tuple(choice for choice in self.choices if not choice.section)

    @property
    def sections(self) -> dict[str, int]:
        """Return the tokens of each section that is in; `frame` is what the wires may add."""
        found: dict[str, int] = {}
        for choice in self.shown:
            found[choice.section] = found.get(choice.section, 0) + choice.tokens
        found["frame"] = self.tokens - sum(found.values())
        return found

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain JSON."""
        return {
            "budget": self.budget,
            "tokens": self.tokens,
            "sections": self.sections,
            "choices": [choice._asdict() for choice in self.choices],
        }

    def bar(self, width: int = _WIDTH) -> str:
        """Draw the budget: a letter for each section, dots for what is spare."""
        drawn = ""
        used = 0
        for section, tokens in self.sections.items():
            used += tokens
            end = round(width * min(used, self.budget) / self.budget)
            drawn += _MARKS.get(section, section[:1]) * (end - len(drawn))
        return f"[{drawn.ljust(width, _SPARE)}]"

    def __str__(self) -> str:
        """Return an account for people."""
        lines = [f"{self.tokens:,} of {self.budget:,} tokens", self.bar()]
        for title, choices in (("in", self.shown), ("out", self.left_out)):
            lines += [f"{title:>4}  {_words(choice)}" for choice in choices]
        return "\n".join(lines)


def _words(choice: Choice) -> str:
    if not choice.first:
        return f"{choice.tokens:>7,}  {choice.reason}"
    where = f"{choice.first}" if choice.first == choice.last else f"{choice.first}-{choice.last}"
    count = "1 message" if choice.messages == 1 else f"{choice.messages:,} messages"
    return f"{choice.tokens:>7,}  {where}: {count}, {choice.reason}"
