"""What a context must show, worked out from what was done to a session and from nothing else.

A small model beside the program: it keeps its own log, knows what is hidden, erased, pinned and
noted, and says which messages a context shows, in which order. Where the window starts is the law
in `proofs.laws`. Nothing here comes from `keepthread.context`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Final

from keepthread import Message
from proofs.laws import (
    FRAME,
    NO_RESULT,
    PAST,
    Block,
    Log,
    Rules,
    Start,
    ToolCalls,
    claimed,
    given,
    oldest_that_fit,
    start_of,
)

USED: Final = 0.6
"""The share of a budget that is used while something is left out."""
FULL: Final = 8192
"""The smallest budget of which that is promised. In smaller ones a step takes more of the window:
a block more may be left out, and where the past is told nothing is promised."""


class Times:
    """Counts words, each as several, so that short texts fill large budgets."""

    def __init__(self, times: int) -> None:
        """Name the counter by its factor."""
        self.name = f"times {times}"
        self.times = times

    def count(self, message: Message) -> int:
        """Return the tokens of a message: 2 words for its frame, 3 for each call."""
        words = 2 + len(message.content.split()) + 3 * len(message.tool_calls)
        return self.times * words


@dataclass(slots=True)
class Conversation:
    """What was done to a session."""

    counter: Times
    log: list[Message] = field(default_factory=list[Message])
    hides: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """The first position that each clear and each rewind hid, and where the log ended then."""
    pins: set[int] = field(default_factory=set[int])
    notes: dict[str, int] = field(default_factory=dict[str, int])
    """The position of the newest note of each key."""
    orders: set[int] = field(default_factory=set[int])
    """The positions of system messages of the operator."""

    # --- what is done ---

    def append(self, *messages: Message) -> None:
        """Take over messages that were stored; their counts and totals are worked out here."""
        for message in messages:
            tokens = self.counter.count(message)
            total = tokens + (self.log[-1].total if self.log else 0)
            counted = {"tokens": tokens, "counter": self.counter.name, "total": total}
            self.log.append(replace(message, seq=len(self.log) + 1, **counted))

    def hide(self, after: int) -> None:
        """Hide what came after a position."""
        self.hides.append((after + 1, len(self.log)))

    def erase(self, seq: int) -> None:
        """Take a text away; its pin goes, and the note of its key."""
        self.log[seq - 1] = replace(self.log[seq - 1], content="", state="erased", tokens=0)
        self.pins.discard(seq)
        self.orders.discard(seq)
        self.notes = {key: at for key, at in self.notes.items() if at != seq}

    def recount(self) -> None:
        """Count everything by the counter in use; what was erased counts no more."""
        counter = self.counter
        tokens = [counter.count(m) if m.state == "live" else 0 for m in self.log]
        totals = accumulate(tokens)
        self.log = [
            replace(m, tokens=n, total=total, counter=counter.name)
            for m, n, total in zip(self.log, tokens, totals, strict=True)
        ]

    def fork(self, at: int) -> "Conversation":
        """Return a copy as it was when the log ended at a position."""
        return Conversation(
            counter=self.counter,
            log=self.log[:at],
            hides=[(first, last) for first, last in self.hides if last <= at],
            pins={seq for seq in self.pins if seq <= at},
            notes={key: seq for key, seq in self.notes.items() if seq <= at},
            orders={seq for seq in self.orders if seq <= at},
        )

    # --- what there is ---

    @property
    def hidden(self) -> set[int]:
        """Return the positions that nobody is shown."""
        return {seq for first, last in self.hides for seq in range(first, last + 1)}

    def visible(self, own: int = 0) -> list[Message]:
        """Return what may be shown; a turn's own question always may, if it was not erased."""
        hidden = self.hidden
        if own and self.log[own - 1].state == "live":
            hidden = hidden - {own}
        return [m for m in self.log if m.seq not in hidden]

    def showing(
        self, own: int = 0, *, newest: bool = True, tool_calls: ToolCalls = "all"
    ) -> "Showing":
        """Return what a turn, or anybody, may be shown now."""
        return Showing(self, own, newest=newest, tool_calls=tool_calls)


class Showing:
    """What a conversation may show now, and to whom."""

    def __init__(self, of: Conversation, own: int, *, newest: bool, tool_calls: ToolCalls) -> None:
        """Find the question that is being answered."""
        self.of = of
        self.counter = of.counter
        self.visible = of.visible(own)
        users = [m for m in self.visible if m.role == "user" and m.state == "live"]
        mine = [m for m in users if m.seq == own]
        user = (mine or users or [None])[-1]
        last = self.visible[-1] if self.visible else None
        self.turn = user.turn if user else last.turn if last else 0
        self.passed = user.seq if user and not newest else 0
        self.user = self._counted(user) if user and newest else None
        ended = {m.seq for m in of.log if self._has_ended(m)}
        foreign = {
            m.seq: self.counter.count(m)
            for m in self.visible
            if m.state == "live" and m.counter != self.counter.name
        }
        self.log = Log(
            of.log,
            self.visible,
            self.passed,
            frozenset(ended),
            self._stand_in,
            foreign,
            tool_calls,
        )
        live = {m.seq: m for m in self.visible if m.state == "live" and m.seq != self.passed}
        self.pins = [self._counted(live[seq]) for seq in sorted(of.pins) if seq in live]
        noted = [seq for seq in sorted(of.notes.values()) if seq in live and seq not in ended]
        self.notes = [self._counted(live[seq]) for seq in noted]
        self.orders = [self._counted(live[seq]) for seq in sorted(of.orders) if seq in live]

    def _counted(self, message: Message) -> Message:
        return replace(message, tokens=self.counter.count(message), counter=self.counter.name)

    def _has_ended(self, message: Message) -> bool:
        until = message.meta.get("until")
        return isinstance(until, int) and until < self.turn

    def _stand_in(self, call: Message, index: int) -> int:
        return self.counter.count(Message(role="tool", content=NO_RESULT))

    def present(self) -> frozenset[str]:
        """Return the sections that have something to show."""
        some = {"system": self.orders, "pins": self.pins, "notes": self.notes}
        named = {name for name, messages in some.items() if messages}
        return frozenset({"tools", *PAST, *named})

    def start(self, rules: Rules, room: int) -> Start:
        """Return where the window starts."""
        return start_of(self.log, rules, room, self.present(), self.user)

    def expected(self, rules: Rules, budget: int) -> "Expected":
        """Return what a context shows."""
        room = budget - FRAME
        tokens = sum(m.tokens for m in self.orders)
        claims = claimed(rules.limits, self.present(), room, tokens)
        rules = replace(rules.at(budget), limits=claims)
        start = self.start(rules, room)
        blocks = [b for b in self.log.blocks[start.block :] if self.log.can_be_shown(b)]
        window = [text for block in blocks for text in _texts(block)]
        shown = {m.seq for b in blocks for m in (b.first, *b.results.values())}
        if self.user and self.user.seq not in shown:
            window = [(self.user.seq, self.user.content), *window]
            shown.add(self.user.seq)
        older = [b for b in self.log.blocks[: start.block] if self.log.can_be_shown(b)]
        left_out = [b for b in older if b.first.seq not in shown]
        past = rules.limits.keys() & PAST if start.block else set[str]()
        limits = {
            name: each
            for name, each in rules.limits.items()
            if name in self.present() and (name in past or name not in PAST)
        }
        share = given(limits, room, room - start.room)
        orders = [m for m in self.orders if m.seq not in shown]
        orders = oldest_that_fit(orders, share.get("system", 0))
        shown |= {m.seq for m in orders}
        pins = _newest_that_fit([m for m in self.pins if m.seq not in shown], share.get("pins", 0))
        shown |= {m.seq for m in pins}
        notes = [m for m in self.notes if m.seq not in shown]
        notes = _newest_that_fit(notes, share.get("notes", 0))
        unused = {
            name: max(0, limits[name].most_of(room) - sum(m.tokens for m in some))
            for name, some in (("system", orders), ("pins", pins), ("notes", notes))
            if name in limits
        }
        return Expected(
            texts=[*((m.seq, m.content) for m in (*orders, *pins, *notes)), *window],
            left_out=bool(left_out),
            set_aside=sum(unused.values()),
            past=sum(limits[name].most_of(room) for name in past),
            largest=max((self._size(block) for block in left_out), default=0),
        )

    def _size(self, block: Block) -> int:
        return sum(self.counter.count(m) for m in (block.first, *block.results.values()))


@dataclass(frozen=True, slots=True)
class Expected:
    """The positions and texts of a context, a stand-in at position 0, and how full it must be."""

    texts: Sequence[tuple[int, str]]
    left_out: bool
    """Whether something that can be shown is left out."""
    set_aside: int
    """Tokens that system messages, pins and notes may take and do not."""
    past: int
    """Tokens that the past may take."""
    largest: int
    """Tokens of the largest block that is left out."""


def _texts(block: Block) -> list[tuple[int, str]]:
    calls = range(len(block.first.tool_calls)) if block.is_call else ()
    results = [block.results.get(n) for n in calls]
    said = [(m.seq, m.content) if m else (0, NO_RESULT) for m in results]
    return [(block.first.seq, block.first.content), *said]


def _newest_that_fit(messages: Sequence[Message], room: int) -> list[Message]:
    shown: list[Message] = []
    for message in reversed(messages):
        if message.tokens <= room:
            room -= message.tokens
            shown.insert(0, message)
    return shown
