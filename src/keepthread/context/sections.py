"""Sections: what may stand in a context beside the window, and how much of it each may take."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from keepthread.context.account import Account
from keepthread.errors import InvalidInput
from keepthread.protocols import Live, Material
from keepthread.types import Message

SectionName: TypeAlias = Literal["pins", "notes", "facts", "summary", "kept", "live", "recalled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a context and its shares of what the system prompt leaves.

    `most` is what it may take and what the window gives up for it; `least` is what a newest message
    that has to be cut leaves to it. A section that has nothing to say claims nothing.
    """

    name: SectionName
    least: float = 0.0
    most: float

    def __post_init__(self) -> None:
        """Refuse shares that mean nothing."""
        if not 0 <= self.least <= self.most <= 1:
            raise InvalidInput(f"{self.name}: shares must be 0 <= least <= most <= 1")


SIMPLE: Final = (
    Section(name="pins", least=0.05, most=0.25),
    Section(name="notes", least=0.02, most=0.05),
    Section(name="live", most=0.05),
)
SUMMARIZED: Final = (
    Section(name="pins", least=0.05, most=0.25),
    Section(name="notes", least=0.02, most=0.05),
    Section(name="summary", least=0.05, most=0.2),
    Section(name="live", most=0.05),
)
HYBRID: Final = (
    Section(name="pins", least=0.05, most=0.25),
    Section(name="notes", least=0.02, most=0.05),
    Section(name="summary", least=0.05, most=0.2),
    Section(name="kept", most=0.05),
    Section(name="live", most=0.05),
)
"""The sections of the three strategies, in the order in which they are given tokens."""

PAST: Final = frozenset({"summary", "kept"})
"""Sections that stand for what is before the window; if nothing is, they claim nothing."""


class Shares(NamedTuple):
    """What the sections of a context may take, in tokens."""

    room: int
    sections: Sequence[Section]

    @classmethod
    def of(cls, sections: Sequence[Section], material: Material, room: int) -> "Shares":
        """Return the shares of the sections that have something to say."""
        silent = {
            "pins": not material.pins,
            "notes": not material.notes,
            "facts": True,
            "recalled": True,
            "live": not material.remembers,
        }
        return cls(room, [each for each in sections if not silent.get(each.name)])

    def without_past(self) -> "Shares":
        """Return the shares if nothing is before the window."""
        return Shares(self.room, [each for each in self.sections if each.name not in PAST])

    def for_window(self) -> int:
        """Return what is left when every other section takes its most."""
        return max(0, self.room - sum(int(self.room * each.most) for each in self.sections))

    def beside_least(self) -> int:
        """Return what is left when every other section takes its least."""
        return max(0, self.room - sum(int(self.room * each.least) for each in self.sections))

    def given(self, left: int) -> dict[str, int]:
        """Return what each may take of what the window leaves, in the order of who comes first.

        Nobody takes what is the least of those behind.
        """
        given: dict[str, int] = {}
        behind = sum(int(self.room * each.least) for each in self.sections)
        for each in self.sections:
            least = int(self.room * each.least)
            behind -= least
            most = min(int(self.room * each.most), max(left - behind, min(left, least)))
            given[each.name] = max(0, most)
            left -= given[each.name]
        return given


def newest_that_fit(
    messages: Sequence[Message], room: int, account: Account, *, section: str, reason: str
) -> list[Message]:
    """Return the newest messages that fit; the oldest go first, and the account says so."""
    left = room
    shown: list[Message] = []
    for message in reversed(messages):
        left -= message.tokens
        if left < 0:
            lacking = f"{reason}, but the {section}' share of the budget is used up"
            account.add([message], "", lacking)
        else:
            shown.append(message)
    shown.reverse()
    account.add(shown, section, reason)
    return shown


def live_that_fit(
    live: Sequence[Live], room: int, account: Account, seen: set[int]
) -> Iterator[Message]:
    """Yield calls and results that the window does not show, as many as fit, oldest first."""
    left = room
    fitting: list[Live] = []
    for each in reversed([each for each in live if each.result.seq not in seen]):
        tokens = each.call.tokens + each.result.tokens
        reason = f"remembered, {each.left} of {each.lifetime} exchanges left"
        seq = each.result.seq
        if tokens > left:
            account.add_range(seq, seq, 1, each.result.tokens, "", f"{reason}, but does not fit")
            continue
        left -= tokens
        fitting.append(each)
        account.add_range(seq, seq, 1, tokens, "live", reason)
    for each in reversed(fitting):
        yield each.call
        yield each.result
