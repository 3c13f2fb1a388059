"""P17: a remembered tool result is given while it lives, and a tool runs once.

(a) Random turns over a SQLite file, against a plain model of the rules: which calls run, what
each returns, what the log holds and what is remembered. (b) Sixteen tasks of one process, and
(c) four processes of four tasks, ask for one result at the same moment: the tool runs once.
"""

import asyncio
import json
import os
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final

from keepthread import Memory, Message, Session, ToolCall, Turn
from keepthread.models.tokens import Estimator
from proofs import Outcome, Progress, Proof
from proofs.processes import fresh_processes

OWNER: Final = "ana"
AUTHORS: Final = (None, None, OWNER, "bob")
NAMES: Final = ("weather", "wetter ☂")
ARGS: Final[tuple[dict[str, Any], ...]] = ({"a": 1, "b": [None]}, {"b": [None], "a": 1.5})
PER_SESSION: Final = 60
TASKS: Final = 16
PROCESSES: Final = 4
ROUNDS_PER_EXCHANGE: Final = 0.02
PATIENCE: Final = 60.0
FAILED: Final = "(failed: ValueError: by chance)"
FIGURES: Final = (
    "turns",
    "calls in turns",
    "calls of sub-agents",
    "runs",
    "hits",
    "failures",
    "results brought",
    "looked up",
    "lists compared",
    "rewinds and clears",
    "sources erased",
    "forks",
)


# --- (a) the rules, plainly ---


@dataclass(frozen=True)
class Kept:
    """A remembered result: its text, where it is, and the last turn in which it serves."""

    text: str
    cache_turns: int
    last: int
    seq: int
    sources: frozenset[int]
    first: frozenset[int]
    call_id: str | None
    after: int | None = None
    """The length of the log when a sub-agent got it; None if the log itself holds it."""
    number: int = 0
    """How many ranges were hidden before a sub-agent got it."""


@dataclass
class Model:
    """What should be there, by lists and dicts alone."""

    log: list[tuple[str, int, str]] = field(default_factory=list)
    """Kind, turn and text of each message."""
    kept: dict[tuple[str, str, str], Kept] = field(default_factory=dict)
    hides: list[tuple[int, int]] = field(default_factory=list)
    """After which position what was hidden, and how long the log was then."""

    @property
    def hidden(self) -> set[int]:
        return {seq for after, end in self.hides for seq in range(after + 1, end + 1)}

    @property
    def latest(self) -> int:
        return max((turn for _, turn, _ in self.log), default=0)

    @property
    def current(self) -> int:
        words = [kind for kind, n, _ in self.log if n == self.latest and kind in WORDS]
        return self.latest + (words[-1] == "answer") if words else 1

    def say(self, kind: str, text: str, turn: int | None = None) -> int:
        self.log.append((kind, self.latest if turn is None else turn, text))
        return len(self.log)

    def serves(self, kept: Kept, turn: int) -> bool:
        if kept.after is None:
            return turn <= kept.last and kept.seq not in self.hidden
        later = self.hides[kept.number :]
        return turn <= kept.last and all(kept.after < after for after, _ in later)

    def look(self, key: tuple[str, str, str], turn: int) -> Kept | None:
        kept = self.kept.get(key)
        return kept if kept and self.serves(kept, turn) else None

    def use(self, key: tuple[str, str, str], turn: int) -> None:
        kept = self.kept[key]
        self.kept[key] = replace(kept, last=max(kept.last, turn + kept.cache_turns - 1))

    def keep(self, key: tuple[str, str, str], turn: int, cache_turns: int, **what: Any) -> None:
        last = turn + cache_turns - 1
        first = what["sources"]
        self.kept[key] = Kept(cache_turns=cache_turns, last=last, first=first, **what)

    def hide(self, after: int) -> None:
        if set(range(after + 1, len(self.log) + 1)) - self.hidden:
            self.hides.append((after, len(self.log)))

    def erase(self, seq: int) -> None:
        self.kept = {key: kept for key, kept in self.kept.items() if seq not in kept.sources}

    def finish(self, turn: int) -> None:
        self.kept = {key: kept for key, kept in self.kept.items() if kept.last > turn}

    def fork(self, end: int) -> "Model":
        hides = [(after, head) for after, head in self.hides if head <= end]
        fork = replace(self, log=self.log[:end], hides=hides, kept={})
        for key, kept in self.kept.items():
            inside = kept.after < end if kept.after is not None else max(kept.sources) <= end
            if inside:
                last = min(kept.last, fork.current + kept.cache_turns - 1)
                fork.kept[key] = replace(kept, last=last)
        return fork

    def remembered(self) -> list[tuple[Any, ...]]:
        now = self.current
        alive = [(kept.seq, key, kept) for key, kept in self.kept.items() if self.look(key, now)]
        return [
            (name, args, kept.last - now + 1, kept.cache_turns, author)
            for _, (author, name, args), kept in sorted(alive, key=lambda each: each[:2])
        ]


WORDS: Final = ("user", "answer", "call")
FOREIGN: Final = 1_000_000
"""Where results in the logs of sub-agents are listed: after all others."""


@dataclass
class Tally:
    """What happened, and what is wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


class Differs(Exception):
    """The memory and the model do not agree; what follows would tell nothing new."""


class Driver:
    """One session and its model, driven side by side."""

    def __init__(
        self, session: Session, memory: Memory, model: Model, rng: random.Random, tally: Tally
    ) -> None:
        self.session = session
        self.memory = memory
        self.model = model
        self.rng = rng
        self.tally = tally
        self.runs = 0
        self.late: tuple[Turn, str] | None = None

    async def turn(self) -> None:
        """Drive one turn, with what may happen before, in and after it."""
        rng = self.rng
        await self.between()
        author = rng.choice(AUTHORS)
        turn = self.session.turn("go on", author=author)
        await turn.__aenter__()
        self.model.say("user", "go on", self.model.latest + 1)
        who = author or OWNER
        self.same("the turn's turn", turn.number, self.model.latest)
        for _ in range(rng.randrange(6)):
            ways = [self.tool, self.tool, self.tool, self.tool, self.child, self.at_session]
            await rng.choice(ways)(turn, who)
        if rng.random() < 0.05:
            self.late = turn, who
        elif rng.random() < 0.95:  # else it is never finished
            await self.finish(turn)
        if self.late and self.late[0] is not turn and rng.random() < 0.5:
            (turn, who), self.late = self.late, None
            await self.tool(turn, who)
            await self.finish(turn)
        self.tally.counts["turns"] += 1

    async def finish(self, turn: Turn) -> None:
        await turn.finish("fine")
        await self.memory._runtime.background.settle()
        self.model.say("answer", "fine", turn.number)
        self.model.finish(turn.number)

    async def between(self) -> None:
        rng = self.rng
        for _ in range(rng.randrange(3)):
            await self.at_session(None, "")
        chance = rng.random()
        if chance < 0.03:
            await self.session.clear()
            self.model.hide(0)
            self.tally.counts["rewinds and clears"] += 1
        elif chance < 0.06 and self.model.log:
            to = rng.randrange(max(0, len(self.model.log) - 12), len(self.model.log) + 1)
            await self.session.rewind(to)
            self.model.hide(to)
            self.tally.counts["rewinds and clears"] += 1
        elif chance < 0.12 and any(kept.sources for kept in self.model.kept.values()):
            kept = rng.choice([kept for kept in self.model.kept.values() if kept.sources])
            seq = rng.choice(sorted(kept.sources))
            await self.memory.store.erase(self.session.key, [seq])
            self.model.erase(seq)
            self.tally.counts["sources erased"] += 1
        elif chance < 0.14:
            await self.fork()

    async def fork(self) -> None:
        """Continue in a copy of the whole log or of a part."""
        head = len(self.model.log)
        end = self.rng.randrange(max(0, head - 20), head + 1)
        self.session = await self.session.fork(end)
        self.model, self.late = self.model.fork(end), None
        self.tally.counts["forks"] += 1

    async def tool(self, turn: Turn, who: str) -> None:
        """Call a tool in a turn, in any of the ways there are."""
        rng, model = self.rng, self.model
        name, args = rng.choice(NAMES), rng.choice(ARGS)
        cache_turns, side_effects = rng.choice([0, 1, 2, 2, 3, 5]), rng.random() < 0.1
        fails = rng.random() < 0.15
        call_id = rng.choice([None, None, f"c{rng.randrange(3)}"])
        call = 0
        if call_id is not None:
            calls = (ToolCall(id=call_id, name=name, arguments=json.dumps(args)),)
            await turn.append(Message(role="assistant", tool_calls=calls))
            call = model.say("call", "", turn.number)
        key, text = (who, name, canonical(args)), f"result {self.runs}"
        hit = model.look(key, turn.number) if cache_turns and not side_effects else None
        before = self.runs
        try:
            told = await turn.tool(
                name,
                shuffled(args, rng),
                self.runner(text, fails),
                call_id=call_id,
                cache_turns=cache_turns,
                side_effects=side_effects,
            )
        except ValueError as error:
            told = f"(failed: ValueError: {error})"
        wanted = hit.text if hit else FAILED if fails else text
        self.same(f"{name} by {who} in {turn.number}", told, wanted)
        self.same("the runs", self.runs - before, 0 if hit else 1)
        if not hit or call_id:
            call = call or model.say("ours", "", turn.number)
            seq = model.say("result", wanted, turn.number)
            if hit:
                both = hit.first | {call, seq}
                model.kept[key] = replace(hit, seq=seq, sources=both, call_id=call_id, after=None)
            elif cache_turns and not side_effects and not fails:
                place: dict[str, Any] = {"seq": seq, "sources": frozenset((call, seq))}
                model.keep(key, turn.number, cache_turns, text=text, call_id=call_id, **place)
        if hit:
            model.use(key, turn.number)
        self.tally.counts["calls in turns"] += 1
        self.tally.counts["hits"] += hit is not None
        self.tally.counts["failures"] += fails and hit is None

    async def child(self, turn: Turn, who: str) -> None:
        """Have a sub-agent call a tool; its result is in the sub-agent's log."""
        rng, model = self.rng, self.model
        name, args, recorded = rng.choice(NAMES), rng.choice(ARGS), rng.random() < 0.5
        cache_turns, text = rng.choice([1, 2, 3, 5]), f"result {self.runs}"
        key, before = (who, name, canonical(args)), self.runs
        hit = model.look(key, turn.number)
        task = f"task {rng.random()}"
        async with turn.delegate(task, recorded=recorded) as child:
            run = self.runner(text, fails=False)
            told = await child.tool(name, shuffled(args, rng), run, cache_turns=cache_turns)
            await child.finish("done")
        self.same(f"{name} by a sub-agent for {who}", told, hit.text if hit else text)
        self.same("the runs", self.runs - before, 0 if hit else 1)
        if hit:
            model.use(key, turn.number)
        else:
            place: dict[str, Any] = {"seq": FOREIGN, "sources": frozenset[int](), "call_id": None}
            place |= {"after": len(model.log), "number": len(model.hides)}
            model.keep(key, turn.number, cache_turns, text=text, **place)
        if recorded:
            model.say("ours", "", turn.number)
            model.say("result", "done", turn.number)
        self.tally.counts["calls of sub-agents"] += 1

    def runner(self, text: str, fails: bool) -> Callable[..., object]:
        """Return the tool, which is asynchronous or plain by chance."""

        def run(**args: object) -> str:
            self.runs += 1
            if fails:
                raise ValueError("by chance")
            return text

        async def run_later(**args: object) -> str:
            await asyncio.sleep(0)
            return run(**args)

        return self.rng.choice([run, run_later])

    async def at_session(self, turn: Turn | None, _: str) -> None:
        """Use the session's own methods, or say something that opens nothing."""
        rng, model = self.rng, self.model
        name, args, author = rng.choice(NAMES), rng.choice(ARGS), rng.choice(AUTHORS)
        key, now = (author or OWNER, name, canonical(args)), model.current
        chance = rng.random()
        if chance < 0.1:
            await self.session.add_message("system", "a note")
            model.say("note", "a note")
        elif chance < 0.4:
            cache_turns, text = rng.choice([0, 1, 2, 4]), f"brought {rng.random()}"
            await self.session.cache_tool(name, args, text, cache_turns, author=author)
            call, seq = model.say("ours", ""), model.say("result", text)
            if cache_turns:
                place: dict[str, Any] = {"seq": seq, "sources": frozenset((call, seq))}
                model.keep(key, now, cache_turns, text=text, call_id=None, **place)
            self.tally.counts["results brought"] += 1
        elif chance < 0.7:
            found = await self.session.cached_tool(name, args, author=author)
            hit = model.look(key, now)
            self.same(f"{name} of {author} looked up in {now}", found, hit and hit.text)
            if hit:
                model.use(key, now)
            self.tally.counts["looked up"] += 1
        else:
            await self.compare()

    async def compare(self) -> None:
        """Compare what is remembered with what should be."""
        tools = await self.session.cached_tools()
        found = [(t.name, canonical(t.arguments), t.left, t.cache_turns, t.author) for t in tools]
        alive = [kept for key, kept in self.model.kept.items() if self.look_now(key)]
        own = sum(kept.after is None for kept in alive)
        # Those in the logs of sub-agents come last, in the order of the sub-agents' keys.
        found[own:] = sorted(found[own:], key=lambda tool: (tool[4], *tool[:2]))
        self.same(f"what is remembered in {self.model.current}", found, self.model.remembered())
        ids = {kept.call_id for kept in alive if kept.call_id}
        self.same("call ids", ids - {t.call_id for t in tools}, set[str]())
        self.tally.counts["lists compared"] += 1

    def look_now(self, key: tuple[str, str, str]) -> bool:
        return self.model.look(key, self.model.current) is not None

    async def check_log(self) -> None:
        log = await self.session.messages(limit=100_000)
        self.same("the log's length", len(log), len(self.model.log))
        for message, (_, turn, text) in zip(log, self.model.log, strict=False):
            if message.state == "live":
                self.same(
                    f"the message at {message.seq}",
                    (message.turn, message.content),
                    (turn, text),
                )

    def same(self, what: str, found: object, wanted: object) -> None:
        if found != wanted:
            raise Differs(f"{what}: {found!r:.300}, not {wanted!r:.300}")


def canonical(args: Mapping[str, Any]) -> str:
    return json.dumps(args, sort_keys=True)


def shuffled(args: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    return dict(rng.sample(list(args.items()), len(args)))


async def drive_all(
    folder: Path, size: int, seed: int, tally: Tally, progress: Progress, model: type[Model] = Model
) -> None:
    """Drive so many turns, in sessions of some sixty each."""
    url = f"sqlite:///{folder}/driven.db"
    async with Memory.open(url, counter=Estimator(), durability="process") as memory:
        for number in range(-(-size // PER_SESSION)):
            session = await memory.session(f"number {number}", owner=OWNER)
            rng = random.Random(f"{seed}/{number}")
            driver = Driver(session, memory, model(), rng, tally)
            try:
                for _ in range(min(PER_SESSION, size - number * PER_SESSION)):
                    await driver.turn()
                await driver.compare()
                await driver.check_log()
            except Differs as difference:
                tally.broken.append(f"session {number}: {difference}")
            tally.counts["runs"] += driver.runs
            progress(min(size, (number + 1) * PER_SESSION), size)


# --- (b) sixteen tasks ---


async def ask_at_once(session: Session, name: str, run: Callable[..., object]) -> set[str]:
    """Ask for one result in sixteen turns at the same time; return what was told."""

    async def ask() -> str:
        async with session.turn("at once") as turn:
            told = await turn.tool("slow", {"n": name}, run, cache_turns=10 * TASKS)
            await turn.finish("done")
            return told

    return set(await asyncio.gather(*(ask() for _ in range(TASKS))))


async def crowd(folder: Path, rounds: int, tally: Tally) -> None:
    """Let sixteen tasks of this process ask, round by round."""
    async with Memory.open(f"sqlite:///{folder}/crowd.db", counter=Estimator()) as memory:
        session = await memory.session("crowd")
        for lap in range(rounds):
            runs: list[str] = []

            async def run(n: str, runs: list[str] = runs) -> str:
                runs.append(n)
                await asyncio.sleep(0.001)
                return f"found {n} {len(runs)}"

            told = await ask_at_once(session, str(lap), run)
            if (runs, told) != ([str(lap)], {f"found {lap} 1"}):
                tally.broken.append(f"16 tasks: {len(runs)} runs in round {lap}, told {told}")


# --- (c) four processes of four tasks ---


def ask_together(folder: Path, number: int, rounds: int, barrier: Barrier) -> None:
    """Be one of four processes that ask, four tasks each; note runs and what was told."""
    asyncio.run(_ask_together(folder, number, rounds, barrier))


async def _ask_together(folder: Path, number: int, rounds: int, barrier: Barrier) -> None:
    async with Memory.open(f"sqlite:///{folder}/shared.db", counter=Estimator()) as memory:
        session = await memory.session("all")

        async def run(n: int) -> str:
            note(folder / "runs", f"{n}\n")
            await asyncio.sleep(0.005)
            return f"found {n} by {number}"

        async def ask(lap: int) -> None:
            async with session.turn(f"round {lap}") as turn:
                told = await turn.tool("slow", {"n": lap}, run, cache_turns=10 * TASKS)
                note(folder / "told", f"{lap} {told}\n")
                await turn.finish("done")

        for lap in range(rounds):
            barrier.wait(PATIENCE)
            await asyncio.gather(*(ask(lap) for _ in range(TASKS // PROCESSES)))


def note(path: Path, line: str) -> None:
    """Add a whole line to a file of several processes."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, line.encode())
    os.close(file)


def crowds(folder: Path, rounds: int, tally: Tally) -> None:
    """Let four processes ask, round by round."""
    processes = fresh_processes()
    barrier = processes.Barrier(PROCESSES)
    args = [(folder, number, rounds, barrier) for number in range(PROCESSES)]
    crew = [processes.Process(target=ask_together, args=each) for each in args]
    for process in crew:
        process.start()
    deadline = time.monotonic() + PATIENCE + 2 * rounds
    for number, process in enumerate(crew):
        process.join(max(0, deadline - time.monotonic()))
        if process.exitcode != 0:
            tally.broken.append(f"process {number} ended with {process.exitcode}")
            process.kill()
            process.join()
    runs = Counter((folder / "runs").read_text().splitlines())
    told = Counter((folder / "told").read_text().splitlines())
    tally.counts["runs by 4 processes"] = runs.total()
    for lap in range(rounds):
        mine = {text: n for text, n in told.items() if text.startswith(f"{lap} ")}
        if runs[str(lap)] != 1 or list(mine.values()) != [TASKS]:
            tally.broken.append(f"4 processes: {runs[str(lap)]} runs in round {lap}, told {mine}")


# --- all three ---


def run(size: int, seed: int, progress: Progress) -> Outcome:
    tally = Tally()
    rounds = max(2, round(size * ROUNDS_PER_EXCHANGE))
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(drive_all(Path(folder), size, seed, tally, progress))
        asyncio.run(crowd(Path(folder), rounds, tally))
        crowds(Path(folder), rounds, tally)
    figures = {
        **{what: tally.counts[what] for what in FIGURES},
        "rounds of 16 tasks": rounds,
        "rounds of 4 processes with 4 tasks": rounds,
        "runs by them": tally.counts["runs by 4 processes"],
        "violations": len(tally.broken),
    }
    return Outcome(figures=figures, broken=tuple(f"seed {seed}: {line}" for line in tally.broken))


PROOF: Final = Proof(
    name="P17",
    promise="a remembered tool result is given while it lives, and a tool runs once",
    unit="turns",
    small=40,
    closing=1_000,
    long=20_000,
    run=run,
)
