"""The window: the newest blocks that fit, starting at a step so that its beginning stays the same.

With T the total of visible tokens, B the room and s the step, the window starts at the first block
whose preceding total is at least s·⌈(T - B)/s⌉: a function of the log alone. Between two steps a
context begins with the bytes of the one before, which is what prompt caches reward.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from keepthread.context.account import Account
from keepthread.context.blocks import Block, units_of
from keepthread.context.trim import cut_block, shorten
from keepthread.errors import BudgetTooSmall, InvalidInput
from keepthread.protocols import Material
from keepthread.types import Message, Selection

Overflow: TypeAlias = Literal["trim", "keep", "raise"]

CONTEXT_FRAME: Final = 16
"""Tokens set aside in every context for what a wire may demand around the messages."""
PIN_SHARE: Final = 0.25
"""The most of the room that pinned messages outside the window may take."""
LEAST_STEP: Final = 2048
STEP_SHARE: Final = 0.3
MOST_STEP_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Shows the system prompt, pins, and the newest messages that fit.

    `step` is how many tokens the start moves at once: None chooses by the budget, 0 slides.
    `overflow` is what happens to a newest message that is larger than the budget: it is cut in the
    middle, kept whole, or refused.
    """

    step: int | None = None
    overflow: Overflow = "trim"
    max_messages: int | None = None

    def __post_init__(self) -> None:
        """Refuse settings that mean nothing."""
        if self.overflow not in ("trim", "keep", "raise"):
            raise InvalidInput(f"overflow must be trim, keep or raise, not {self.overflow!r}")
        if (self.step or 0) < 0 or (self.max_messages is not None and self.max_messages < 1):
            raise InvalidInput("step cannot be negative, max_messages must be at least 1")

    def select(self, material: Material, budget: int) -> Selection:
        """Return what to show within the budget, and the reason for each choice."""
        return _Choosing(self, material, budget).run()

    def step_for(self, room: int) -> int:
        """Return the step for a room of so many tokens; 0 slides."""
        if self.step is not None:
            return min(self.step, room)
        return min(max(LEAST_STEP, int(room * STEP_SHARE)), int(room * MOST_STEP_SHARE))


class _Choosing:
    """One run of a window over its material."""

    def __init__(self, window: Window, material: Material, budget: int) -> None:
        self.window = window
        self.material = material
        self.budget = budget
        self.account = Account()
        room = budget - CONTEXT_FRAME - material.system_tokens
        pinned = sum(pin.tokens for pin in material.pins)
        self.pin_room = max(0, min(pinned, int(room * PIN_SHARE)))
        self.room = room - self.pin_room
        self.units, self.places, self.callers, self.plain = units_of(material.messages)
        self.newest = self._fit_newest()

    def run(self) -> Selection:
        material = self.material
        if material.system_prompt:
            self.account.add_range(0, 0, 1, material.system_tokens, "system", "the system prompt")
        start = self._start()
        shown = self._fill(start)
        pins = self._pins(shown)
        self._explain(start, shown)
        messages = (*pins, *shown)
        return Selection(
            budget=self.budget,
            tokens=CONTEXT_FRAME + material.system_tokens + sum([m.tokens for m in messages]),
            system=material.system_prompt,
            messages=messages,
            choices=tuple(self.account.choices),
        )

    # --- the newest user message ---

    def _fit_newest(self) -> Message | None:
        """Return the newest user message as it will be shown."""
        newest = self.material.newest_user
        if self.room < 0:
            raise BudgetTooSmall(
                f"the system prompt needs {self.material.system_tokens} tokens and what a wire"
                f" adds {CONTEXT_FRAME}; the budget is {self.budget}"
            )
        if newest is None or newest.tokens <= self.room // 2 or self.window.overflow == "keep":
            return newest
        if self.window.overflow == "raise":
            cut = newest if newest.tokens <= self.room else None
        else:
            counter = self.material.counter
            cut = shorten(newest, self._room_for(newest), counter)
            cut = cut or shorten(newest, self.room, counter)
        if cut is None:
            raise BudgetTooSmall(
                f"the newest message alone needs {newest.tokens} tokens, the system prompt"
                f" {self.material.system_tokens} and what a wire adds {CONTEXT_FRAME};"
                f" the budget is {self.budget}"
            )
        return cut

    def _room_for(self, newest: Message) -> int:
        """Return the room for the newest user message: all, but half of it if more came after."""
        after = sum(m.tokens for m in self.material.messages if m.seq > newest.seq)
        if newest.tokens + after <= self.room:
            return self.room
        return max(self.room - after, self.room // 2) if after else self.room

    # --- where the window starts ---

    def _start(self) -> int:
        """Return the index of the first unit in the window."""
        if not self.units:
            return 0
        step = self.window.step_for(self.room) if self.material.steady else 0
        start = max(self._by_tokens(self.room, step), self._by_count(step))
        room = self.room
        if self._stands_apart(start):
            room -= self.newest.tokens if self.newest else 0
            start = max(self._by_tokens(room, step), self._by_count(step))
        if start == len(self.units):  # a step would leave out even the newest: slide instead
            start = max(self._by_tokens(room, 0), self._by_count(0))
        return start

    def _by_tokens(self, room: int, step: int) -> int:
        material = self.material
        least = material.totals[-1] - room
        if least <= 0:
            return 0
        if step:
            least = step * -(-least // step)
        places, totals, messages = self.places, material.totals, material.messages
        return bisect_left(places, least, key=lambda place: totals[place] - messages[place].tokens)

    def _by_count(self, step: int) -> int:
        most = self.window.max_messages
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

    # --- what is in it ---

    def _fill(self, start: int) -> list[Message]:
        """Return the messages of the window in the order of a prompt."""
        newest, counter = self.newest, self.material.counter
        apart = self._stands_apart(start)
        whole = newest is self.material.newest_user and start < len(self.units)
        if self.plain and whole and not apart:
            return list(self.material.messages[start:])
        groups: list[list[Message]] = []
        if newest is not None and apart:
            groups.append([newest])
        for unit in self.units[start:]:
            if isinstance(unit, Message):
                groups.append([newest if newest and unit.seq == newest.seq else unit])
            elif unit.fault:
                self.account.add(unit.members(), "", unit.fault)
            else:
                groups.append(unit.shown(counter))
        if start == len(self.units):
            groups += self._cut_last(sum(m.tokens for group in groups for m in group))
        return self._within_room(groups)

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
            self.account.add(_logged(old[0]), "", "does not fit")
        return [m for group in kept for m in group]

    def _pins(self, shown: list[Message]) -> list[Message]:
        """Return pinned messages that the window does not show; if not all fit, the newest."""
        seen = {m.seq for m in shown}
        left = self.pin_room
        pins: list[Message] = []
        for pin in reversed([pin for pin in self.material.pins if pin.seq not in seen]):
            left -= pin.tokens
            if left < 0:
                self.account.add([pin], "", "pinned, but the pins' share of the budget is used up")
            else:
                pins.append(pin)
        pins.reverse()
        self.account.add(pins, "pins", "pinned")
        return pins

    # --- why ---

    def _explain(self, start: int, shown: list[Message]) -> None:
        """Note the window, the newest message, and what is older."""
        newest = self.newest
        logged = shown if self.plain else _logged(shown)
        places = range(len(logged) - 1, -1, -1)
        seq = newest.seq if newest else 0
        at = next((n for n in places if logged[n].seq == seq), len(logged))
        self.account.add(logged[:at], "window", "among the newest that fit")
        if newest is not None and at < len(logged):
            whole = self.material.newest_user
            cut = whole is not None and whole.tokens != newest.tokens
            reason = f"cut from {whole.tokens} tokens" if whole and cut else "always shown"
            self.account.add([newest], "newest", f"the newest user message, {reason}")
        self.account.add(logged[at + 1 :], "window", "among the newest that fit")
        self._explain_older(start)
        self.account.add_hidden(self.material.hidden)

    def _explain_older(self, start: int) -> None:
        material = self.material
        if not self.units:
            return
        place = self.places[min(start, len(self.units) - 1)]  # the newest unit has its own line
        first = material.messages[place]
        older = material.earlier + place
        tokens = material.totals[place] - first.tokens
        newest = material.newest_user
        if newest is not None and newest.seq < first.seq:  # shown, though it stands apart
            older -= 1
            tokens -= newest.tokens
        if older <= 0:
            return
        last = material.messages[place - 1].seq if place else first.seq - 1
        reason = "older than the window"
        self.account.add_range(material.first, last, older, max(0, tokens), "", reason)
        for block in self.callers:
            if block.call.seq < first.seq and not block.fault:
                late = [m for m in block.members() if m.seq > first.seq]
                self.account.add(late, "", "its call is older than the window")


def _logged(messages: Sequence[Message]) -> list[Message]:
    """Return messages without stand-ins, which the log does not hold, by position."""
    return sorted((m for m in messages if m.seq), key=lambda m: m.seq)
