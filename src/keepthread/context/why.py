"""The explanation of a context: one line per range of messages with the same outcome."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from keepthread.context.hidden import HiddenRanges
from keepthread.context.ranges import counted, merged, written
from keepthread.protocols import KnownFact, Material
from keepthread.references import FactReference, Reference
from keepthread.types import Choice, Hidden, Message, Selection

_HIDDEN: Final = 100
"""Hidden ranges that are listed one by one, the newest."""


class WhyBuilder:
    """Collects choices; its size grows with what is shown, not with the log."""

    def __init__(self) -> None:
        """Start empty."""
        self.choices: list[Choice] = []
        self._left_out: list[tuple[int, Sequence[Message], str]] = []
        """Messages that are left out and the reason, each with the number of choices before it."""
        self.beside: dict[int, Message] = {}
        """Messages that a section beside the window shows, by position: they are not left out."""
        self.facts: list[tuple[str, str, int]] = []
        """The session and position of each message that a fact comes from which is shown."""
        self.made: list[tuple[Message, Reference]] = []
        """Messages that are not in the log as they are shown, and what they were made of."""

    def add_facts(self, facts: Sequence[KnownFact]) -> None:
        """Note which messages the facts come from that are shown."""
        self.facts += [place for fact in facts for place in fact.messages]

    def add(self, messages: Sequence[Message], section: str, reason: str) -> None:
        """Record the outcome of messages, neighbors on one line."""
        if section:
            self.choices += _choices(messages, section, reason)
        else:  # another section may show some of them
            self._left_out.append((len(self.choices), messages, reason))

    def all_choices(self) -> list[Choice]:
        """Return all choices in order; what a section shows beside the window is not left out."""
        found: list[Choice] = []
        done = 0
        for before, messages, reason in self._left_out:
            found += self.choices[done:before]
            done = before
            left = [m for m in messages if m.seq not in self.beside] if self.beside else messages
            found += _choices(left, "", reason)
        return [*found, *self.choices[done:]]

    def add_range(
        self, first: int, last: int, messages: int, tokens: int, section: str, reason: str
    ) -> None:
        """Record the outcome of a range of positions."""
        self.choices.append(Choice(first, last, messages, tokens, section, reason))

    def add_hidden(self, hidden: Sequence[Hidden]) -> None:
        """Record the hidden ranges of the session; of many, the older ones on one line."""
        first = max(0, len(hidden) - _HIDDEN)
        if first:
            before = HiddenRanges.of(hidden)
            messages, tokens = before.hidden_before(hidden[first - 1].last)
            reason = f"cleared or rewound ({first:,} ranges)"
            self.add_range(hidden[0].first, hidden[first - 1].last, messages, tokens, "", reason)
        for span in hidden[first:]:
            count = span.last - span.first + 1
            self.add_range(span.first, span.last, count, span.tokens, "", span.reason)


class OlderRanges:
    """Records the ranges before a window that are left out; each begins where the last ended."""

    def __init__(self, account: WhyBuilder, material: Material) -> None:
        """Take the account: ranges are parted around the messages that other sections show."""
        newest = material.newest_user
        self._account = account
        self._hidden = HiddenRanges.of(material.hidden)
        self._newest = newest.seq if newest else material.passed
        self._shown = {**account.beside, **({newest.seq: newest} if newest else {})}
        self._tokens = 0
        """Tokens of all messages up to the end of the last range."""

    def visible_upto(self, seq: int) -> int:
        """Return how many visible messages there are up to a position, the newest left out."""
        hidden, _ = self._hidden.hidden_before(seq)
        return seq - hidden - (0 < self._newest <= seq)

    def add(self, first: int, last: int, count: int, tokens: int, reason: str) -> None:
        """Record a range with its messages and tokens, those that are shown included."""
        for seq in sorted(seq for seq in self._shown if first <= seq <= last):
            message = self._shown[seq]
            total = message.total - self._hidden.hidden_before(seq)[1]
            before = self.visible_upto(seq - 1) - self.visible_upto(first - 1)
            before = max(0, min(before, count))
            cost = max(0, min(total - message.tokens - self._tokens, tokens))
            self._add(first, seq - 1, before, cost, reason)
            first, self._tokens = seq + 1, max(self._tokens, total)
            count, tokens = count - before, tokens - cost
            if seq != self._newest:  # which is counted in no range
                count, tokens = count - 1, tokens - message.tokens
        self._add(first, last, count, tokens, reason)
        self._tokens += max(0, tokens)

    def _add(self, first: int, last: int, count: int, tokens: int, reason: str) -> None:
        if count > 0:
            self._account.add_range(first, last, count, max(0, tokens), "", reason)


def facts_of(facts: Sequence[KnownFact]) -> tuple[FactReference, ...]:
    """Return references to facts, in their order."""
    return tuple(FactReference(fact.key, fact.version) for fact in facts)


def _choices(messages: Sequence[Message], section: str, reason: str) -> Iterator[Choice]:
    """Yield the outcome of messages, neighbors in one choice."""
    start = 0
    while start < len(messages):
        end = _run(messages, start)
        run = messages[start:end]
        tokens = sum([m.tokens for m in run])
        yield Choice(run[0].seq, run[-1].seq, len(run), tokens, section, reason)
        start = end


def _run(messages: Sequence[Message], start: int) -> int:
    """Return the end of a run of neighboring positions; usually the run is everything."""
    if messages[-1].seq - messages[start].seq == len(messages) - 1 - start:
        return len(messages)
    end = start + 1
    while end < len(messages) and messages[end].seq == messages[end - 1].seq + 1:
        end += 1
    return end


_WIDTH: Final = 48
_MARKS: Final = {
    "system": "S",
    "pins": "P",
    "facts": "F",
    "summary": "s",
    "important": "i",
    "notes": "n",
    "window": "w",
    "tools": "t",
    "recalled": "r",
    "newest": "N",
    "overhead": "o",
}
"""A letter for each section, in the order of the prompt."""
_ORDER: Final = {section: place for place, section in enumerate(_MARKS)}
_UNUSED: Final = "·"
_RENAMED: Final = {"kept": "important", "live": "tools"}
"""Names of sections in explanations that were stored before the names changed."""


class Why:
    """The messages in a context and those left out; neighbors with one outcome share a line."""

    def __init__(self, selection: Selection) -> None:
        """Read a selection."""
        self.budget = selection.budget
        self.tokens = selection.tokens
        self.choices = tuple(sorted(selection.choices, key=_place))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "Why":
        """Return the account that `to_json` gave."""
        choices = [Choice(**choice) for choice in value["choices"]]
        choices = [c._replace(section=_RENAMED.get(c.section, c.section)) for c in choices]
        return cls(Selection(value["budget"], value["tokens"], "", (), choices))

    @property
    def shown(self) -> tuple[Choice, ...]:
        """Return what is included."""
        return tuple(choice for choice in self.choices if choice.section)

    @property
    def left_out(self) -> tuple[Choice, ...]:
        """Return what is left out."""
        return tuple(choice for choice in self.choices if not choice.section)

    @property
    def sections(self) -> dict[str, int]:
        """Return the tokens of each section that is in, in the order of the prompt.

        `overhead`, at the end, is what the wires may add.
        """
        found: dict[str, int] = {}
        for choice in self.shown:
            found[choice.section] = found.get(choice.section, 0) + choice.tokens
        found = {section: found[section] for section in in_order(found)}
        found["overhead"] = self.tokens - sum(found.values())
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
        """Draw the budget: a letter for each section, dots for what is unused."""
        letters = letters_of(self.sections)
        drawn = "".join(letters[section] * n for section, n in self.cells(width).items())
        return f"[{drawn.ljust(width, _UNUSED)}]"

    def cells(self, width: int) -> dict[str, int]:
        """Return how many cells of a bar each section takes; the smallest is seen as well."""
        found: dict[str, int] = {}
        used = end = 0
        for section, tokens in self.sections.items():
            used += tokens
            start = end
            end = round(width * min(used, self.budget) / self.budget) if self.budget else 0
            end = min(width, max(end, start + bool(tokens)))
            found[section] = end - start
        return found

    def __str__(self) -> str:
        """Return the explanation as readable text."""
        lines = [f"{self.tokens:,} of {self.budget:,} tokens", self.bar()]
        for title, choices in (("in", self.shown), ("out", self.left_out)):
            lines += [f"{title:>4}  {_words(choice)}" for choice in choices if not choice.session]
            lines += [f"{title:>4}  {line}" for line in _recalled(choices)]
        return "\n".join(lines)


def in_order(sections: Iterable[str]) -> list[str]:
    """Return sections in the order of the prompt; those of other strategies before the newest."""
    last = _ORDER["newest"]
    return sorted(sections, key=lambda section: (_ORDER.get(section, last - 1), section))


def letters_of(sections: Iterable[str]) -> dict[str, str]:
    """Return a letter for each section, also for those of other strategies."""
    letters: dict[str, str] = {}
    for section in sections:
        taken = {*_MARKS.values(), *letters.values()}
        free = (letter for letter in section if letter.isalnum() and letter not in taken)
        letters[section] = _MARKS.get(section) or next(free, "?")
    return letters


def _place(choice: Choice) -> tuple[bool, bool, int]:
    """Return the sort key: shown before left out, recalled after the rest."""
    return not choice.section, bool(choice.session), choice.first


def _recalled(choices: Iterable[Choice]) -> Iterator[str]:
    """Yield what was recalled, on one line what came from one session for one reason."""
    groups: dict[tuple[str, str], list[Choice]] = {}
    for choice in choices:
        if choice.session:
            groups.setdefault((choice.session, choice.reason), []).append(choice)
    for (session, reason), group in groups.items():
        tokens = sum(choice.tokens for choice in group)
        where = written(merged((choice.first, choice.last) for choice in group))
        yield f"{tokens:>7,}  {session} {where}: {reason}"


def _words(choice: Choice) -> str:
    if not choice.first:
        return f"{choice.tokens:>7,}  {choice.reason}"
    where = f"{choice.first}" if choice.first == choice.last else f"{choice.first}-{choice.last}"
    count = counted(choice.messages, "message")
    return f"{choice.tokens:>7,}  {where}: {count}, {choice.reason}"
