"""The difference between two contexts: messages added and removed, tokens of each section."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from keepthread.context.ranges import Range, count, counted, merged, shared, without, written
from keepthread.context.why import Why, in_order
from keepthread.types import Choice


class ChangedPart(NamedTuple):
    """Positions with the same change: the section that shows or showed them, and the reason."""

    section: str
    ranges: Sequence[Range]
    reason: str

    @property
    def messages(self) -> int:
        """Return how many positions there are."""
        return count(self.ranges)


class Move(NamedTuple):
    """Positions that are shown in both, by another section."""

    before: str
    after: str
    ranges: Sequence[Range]

    @property
    def messages(self) -> int:
        """Return how many positions there are."""
        return count(self.ranges)


class ChangedSection(NamedTuple):
    """The tokens of a section, before and after."""

    section: str
    before: int
    after: int

    @property
    def gained(self) -> int:
        """Return what it gained, negative if it lost."""
        return self.after - self.before


class Difference(NamedTuple):
    """The changes from one context to another."""

    budget: tuple[int, int]
    """Before and after."""
    tokens: tuple[int, int]
    """Before and after."""
    sections: Sequence[ChangedSection]
    """Every section of either, in the order of the prompt."""
    came: Sequence[ChangedPart]
    went: Sequence[ChangedPart]
    moved: Sequence[Move]

    def to_json(self) -> dict[str, Any]:
        """Return all of it as plain JSON."""
        return {
            "budget": list(self.budget),
            "tokens": list(self.tokens),
            "sections": {c.section: {"before": c.before, "after": c.after} for c in self.sections},
            "came": [_plain(part) for part in self.came],
            "went": [_plain(part) for part in self.went],
            "moved": [_plain(move) for move in self.moved],
        }

    def __str__(self) -> str:
        """Return it as readable text."""
        before, after = self.tokens
        lines = [
            f"{before:,} of {self.budget[0]:,} tokens before, {after:,} of {self.budget[1]:,} after"
        ]
        for change in self.sections:
            if change.gained:
                sizes = f"{change.before:>7,} -> {change.after:>7,}"
                lines.append(f"{change.section:>8}  {sizes}  {change.gained:+,}")
        for title, parts in (("added", self.came), ("removed", self.went)):
            lines += [f"{title:>8}  {_words(part)}, {_reason(part)}" for part in parts]
        lines += [f"   moved  {_words(m)}, {m.before} to {m.after}" for m in self.moved]
        return "\n".join(lines)


def difference(before: Why, after: Why) -> Difference:
    """Return what changed from one context to another of the same session."""
    sizes, new_sizes = before.sections, after.sections
    old, new = _places(before.shown), _places(after.shown)
    came = without(new, old)
    went = without(old, new)
    return Difference(
        budget=(before.budget, after.budget),
        tokens=(before.tokens, after.tokens),
        sections=tuple(
            ChangedSection(section, sizes.get(section, 0), new_sizes.get(section, 0))
            for section in in_order({*sizes, *new_sizes})
        ),
        came=tuple(_parts(came, after.shown, after.shown)),
        went=tuple(_parts(went, before.shown, after.left_out)),
        moved=tuple(_moves(before, after)),
    )


def _places(choices: Sequence[Choice]) -> list[Range]:
    """Return the positions of choices; what no position of the log has is left out."""
    here = (choice for choice in choices if choice.first and not choice.session)
    return merged((choice.first, choice.last) for choice in here)


def _parts(
    places: Sequence[Range], shown: Sequence[Choice], reasons: Sequence[Choice]
) -> Iterator[ChangedPart]:
    """Yield positions by the section that shows them and the reason that is given for them."""
    for section in in_order({choice.section for choice in shown}):
        left = shared(places, _places([c for c in shown if c.section == section]))
        mine = sorted((c for c in reasons if c.section in ("", section)), key=_looseness)
        for reason in dict.fromkeys(c.reason for c in mine):
            some = _places([c for c in mine if c.reason == reason])
            if found := shared(left, some):
                yield ChangedPart(section, tuple(found), reason)
            left = without(left, some)
        if left:
            yield ChangedPart(section, tuple(left), "")


def _looseness(choice: Choice) -> tuple[bool, int]:
    """Return the sort key: the most specific range first, ranges with gaps last."""
    length = choice.last - choice.first + 1
    return choice.messages < length, length


def _moves(before: Why, after: Why) -> Iterator[Move]:
    """Yield the positions that another section shows now."""
    for old in in_order({choice.section for choice in before.shown}):
        places = _places([c for c in before.shown if c.section == old])
        still = _places([c for c in after.shown if c.section == old])
        for new in in_order({choice.section for choice in after.shown}):
            there = _places([c for c in after.shown if c.section == new])
            if new != old and (found := shared(without(places, still), there)):
                yield Move(old, new, tuple(found))


def _words(part: ChangedPart | Move) -> str:
    return f"{written(part.ranges)}: {counted(part.messages, 'message')}"


def _reason(part: ChangedPart) -> str:
    return f"{part.section}: {part.reason}" if part.reason else part.section


def _plain(part: ChangedPart | Move) -> dict[str, Any]:
    return {**part._asdict(), "ranges": [list(each) for each in part.ranges]}
