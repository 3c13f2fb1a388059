"""The window: the newest blocks that fit, starting at a step so that its beginning stays the same.

Messages that cannot be shown take no room, wherever they are: erased messages, notes that
ended, calls without results. The log is divided into steps by its running totals, and a step is
left out as a whole once one of its blocks does not fit: a function of the log alone. Between two
steps a context begins with the bytes of the one before, so prompt caches stay valid. A step never
splits the turn that is being answered, as long as that fits.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, islice
from typing import Final, Literal, NamedTuple, TypeAlias

from keepthread.context.blocks import Block, Unit, can_be_shown, cost_of, is_answer, units_of
from keepthread.context.tool_results import as_lines
from keepthread.context.truncate import cut_block, cuts, shorten
from keepthread.context.why import WhyBuilder
from keepthread.protocols import Material, WindowStart
from keepthread.references import Reference
from keepthread.types import Digest, Message


class Start(NamedTuple):
    """The first unit of a window, and the unit whose arrival made it start there."""

    unit: int
    since: int


class Extent:
    """The places of units, ascending, and their sizes, in tokens or in messages.

    A unit's place is the running total before it, which never changes. Its size is what it takes to
    show it now; a unit that cannot be shown has none. Steps divide places into equal lengths.
    """

    def __init__(self, places: Sequence[int], sizes: Sequence[int]) -> None:
        """Add the sizes up from the end."""
        self.places = places
        self.after = [*accumulate(reversed(sizes), initial=0)][::-1]
        """The size of each unit and all units after it; 0 at the end."""

    def slide(self, room: int) -> int:
        """Return the first unit from which on all fit."""
        # Negated, because bisection needs ascending values.
        return min(bisect_left(self.after, -room, key=int.__neg__), len(self.places))

    def start(self, room: int, step: int) -> Start:
        """Return where a window starts that moves in steps; a step of 0 slides."""
        unit = self.slide(room)
        if not unit or not step:
            return Start(unit, len(self.places) - 1)
        edge = self.places[unit - 1] // step * step
        return Start(bisect_left(self.places, edge + step, lo=unit), self._outgrown(edge, room))

    def _outgrown(self, edge: int, room: int) -> int:
        """Return the unit with which all from a place on became more than fits."""
        unread = max(0, self.places[0] - edge)
        first = self.after[bisect_left(self.places, edge)]
        # The first unit after which less is left than required.
        after = bisect_left(self.after, room - unread - first + 1, key=int.__neg__)
        return max(0, min(after, len(self.places)) - 1)


ToolCalls: TypeAlias = Literal["all", "recent", "none"]
"""Which tool calls a window shows with their results: those of earlier turns in a line each, if
only the recent ones are shown."""

CONTEXT_FRAME: Final = 16
"""Tokens set aside in every context for what a wire may demand around the messages."""
AMONG_NEWEST: Final = "among the newest messages that fit"
OLDER: Final = "older than the window"
_LINES_FOR_ONE: Final = 4
"""How many calls in lines take about as many tokens as one with its results; for reading ahead."""
IN_LINES: Final = "among the newest messages that fit, tool calls in a line each"
NO_TOOL_CALLS: Final = "a tool call or its result, which this view does not show"


class WindowLayout:
    """One window over its material: where it starts, and what is in it."""

    def __init__(
        self, material: Material, account: WhyBuilder, tool_calls: ToolCalls = "all"
    ) -> None:
        """Look at messages; `show_newest` comes next."""
        self.material = material
        self.account = account
        self.tool_calls = tool_calls
        self.units, self.places, self.callers, self.plain = units_of(
            material.messages, material.turn
        )
        if tool_calls == "none":
            for block in self.callers:
                block.fault = NO_TOOL_CALLS
        self.newest: Message | None = None
        self.room = 0
        self.start = 0
        self.cut = len(self.units) - 1
        """The unit that is cut if none fits as a whole."""
        self.digested: set[int] = set()
        self.in_lines: dict[int, Message] = {}
        """Calls of earlier turns with their results, as lines, by the position of the call."""
        self._freed = 0
        self._since = len(self.units) - 1
        self._before = [material.totals[p] - material.messages[p].tokens for p in self.places]
        self._tokens = Extent(self._before, [cost_of(u, material.counter) for u in self.units])

    def show_newest(self, newest: Message | None) -> None:
        """Take the newest user message as it will be shown."""
        self.newest = newest
        unit = self._unit_of_newest()
        if newest is None or unit is None or newest is self.material.newest_user:
            return
        costs = [cost_of(u, self.material.counter) for u in self.units]
        costs[unit] = newest.tokens
        self._tokens = Extent(self._before, costs)

    def cost_after(self, seq: int) -> int:
        """Return the cost of the units that begin after a position."""
        return self._tokens.after[self._first_unit(seq + 1)]

    def in_hand(self) -> int:
        """Return the cost of the newest user message and all messages after it."""
        return self.newest.tokens + self.cost_after(self.newest.seq) if self.newest else 0

    def _first_unit(self, seq: int) -> int:
        """Return the first unit at or after a position."""
        messages = self.material.messages
        return bisect_left(self.places, seq, key=lambda place: messages[place].seq)

    def _unit_of_newest(self) -> int | None:
        """Return the unit of the newest user message; None if it is older than what was read."""
        unit = self._first_unit(self.newest.seq) if self.newest else len(self.units)
        if self.newest is None or unit == len(self.units):
            return None
        return unit if self.material.messages[self.places[unit]].seq == self.newest.seq else None

    # --- where it starts ---

    def place(self, room: int, step: int, most: int | None, verbatim: int = 0) -> None:
        """Find the first unit of a window of `room` tokens, and of up to `most` messages.

        The newest `verbatim` messages are in it as far as they fit, whatever the step leaves out.
        """
        self.room = room
        self.start = 0
        self.cut = len(self.units) - 1
        if not self.units:
            return
        count = self._count() if most is not None else None
        start = self._placed(room, step, count, most)
        left = room
        if self._is_apart(start) and self.newest is not None:
            whole = self._unit_of_newest() or 0
            few = count is None or most is None or count.after[whole] <= most
            if few and self.in_hand() <= room:
                start = whole
            else:
                left -= self.newest.tokens
                start = self._placed(left, step, count, most)
        if not self._shows_anything(start):  # a step would leave out even the newest: slide instead
            start = self._placed(left, 0, count, most)
        first = self._first_of_newest(verbatim, len(self.units)) if verbatim and step else start
        if first < start:
            since = self._since
            slid = self._placed(left, 0, count, most)
            if slid < start:
                start = max(slid, first)
            else:
                self._since = since
        last = self._last_that_can_be_shown()
        if last is not None and last < start:  # none fits as a whole
            start, self.cut = len(self.units), last
        self.start = start
        self.in_lines, self._freed = {}, 0
        if self.tool_calls == "recent" and 0 < start < len(self.units):
            self._put_in_lines(verbatim, shows_more=most is None)

    def _put_in_lines(self, verbatim: int, *, shows_more: bool) -> None:
        """Put calls of turns that were over at the last step in a line each.

        The tokens that this frees show earlier messages, unless the number of messages is limited.
        It depends on the log up to that step alone, so it stays the same until the next one. Of
        the messages there were then, the newest `verbatim` stay as they are.
        """
        over = self._end_of_earlier_turns()
        if verbatim:
            over = min(over, self._first_of_newest(verbatim, self._since + 1))
        freed = 0
        for unit in self.units[self.start : over]:
            freed += self._freed_by(unit)
        while shows_more and self.start and freed >= 0:
            unit = self.units[self.start - 1]
            gain = self._freed_by(unit)
            freed -= cost_of(unit, self.material.counter) - gain
            if freed >= 0:
                self.start -= 1
        self._freed = max(0, freed) if shows_more else 0

    def _first_of_newest(self, number: int, end: int) -> int:
        """Return the first of the units before `end` that hold the newest `number` messages."""
        first, held = end, 0
        while first and held < number:
            first -= 1
            unit = self.units[first]
            held += 1 if isinstance(unit, Message) else unit.size
        return first

    def _end_of_earlier_turns(self) -> int:
        """Return the unit of the newest user message that there was at the last step."""
        numbers = range(min(self._since, len(self.units) - 1), self.start, -1)
        users = (n for n in numbers if isinstance(m := self.units[n], Message) and m.role == "user")
        return next(users, self.start)

    def _freed_by(self, unit: Unit) -> int:
        """Put a call and its results in lines if that is shorter, and return by how many tokens."""
        if isinstance(unit, Message) or unit.fault or unit.members()[-1].seq > self.stepped:
            return 0
        lines = as_lines(unit, self.material.counter)
        freed = cost_of(unit, self.material.counter) - lines.tokens
        if freed <= 0:
            return 0
        self.in_lines[unit.call.seq] = lines
        return freed

    def _count(self) -> Extent:
        """Return how many messages the units are."""
        earlier = self.material.earlier
        sizes = [1 if isinstance(unit, Message) else unit.size for unit in self.units]
        return Extent([earlier + place for place in self.places], sizes)

    def _placed(self, room: int, step: int, count: Extent | None, most: int | None) -> int:
        """Return the first unit by tokens, or by count if that leaves out more.

        Whether it does is known from the units that fit; others may not have been read.
        """
        slid = self._tokens.slide(room)
        steady = slid and self._seq(slid - 1) > self.material.recounted
        start, self._since = self._tokens.start(room, step if steady else 0)
        if count is None or most is None or count.slide(most) <= slid:
            return start
        start, self._since = count.start(most, max(1, most // 2) if step else 0)
        return start

    def _seq(self, unit: int) -> int:
        return self.material.messages[self.places[unit]].seq

    def _shows_anything(self, start: int) -> bool:
        """Return whether any unit from `start` on can be shown; lone results cannot."""
        return any(map(can_be_shown, islice(self.units, start, None)))

    def _last_that_can_be_shown(self) -> int | None:
        numbers = range(len(self.units) - 1, -1, -1)
        return next((n for n in numbers if can_be_shown(self.units[n])), None)

    def _is_apart(self, start: int) -> bool:
        """Return whether the newest user message is shown though the window starts after it."""
        if self.newest is None:
            return False
        return start == len(self.units) or self.newest.seq < self._seq(start)

    @property
    def missing(self) -> int:
        """Return the tokens that older messages than those that were read may take; 0 if none.

        It is not 0 as long as the window starts with all that was read.
        """
        if self.start or not self.material.earlier:
            return 0
        # The tokens that lines have freed show messages that are mostly put in lines as well.
        return max(1, self.room - self._tokens.after[0], _LINES_FOR_ONE * self._freed)

    @property
    def stepped(self) -> int:
        """Return the position of the message that made the window start where it does."""
        return self._seq(self._since) if self.units else 0

    @property
    def window_start(self) -> WindowStart:
        """Return where it starts, and since when."""
        if not self.units:
            return WindowStart(1, 0)
        return WindowStart(self._seq(min(self.start, self.cut)), self.stepped)

    @property
    def shows_all(self) -> bool:
        """Return whether nothing is before the window."""
        return not self.start and not self.material.earlier

    # --- what is in it ---

    def fill(self, digests: Mapping[int, Digest]) -> list[Message]:
        """Return the messages of the window in the order of a prompt."""
        newest, counter = self.newest, self.material.counter
        apart = self._is_apart(self.start)
        whole = newest is self.material.newest_user and self.start < len(self.units)
        if self.plain and whole and not apart and not digests:
            return list(self.material.messages[self.start :])
        groups: list[list[Message]] = []
        if newest is not None and apart:
            groups.append([newest])
        for unit in self.units[self.start :]:
            if isinstance(unit, Message):
                shown = newest if newest and unit.seq == newest.seq else unit
                digest = digests.get(unit.seq)
                groups.append([self._in_short(shown, digest) if digest else shown])
            elif unit.fault:
                self.account.add(unit.members(), "", unit.fault)
            elif lines := self.in_lines.get(unit.call.seq):
                groups.append([lines])
                self.account.made.append((lines, _in_lines(unit)))
            else:
                groups.append(unit.shown(counter))
        if self.start == len(self.units):
            groups += self._cut_last(sum(m.tokens for group in groups for m in group))
        return self._within_room(groups)

    def _in_short(self, message: Message, digest: Digest) -> Message:
        """Return an answer as its digest; one that would not be shorter stays as it is."""
        short = replace(message, content=digest.text, native=None, attachments=())
        counter = self.material.counter
        tokens = digest.tokens if digest.counter == counter.name else counter.count(short)
        if not is_answer(message) or tokens >= message.tokens:
            return message
        self.digested.add(message.seq)
        short = replace(short, tokens=tokens)
        self.account.made.append((short, Reference("short", (message.seq,))))
        return short

    def _cut_last(self, used: int) -> list[list[Message]]:
        """Return the newest unit, cut to the room that is left, if it is not the user's message."""
        last = self.units[self.cut] if self.units else None
        left = self.room - used
        self._explain_faults(self.units[self.cut + 1 :])
        if isinstance(last, Block):
            group = [] if last.fault else cut_block(last, left, self.material.counter)
            members, fault = last.members(), last.fault
        elif last is None or (self.newest and last.seq == self.newest.seq):
            return []
        else:
            cut = shorten(last, left, self.material.counter)
            group, members, fault = [cut] if cut else [], [last], ""
        if not group:
            self.account.add(members, "", fault or "does not fit")
        self.account.made += cuts(members, group)
        return [group]

    def _explain_faults(self, units: Sequence[Unit]) -> None:
        for unit in units:
            if isinstance(unit, Block):
                self.account.add(unit.members(), "", unit.fault)

    def _within_room(self, groups: list[list[Message]]) -> list[Message]:
        """Drop the oldest where a newest message that is kept whole made it too much."""
        used = sum(m.tokens for group in groups for m in group)
        kept = groups
        while used > self.room and (old := [g for g in kept if g and g[0] is not self.newest][:1]):
            kept = [group for group in kept if group is not old[0]]
            used -= sum(m.tokens for m in old[0])
            self.account.add(logged(old[0]), "", "does not fit")
        return [m for group in kept for m in group]

    # --- why ---

    def explain(self, shown: Sequence[Message]) -> None:
        """Note what is in it, the newest user message on a line of its own."""
        newest = self.newest
        seen = list(shown) if self.plain else logged(shown)
        places = range(len(seen) - 1, -1, -1)
        seq = newest.seq if newest else -1
        at = next((n for n in places if seen[n].seq == seq), len(seen))
        self._explain_some(seen[:at])
        if newest is not None and at < len(seen):
            whole = self.material.newest_user
            cut = whole is not None and whole.tokens != newest.tokens
            reason = f"truncated from {whole.tokens} tokens" if whole and cut else "always shown"
            self.account.add([newest], "newest", f"the newest user message, {reason}")
        self._explain_some(seen[at + 1 :])

    def _explain_some(self, seen: Sequence[Message]) -> None:
        if self.in_lines:
            seen = self._explain_lines(seen)
        short = self.digested
        plain = [m for m in seen if m.seq not in short] if short else seen
        self.account.add(plain, "window", AMONG_NEWEST)
        if short:
            some = [m for m in seen if m.seq in short]
            self.account.add(some, "window", "an older answer, shown as a digest")

    def _explain_lines(self, seen: Sequence[Message]) -> Sequence[Message]:
        """Note the part with calls in lines, up to the last of them, and return the other part."""
        last = max(self.in_lines)
        old: list[Message] = []
        for message in seen:
            if message.seq > last:
                break
            old.append(message)
        members = {block.call.seq: block.members() for block in self.callers}
        # The results are in the line of their call, which has the tokens of both.
        results = [
            replace(result, tokens=0)
            for message in old
            if message.seq in self.in_lines
            for result in members[message.seq][1:]
        ]
        digested = [m for m in old if m.seq in self.digested]
        self.account.add(
            logged([*(m for m in old if m.seq not in self.digested), *results]), "window", IN_LINES
        )
        return [*digested, *seen[len(old) :]]

    def older(self) -> tuple[int, int, int]:
        """Return the last position before it, how many messages that are, and what they cost.

        Erased messages cost nothing. Of messages that were not read, only the totals are known.
        """
        if not self.units:
            return 0, 0, 0
        material = self.material
        place = self.places[min(self.start, self.cut)]  # the one that is cut has its own line
        first = material.messages[place]
        count = material.earlier + place
        unread = 0 if material.messages[0].seq <= material.recounted else self._before[0]
        tokens = unread + sum([m.tokens for m in material.messages[:place]])
        newest = material.newest_user
        if newest is not None and newest.seq < first.seq:  # shown apart from the window
            count -= 1
            tokens -= newest.tokens
        last = material.messages[place - 1].seq if place else first.seq - 1
        return last, count, max(0, tokens)

    def explain_late(self) -> None:
        """Note results in the window whose call is before it."""
        if not self.callers:
            return
        first = self.window_start.first
        for block in self.callers:
            if block.call.seq < first:
                late = [m for m in block.members() if m.seq > first]
                self.account.add(late, "", block.fault or "its tool call is older than the window")


def _in_lines(block: Block) -> Reference:
    """Return the positions of a call and of the result of each call in it."""
    found = [block.results.get(number) for number in range(len(block.call.tool_calls))]
    return Reference("lines", (block.call.seq, *(each.seq if each else 0 for each in found)))


def logged(messages: Sequence[Message]) -> list[Message]:
    """Return messages without stand-ins, which the log does not hold, by position."""
    return sorted((m for m in messages if m.seq), key=lambda m: m.seq)
