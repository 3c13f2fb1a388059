"""P6: a turn is whole for the reader, however it ends and whoever takes turns beside it.

Five ways to break it. Processes are killed inside turns with tools; afterwards every user message
that was acknowledged is there, no context has an open call, and the next turn works. Four processes
take interleaved turns in one session; every message belongs to its own turn. Ten processes
deliver the same request at once; one answer is stored, and all of them are told that one. Tasks are
cancelled inside turns, once and twice; afterwards every stored call has a stored result. A turn is
begun by one process, continued by a second and finished by two at once; it has one answer, which
says what the second was shown.
"""

import asyncio
import json
import mmap
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, Final, NamedTuple

from keepthread import Context, Memory, Message, Session, ToolCall, Turn, sync
from keepthread.context.sources import WRITTEN_FROM, shown_by
from keepthread.errors import KeepthreadError
from keepthread.memory.tool_calls import INTERRUPTED
from keepthread.models.tokens import Estimator
from proofs import Outcome, Progress, Proof
from proofs.processes import fresh_processes

ROOT: Final = Path(__file__).resolve().parent.parent
TASKS: Final = 4
SESSIONS: Final = ("red", "green")
KILLS_PER_FILE: Final = 10
LEAST_SHARE: Final = 1 / 3
TAKERS: Final = 4
TURNS_PER_KILL: Final = 1 / 4
DELIVERERS: Final = 10
ROUNDS_PER_KILL: Final = 1 / 10
CANCELS_PER_KILL: Final = 2
BATCH: Final = 8
BUDGETS: Final = (150, 500, 1000, 4096)
PATIENCE: Final = 60.0

BETWEEN, ASKED, CALLING, ANSWERING = range(4)


class Broken(Exception):
    """What a turn is left by when it is left by an exception."""


# --- what is said: everything names the turn it belongs to ---


def calls(turn: str, lap: int, count: int) -> Message:
    """Return a message that calls a tool several times at once."""
    ids = [call_id(turn, lap, n) for n in range(count)]
    wanted = [ToolCall(id=id, name="look", arguments="{}") for id in ids]
    return Message(role="assistant", id=f"{turn} {lap}", content=f"{turn} {lap}", tool_calls=wanted)


def result(turn: str, lap: int, n: int, by: str = "") -> Message:
    text = f"{turn} {lap} found {n}{by}"
    return Message(role="tool", tool_call_id=call_id(turn, lap, n), content=text)


def call_id(turn: str, lap: int, n: int) -> str:
    """Return the id that a server gives: the same ones again and again."""
    return f"call_{n}"


def turn_of(message: Message) -> str:
    """Return the turn that a message belongs to, by what it says."""
    return message.content.split(" ")[0]


# --- what a model may be shown ---


def faults(context: Context) -> Iterator[str]:
    """Find open calls, stray results and results of another turn's call, on every wire."""
    shown = {
        "chat": context.to_openai_chat()["messages"],
        "responses": context.to_openai_responses()["input"],
        "anthropic": context.to_anthropic()["messages"],
    }
    for wire, items in shown.items():
        yield from (f"{wire}: {fault}" for fault in WIRES[wire](items))
    caller = ""
    for message in context.messages:
        if message.tool_calls:
            caller = message.content
            continue
        asker, found, _ = message.content.rpartition(" found ")
        if message.role == "tool" and found and asker != caller:
            yield f"{message.content!r} stands behind the call of {caller!r}"


def _chat(messages: Sequence[Any]) -> Iterator[str]:
    waiting: list[str] = []
    for message in [*messages, {"role": "end"}]:
        if message["role"] == "tool":
            if message["tool_call_id"] not in waiting:
                yield f"a stray result {message['tool_call_id']}"
            else:
                waiting.remove(message["tool_call_id"])
        elif waiting:
            yield f"open calls {waiting}"
            waiting = []
        waiting += [call["id"] for call in message.get("tool_calls", ())]


def _responses(items: Sequence[Any]) -> Iterator[str]:
    called = [item["call_id"] for item in items if item.get("type") == "function_call"]
    answered: list[str] = []
    for item in items:
        if item.get("type") == "function_call" and item["call_id"] in answered:
            yield f"call {item['call_id']} comes behind its result"
        if item.get("type") == "function_call_output":
            answered.append(item["call_id"])
    if sorted(called) != sorted(answered) or len(set(called)) != len(called):
        yield f"calls {called}, results {answered}"


def _anthropic(messages: Sequence[Any]) -> Iterator[str]:
    wanted: set[str] = set()
    for message in [*messages, {"role": "user", "content": []}]:
        given = [part["tool_use_id"] for part in message["content"] if "tool_use_id" in part]
        if set(given) != wanted or len(given) != len(wanted):
            yield f"calls {wanted}, results {given}"
        wanted = {part["id"] for part in message["content"] if part["type"] == "tool_use"}


WIRES: Final = {"chat": _chat, "responses": _responses, "anthropic": _anthropic}


# --- (a) the taker of turns, in a process of its own, until it is killed ---


async def take_turns(folder: Path, life: int, seed: int) -> None:
    """Take turns in several tasks at once, noting every acknowledgement, for ever."""
    with (folder / "places").open("r+b") as file:
        places = mmap.mmap(file.fileno(), TASKS)
    notes = os.open(folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with Memory.open(address(folder), counter=Estimator()) as memory:
        sessions = [await memory.session(name) for name in SESSIONS]
        async with asyncio.TaskGroup() as group:
            for task in range(TASKS):
                rng = random.Random(f"{seed} {task}")
                taker = Taker(sessions[task % 2], notes, places, f"{life}.{task}", rng)
                group.create_task(taker.run(task))


class Taker:
    """One task that takes one turn after the other in one session."""

    def __init__(
        self, session: Session, notes: int, places: mmap.mmap, name: str, rng: random.Random
    ) -> None:
        self.session = session
        self.notes = notes
        self.places = places
        self.name = name
        self.rng = rng
        self.task = 0

    async def run(self, task: int) -> None:
        self.task = task
        number = 0
        while True:
            number += 1
            with suppress(Broken):
                await self.turn(f"{self.name}.{number}")
            self.places[self.task] = BETWEEN
            if number == 1:
                os.write(1, b"t")

    async def turn(self, name: str) -> None:
        async with self.session.turn(f"{name} asks", id=name) as turn:
            self.note("asked", name, turn.user)
            self.places[self.task] = ASKED
            for lap in range(self.rng.randrange(3)):
                self.look(await turn.context(budget=self.rng.choice(BUDGETS)))
                await self.use_tools(turn, name, lap)
            self.places[self.task] = ANSWERING
            usage = self.rng.choice([None, {"input": 1}])
            self.note("answered", name, await turn.finish(f"{name} is answered", usage=usage))

    async def use_tools(self, turn: Turn, name: str, lap: int) -> None:
        """Call several tools at once; each stores its result when it has it, or all break off."""
        count = self.rng.randrange(1, 5)
        fails = self.rng.randrange(count) if self.rng.random() < 0.3 else None
        waits = [self.rng.uniform(0, 0.004) for _ in range(count)]
        await turn.append(calls(name, lap, count))
        self.places[self.task] = CALLING

        async def use(n: int) -> None:
            await asyncio.sleep(waits[n])
            if n == fails:
                raise Broken
            await turn.append(result(name, lap, n))

        await asyncio.gather(*(use(n) for n in range(count)))
        self.places[self.task] = ASKED

    def look(self, context: Context) -> None:
        for fault in faults(context):
            os.write(self.notes, f"fault {fault}\n".encode())

    def note(self, what: str, name: str, message: Message) -> None:
        line = f"{what} {self.session.id} {name} {message.seq} {message.turn}\n"
        os.write(self.notes, line.encode())


def address(folder: Path) -> str:
    return f"sqlite:///{folder}/turns.db"


# --- killing it, and looking at what it left ---


class Ack(NamedTuple):
    """Something that the store acknowledged: a user message, or an answer."""

    what: str
    session: str
    name: str
    seq: int
    turn: int


@dataclass(slots=True)
class Tally:
    """What was seen so far."""

    kills: int = 0
    inside: int = 0
    calling: int = 0
    asked: int = 0
    answered: int = 0
    interrupted: int = 0
    contexts: int = 0
    resumed: int = 0
    broken: list[str] = field(default_factory=list)


class Life:
    """One file over several kills."""

    def __init__(self, folder: Path, tally: Tally) -> None:
        self.folder = folder
        self.tally = tally

    def kill(self, rng: random.Random) -> None:
        """Start a taker of turns, let it work for a moment, kill it, and count where it was."""
        (self.folder / "places").write_bytes(bytes(TASKS))
        command = [sys.executable, "-m", "proofs.p06_turns", str(self.folder)]
        command += [str(self.tally.kills), str(rng.getrandbits(32))]
        pipe = subprocess.PIPE
        victim = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe)
        assert victim.stdout
        victim.stdout.read(rng.choice((1, TASKS)))
        time.sleep(rng.uniform(0, 0.1))
        victim.kill()
        errors = victim.communicate()[1].decode(errors="replace")
        places = (self.folder / "places").read_bytes()
        self.tally.kills += 1
        self.tally.inside += any(places)
        self.tally.calling += CALLING in places
        if errors:
            self.tally.broken.append(f"kill {self.tally.kills}: {errors[-300:]}")

    async def check(self, rng: random.Random) -> None:
        """Compare what is stored with what was acknowledged, and go on where the dead one was."""
        try:
            async with Memory.open(address(self.folder), counter=Estimator()) as memory:
                for name in SESSIONS:
                    session = await memory.session(name)
                    await self._check_session(session, rng)
                if not (await memory.admin.verify()).sound:
                    self._break("verify finds damage")
        except KeepthreadError as error:
            self._break(repr(error))

    async def _check_session(self, session: Session, rng: random.Random) -> None:
        acks = [ack for ack in self._acks() if ack.session == session.id]
        log = await session.messages(limit=1_000_000)
        at = {message.seq: message for message in log}
        for ack in acks:
            found = at.get(ack.seq)
            text = f"{ack.name} asks" if ack.what == "asked" else f"{ack.name} is answered"
            if found is None or (found.content, found.turn) != (text, ack.turn):
                self._break(f"{text!r} was acknowledged at {ack.seq}, and there is {found}")
        for fault in numbered_wrongly(log):
            self._break(fault)
        await self._look(session)
        await self._go_on(session, log, rng)
        await self._look(session)

    async def _look(self, session: Session) -> None:
        for budget in BUDGETS:
            context = await session.context(budget=budget)
            self.tally.contexts += 1
            for fault in faults(context):
                self._break(f"a context of {budget}: {fault}")

    async def _go_on(self, session: Session, log: Sequence[Message], rng: random.Random) -> None:
        """Take the next turn, and deliver again a request that has no answer."""
        name = f"check.{self.tally.kills}"
        async with session.turn(f"{name} asks", id=name) as turn:
            await turn.append(calls(name, 0, 2))
            await turn.append(result(name, 0, 1), result(name, 0, 0))
            shown = [message.content for message in (await turn.context()).messages]
            if shown[-4:] != [
                f"{name} asks",
                f"{name} 0",
                *(f"{name} 0 found {n}" for n in (0, 1)),
            ]:
                self._break(f"the next turn sees {shown[-4:]}")
            await turn.finish(f"{name} is answered")
        answered = {m.turn for m in log if m.content.endswith(" is answered")}
        asked = [m for m in log if m.role == "user" and m.turn not in answered]
        for user in rng.sample(asked, min(1, len(asked))):
            by_id = rng.random() < 0.5  # of the message, or by delivering it again
            again = (
                session.resume_turn(user.id) if by_id else session.turn(user.content, id=user.id)
            )
            async with again as turn:
                answer = await turn.finish(f"{turn_of(user)} is answered")
            if (turn.user, answer.turn) != (user, user.turn):
                self._break(f"{user.content!r}, delivered again, did not go on")
            self.tally.resumed += 1

    def count(self) -> None:
        """Add what this file saw to the tally."""
        acks = self._acks()
        self.tally.asked += sum(ack.what == "asked" for ack in acks)
        self.tally.answered += sum(ack.what == "answered" for ack in acks)
        with sync.Memory.open(address(self.folder), counter=Estimator()) as memory:
            for name in SESSIONS:
                log = memory.session(name).messages(limit=1_000_000)
                self.tally.interrupted += sum(m.content == INTERRUPTED for m in log)

    def _acks(self) -> list[Ack]:
        path = self.folder / "notes"
        whole = path.read_text().rpartition("\n")[0] if path.exists() else ""
        acks: list[Ack] = []
        for line in whole.splitlines():
            what, *rest = line.split(" ")
            if what == "fault":
                self._break(line)
            else:
                session, turn, seq, number = rest
                acks.append(Ack(what, session, turn, int(seq), int(number)))
        return acks

    def _break(self, what: str) -> None:
        line = f"after kill {self.tally.kills}: {what}"
        if line not in self.tally.broken:
            self.tally.broken.append(line)


def numbered_wrongly(log: Sequence[Message]) -> Iterator[str]:
    """Find turns that user messages did not open in order, and messages in another's."""
    users = [message for message in log if message.role == "user"]
    if [message.turn for message in users] != list(range(1, len(users) + 1)):
        yield "user messages do not open one turn after the other"
    numbers = {turn_of(message): message.turn for message in users}
    if len(numbers) != len(users):
        yield "a user message is there twice"
    for message in log:
        if message.content == INTERRUPTED:
            continue
        if message.turn != numbers.get(turn_of(message)):
            yield f"{message.content!r} is in turn {message.turn}"
    answers = Counter(m.turn for m in log if m.content.endswith(" is answered"))
    yield from (f"turn {n} has {count} answers" for n, count in answers.items() if count > 1)


def kill_all(size: int, rng: random.Random, tally: Tally, progress: Progress) -> None:
    # Where chance, or a busy machine, let too few fall where they should, some more follow.
    while tally.kills < (3 * size if _missed(tally) else size) and len(tally.broken) < 100:
        with tempfile.TemporaryDirectory() as folder:
            life = Life(Path(folder), tally)
            for _ in range(min(KILLS_PER_FILE, max(1, size - tally.kills))):
                life.kill(rng)
                asyncio.run(life.check(rng))
                progress(tally.kills, size)
            life.count()
    if _missed(tally):
        tally.broken.append(f"only {tally.calling} of {tally.kills} kills found open calls")


def _missed(tally: Tally) -> bool:
    return tally.calling < tally.kills * LEAST_SHARE


# --- (b) interleaved turns ---


def interleave(folder: Path, number: int, pairs: int, seed: int) -> None:
    """Take turns two by two, step by step in a random order, in a session of all processes."""
    rng = random.Random(f"{seed} {number}")
    with sync.Memory.open(address(folder), counter=Estimator()) as memory:
        session = memory.session("all")
        for pair in range(pairs):
            turns = [stepwise(session, f"{number}.{pair}.{n}", rng, folder) for n in range(2)]
            for turn in turns:
                next(turn)
            while turns:
                turn = rng.choice(turns)
                try:
                    if rng.random() < 0.03:
                        turn.throw(Broken())
                    next(turn)
                except (StopIteration, Broken):
                    turns.remove(turn)


def stepwise(
    session: sync.Session, name: str, rng: random.Random, folder: Path
) -> Generator[None, None, None]:
    """Take one turn, stopping after each step."""
    with session.turn(f"{name} asks", id=name) as turn:
        yield
        for lap in range(rng.randrange(1, 3)):
            count = rng.randrange(1, 4)
            turn.append(calls(name, lap, count))
            yield
            for n in rng.sample(range(count), count):
                turn.append(result(name, lap, n))
                yield
            context = turn.context(budget=rng.choice(BUDGETS))
            with (folder / "faults").open("a") as file:
                file.writelines(f"{fault}\n" for fault in faults(context))
            yield
        turn.finish(f"{name} is answered")


def interleave_all(folder: Path, pairs: int, seed: int) -> tuple[int, list[str]]:
    """Let four processes take turns; return how many, and what is wrong with what is stored."""
    broken = run_all(interleave, [(folder, number, pairs, seed) for number in range(TAKERS)])
    with sync.Memory.open(address(folder), counter=Estimator()) as memory:
        session = memory.session("all")
        log = session.messages(limit=1_000_000)
        broken += [f for budget in BUDGETS for f in faults(session.context(budget=budget))]
    asked = {message.id for message in log if message.role == "user"}
    wanted = {f"{p}.{pair}.{n}" for p in range(TAKERS) for pair in range(pairs) for n in range(2)}
    broken += [f"the user message of turn {turn} is missing" for turn in wanted - asked]
    broken += [*numbered_wrongly(log), *(folder / "faults").read_text().splitlines()]
    return len(asked), [f"interleaved: {line}" for line in broken]


# --- (c) one request, delivered ten times at once ---


def deliver(folder: Path, number: int, rounds: int, barrier: Barrier) -> None:
    """Deliver each request together with nine others, and note what was answered."""
    with (
        sync.Memory.open(address(folder), counter=Estimator()) as memory,
        (folder / f"told-{number}").open("w") as told,
    ):
        session = memory.session("requests")
        for lap in range(rounds):
            barrier.wait(PATIENCE)
            name = f"request-{lap}"
            with session.turn(f"{name} asks", id=name) as turn:
                if turn.answer is None:
                    turn.append(calls(name, 0, 1))
                    turn.append(result(name, 0, 0, f" by {number}"))
                    turn.context()
                    turn.finish(
                        f"{name} is answered by {number}",
                        id=f"{name} by {number}" if number % 3 == 0 else None,
                        usage={"input": number} if number % 2 else None,
                    )
                assert turn.answer
                told.write(f"{name}\t{turn.number}\t{turn.answer.id}\t{turn.answer.content}\n")


def deliver_all(folder: Path, rounds: int) -> tuple[int, list[str]]:
    """Deliver requests by ten processes; return how many answers they got, and what is wrong."""
    barrier = fresh_processes().Barrier(DELIVERERS)
    broken = run_all(deliver, [(folder, n, rounds, barrier) for n in range(DELIVERERS)])
    told = [
        tuple(line.split("\t"))
        for number in range(DELIVERERS)
        for line in (folder / f"told-{number}").read_text().splitlines()
    ]
    with sync.Memory.open(address(folder), counter=Estimator()) as memory:
        session = memory.session("requests")
        log = session.messages(limit=1_000_000)
        broken += [fault for budget in BUDGETS for fault in faults(session.context(budget=budget))]
    for lap in range(rounds):
        name = f"request-{lap}"
        mine = [message for message in log if turn_of(message) == name]
        roles = Counter(m.role if m.role != "assistant" or m.tool_calls else "answer" for m in mine)
        if roles != {"user": 1, "assistant": 1, "tool": 1, "answer": 1}:
            broken.append(f"{name} is stored as {dict(roles)}")
            continue
        answer = next(m for m in mine if m.role == "assistant" and not m.tool_calls)
        right = (name, str(answer.turn), answer.id, answer.content)
        got = Counter(line for line in told if line[0] == name)
        if got != {right: DELIVERERS}:
            broken.append(f"{name} is answered {answer.content!r}; callers were told {dict(got)}")
        if {m.turn for m in mine} != {answer.turn}:
            broken.append(f"{name} is in more than one turn")
    return len(told), [f"delivered: {line}" for line in broken]


# --- (d) tasks that are cancelled inside their turns ---


class Cancelled:
    """One task that takes a turn with tools and is cancelled, once or twice, at any moment."""

    def __init__(self, session: Session, name: str, rng: random.Random) -> None:
        self.session = session
        self.name = name
        self.rng = rng
        self.twice = rng.random() < 0.5
        self.calls_first = rng.random() < 0.5
        """Whether it is cancelled once its first calls are stored, however slow the disk is."""
        self.steps = [rng.randrange(6 if self.calls_first else 60), rng.randrange(20)]
        """After how many steps of the event loop it is cancelled, and cancelled again."""
        self._called = asyncio.Event()

    async def run(self) -> bool:
        """Take the turn; tell whether it was cancelled before it ended."""
        task = asyncio.create_task(self.turn())
        if self.calls_first:
            called = asyncio.create_task(self._called.wait())
            await asyncio.wait([task, called], return_when=asyncio.FIRST_COMPLETED)
            called.cancel()
        for steps in self.steps if self.twice else self.steps[:1]:
            for _ in range(steps):
                await asyncio.sleep(self.rng.choice((0, 0, 0.0005)))
            task.cancel()
        await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()):
            raise error
        return task.cancelled()

    async def turn(self) -> None:
        async with self.session.turn(f"{self.name} asks", id=self.name) as turn:
            for lap in range(self.rng.randrange(1, 4)):
                count = self.rng.randrange(1, 5)
                await turn.append(calls(self.name, lap, count))
                self._called.set()
                results = [turn.append(result(self.name, lap, n)) for n in range(count)]
                await asyncio.gather(*results)
            await turn.finish(f"{self.name} is answered")


def left_open(log: Sequence[Message]) -> Iterator[str]:
    """Find calls without a stored result, and results that no stored call asked for."""
    called = Counter((m.turn, call.id) for m in log for call in m.tool_calls)
    given = Counter((m.turn, m.tool_call_id or "") for m in log if m.role == "tool")
    for turn, id in called - given:
        yield f"turn {turn}: call {id} was left open"
    for turn, id in given - called:
        yield f"turn {turn}: a result of {id} without its call"


async def cancel_all(folder: Path, size: int, rng: random.Random) -> tuple[int, int, list[str]]:
    """Cancel turns; return how many ended by it, how many calls that closed, and what is wrong."""
    cancelled = 0
    broken: list[str] = []
    async with Memory.open(address(folder), counter=Estimator()) as memory:
        session = await memory.session("cancelled")
        for start in range(0, size, BATCH):
            names = [f"cancelled.{n}" for n in range(start, min(start + BATCH, size))]
            takers = [Cancelled(session, name, rng) for name in names]
            cancelled += sum(await asyncio.gather(*(taker.run() for taker in takers)))
            # A task that was cancelled twice does not wait until its calls are closed.
            if late := asyncio.all_tasks() - {asyncio.current_task()}:
                await asyncio.wait(late, timeout=PATIENCE)
            context = await session.context(budget=rng.choice(BUDGETS))
            broken += faults(context)
        log = await session.messages(limit=1_000_000)
    broken += [*left_open(log), *numbered_wrongly(log)]
    markers = sum(message.content == INTERRUPTED for message in log)
    if size >= BATCH and (cancelled < size * LEAST_SHARE or not markers):
        broken.append(f"only {cancelled} of {size} turns were cancelled, {markers} calls open")
    return cancelled, markers, [f"cancelled: {line}" for line in broken]


# --- (e) turns that one process begins and others finish ---


def begin(folder: Path, names: Sequence[str], seed: int) -> None:
    """Begin turns, look, call two tools, and leave."""
    rng = random.Random(seed)
    with sync.Memory.open(address(folder), counter=Estimator()) as memory:
        session = memory.session("handed on")
        for name in names:
            with session.turn(f"{name} asks", id=name) as turn:
                turn.context(budget=rng.choice(BUDGETS))
                turn.append(calls(name, 0, 2))
                turn.suspend()


def go_on(folder: Path, names: Sequence[str], seed: int) -> None:
    """Answer the calls of turns, look, note what was shown, and leave."""
    rng = random.Random(seed)
    with (
        sync.Memory.open(address(folder), counter=Estimator()) as memory,
        (folder / "shown").open("w") as shown,
    ):
        session = memory.session("handed on")
        for name in names:
            with session.resume_turn(name) as turn:
                said = f"{name} 0 found 0"
                turn.tool("look", {}, lambda said=said: said, call_id=call_id(name, 0, 0))
                turn.append(result(name, 0, 1))
                context = turn.context(budget=rng.choice(BUDGETS))
                own = [list(each) for each in shown_by(context.selection, session.id).own]
                shown.write(f"{name}\t{json.dumps(own)}\n")
                turn.suspend()


def end(folder: Path, number: int, names: Sequence[str]) -> None:
    """Finish turns without looking again, and note which answer each has."""
    with (
        sync.Memory.open(address(folder), counter=Estimator()) as memory,
        (folder / f"ended-{number}").open("w") as told,
    ):
        session = memory.session("handed on")
        for name in names:
            with session.resume_turn(name) as turn:
                answer = turn.finish(f"{name} is answered", usage={"input": number})
                told.write(f"{name}\t{answer.seq}\t{json.dumps(answer.meta.get(WRITTEN_FROM))}\n")


def hand_on(folder: Path, size: int, rng: random.Random) -> tuple[int, list[str]]:
    """Hand turns from process to process; return how many, and what is wrong."""
    names = [f"handed.{n}" for n in range(size)]
    shuffled = rng.sample(names, size)
    broken = run_all(begin, [(folder, names, rng.getrandbits(32))])
    broken += run_all(go_on, [(folder, shuffled, rng.getrandbits(32))])
    broken += run_all(end, [(folder, number, names) for number in range(2)])
    shown = dict(line.split("\t") for line in (folder / "shown").read_text().splitlines())
    told = [(folder / f"ended-{number}").read_text() for number in range(2)]
    if told[0] != told[1]:
        broken.append("the two that finished turns were told different answers")
    for line in told[0].splitlines():
        name, _, sources = line.split("\t")
        if sources != shown.get(name):
            broken.append(f"{name} is said to be written from {sources}, not {shown.get(name)}")
    with sync.Memory.open(address(folder), counter=Estimator()) as memory:
        session = memory.session("handed on")
        log = session.messages(limit=1_000_000)
        broken += [fault for budget in BUDGETS for fault in faults(session.context(budget=budget))]
    broken += [*left_open(log), *numbered_wrongly(log)]
    answered = sum(message.content.endswith(" is answered") for message in log)
    if answered != size:
        broken.append(f"{answered} of {size} turns have an answer")
    return size, [f"handed on: {line}" for line in broken]


def run_all(target: Callable[..., None], arguments: Iterable[tuple[Any, ...]]) -> list[str]:
    """Run processes at once; say which ended badly or not at all."""
    fresh = fresh_processes()
    processes = [fresh.Process(target=target, args=a) for a in arguments]
    for process in processes:
        process.start()
    deadline = time.monotonic() + 10 * PATIENCE
    broken: list[str] = []
    for number, process in enumerate(processes):
        process.join(max(0, deadline - time.monotonic()))
        if process.exitcode != 0:
            broken.append(f"process {number} ended with {process.exitcode}")
            process.kill()
            process.join()
    return broken


# --- all five ---


def run(size: int, seed: int, progress: Progress) -> Outcome:
    rng = random.Random(seed)
    tally = Tally()
    kill_all(size, rng, tally, progress)
    with tempfile.TemporaryDirectory() as folder:
        pairs = max(2, round(size * TURNS_PER_KILL))
        turns, broken = interleave_all(Path(folder), pairs, rng.getrandbits(32))
        tally.broken += broken
    with tempfile.TemporaryDirectory() as folder:
        rounds = max(2, round(size * ROUNDS_PER_KILL))
        told, broken = deliver_all(Path(folder), rounds)
        tally.broken += broken
    with tempfile.TemporaryDirectory() as folder:
        cancels = max(2 * BATCH, size * CANCELS_PER_KILL)
        cancelled, closed, broken = asyncio.run(cancel_all(Path(folder), cancels, rng))
        tally.broken += broken
    with tempfile.TemporaryDirectory() as folder:
        handed, broken = hand_on(Path(folder), max(8, size), rng)
        tally.broken += broken
    figures = {
        "kills": tally.kills,
        "inside a turn": tally.inside,
        "with calls open": tally.calling,
        "user messages acknowledged": tally.asked,
        "answers acknowledged": tally.answered,
        "calls closed with a marker": tally.interrupted,
        "contexts after a kill": tally.contexts,
        "unfinished requests taken up": tally.resumed,
        "interleaved turns by 4 processes": turns,
        "requests delivered by 10 processes at once": rounds,
        "answers they were told": told,
        "turns cancelled": cancelled,
        "calls that cancelling left open, closed with a marker": closed,
        "turns that three processes shared": handed,
        "violations": len(tally.broken),
    }
    return Outcome(figures=figures, broken=tuple(tally.broken))


PROOF: Final = Proof(
    name="P6",
    promise="a turn is whole for the reader",
    unit="kills inside turns",
    small=8,
    closing=200,
    long=2_000,
    run=run,
)

if __name__ == "__main__":
    asyncio.run(take_turns(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
