"""Sections: the parts of a context other than the window, and their shares of the tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from keepthread.context.why import WhyBuilder
from keepthread.errors import InvalidInput
from keepthread.protocols import CachedResult, Material, Need
from keepthread.types import Message

SectionName: TypeAlias = Literal[
    "system", "pins", "notes", "facts", "summary", "important", "tools", "recalled"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A part of a context and its shares of what the system prompt leaves.

    A section takes up to `max_share`, which the window gives up for it, but never more than `cap`
    tokens; in a small room it may take up to `floor` tokens, a quarter of the room at most.
    `min_share` is left to it even if the newest message has to be cut. It may grow up to the share
    `unused` by what the others leave unused, and up to `unclaimed` by the shares of pins and notes
    in a session that has none. A section without content claims nothing.
    """

    name: SectionName
    min_share: float = 0.0
    max_share: float
    floor: int = 0
    cap: int | None = None
    unused: float = 0.0
    unclaimed: float = 0.0

    def __post_init__(self) -> None:
        """Refuse shares that mean nothing."""
        if not 0 <= self.min_share <= self.max_share <= 1:
            raise InvalidInput(f"{self.name}: shares must be 0 <= min_share <= max_share <= 1")
        if not (0 <= self.unused <= 1 and 0 <= self.unclaimed <= 1):
            raise InvalidInput(f"{self.name}: unused and unclaimed must be between 0 and 1")
        if self.floor < 0 or (self.cap is not None and self.cap < self.floor):
            raise InvalidInput(f"{self.name}: tokens must be 0 <= floor <= cap")

    def max_tokens(self, room: int, unclaimed: int = 0) -> int:
        """Return the most tokens it may take of a room.

        `unclaimed` are tokens of sections that the session has nothing for.
        """
        share = int(room * self.max_share)
        share = max(share, min(self.floor, room // 4)) if self.max_share else 0
        return self._capped(max(share, min(share + unclaimed, int(room * self.unclaimed))))

    def max_tokens_with_unused(self, room: int) -> int:
        """Return the most tokens it may take of a room if others leave enough."""
        return self._capped(max(self.max_tokens(room), int(room * self.unused)))

    def _capped(self, tokens: int) -> int:
        return tokens if self.cap is None else min(tokens, self.cap)

    def min_tokens(self, room: int) -> int:
        """Return the tokens it can count on in a room."""
        return min(int(room * self.min_share), self.max_tokens(room))


_SYSTEM: Final = Section(name="system", min_share=0.05, max_share=0.1, cap=4096)
_PINS: Final = Section(name="pins", min_share=0.05, max_share=0.25, cap=4096)
_NOTES: Final = Section(name="notes", min_share=0.02, max_share=0.05, cap=512)
_FACTS: Final = Section(name="facts", min_share=0.02, max_share=0.06, floor=120, cap=512)
_SUMMARY: Final = Section(
    name="summary", min_share=0.05, max_share=0.12, floor=160, cap=2048, unclaimed=0.27
)
_IMPORTANT: Final = Section(name="important", max_share=0.03, floor=80, cap=1024)
_TOOLS: Final = Section(name="tools", max_share=0.05, cap=1024, unused=0.25)

_RECALLED: Final = Section(name="recalled", max_share=0.02, floor=80, cap=2048, unused=0.2)
_ALL_RECALLED: Final = Section(name="recalled", max_share=1.0)

WINDOW: Final = (_SYSTEM, _PINS, _NOTES, _FACTS, _TOOLS)
SUMMARIZED: Final = (_SYSTEM, _PINS, _NOTES, _FACTS, _SUMMARY, _TOOLS)
HYBRID: Final = (_SYSTEM, _PINS, _NOTES, _FACTS, _SUMMARY, _IMPORTANT, _TOOLS, _RECALLED)
RECALL: Final = (_SYSTEM, _FACTS, _ALL_RECALLED)
"""The sections of the four strategies, in the order in which they are given tokens."""

_SELDOM: Final = frozenset({"pins", "notes"})
"""Sections whose share others may have in a session without them: that seldom changes."""
PAST: Final = frozenset({"summary", "important"})
"""Sections about messages before the window; without such messages they claim nothing."""

_NEEDS: Final[dict[str, Need]] = {
    "facts": "facts",
    **dict.fromkeys(PAST, "summaries"),
    "recalled": "recall",
}


def needs_of(sections: Sequence[Section]) -> frozenset[Need]:
    """Return what must be read to fill sections."""
    return frozenset([_NEEDS[each.name] for each in sections if each.name in _NEEDS])


class Share(NamedTuple):
    """The tokens that a section may take."""

    name: str
    min_tokens: int
    max_tokens: int
    with_unused: int
    """The most if others leave enough."""


class Shares(NamedTuple):
    """The tokens that the sections of a context may take, in order of priority."""

    room: int
    shares: Sequence[Share]

    @classmethod
    def of(cls, sections: Sequence[Section], material: Material, room: int) -> "Shares":
        """Return the shares of the sections that may have content."""
        absent = [s for s in sections if s.name in _SELDOM and not _speaks(s.name, material)]
        unclaimed = sum([each.max_tokens(room) for each in absent])
        return cls(
            room,
            [
                _as_needed(
                    Share(
                        each.name,
                        each.min_tokens(room),
                        most := each.max_tokens(room, unclaimed),
                        max(most, each.max_tokens_with_unused(room)),
                    ),
                    material,
                )
                for each in sections
                if _speaks(each.name, material)
            ],
        )

    def without_past(self) -> "Shares":
        """Return the shares if nothing is before the window."""
        return Shares(self.room, [each for each in self.shares if each.name not in PAST])

    def for_window(self) -> int:
        """Return what is left when every other section takes its most."""
        return max(0, self.room - sum([each.max_tokens for each in self.shares]))

    def with_minimum(self) -> int:
        """Return what is left when every other section takes its least."""
        return max(0, self.room - sum([each.min_tokens for each in self.shares]))

    def with_unused(self, name: str, left: int) -> int:
        """Return what a section may take of what is left, more than its share if nobody uses it."""
        most = next((each.with_unused for each in self.shares if each.name == name), 0)
        return max(0, min(most, left))

    def given(self, left: int) -> dict[str, int]:
        """Return what each may take of what the window leaves.

        The minimum of the sections after it is reserved.
        """
        given: dict[str, int] = {}
        reserved = sum([each.min_tokens for each in self.shares])
        for name, least, most, _ in self.shares:
            reserved -= least
            given[name] = max(0, min(most, max(left - reserved, min(left, least))))
            left -= given[name]
        return given


def _as_needed(share: Share, material: Material) -> Share:
    """Return a share; system messages claim no more than they take, as they seldom change."""
    if share.name != "system":
        return share
    needed = sum([message.tokens for message in material.system_messages])
    return Share(share.name, *[min(needed, each) for each in share[1:]])


def _speaks(name: SectionName, material: Material) -> bool:
    """Return whether a section may have content in this session."""
    if name == "system":
        return bool(material.system_messages)
    if name == "pins":
        return bool(material.pins)
    if name == "notes":
        return bool(material.notes)
    if name == "facts":
        return any(fact.always for fact in material.facts)
    return material.recalls if name == "recalled" else True


MAX_FOLLOWED: Final = 100
"""Pins, notes and cached results of a session that a context looks at: of each, those set last."""
_BEYOND: Final = {
    "pins": f"pins: only the newest {MAX_FOLLOWED} are considered",
    "notes": f"notes: only the newest {MAX_FOLLOWED} are considered",
    "tools": f"cached results: only the {MAX_FOLLOWED} used last are considered",
}


def explain_beyond(
    sections: Sequence[Section], beyond: Sequence[SectionName], account: WhyBuilder
) -> None:
    """Record that a session has more pins, notes or cached results than a context looks at."""
    for section in sections:
        if section.name in beyond:
            account.add_range(0, 0, 0, 0, "", _BEYOND[section.name])


def newest_that_fit(
    messages: Sequence[Message], room: int, account: WhyBuilder, *, section: str, reason: str
) -> list[Message]:
    """Return the newest messages that fit; the oldest go first, and the account says so.

    One that is too large is skipped for older ones that fit.
    """
    left = room
    shown: list[Message] = []
    for message in reversed(messages):
        if message.tokens > left:
            lacking = f"{reason}, but the {section} have reached their share of the budget"
            account.add([message], "", lacking)
        else:
            left -= message.tokens
            shown.append(message)
    shown.reverse()
    account.add(shown, section, reason)
    return shown


SYSTEM_MESSAGE: Final = "an operator's system message"


def oldest_that_fit(messages: Sequence[Message], room: int, account: WhyBuilder) -> list[Message]:
    """Return the oldest system messages that fit; one that is too large is skipped."""
    shown: list[Message] = []
    for message in messages:
        if message.tokens > room:
            lacking = (
                f"{SYSTEM_MESSAGE}, but the system messages have reached their share of the budget"
            )
            account.add([message], "", lacking)
        else:
            room -= message.tokens
            shown.append(message)
    account.add(shown, "system", SYSTEM_MESSAGE)
    return shown


def cached_that_fit(
    results: Sequence[CachedResult], room: int, account: WhyBuilder, seen: set[int]
) -> Iterator[Message]:
    """Yield calls and results that the window does not show, as many as fit, oldest first."""
    left = room
    fitting: list[CachedResult] = []
    for each in reversed([each for each in results if each.result.seq not in seen]):
        tokens = each.call.tokens + each.result.tokens
        reason = f"cached, {each.left} of {each.cache_turns} turns left"
        seq = each.result.seq
        if tokens > left:
            account.add_range(seq, seq, 1, each.result.tokens, "", f"{reason}, but does not fit")
            continue
        left -= tokens
        fitting.append(each)
        account.add_range(seq, seq, 1, tokens, "tools", reason)
    for each in reversed(fitting):
        yield each.call
        yield each.result
