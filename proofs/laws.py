"""What a context must be by the documented rules, worked out without the code that chooses it.

The shares are those of the table in `docs/how-to/strategies.md`, the window's start follows the law
of steps in `docs/why/window.md`. Nothing here comes from `keepthread.context`: a limit that changes
there must be noticed here.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Final, Literal, NamedTuple, TypeAlias

from keepthread import Message
from keepthread.context.ids import is_derived, result_ids

FRAME: Final = 16
"""Tokens of every budget that are set aside for what a wire adds."""
NO_RESULT: Final = "(no result)"
CUT: Final = "characters left out …]"
LEAST_STEP: Final = 2048
STEP_SHARE: Final = 0.3
ToolCalls: TypeAlias = Literal["all", "recent", "none"]
PAST: Final = frozenset({"summary", "important"})
"""Sections that show what is before the window."""


# --- shares ---


class Limits(NamedTuple):
    """What a section may take of what the system prompt leaves."""

    min_share: float
    max_share: float
    floor: int = 0
    cap: int | None = None
    unused: float = 0.0
    unclaimed: float = 0.0
    spare: int = 0
    """Tokens of pins and notes where there are none."""

    def most_of(self, room: int) -> int:
        """Return the tokens that the window gives up for it."""
        share = int(room * self.max_share)
        if self.max_share:
            share = max(share, min(self.floor, room // 4))
        more = min(share + self.spare, int(room * self.unclaimed))
        return self._capped(max(share, more))

    def at_all(self, room: int) -> int:
        """Return the most tokens that it may take, with what others leave unused."""
        return self._capped(max(self.most_of(room), int(room * self.unused)))

    def least_of(self, room: int) -> int:
        """Return the tokens that it keeps however large the turn in hand is."""
        return min(int(room * self.min_share), self.most_of(room))

    def _capped(self, share: int) -> int:
        return share if self.cap is None else min(share, self.cap)


TABLE: Final[Mapping[str, Limits]] = {
    "system": Limits(0.05, 0.1, cap=4096),
    "pins": Limits(0.05, 0.25, cap=4096),
    "notes": Limits(0.02, 0.05, cap=512),
    "facts": Limits(0.02, 0.06, floor=120, cap=512),
    "summary": Limits(0.05, 0.12, floor=160, cap=2048, unclaimed=0.27),
    "important": Limits(0.0, 0.03, floor=80, cap=1024),
    "tools": Limits(0.0, 0.05, cap=1024, unused=0.25),
    "recalled": Limits(0.0, 0.02, floor=80, cap=2048, unused=0.2),
}
HYBRID: Final = TABLE
SUMMARIZED: Final = {n: each for n, each in TABLE.items() if n not in ("important", "recalled")}
WINDOW: Final = {name: each for name, each in SUMMARIZED.items() if name != "summary"}
RECALL: Final = {
    "system": TABLE["system"],
    "facts": TABLE["facts"],
    "recalled": Limits(0.0, 1.0),
}


def claimed(
    limits: Mapping[str, Limits], present: frozenset[str], room: int, tokens: int
) -> dict[str, Limits]:
    """Return limits as they are claimed in a session that has something for some sections.

    System messages claim no more than they take; others may have the shares of pins and notes
    where there are none.
    """
    absent = [limits[name] for name in ("pins", "notes") if name in limits.keys() - present]
    spare = sum(each.most_of(room) for each in absent)
    found = {name: each._replace(spare=spare) for name, each in limits.items()}
    if system := found.get("system"):
        cap = tokens if system.cap is None else min(tokens, system.cap)
        found["system"] = system._replace(cap=cap)
    return found


def given(limits: Mapping[str, Limits], room: int, left: int) -> dict[str, int]:
    """Return what each section may take of what the window leaves; nobody takes another's least."""
    found: dict[str, int] = {}
    reserved = sum(each.least_of(room) for each in limits.values())
    for name, each in limits.items():
        least = each.least_of(room)
        reserved -= least
        found[name] = max(0, min(each.most_of(room), max(left - reserved, min(left, least))))
        left -= found[name]
    return found


def oldest_that_fit(messages: Sequence[Message], room: int) -> list[Message]:
    """Return the oldest messages that fit; one that is too large is passed over."""
    shown: list[Message] = []
    for message in messages:
        if message.tokens <= room:
            room -= message.tokens
            shown.append(message)
    return shown


# --- which result answers which call ---


@dataclass(frozen=True, slots=True)
class Block:
    """A message by itself, or a call with the results that answer it, by the call's index."""

    first: Message
    results: dict[int, Message]

    @property
    def is_call(self) -> bool:
        return self.first.role == "assistant" and bool(self.first.tool_calls)

    @property
    def can_be_shown(self) -> bool:
        if self.first.state != "live" or self.first.role == "tool":
            return False
        return bool(self.results) or not self.is_call


def blocks_of(messages: Sequence[Message]) -> list[Block]:
    """Return messages as blocks: a result is in the block of the call it answers.

    A result with a derived id answers the call that the id was derived from. Any other answers the
    latest call before it that has its call id and no result yet, of its own turn if there is one.
    """
    blocks: list[Block] = []
    for message in messages:
        answers = message.role == "tool" and message.state == "live"
        found = _caller(message, blocks) if answers else None
        if found is None:
            blocks.append(Block(message, {}))
        else:
            block, index = found
            block.results[index] = message
    return blocks


def _caller(result: Message, blocks: Sequence[Block]) -> tuple[Block, int] | None:
    callers = [block for block in blocks if block.first.state == "live" and block.is_call]
    own = [block for block in callers if block.first.turn == result.turn]
    others = [block for block in callers if block.first.turn != result.turn]
    for block in [*reversed(own), *reversed(others)]:
        ids = result_ids(block.first)
        for index, call in enumerate(block.first.tool_calls):
            if index in block.results or call.id != result.tool_call_id:
                continue
            if not is_derived(result.id) or ids[index] == result.id:
                return block, index
    return None


# --- where the window starts ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The settings of a strategy that decide where its window starts."""

    limits: Mapping[str, Limits]
    step: int | None
    max_messages: int | None
    most_step: float
    verbatim: int = 0
    """Newest messages that are shown as far as they fit, whatever a step leaves."""
    tool_calls: ToolCalls = "all"

    def at(self, budget: int) -> "Rules":
        """Return the rules for a budget: a window slides where no provider caches a prompt."""
        return replace(self, step=0) if self.step is None and budget < LEAST_STEP else self

    def step_for(self, room: int) -> int:
        if self.step is not None:
            return min(self.step, room)
        return min(max(LEAST_STEP, int(room * STEP_SHARE)), int(room * self.most_step))


class Start(NamedTuple):
    """The index of the block that a window starts at, and its share in tokens."""

    block: int
    room: int


class Log:
    """The visible messages of a session, where each is, what each costs, and their blocks."""

    def __init__(
        self,
        log: Sequence[Message],
        visible: Sequence[Message],
        passed: int,
        ended: frozenset[int] = frozenset(),
        missing: Callable[[Message, int], int] = lambda call, index: 0,
        recounted: Mapping[int, int] | None = None,
        tool_calls: ToolCalls = "all",
    ) -> None:
        """Take places from the running totals, and costs from the messages themselves.

        `passed` is a position that is to be left out, `ended` are notes that hold no longer;
        `missing` returns what the stand-in costs for a result that a call lacks; `recounted` is
        what messages cost now that another counter counted; `tool_calls` says which are shown.
        """
        self.tool_calls = tool_calls
        self.ended = ended
        self.missing = missing
        self.recounted = {**(recounted or {})}
        self.recounted.pop(passed, None)
        before = [0, *(message.total for message in log)]
        stored = {m.seq: m.total - before[n] for n, m in enumerate(log)}
        ends = list(accumulate(stored[m.seq] for m in visible))
        self.messages = [m for m in visible if m.seq != passed]
        # An erased message has no tokens of its own any more; the totals keep what it cost.
        self.preceding = {m.seq: end - m.tokens for m, end in zip(visible, ends, strict=True)}
        self.blocks = blocks_of(self.messages)
        self.index = {m.seq: n for n, m in enumerate(self.messages)}

    def can_be_shown(self, block: Block) -> bool:
        if block.is_call and self.tool_calls == "none":
            return False
        return block.can_be_shown and block.first.seq not in self.ended

    def cost(self, block: Block, newest: Message | None) -> int:
        """Return what a block takes in a prompt: nothing if it cannot be shown."""
        if not self.can_be_shown(block):
            return 0
        if newest is not None and block.first.seq == newest.seq:
            return newest.tokens
        calls = range(len(block.first.tool_calls)) if block.is_call else ()
        lacking = [self.missing(block.first, n) for n in calls if n not in block.results]
        members = [block.first, *block.results.values()]
        return sum(self.recounted.get(m.seq, m.tokens) for m in members) + sum(lacking)

    def behind(self, seq: int) -> int:
        """Return what the blocks that begin behind a position cost."""
        return sum(self.cost(block, None) for block in self.blocks if block.first.seq > seq)

    def first(self, room: int, step: int, most: int | None, newest: Message | None) -> int:
        """Return the first block of a window: by tokens, or by count if that leaves out more."""
        if self.by_count(most, 0) > self.by_tokens(room, 0, newest):
            return self.by_count(most, step)
        return self.by_tokens(room, step, newest)

    def by_tokens(self, room: int, step: int, newest: Message | None) -> int:
        """Return the first block of a window; a step goes as a whole once a block of it must.

        Where another counter counted, no steps are known, and the window slides.
        """
        used, foreign = 0, max(self.recounted, default=0)
        for number in range(len(self.blocks) - 1, -1, -1):
            used += self.cost(self.blocks[number], newest)
            if used > room:
                seq = self.blocks[number].first.seq
                steps = step and seq > foreign
                least = (self.preceding[seq] // step + 1) * step if steps else 0
                return self._first(number + 1, self.preceding, least)
        return 0

    def by_count(self, most: int | None, step: int) -> int:
        """Return the first block of a window of so many messages; it steps by half of them."""
        count, half = 0, max(1, (most or 0) // 2)
        for number in range(len(self.blocks) - 1, -1, -1):
            block = self.blocks[number]
            count += self.can_be_shown(block) * self.size(block)
            if most is not None and count > most:
                place = self.index[block.first.seq]
                least = (place // half + 1) * half if step else 0
                return self._first(number + 1, self.index, least)
        return 0

    def size(self, block: Block) -> int:
        """Return how many messages a block takes in a prompt."""
        return 1 + (len(block.first.tool_calls) if block.is_call else 0)

    def newest(self, number: int) -> int:
        """Return the first of the blocks that hold the newest so many messages."""
        first, held = len(self.blocks), 0
        while first and held < number:
            first -= 1
            block = self.blocks[first]
            held += self.can_be_shown(block) * self.size(block)
        return first

    def at(self, seq: int) -> int:
        """Return the first block at or behind a position."""
        return self._first(0, {m.seq: m.seq for m in self.messages}, seq)

    def _first(self, number: int, places: Mapping[int, int], least: int) -> int:
        """Return the first block, from one on, that is at a place or behind it."""
        numbers = range(number, len(self.blocks))
        found = (n for n in numbers if places[self.blocks[n].first.seq] >= least)
        return next(found, len(self.blocks))


def start_of(
    log: Log, rules: Rules, room: int, present: frozenset[str], newest: Message | None
) -> Start:
    """Return where a window starts in a room that the system prompt leaves.

    `present` are the sections that have something to show; `newest` is the newest user message as
    it is shown. What is before the window gets a share only if something is.
    """
    some = {name: each for name, each in rules.limits.items() if name in present}
    near = {name: each for name, each in some.items() if name not in PAST}
    start = _placed(log, rules, room, near, newest)
    tells_past = bool(PAST & rules.limits.keys())
    return _placed(log, rules, room, some, newest) if tells_past and start.block else start


def _placed(
    log: Log, rules: Rules, room: int, limits: Mapping[str, Limits], newest: Message | None
) -> Start:
    share = max(0, room - sum(each.most_of(room) for each in limits.values()))
    in_hand = newest.tokens + log.behind(newest.seq) if newest else 0
    if newest and in_hand > share:  # the sections give way, in eighths of the room
        eighth = max(1, room // 8)
        least = max(0, room - sum(each.least_of(room) for each in limits.values()))
        share = min(least, -(-in_hand // eighth) * eighth)
        share = max(share, min(room, newest.tokens))
    step, most = rules.step_for(share), rules.max_messages
    start = log.first(share, step, most, newest)
    left = share
    if newest and log.at(newest.seq) < start:
        whole = [b for b in log.blocks if b.first.seq >= newest.seq and log.can_be_shown(b)]
        if in_hand <= share and (most is None or sum(map(log.size, whole)) <= most):
            start = log.at(newest.seq)  # a step never parts the turn in hand
        else:
            left -= newest.tokens
            start = log.first(left, step, most, newest)
    if not any(map(log.can_be_shown, log.blocks[start:])):  # a step would leave out all: it slides
        start = log.first(left, 0, most, newest)
    if step and rules.verbatim:
        needed = max(log.first(left, 0, most, newest), log.newest(rules.verbatim))
        start = min(start, needed)
    return Start(start, share)


# --- held against a context ---


def wrong_start(
    log: Log,
    start: Start,
    newest: Message | None,
    window: frozenset[int],
    dropped: frozenset[int],
) -> Iterator[str]:
    """Yield blocks that a window shows before its start, or lacks behind it.

    `window` are the positions it shows, `dropped` those of which the context says that they do not
    fit: that can be true only where even the newest block is too large. Where calls are put in
    lines, what that frees shows messages before the start, with none left out between.
    """
    earlier = [n for n in range(start.block) if log.can_be_shown(log.blocks[n])]
    inside_earlier = [n for n in earlier if log.blocks[n].first.seq in window]
    lines_free_more = log.tool_calls == "recent" and start.block > 0
    inside = any(map(log.can_be_shown, log.blocks[start.block :]))
    shown = [n for n, block in enumerate(log.blocks) if log.can_be_shown(block)]
    own = newest.seq if newest else 0
    for number, block in enumerate(log.blocks):
        seq = block.first.seq
        if not log.can_be_shown(block) or seq == own:
            continue
        if number < start.block:
            last = number == shown[-1]  # cut to what is left, if nothing else is shown
            if lines_free_more:
                if inside_earlier and number > inside_earlier[0] and seq not in window:
                    yield f"position {seq} is missing; an earlier one is shown"
            elif seq in window and (inside or not last):
                yield f"position {seq} is shown; the window starts at block {start.block}"
        elif seq not in window and (inside or seq not in dropped):
            yield f"position {seq} is missing; the window starts at block {start.block}"


def wrong_results(
    log: Log, window: frozenset[int], said: Mapping[int, Message], shown: Sequence[Message]
) -> Iterator[str]:
    """Yield results that say something else than what the log has for their call."""
    pairs = {block.first.seq: block for block in log.blocks if block.is_call}
    call, left = None, 0
    for message in shown:
        if message.role == "tool" and left and call is not None:
            index = len(call.tool_calls) - left
            left -= 1
            block = pairs.get(call.seq) if call.seq in window else None
            right = block.results.get(index) if block else said.get(message.seq)
            text = right.content if right else NO_RESULT
            if message.content != text and CUT not in message.content:
                given = f"{message.content[:60]!r}, not {text[:60]!r}"
                yield f"call {index} at {call.seq} is answered {given}"
        elif message.role == "assistant" and message.tool_calls:
            call, left = message, len(message.tool_calls)
