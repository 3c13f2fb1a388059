"""The window: the newest blocks that fit, starting at a step so that its beginning stays the same.

With T the total of visible tokens, B the room and s the step, the window starts at the first block
whose preceding total is at least s·⌈(T - B)/s⌉: a function of the log alone. Between two steps a
context begins with the bytes of the one before, which is what prompt caches reward. A step never
parts the exchange that is being answered, as long as that fits.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

from keepthread.context.account import Account
from keepthread.context.blocks import Block, is_answer, units_of
from keepthread.context.trim import cut_block, shorten
from keepthread.protocols import Material
from keepthread.types import Digest, Message

CONTEXT_FRAME: Final = 16
"""Tokens set aside in every context for what a wire may demand around the messages."""
AMONG_NEWEST: Final = "among the newest that fit"
OLDER: Final = "older than the window"


class Reach(NamedTuple):
    """Where a window starts, and the position whose arrival made it start there."""

    first: int
    stepped: int


class Pane:
    """One window over its material: where it starts, and what is in it."""

    def __init__(self, material: Material, newest: Message | None, account: Account) -> None:
        """Look at messages; `newest` is the newest user message as it will be shown."""
        self.material = material
        self.newest = newest
        self.account = account
        self.units, self.places, self.callers, self.plain = units_of(
            material.messages, material.exchange
        )
        self.room = 0
        self.start = 0
        self._step: tuple[int, int, int | None] = (0, 0, None)
        self.digested: set[int] = set()

    def in_hand(self) -> int:
        """Return what the newest user message and all behind it cost."""
        if self.newest is None:
            return 0
        if self.material.messages and self.material.messages[-1].seq == self.newest.seq:
            return self.newest.tokens
        place = self._place_of_newest()
        behind = self.material.totals[-1] - self.material.totals[place] if place >= 0 else 0
        return self.newest.tokens + behind

    def _place_of_newest(self) -> int:
        """Return the index of the newest user message, or -1 if it is older than what was read."""
        messages = self.material.messages
        seq = self.newest.seq if self.newest else 0
        place = bisect_left(messages, seq, key=lambda m: m.seq)
        return place if place < len(messages) and messages[place].seq == seq else -1

    # --- where it starts ---

    def place(self, room: int, step: int, most: int | None) -> None:
        """Find the first unit of a window of so many tokens, and of so many messages at most."""
        self.room = room
        self.start = 0
        if not self.units:
            return
        step = step if self.material.steady else 0
        start = max(self._by_tokens(room, step), self._by_count(most, step))
        left = room
        if self._stands_apart(start) and (whole := self._exchange_in_hand(most)) is not None:
            start = whole
        elif self._stands_apart(start):
            left -= self.newest.tokens if self.newest else 0
            start = max(self._by_tokens(left, step), self._by_count(most, step))
        if start == len(self.units):  # a step would leave out even the newest: slide instead
            start = max(self._by_tokens(left, 0), self._by_count(most, 0))
        self.start = start
        self._step = (left, step, most)

    def _exchange_in_hand(self, most: int | None) -> int | None:
        """Return the unit of the newest user message if it and all behind it fit."""
        place = self._place_of_newest()
        if place < 0 or self.in_hand() > self.room:
            return None
        if most is not None and len(self.material.messages) - place > most:
            return None
        return bisect_left(self.places, place)

    def _by_tokens(self, room: int, step: int) -> int:
        material = self.material
        least = material.totals[-1] - room
        if least <= 0:
            return 0
        if step:
            least = step * -(-least // step)
        places, totals, messages = self.places, material.totals, material.messages
        return bisect_left(places, least, key=lambda place: totals[place] - messages[place].tokens)

    def _by_count(self, most: int | None, step: int) -> int:
        if most is None:
            return 0
        least = self.material.earlier + len(self.material.messages) - most
        if least <= 0:
            return 0
        if step:
            stride = max(1, most // 2)
            least = stride * -(-least // stride)
        return bisect_left(self.places, least - self.material.earlier)

    def _stands_apart(self, start: int) -> bool:
        """Tell whether the newest user message must be shown though the window starts behind it."""
        if self.newest is None:
            return False
        if start == len(self.units):
            return True
        return self.newest.seq < self.material.messages[self.places[start]].seq

    @property
    def stepped(self) -> int:
        """Return the position of the message that made the window start where it does."""
        material, (room, step, most) = self.material, self._step
        if not material.messages:
            return 0
        place = len(material.messages) - 1
        if step and (over := material.totals[-1] - room) > 0:
            before = step * (-(-over // step) - 1)
            place = min(place, bisect_right(material.totals, before + room))
        if step and most is not None and place == len(material.messages) - 1:
            stride = max(1, most // 2)
            over = material.earlier + len(material.messages) - most
            if over > 0:
                before = stride * (-(-over // stride) - 1)
                place = min(place, max(0, before + most - material.earlier))
        return material.messages[place].seq

    @property
    def reach(self) -> Reach:
        """Return where it starts, and since when."""
        if not self.units:
            return Reach(1, 0)
        unit = min(self.start, len(self.units) - 1)
        return Reach(self.material.messages[self.places[unit]].seq, self.stepped)

    @property
    def shows_all(self) -> bool:
        """Tell whether nothing is before it."""
        return not self.start and not self.material.earlier

    # --- what is in it ---

    def fill(self, digests: Mapping[int, Digest]) -> list[Message]:
        """Return the messages of the window in the order of a prompt."""
        newest, counter = self.newest, self.material.counter
        apart = self._stands_apart(self.start)
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
        return replace(short, tokens=tokens)

    def _cut_last(self, used: int) -> list[list[Message]]:
        """Return the newest unit, cut to the room that is left, if it is not the user's message."""
        last = self.units[-1] if self.units else None
        left = self.room - used
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
        return [group]

    def _within_room(self, groups: list[list[Message]]) -> list[Message]:
        """Drop the oldest where stand-ins for missing results made it too much."""
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
            reason = f"cut from {whole.tokens} tokens" if whole and cut else "always shown"
            self.account.add([newest], "newest", f"the newest user message, {reason}")
        self._explain_some(seen[at + 1 :])

    def _explain_some(self, seen: Sequence[Message]) -> None:
        short = self.digested
        plain = [m for m in seen if m.seq not in short] if short else seen
        self.account.add(plain, "window", AMONG_NEWEST)
        if short:
            some = [m for m in seen if m.seq in short]
            self.account.add(some, "window", "an older answer, in short")

    def older(self) -> tuple[int, int, int]:
        """Return the last position before it, how many messages that are, and what they cost."""
        if not self.units:
            return 0, 0, 0
        material = self.material
        place = self.places[min(self.start, len(self.units) - 1)]  # the newest has its own line
        first = material.messages[place]
        count = material.earlier + place
        tokens = material.totals[place] - first.tokens
        newest = material.newest_user
        if newest is not None and newest.seq < first.seq:  # shown, though it stands apart
            count -= 1
            tokens -= newest.tokens
        last = material.messages[place - 1].seq if place else first.seq - 1
        return last, count, max(0, tokens)

    def explain_late(self) -> None:
        """Note results in the window whose call is before it."""
        if not self.callers:
            return
        first = self.reach.first
        for block in self.callers:
            if block.call.seq < first and not block.fault:
                late = [m for m in block.members() if m.seq > first]
                self.account.add(late, "", "its call is older than the window")


def logged(messages: Sequence[Message]) -> list[Message]:
    """Return messages without stand-ins, which the log does not hold, by position."""
    return sorted((m for m in messages if m.seq), key=lambda m: m.seq)
