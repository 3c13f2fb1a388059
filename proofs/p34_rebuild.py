"""P34: a stored explanation rebuilds exactly the prompt that was shown, or says what changed.

Histories are those of P12: tools, notes, pins, summaries, recall, facts, hidden and erased messages
and changed counters. Contexts of every strategy are rebuilt from their stored explanations, first
as nothing changed, then after random changes: messages forgotten here and in other sessions, hidden
ranges, other counters, changed and forgotten facts, compactions, another system prompt, deleted
sessions. A prompt that is said to match is compared byte by byte; what does not match must say why.
"""

import asyncio
import json
import random
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from keepthread import Context, Explanation, Memory, Options, Rebuilt, Session
from keepthread.errors import BudgetTooSmall, Unsupported
from keepthread.types import Scope
from proofs import Outcome, Progress, Proof
from proofs.histories import STEPS, WEIGHTS, History, counters, marks_in, text
from proofs.places import file_url, new_place, opened
from proofs.views import STRATEGIES, VIEWS

PER_HISTORY: Final = 8
KEEP: Final = 40
OWNER: Final = "default"
SAME: Final = ("hidden", "recounted")
"""Reasons that do not change a prompt."""
BROKEN: Final = (
    "not rebuilt though nothing changed",
    "said to match, but another prompt",
    "not rebuilt, and no reason",
    "forgotten, but not said",
    "a digest of what is forgotten",
    "hidden, but not said",
    "recounted, but not said",
    "text in an explanation",
    "rebuilt for another owner",
)

Random = random.Random


class Shown(NamedTuple):
    """A context as it was, and where its explanation is."""

    prompt: bytes
    tokens: int
    seqs: frozenset[int]
    recalled: frozenset[tuple[str, int]]
    at: str


def prompt_of(context: Context) -> bytes:
    """Return everything that a model can be shown of a context."""
    found: list[Any] = [context.text, context.system]
    if not context.is_text:
        found += [context.to_openai_chat(), context.to_openai_responses(), context.to_anthropic()]
        found.append(context.to_openai_chat("api.deepseek.com"))
    return json.dumps(found, sort_keys=True).encode()


@dataclass
class Trial:
    """One history whose contexts are rebuilt."""

    rng: Random
    history: History
    name: str
    figures: Counter[str]
    broken: list[str]
    shown: list[Shown] = field(default_factory=list[Shown])
    gone: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])
    """Session ids and positions that were forgotten since the contexts."""
    deleted: set[str] = field(default_factory=set[str])
    """The ids of other sessions that were deleted, perhaps after something there was forgotten."""
    changed: bool = False
    """Whether anything was done that may change a prompt."""
    recounted: bool = False

    def memory(self, counter: Any) -> Memory:
        """Return a memory like the history's that keeps explanations."""
        known, clock = self.history.memory, self.history.clock
        new = lambda: f"{int(clock.now * 1000):012x}{self.rng.getrandbits(80):020x}"  # noqa: E731
        return Memory(
            known.store,
            Options(
                views=VIEWS,
                counter=counter,
                compaction=known.compaction,
                clock=clock,
                ids=new,
                recall="owner",
                keep_why=KEEP,
            ),
        )

    def fail(self, figure: str, what: object) -> None:
        self.figures[figure] += 1
        self.broken.append(f"{self.name}: {figure}: {what}"[:1500])

    # --- contexts, and their explanations ---

    async def look(self, session: Session) -> None:
        """Ask for contexts, and rebuild each as nothing changed."""
        rng = self.rng
        for _ in range(PER_HISTORY):
            number = rng.randrange(len(STRATEGIES))
            tokens = sum(message.tokens for message in await session.messages())
            budget = int(2 ** rng.uniform(5, 14))
            if rng.random() < 0.5 and tokens > 100:
                budget = min(int(tokens * rng.uniform(0.1, 1.0)), 1 << 14)
            ask = partial(
                session.context,
                f"view {number}",
                budget=budget,
                newest=rng.random() < 0.9,
                text=rng.random() < 0.2,
                query=rng.choice((None, None, text(rng))),
            )
            try:
                context = await ask()
            except BudgetTooSmall:
                self.figures["budgets refused"] += 1
                continue
            self.history.clock.now += 1
            (kept,) = await session.explanations(1)
            await self.unchanged(session, context, kept, f"view {number}, budget {budget}")
            seqs = frozenset(message.seq for message in context.messages) - {0}
            chunks = kept.references.messages if kept.references else ()
            recalled = frozenset((c.session, c.seq) for each in chunks for c in each.chunks)
            shown = Shown(prompt_of(context), context.tokens, seqs, recalled, f"{kept.at}")
            self.shown.append(shown)
            self.figures["contexts"] += 1
            self.figures.update({f"shown {each.how}": 1 for each in chunks})

    async def unchanged(
        self, session: Session, context: Context, kept: Explanation, where: str
    ) -> None:
        """Hold what is rebuilt at once against the context."""
        rebuilt = await session.rebuild(kept)
        reasons = [change for change in rebuilt.changes if change.reason != "hidden"]
        exact = rebuilt.context is not None and prompt_of(rebuilt.context) == prompt_of(context)
        same = rebuilt.context is not None and rebuilt.context.tokens == context.tokens
        if not (rebuilt.matches and exact and same and not reasons):
            hows = [each.how for each in kept.references.messages] if kept.references else None
            sums = f"{rebuilt.context.tokens if rebuilt.context else None} {context.tokens}"
            found = f"{where}: {rebuilt.matches} {exact} {sums} {rebuilt.changes} {hows}"
            self.fail(BROKEN[0], found)

    # --- changes ---

    async def forget(self, session: Session) -> None:
        log = [m for m in await session.messages() if m.state == "live"]
        if log:
            message = self.rng.choice(log)
            before = {m.seq for m in await session.messages() if m.state == "erased"}
            await self.history.memory.for_owner(OWNER).forget(
                session=session.id, message=message.id
            )
            after = {m.seq for m in await session.messages() if m.state == "erased"}
            self.gone |= {("", seq) for seq in after - before}
            self.changed = True

    async def forget_elsewhere(self, session: Session) -> None:
        """Forget a message that was recalled from another session, or delete that session."""
        del session
        recalled = {place for each in self.shown for place in each.recalled if place[0]}
        others = sorted(place for place in recalled if place[0] not in self.deleted)
        if not others:
            return
        id, seq = self.rng.choice(others)
        handle = self.history.memory.for_owner(OWNER)
        if self.rng.random() < 0.3:
            await handle.delete_session(id)
            self.deleted.add(id)
        else:
            found = await (await handle.get_session(id)).messages(after=seq - 1, limit=1)
            await handle.forget(session=id, message=found[0].id)
            self.gone.add((id, seq))
        self.changed = True

    async def hide(self, session: Session) -> None:
        log = await session.messages()
        if log:
            await session.rewind(self.rng.choice(log).seq)
            self.changed = True

    async def change_fact(self, session: Session) -> None:
        """Correct a fact, or forget it."""
        del session
        facts = self.history.memory.for_owner(OWNER).facts
        with suppress(Unsupported):
            if known := await facts.list():
                fact = self.rng.choice(known)
                if self.rng.random() < 0.5:
                    await facts.forget(fact.key)
                else:
                    await facts.edit(fact.key, text=f"{fact.text[:800]}, as of late")
                self.changed = True

    async def prompt(self, session: Session) -> None:
        await session.update(system_prompt=self.rng.choice(("Be polite.", "", None)))
        self.changed = True

    async def recount(self, session: Session) -> None:
        other = next(each for each in counters() if each is not self.history.counter)
        await self.history.memory.store.recount(session.key, other)
        await self.history.count_by(other)
        self.recounted = self.changed = True

    async def go_on(self, session: Session) -> None:
        """Append, pin and compact: the log grows, and earlier prompts stay what they were."""
        for step in self.rng.choices((History.talk, History.pin, History.one_turn), k=3):
            await step(self.history)
        if self.rng.random() < 0.5:
            await session.compact()
            self.changed = True  # old summaries are dropped in time

    # --- after the changes ---

    async def compare(self, session: Session) -> None:
        """Hold what is rebuilt now against what was shown."""
        kept = {f"{each.at}": each for each in await session.explanations(KEEP)}
        hidden = await session.hidden()
        for shown in self.shown:
            account = kept.get(shown.at)
            if account is None:
                self.fail(BROKEN[2], "the explanation is gone")
                continue
            rebuilt = await session.rebuild(account)
            self.figures["still match" if rebuilt.matches else "changed"] += 1
            self.figures.update({f"said {change.reason}": 1 for change in rebuilt.changes})
            if rebuilt.matches:
                if rebuilt.context is None or prompt_of(rebuilt.context) != shown.prompt:
                    self.fail(BROKEN[1], rebuilt.changes)
            elif not any(change.reason not in SAME for change in rebuilt.changes):
                self.fail(BROKEN[2], rebuilt.changes)
            elif not self.changed:
                self.fail(BROKEN[0], rebuilt.changes)
            self._erased(shown, account, rebuilt)
            covered = {s for span in hidden for s in range(span.first, span.last + 1)}
            told = {s for c in rebuilt.changes if c.reason == "hidden" for s in places(c)}
            if not shown.seqs & covered <= told:
                self.fail(BROKEN[5], f"{sorted(shown.seqs & covered)}: {rebuilt.changes}")
            if self.recounted and not any(c.reason == "recounted" for c in rebuilt.changes):
                self.fail(BROKEN[6], rebuilt.changes)

    def _erased(self, shown: Shown, account: Explanation, rebuilt: Rebuilt) -> None:
        """Check that what is forgotten is said, and that no digest covers it."""
        gone = {seq for id, seq in self.gone if not id} & shown.seqs
        away = self.gone & shown.recalled
        told = {
            (c.session, s)
            for c in rebuilt.changes
            if c.reason == ("deleted" if c.session in self.deleted else "erased")
            for s in places(c)
        }
        if not ({("", seq) for seq in gone} | away) <= told:
            self.fail(BROKEN[3], f"{sorted(gone)} {sorted(away)}: {rebuilt.changes}")
        for each in account.references.messages if account.references else ():
            seqs = {("", seq) for seq in each.positions()}
            seqs |= {(chunk.session, chunk.seq) for chunk in each.chunks}
            whole = account.references.digest if account.references else ""
            if seqs & self.gone and (each.digest or whole):
                self.fail(BROKEN[4], each)

    async def walls(self, session: Session, memory: Memory) -> None:
        """Let another owner rebuild the same explanations, in a session with the same id."""
        other = await memory.for_owner("somebody else").session(session.id)
        for each in await session.explanations(2):
            rebuilt = await other.rebuild(each)
            if rebuilt.matches or rebuilt.messages or rebuilt.context:
                self.fail(BROKEN[8], rebuilt)
        for record in await memory.store.scan(Scope(session=session.key), "why"):
            if found := marks_in(json.dumps(record.value)):
                self.fail(BROKEN[7], found)

    async def run(self) -> None:
        """Write, look, change, and compare."""
        rng, history = self.rng, self.history
        steps = [(s, w) for s, w in zip(STEPS, WEIGHTS, strict=True) if s is not History.damage]
        for _ in range(rng.randint(3, 24)):
            history._show_delimiter()
            await rng.choices([s for s, _ in steps], [w for _, w in steps])[0](history)
            await history.memory._runtime.background.settle()
        memory = self.memory(history.counter)
        session = await memory.get_session(history.session.id)
        await self.look(session)
        changes = (
            *(self.forget, self.forget, self.forget_elsewhere, self.forget_elsewhere, self.hide),
            *(self.change_fact, self.prompt, self.recount, self.go_on, self.go_on),
        )
        for change in rng.sample(changes, rng.choice((0, 1, 1, 2, 3))):
            self.figures[f"changes: {change.__name__.replace('_', ' ')}"] += 1
            await change(await history.memory.get_session(session.id))
        memory = self.memory(history.counter)
        session = await memory.get_session(session.id)
        await self.compare(session)
        await self.walls(session, memory)


def places(change: Any) -> range:
    """Return the positions of a change."""
    return range(change.first, change.last + 1)


async def _histories(url: str, size: int, seed: int, progress: Progress) -> Outcome:
    figures: Counter[str] = Counter()
    broken: list[str] = []
    async with opened(url) as root:
        number = 0
        while figures["contexts"] < size:
            rng = Random(f"{seed} {number}")
            history = await History.begin(rng, f"history {number}", root.tenant(f"t{number}"))
            await Trial(rng, history, f"history {number}", figures, broken).run()
            number += 1
            progress(min(figures["contexts"], size), size)
    figures["histories"] = number
    return Outcome(figures={**figures, **{n: figures[n] for n in BROKEN}}, broken=tuple(broken))


def run(size: int, seed: int, progress: Progress) -> Outcome:
    """Run it on a file."""
    with tempfile.TemporaryDirectory() as folder:
        url = file_url(Path(folder) / "memory.db")
        return asyncio.run(_histories(url, size, seed, progress))


def run_on(kind: str, size: int, seed: int, progress: Progress) -> Outcome:
    """Run it in memory or on a server."""
    if kind == "ram":
        return asyncio.run(_histories("ram://", size, seed, progress))
    with new_place(kind) as place:
        return asyncio.run(_histories(place.url, size, seed, progress))


PROOF: Final = Proof(
    name="P34",
    promise="an explanation rebuilds exactly the prompt that was shown, or says what changed",
    unit="contexts",
    small=24,
    closing=1000,
    long=50_000,
    run=run,
    on={kind: partial(run_on, kind) for kind in ("ram", "postgres", "redis")},
)
