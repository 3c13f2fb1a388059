"""Strategies: lists of sections around a window, chosen by one pure pipeline.

Two orders, not one. Who gets tokens first: the system prompt, the newest user message, the turn in
hand, then the sections in their order, then the window. Where it is placed: what rarely changes
first (system prompt, system messages, pins, facts, the summary, important messages, notes older
than the window), then the window, then what changes with each turn (remembered results, what was
recalled), then the newest user message and what came after it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NamedTuple, TypeAlias

from keepthread.context.facts import profile_that_fits
from keepthread.context.recall import recollect
from keepthread.context.sections import (
    HYBRID,
    PAST,
    RECALL,
    SUMMARIZED,
    WINDOW,
    Section,
    Shares,
    cached_that_fit,
    explain_beyond,
    needs_of,
    newest_that_fit,
    oldest_that_fit,
)
from keepthread.context.summary import COVERED, IN_SHORT, SummarySection, render_summary
from keepthread.context.truncate import cuts, shorten
from keepthread.context.why import OlderRanges, WhyBuilder
from keepthread.context.window import CONTEXT_FRAME, OLDER, ToolCalls, WindowLayout
from keepthread.errors import BudgetTooSmall, InvalidInput
from keepthread.protocols import (
    History,
    Material,
    Need,
    Recalled,
    RecallRequest,
    RecallScope,
    WindowStart,
)
from keepthread.types import Digest, Message, Selection

Overflow: TypeAlias = Literal["trim", "keep", "raise"]

LEAST_STEP: Final = 2048
"""Minimum step in tokens; smaller contexts slide, because providers do not cache short prompts."""
STEP_SHARE: Final = 0.3
_UNDIGESTED: Final = 20
NOT_SUMMARIZED: Final = f"{OLDER}, not summarized"
_INCREMENTS: Final = 8
"""The current turn displaces sections in steps of this fraction of the room: with every call
by a little would change the beginning of the prompt each time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """Shows the system prompt, pins, notes, cached results, and the newest messages that fit.

    `step` is how many tokens the start moves at once: None chooses by the budget and slides in
    small ones, 0 always slides.
    `overflow` is what happens to a newest message that is larger than the budget: it is cut in the
    middle, kept whole, or refused. `tool_calls` are those that are shown: all, those of earlier
    turns in a line each (`recent`), or none.
    """

    step: int | None = None
    overflow: Overflow = "trim"
    max_messages: int | None = None
    tool_calls: ToolCalls = "all"
    recall: RecallScope | None = None
    """Where to recall from: all sessions of the owner, or this one; None is as the memory says."""
    sections: Sequence[Section] = WINDOW

    max_step: ClassVar[float] = 0.38
    """The most of the window that a step may take: the rest is in use right after it."""

    def __post_init__(self) -> None:
        """Check the settings."""
        if self.overflow not in ("trim", "keep", "raise"):
            raise InvalidInput(f"overflow must be trim, keep or raise, not {self.overflow!r}")
        if self.recall not in ("owner", "session", None):
            raise InvalidInput(f"recall must be owner, session or None, not {self.recall!r}")
        if self.tool_calls not in ("all", "recent", "none"):
            raise InvalidInput(f"tool_calls must be all, recent or none, not {self.tool_calls!r}")
        if (self.step or 0) < 0 or (self.max_messages is not None and self.max_messages < 1):
            raise InvalidInput("step cannot be negative, max_messages must be at least 1")
        names = [section.name for section in self.sections]
        if len(set(names)) < len(names):
            raise InvalidInput("a strategy can have each section only once")

    def select(self, material: Material, budget: int) -> Selection:
        """Return what to show within the budget, and the reason for each choice."""
        return self.plan(material, budget).finish(material.past, material.recalled)

    def plan(self, material: Material, budget: int) -> "WindowPlan":
        """Return where the window starts; what is before it can then be looked up."""
        return WindowPlan(_rules_of(self), material, budget)

    @property
    def needs(self) -> frozenset[Need]:
        """Return what must be read to fill its sections."""
        return needs_of(self.sections)

    def step_for(self, room: int) -> int:
        """Return the step for a window of `room` tokens; 0 slides."""
        return _rules_of(self).step_for(room)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summarized(Window):
    """A window after a running summary of earlier messages; older answers are shown as digests.

    `verbatim_messages` is how many of the newest messages are shown word for word, as far as they
    fit: the window slides where a step would leave fewer. None shows what the last step left, and
    the digests of answers that were older than 20 messages then. Up to `brief_turns` turns that no
    summary covers yet are abridged.
    """

    sections: Sequence[Section] = SUMMARIZED
    verbatim_messages: int | None = None
    brief_turns: int = 20

    max_step: ClassVar[float] = 0.62

    def plan(self, material: Material, budget: int) -> "WindowPlan":
        """Return where the window starts; what is before it can then be looked up."""
        newest = self.verbatim_messages
        rules = _rules_of(self)._replace(
            brief_turns=self.brief_turns,
            verbatim_messages=newest or 0,
            undigested=_UNDIGESTED if newest is None else newest,
        )
        return WindowPlan(rules, material, budget)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid(Summarized):
    """Like `Summarized`, but important messages stay word for word.

    Messages related to the newest user message are recalled, from other sessions of the owner too
    if `recall` is "owner".
    """

    sections: Sequence[Section] = HYBRID


@dataclass(frozen=True, slots=True, kw_only=True)
class Recall(Window):
    """Shows messages related to the newest user message or a query, and the current turn."""

    sections: Sequence[Section] = RECALL

    def plan(self, material: Material, budget: int) -> "WindowPlan":
        """Return where the current turn starts, and recall as much as there is room for."""
        return WindowPlan(_rules_of(self)._replace(relevant_only=False), material, budget)


class WindowRules(NamedTuple):
    """The settings of a `WindowPlan`: those of `Window`, and what its subclasses add."""

    sections: Sequence[Section]
    step: int | None = None
    max_step: float = Window.max_step
    """The largest share of the window that a step may take."""
    overflow: Overflow = "trim"
    max_messages: int | None = None
    tool_calls: ToolCalls = "all"
    recall: RecallScope | None = None
    relevant_only: bool = True
    """Whether recall leaves room empty rather than fill it with messages of little relevance."""
    brief_turns: int = 0
    verbatim_messages: int = 0
    """Newest messages to show word for word as far as they fit, though a step would leave fewer."""
    undigested: int | None = None
    """Newest messages at the last step whose digests are not used; None uses none."""

    def step_for(self, room: int) -> int:
        """Return the step for a window of `room` tokens; 0 slides."""
        if self.step is not None:
            return min(self.step, room)
        return min(max(LEAST_STEP, int(room * STEP_SHARE)), int(room * self.max_step))


def _rules_of(strategy: Window) -> WindowRules:
    return WindowRules(
        strategy.sections,
        step=strategy.step,
        max_step=strategy.max_step,
        overflow=strategy.overflow,
        max_messages=strategy.max_messages,
        tool_calls=strategy.tool_calls,
        recall=strategy.recall,
    )


class WindowPlan:
    """One selection in progress: first the place of the window, then all sections around it.

    Every strategy here is this plan with other settings; a strategy of your own can use it too.
    """

    def __init__(self, rules: WindowRules, material: Material, budget: int) -> None:
        """Place the window; it depends on what the sections may take, not on what they use."""
        self.rules = rules
        self.material = material
        self.budget = budget
        self.account = WhyBuilder()
        self.missing = 0
        """How many tokens of messages may be shown that are older than those that were read."""
        self.frame = 0 if material.is_text else CONTEXT_FRAME
        self.room = budget - self.frame - material.system_tokens
        sections = [s for s in rules.sections if rules.tool_calls != "none" or s.name != "tools"]
        self.shares = Shares.of(sections, material, self.room)
        self.layout = WindowLayout(material, self.account, rules.tool_calls)
        self.layout.show_newest(self._fit_newest())
        has_past = any(section.name in PAST for section in rules.sections)
        near = self.shares.without_past() if has_past else self.shares
        self._place(near)
        self.missing = self.layout.missing
        self.shows_past = has_past and not self.layout.shows_all
        if self.shows_past:
            self._place(self.shares)
            self.missing = max(self.missing, self.layout.missing)
        else:
            self.shares = near

    @property
    def window_start(self) -> WindowStart | None:
        """Return where the window starts if earlier messages are to be summarized."""
        return self.layout.window_start if self.shows_past else None

    @property
    def recall_room(self) -> int:
        """Return the most tokens that what is recalled may take; 0 if nothing is."""
        return self.shares.with_unused("recalled", self.room)

    @property
    def recall(self) -> RecallRequest | None:
        """Return what to recall: nothing that the window shows."""
        if not self.recall_room:
            return None
        return RecallRequest(
            room=self.recall_room,
            before=self.layout.window_start.first if self.layout.units else 0,
            everywhere=(self.rules.recall or self.material.recall_scope) == "owner",
            relevant_only=self.rules.relevant_only,
        )

    def _place(self, shares: Shares) -> None:
        room = shares.for_window()
        needed = self.layout.in_hand()
        if needed > room:
            increment = max(1, self.room // _INCREMENTS)
            room = min(shares.with_minimum(), -(-needed // increment) * increment)
            newest = self.layout.newest
            room = max(room, min(self.room, newest.tokens if newest else 0))
        short = self.rules.step is None and self.budget < LEAST_STEP
        step = 0 if short else self.rules.step_for(room)
        self.layout.place(room, step, self.rules.max_messages, self.rules.verbatim_messages)

    # --- the newest user message ---

    def _fit_newest(self) -> Message | None:
        """Return the newest user message as it will be shown."""
        newest = self.material.newest_user
        if self.room < 0:
            raise BudgetTooSmall(
                f"the system prompt needs {self.material.system_tokens} tokens and the API "
                f"overhead {self.frame}; the budget is {self.budget}: use a larger one"
            )
        if newest is None or newest.tokens <= self.room // 2 or self.rules.overflow == "keep":
            return newest
        if self.rules.overflow == "raise":
            cut = newest if newest.tokens <= self.room else None
        else:
            counter = self.material.counter
            cut = shorten(newest, self._room_for(newest), counter)
            cut = cut or shorten(newest, self.room, counter)
        if cut is None:
            raise BudgetTooSmall(
                f"the newest message alone needs {newest.tokens} tokens, the system prompt "
                f"{self.material.system_tokens} and the API overhead {self.frame}; the budget is "
                f"{self.budget}: use a larger one"
            )
        self.account.made += cuts([newest], [cut])
        return cut

    def _room_for(self, newest: Message) -> int:
        """Return the room for the newest user message: all, but half of it if more came after."""
        after = self.layout.cost_after(newest.seq)
        if newest.tokens + after <= self.room:
            return self.room
        room = self.shares.with_minimum()
        return max(room - after, room // 2) if after else room

    # --- around the window ---

    def finish(self, past: History, recalled: Recalled | None = None) -> Selection:
        """Return what to show, now that it is known what was before the window."""
        material, account, layout = self.material, self.account, self.layout
        recalled = recalled or Recalled()
        if material.system_prompt:
            account.add_range(0, 0, 1, material.system_tokens, "system", "the system prompt")
        window = layout.fill(self._digests(past)) if self.shows_past else layout.fill({})
        if self.shows_past or self._anything_beside(recalled):
            messages, summary_section = self._around(window, past, recalled)
        else:
            messages, summary_section = window, SummarySection()
        layout.explain(window)
        self._explain_older(past, summary_section)
        layout.explain_late()
        explain_beyond(self.rules.sections, material.beyond, account)
        account.add_hidden(material.hidden)
        return Selection(
            budget=self.budget,
            tokens=self.frame + material.system_tokens + sum([m.tokens for m in messages]),
            system=material.system_prompt,
            messages=tuple(messages),
            choices=tuple(account.all_choices()),
            facts=tuple(account.facts),
            made=tuple(account.made),
            hidden=material.hidden,
        )

    def _anything_beside(self, recalled: Recalled) -> bool:
        """Return whether anything but the past is shown beside the window."""
        material = self.material
        beside = material.system_messages or material.pins or material.notes
        beside = beside or material.tool_results or material.facts
        return bool(beside or recalled.hits or recalled.notes)

    def _around(
        self, window: list[Message], past: History, recalled: Recalled
    ) -> tuple[list[Message], SummarySection]:
        """Return the whole prompt: sections before the window, the window, sections that change."""
        material, account = self.material, self.account
        given = self.shares.given(self.room - self.layout.room)
        seen = {m.seq for m in window}
        system = [message for message in material.system_messages if message.seq not in seen]
        system = oldest_that_fit(system, given.get("system", 0), account)
        seen |= {m.seq for m in system}
        pins = [pin for pin in material.pins if pin.seq not in seen]
        pins = newest_that_fit(pins, given.get("pins", 0), account, section="pins", reason="pinned")
        seen |= {m.seq for m in pins}
        notes = self._notes(given.get("notes", 0), seen)
        summary_section = self._summary(given.get("summary", 0), past)
        known = seen | {m.seq for m in notes}
        important = self._important(given["important"], past, known) if "important" in given else []
        facts = profile_that_fits(material, given.get("facts", 0), account)
        older = sorted([*important, *notes], key=lambda m: m.seq)
        before = [*system, *pins, *_only(facts), *_only(summary_section.message), *older]
        results: list[Message] = []
        if "tools" in given:  # after the window, so they may have what is unused there for now
            room = self.shares.with_unused("tools", self.room - _tokens([*before, *window]))
            room = max(room, given["tools"])
            results = list(cached_that_fit(material.tool_results, room, account, seen))
        beside = [*system, *pins, *older, *(m for m in results if m.role == "tool")]
        account.beside = {message.seq: message for message in beside}
        shown = [*before, *window, *results]
        fresh = [*results, *_only(self._recalled(recalled, shown))]
        seq = self.layout.newest.seq if self.layout.newest else -1
        at = next((n for n, m in enumerate(window) if m.seq == seq), len(window)) if fresh else 0
        return [*before, *window[:at], *fresh, *window[at:]], summary_section

    def _recalled(self, recalled: Recalled, shown: Sequence[Message]) -> Message | None:
        """Return recalled messages that are not shown elsewhere, in a quotation.

        It comes last and changes with every turn, so it may have what the others left.
        """
        material = self.material
        room = min(self.recall_room, self.room - _tokens(shown))
        facts = [fact for fact in material.facts if not fact.always and fact.score > 0]
        if not recalled.hits and not facts:
            for note in recalled.notes:
                self.account.add_range(0, 0, 0, 0, "", f"nothing was recalled: {note}")
            return None
        return recollect(
            recalled,
            facts,
            room,
            material.counter,
            material.delimiter,
            self.account,
            seen={message.id for message in shown if message.seq},
        )

    def _notes(self, room: int, seen: set[int]) -> list[Message]:
        """Return notes that the window does not show."""
        held = [note for note in self.material.notes if note.seq not in seen]
        return newest_that_fit(held, room, self.account, section="notes", reason="a note")

    def _summary(self, room: int, past: History) -> SummarySection:
        """Return the past in a quotation."""
        if not self.shows_past or not (past.summary or past.gap):
            return SummarySection()
        counter, delimiter = self.material.counter, self.material.delimiter
        summary_section = render_summary(past, room, counter, delimiter, self.rules.brief_turns)
        if summary_section.message is not None:
            summary = past.summary if summary_section.summarized else None
            reason = (
                f"a summary of everything up to {summary.last}" if summary else "earlier messages"
            )
            reason += (
                f", then one line per turn from {summary_section.since} on"
                if summary_section.since
                else ""
            )
            self.account.add_range(0, 0, 1, summary_section.message.tokens, "summary", reason)
            self.account.made.append((summary_section.message, summary_section.reference))
        return summary_section

    def _important(self, room: int, past: History, seen: set[int]) -> list[Message]:
        """Return the most important messages that nothing else shows, oldest first."""
        found = [each for each in past.important if self.shows_past and each[0].seq not in seen]
        shown: list[Message] = []
        lacking: list[Message] = []
        for message, mark in sorted(found, key=lambda each: (-each[1].score, -each[0].seq)):
            if message.tokens > room:
                lacking.append(message)
                continue
            room -= message.tokens
            shown.append(message)
            self.account.add([message], "important", f"important, {mark.reason}")
        if lacking:
            seqs = [message.seq for message in lacking]
            tokens = sum(message.tokens for message in lacking)
            reason = "important, but the important messages have reached their share of the budget"
            self.account.add_range(min(seqs), max(seqs), len(seqs), tokens, "", reason)
        return sorted(shown, key=lambda m: m.seq)

    def _digests(self, past: History) -> dict[int, Digest]:
        """Return the digests that existed at the last step, of messages that were old then."""
        recent = self.rules.undigested
        if recent is None or not past.digests:
            return {}
        messages, stepped = self.material.messages, self.layout.stepped
        upto = [m.seq for m in messages if m.seq <= stepped]
        old = upto[-recent - 1] if len(upto) > recent else 0
        return {
            seq: each for seq, each in past.digests.items() if seq <= old and each.head <= stepped
        }

    def _explain_older(self, past: History, summary_section: SummarySection) -> None:
        """Record messages before the window: in the summary, one line per turn, or neither."""
        last, count, tokens = self.layout.older()
        if count <= 0:
            return
        first = self.material.first
        older = OlderRanges(self.account, self.material)
        if not self.shows_past:
            older.add(first, last, count, tokens, OLDER)
            return
        summary = past.summary if summary_section.summarized else None
        if summary is not None:
            covered = older.visible_upto(summary.last)
            cost = min(tokens, summary.tokens)
            older.add(first, summary.last, covered, cost, COVERED)
            first, count, tokens = summary.last + 1, count - covered, tokens - cost
        apart = self.material.newest_user
        short = [m for m in past.gap if summary_section.since and m.seq >= summary_section.since]
        short = [m for m in short if m.seq <= last and (apart is None or m.seq != apart.seq)]
        cost = min(tokens, sum(m.tokens for m in short))
        before = summary_section.since - 1 if short else last
        older.add(first, before, count - len(short), tokens - cost, NOT_SUMMARIZED)
        if short:
            older.add(summary_section.since, last, len(short), cost, IN_SHORT)


def _tokens(messages: Sequence[Message]) -> int:
    return sum([message.tokens for message in messages])


def _only(message: Message | None) -> list[Message]:
    return [] if message is None else [message]


STRATEGIES: Final = {
    "window": Window,
    "summarized": Summarized,
    "hybrid": Hybrid,
    "recall": Recall,
}
"""Our strategies by the names that settings have for them."""
ALIASES: Final = {"simple": "window", "summarization": "summarized"}
"""Other names of strategies that settings accept."""
