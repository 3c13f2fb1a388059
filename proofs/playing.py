"""What programs do to a session, done to a model as well, and the laws that both are held to."""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, Final

from keepthread import (
    Compaction,
    Context,
    Hybrid,
    Memory,
    Message,
    Options,
    Session,
    Summarized,
    ToolCall,
    Turn,
    View,
    Window,
)
from keepthread.memory.history import recount
from keepthread.stores import RamStore
from keepthread.testing import ManualClock
from keepthread.types import Role, Shortened
from proofs.laws import HYBRID, SUMMARIZED, WINDOW
from proofs.showing import FULL, USED, Conversation, Expected, Times
from proofs.views import Tried, sections, tried

Random = random.Random

TIMES: Final = (10, 20, 40)
"""What each word counts; a budget is a multiple of it, so that no block is a large part of one."""
WORDS_OF_BUDGET: Final = (150, 210, 420, 420)
MOST_ORDERS: Final = 32
NO_RECALL: Final = {name: each for name, each in HYBRID.items() if name != "recalled"}
"""What is recalled has proofs of its own."""

VIEWS: Final[Sequence[Tried]] = (
    tried(Window(), WINDOW),
    tried(Window(step=0), WINDOW),
    tried(Window(step=700), WINDOW),
    tried(Window(max_messages=9), WINDOW),
    tried(Window(sections=()), {}),
    tried(Summarized(), SUMMARIZED),
    tried(Summarized(step=0), SUMMARIZED),
    tried(Summarized(verbatim_messages=12), SUMMARIZED),
    tried(Window(tool_calls="none"), WINDOW),
    tried(Hybrid(sections=sections(NO_RECALL)), NO_RECALL),
)
BARE: Final[Sequence[Window]] = (Window(step=0, sections=()), Window(sections=()))
"""Strategies for comparing sessions whose pins and notes differ; the first does not step."""


class First:
    """Shortens a text to its beginning."""

    name = "first"

    async def shorten(self, text: str, *, limit: int) -> Shortened:
        """Return as much as fits."""
        return Shortened(text.encode()[:limit].decode(errors="ignore"))


FOLDING: Final = Compaction(summarizer=First(), turns=3, batch_size=2)


class Broken(AssertionError):
    """A law does not hold."""


@dataclass(slots=True)
class Play:
    """One session, the model of it, and what happens to both."""

    memory: Memory
    session: Session
    model: Conversation
    tally: Counter[str]
    least_used: list[float]
    turns: list[Turn] = field(default_factory=list[Turn])
    numbers: "count[int]" = field(default_factory=count)
    calls: list[ToolCall] = field(default_factory=list[ToolCall])
    """Calls that nobody answered yet."""

    @classmethod
    async def begin(cls, tally: Counter[str], least_used: list[float]) -> "Play":
        """Open an empty session."""
        counter = Times(20)
        memory = _memory(RamStore(), counter)
        return cls(memory, await memory.session("s"), Conversation(counter), tally, least_used)

    # --- what is done ---

    def text(self, rng: Random, most: int = 10) -> str:
        """Return a text of its own."""
        return " ".join([f"m{next(self.numbers)}", *["w"] * rng.randrange(most)])

    async def append(self, rng: Random, size: int | None = None) -> None:
        """Append messages, mostly questions and answers in turn."""
        size = rng.choice((1, 2, 3, 10, 30)) if size is None else size
        asks = 0.9 if rng.random() < 0.75 else 0.02  # else a turn works for long
        roles: tuple[Role, ...] = ("user", "assistant")
        messages = [
            Message(
                role=roles[n % 2] if rng.random() < asks else "assistant", content=self.text(rng)
            )
            for n in range(size)
        ]
        self.model.append(*await self.session.append(*messages))

    async def note(self, rng: Random) -> None:
        """Tell what is on the screen, for a while or for ever."""
        key, cache_turns = rng.choice("ab"), rng.choice((None, 1, 1, 2, 3))
        text = self.text(rng, 12)
        await self.session.add_note(key, text, once=False, turns=cache_turns)
        (stored,) = await self.session.messages(after=len(self.model.log))
        self.model.append(stored)
        self.model.notes[key] = stored.seq

    async def order(self, rng: Random) -> None:
        """Let the operator say something."""
        message = Message(role="system", content=self.text(rng, 12))
        self.model.append(*await self.session.append(message))
        if len(self.model.orders) < MOST_ORDERS:
            self.model.orders.add(len(self.model.log))

    async def call(self, rng: Random) -> None:
        """Ask for one or two tools."""
        names = [f"c{next(self.numbers)}" for _ in range(rng.randrange(1, 3))]
        calls = [ToolCall(id=name, name="look", arguments="{}") for name in names]
        self.calls += calls
        message = Message(role="assistant", content=self.text(rng, 3), tool_calls=calls)
        self.model.append(*await self._where(rng).append(message))

    async def result(self, rng: Random) -> None:
        """Answer a call that is open, in any order; sometimes one that nobody made."""
        at = rng.randrange(len(self.calls)) if self.calls else -1
        id = self.calls.pop(at).id if self.calls and rng.random() < 0.95 else "nobody"
        message = Message(role="tool", tool_call_id=id, content=self.text(rng, 4))
        self.model.append(*await self._where(rng).append(message))

    def _where(self, rng: Random) -> "Session | Turn":
        return rng.choice([self.session, *self.turns])

    async def ask(self, rng: Random) -> None:
        """Begin a turn, and leave it open."""
        turn = await self.session.turn(self.text(rng)).__aenter__()
        self.model.append(turn.user)
        self.turns.append(turn)

    async def answer(self, rng: Random) -> None:
        """Finish a turn; its open calls get results that say so."""
        if self.turns:
            turn = self.turns.pop(rng.randrange(len(self.turns)))
            await turn.finish(self.text(rng))
            await turn.__aexit__(None, None, None)
            self.model.append(*await self.session.messages(after=len(self.model.log)))
            closed = {m.tool_call_id for m in self.model.log if m.role == "tool"}
            self.calls = [call for call in self.calls if call.id not in closed]

    async def rewind(self, rng: Random) -> None:
        """Hide what came after a position, mostly not much."""
        size = len(self.model.log)
        to = max(0, size - rng.randrange(1, 12)) if rng.random() < 0.8 else rng.randrange(size + 1)
        if size:
            await self.session.rewind(to)
            self.model.hide(to)

    async def clear(self, rng: Random) -> None:
        """Hide everything."""
        await self.session.clear()
        if self.model.log:
            self.model.hide(0)

    async def erase(self, rng: Random) -> None:
        """Forget messages, mostly one."""
        live = [m.seq for m in self.model.log if m.state == "live"]
        seqs = rng.sample(live, min(len(live), rng.choice((1, 1, 2, 8))))
        if seqs:
            await self.memory.store.erase(self.session.key, seqs)
        for seq in seqs:
            self.model.erase(seq)

    async def pin(self, rng: Random) -> None:
        """Pin a message that can be shown by itself, or unpin one."""
        log = self.model.log
        pinned = sorted(self.model.pins)
        if pinned and rng.random() < 0.3:
            seq = rng.choice(pinned)
            await self.session.unpin(log[seq - 1].id)
            self.model.pins.discard(seq)
            return
        plain = [m for m in log if m.role in ("user", "assistant") and not m.tool_calls]
        if some := [m for m in plain if m.state == "live"]:
            chosen = rng.choice(some)
            await self.session.pin(chosen.id)
            self.model.pins.add(chosen.seq)

    async def compact(self, rng: Random) -> None:
        """Compact what is due into a summary."""
        await self.session.compact()

    async def change_counter(self, rng: Random) -> None:
        """Open the store with another counter; sometimes count everything again."""
        self.model.counter = counter = Times(rng.choice(TIMES))
        self.memory = _memory(self.memory.store, counter)
        self.session = await self.memory.get_session(self.session.id)
        self.turns.clear()
        if rng.random() < 0.4:
            await recount(self.memory.store, self.session.key, counter)
            self.model.recount()

    async def fork(self, rng: Random) -> None:
        """Go on in a fork, and compare it with a session that was written afresh."""
        size = len(self.model.log)
        ends = [last - 1 for _, last in self.model.hides]  # what was hidden later is not hidden
        at = rng.choice((None, None, rng.randrange(size + 1), *ends))
        self.session = await self.session.fork(at)
        self.model = self.model.fork(size if at is None else at)
        self.turns.clear()
        self.calls.clear()
        await self.compare_fork(rng)

    # --- what must hold ---

    async def look(self, rng: Random) -> None:
        """Compare two views with the model, and perhaps the first of them again."""
        one, other = rng.sample(range(len(VIEWS)), 2)
        budget = self.model.counter.times * rng.choice(WORDS_OF_BUDGET)
        turn = rng.choice([None, *self.turns])
        newest = rng.random() < 0.9
        await self._check(one, budget, turn, newest=newest)
        await self._check(other, self.model.counter.times * rng.choice(WORDS_OF_BUDGET), turn)
        if rng.random() < 0.2:
            await self._check(one, budget, turn, newest=newest)

    async def _check(
        self, view: int, budget: int, turn: Turn | None, *, newest: bool = True
    ) -> Context:
        tried = VIEWS[view]
        asked = (turn or self.session).context(f"view {view}", budget=budget, newest=newest)
        context = await asked
        own = turn.user.seq if turn else 0
        showing = self.model.showing(own, newest=newest, tool_calls=tried.rules.tool_calls)
        expected = showing.expected(tried.rules, budget)
        where = f"{tried.strategy}, budget {budget}, {self.model.counter.name}, own {own}"
        _hold(context, expected, where)
        self._hold_use(context, expected, tried, where)
        self.tally["contexts"] += 1
        self.tally["contexts that leave something out"] += expected.left_out
        return context

    def _hold_use(self, context: Context, expected: Expected, tried: Tried, where: str) -> None:
        """Require that a budget is used while something is left out."""
        if not expected.left_out or tried.rules.step or tried.rules.max_messages:
            return
        steps_far = context.why.budget < FULL and tried.rules.step is None
        if steps_far and isinstance(tried.strategy, Summarized):
            return
        past = expected.past - sum(
            context.why.sections.get(name, 0) for name in ("summary", "important")
        )
        used = context.tokens + expected.set_aside + max(0, past)
        used += expected.largest if steps_far else 0
        if used < USED * context.why.budget:
            raise Broken(f"{context.tokens} of {context.why.budget} tokens are used: {where}")
        if not expected.set_aside and not past:
            self.least_used.append(context.tokens / context.why.budget)
        self.tally["budgets that are full"] += 1

    async def compare_fork(self, rng: Random) -> None:
        """Require that a fork shows what a session shows that has the same visible messages."""
        store, visible = self.memory.store, self.model.visible()
        stored = {m.seq: m for m in await self.session.messages(limit=10_000)}
        live = [stored[m.seq] for m in visible if m.state == "live"]
        fresh = await self.memory.session(f"fresh {next(self.numbers)}")
        total = 0
        copies: list[Message] = []
        for seq, message in enumerate(live, 1):
            total += message.tokens
            copies.append(replace(message, seq=seq, total=total))
        await store.load(fresh.key, copies)
        erased = len(live) < len(visible)  # steps are where they were, though a text is gone
        budget = self.model.counter.times * rng.choice(WORDS_OF_BUDGET)
        for number in range(len(BARE) - erased):
            view = f"bare {number}"
            ours = await self.session.context(view, budget=budget)
            theirs = await fresh.context(view, budget=budget)
            if _said(ours) != _said(theirs):
                shown = f"{_said(ours)}, and afresh {_said(theirs)}"
                raise Broken(f"a fork shows {shown}: {BARE[number]}, budget {budget}")
        self.tally["forks compared"] += 1


def _hold(context: Context, expected: Expected, where: str) -> None:
    """Require that a context shows what the model says."""
    if context.tokens > context.why.budget:
        raise Broken(f"{context.tokens} of {context.why.budget} tokens: {where}")
    # What stands for the past was chosen by a summarizer and a scorer: it is held to its share.
    kept = {c.first for c in context.why.shown if c.section == "important"}
    wrong = kept & {seq for seq, _ in expected.texts}
    shown = [text for text in _texts(context) if text[0] not in kept]
    if shown != list(expected.texts) or wrong:
        raise Broken(f"{shown} is shown, not {list(expected.texts)}: {where}")


def _texts(context: Context) -> list[tuple[int, str]]:
    """Return the messages of the log, and stand-ins, that a context shows."""
    return [(m.seq, m.content) for m in context.messages if m.seq or m.role == "tool"]


def _said(context: Context) -> list[str]:
    return [message.content for message in context.messages]


def _memory(store: Any, counter: Times) -> Memory:
    views = {f"view {n}": View(4096, each.strategy) for n, each in enumerate(VIEWS)}
    views |= {f"bare {n}": View(4096, each) for n, each in enumerate(BARE)}
    memory = Memory(
        store, Options(views=views, counter=counter, compaction=FOLDING, clock=ManualClock())
    )
    memory._services.maintenance.needs_summaries = (
        False  # a summary is made when the sequence says so
    )
    return memory
