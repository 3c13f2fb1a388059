"""P4: one total order per session, and no clock in it.

Eight processes append to one session of one store while their clocks jump back and forth by up to
an hour. In each of them two event loops, in threads of their own, share one memory. What was
acknowledged must be in the log once, in an order that every caller could see.
"""

import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import NamedTuple

from keepthread import Memory, Options, Session
from keepthread.models.tokens import Estimator
from keepthread.types import Message, SessionInfo, SessionKey
from proofs import Outcome, Progress, Proof
from proofs.places import file_url, new_place, opened
from proofs.processes import fresh_processes

PROCESSES = 8
LOOPS = 2
WRITERS = PROCESSES * LOOPS
HOUR = 3600.0
PATIENCE = 60.0
HANG = 3600.0  # seconds after which a process that does not end is taken for hung
PAGE = 5000


class Call(NamedTuple):
    """One append that was acknowledged; times are nanoseconds of the system's monotonic clock."""

    writer: int
    number: int
    rounds: int
    sent: int
    acknowledged: int
    turn: int | None
    answers: list[tuple[str, int, int, int]]
    """Id, position, turn and total of each message, as the caller was told."""

    @property
    def first(self) -> int:
        return self.answers[0][1]

    @property
    def last(self) -> int:
        return self.answers[-1][1]


def run(size: int, seed: int, progress: Progress) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        return _run(Path(folder), file_url(Path(folder) / "order.db"), size, seed, progress)


def run_on(kind: str, size: int, seed: int, progress: Progress) -> Outcome:
    with new_place(kind) as place, tempfile.TemporaryDirectory() as folder:
        return _run(Path(folder), place.url, size, seed, progress)


def _run(folder: Path, url: str, size: int, seed: int, progress: Progress) -> Outcome:
    key = asyncio.run(_new_session(url))
    broken = _let_all_write(folder, url, key, size, seed, progress)
    lines = [line for writer in range(WRITERS) for line in _lines(folder, writer)]
    log, sound = asyncio.run(_read_all(url, key))
    calls = [line for line in lines if isinstance(line, Call)]
    errors = [line for line in lines if isinstance(line, str)]
    broken += [f"a caller was shown {error}" for error in errors]
    broken += _violations(log, calls, size)
    if not sound:
        broken.append("verify finds damage")
    figures = {"errors shown to a caller": len(errors), "violations": len(broken)}
    return Outcome(figures=_figures(log, calls) | figures, broken=tuple(broken))


async def _new_session(url: str) -> SessionKey:
    async with opened(url) as store:
        return (await store.put_session(SessionInfo(id="one"))).key


# --- the writers ---


def _let_all_write(
    folder: Path, url: str, key: SessionKey, size: int, seed: int, progress: Progress
) -> list[str]:
    """Run the writers side by side and say which did not end well."""
    processes = fresh_processes()
    gate = processes.Barrier(PROCESSES)
    shares = [len(range(number, size, WRITERS)) for number in range(WRITERS)]
    writers = [
        processes.Process(
            target=_write,
            args=(folder, url, key, number, shares[number : number + LOOPS], seed, gate),
        )
        for number in range(0, WRITERS, LOOPS)
    ]
    for writer in writers:
        writer.start()
    for done, writer in enumerate(writers, 1):
        writer.join()
        progress(size * done // PROCESSES, size)
    return [
        f"process {number} ended with status {writer.exitcode}"
        for number, writer in enumerate(writers)
        if writer.exitcode
    ]


def _write(
    folder: Path,
    url: str,
    key: SessionKey,
    first: int,
    shares: list[int],
    seed: int,
    gate: Barrier,
) -> None:
    """Let writers share one memory, the first in this thread's loop, the others in their own."""
    rngs = [random.Random(f"{seed}/{first + n}") for n in range(len(shares))]
    writers = [_Writer(folder, key, first + n, rng) for n, rng in enumerate(rngs)]

    async def run() -> None:
        async with opened(url, clock=_jumping_clock(random.Random(rngs[0].random()))) as store:
            gate.wait(PATIENCE)
            memory = Memory(store, Options(counter=Estimator()))
            session = await memory.session("one")
            work = [
                partial(w.run, memory, session, n) for w, n in zip(writers, shares, strict=True)
            ]
            others = [asyncio.to_thread(lambda call=call: asyncio.run(call())) for call in work[1:]]
            async with asyncio.timeout(HANG):
                await asyncio.gather(work[0](), *others)

    asyncio.run(run())


class _Writer:
    """One loop: calls one after another, or several at once, of one message or several."""

    def __init__(self, folder: Path, key: SessionKey, number: int, rng: random.Random) -> None:
        self.folder = folder
        self.key = key
        self.number = number
        self.rng = rng
        self.seen = 0  # the latest turn this writer was told of

    async def run(self, memory: Memory, session: Session, share: int) -> None:
        with _log_of(self.folder, self.number).open("w") as log:
            number = rounds = 0
            while number < share:
                several = min(self.rng.choice((1, 1, 1, 2, 4, 8)), share - number)
                numbers = range(number, number + several)
                calls = [self.call(memory, session, n, rounds) for n in numbers]
                for answer in await asyncio.gather(*calls, return_exceptions=True):
                    line = repr(answer) if isinstance(answer, BaseException) else answer
                    log.write(json.dumps(line) + "\n")
                number, rounds = numbers.stop, rounds + 1

    async def call(self, memory: Memory, session: Session, number: int, rounds: int) -> Call:
        messages = [
            Message(
                id=(id := f"{self.number}:{number}:{n}"),
                role=self.rng.choice(("user", "assistant", "tool")),
                content=f"said in {id}",
                tokens=self.rng.randrange(100),
            )
            for n in range(self.rng.choice((1, 1, 1, 2, 5)))
        ]
        turn = self.seen if self.seen and self.rng.random() < 0.15 else None
        through_session = turn is None and self.rng.random() < 0.5
        sent = time.monotonic_ns()
        if through_session:
            stored = await session.append(*messages)
        else:
            stored = await memory.store.append(self.key, messages, turn=turn)
        acknowledged = time.monotonic_ns()
        self.seen = max(self.seen, stored[-1].turn)
        answers = [(m.id, m.seq, m.turn, m.total) for m in stored]
        return Call(self.number, number, rounds, sent, acknowledged, turn, answers)


def _jumping_clock(rng: random.Random) -> Callable[[], float]:
    start = time.time()
    return lambda: start + rng.uniform(-HOUR, HOUR)


def _log_of(folder: Path, writer: int) -> Path:
    return folder / f"writer-{writer}"


def _lines(folder: Path, writer: int) -> Iterator[Call | str]:
    """Yield the acknowledged calls of a writer, and the errors it was shown."""
    log = _log_of(folder, writer)
    log.touch()  # a writer that died early has written none
    with log.open() as lines:
        for line in map(json.loads, lines):
            if isinstance(line, str):
                yield line
            else:
                line[-1] = [tuple(answer) for answer in line[-1]]
                yield Call._make(line)


# --- the check ---


async def _read_all(url: str, key: SessionKey) -> tuple[list[Message], bool]:
    log: list[Message] = []
    async with opened(url) as store:
        while page := await store.read(key, after=len(log), limit=PAGE):
            log += page
        return log, (await store.verify()).sound


def _violations(log: list[Message], calls: list[Call], size: int) -> list[str]:
    checks = (
        _lost_or_doubled(log, calls),
        _misplaced(log, calls),
        _parted(calls),
        _out_of_turn(calls),
        _out_of_time(calls),
        _miscounted(log, calls),
    )
    broken = [line for lines in checks for line in lines]
    if len(calls) != size:
        broken.append(f"{len(calls)} of {size} appends were acknowledged")
    return broken


def _lost_or_doubled(log: list[Message], calls: list[Call]) -> Iterator[str]:
    found = Counter(message.id for message in log)
    told = Counter(id for call in calls for id, *_ in call.answers)
    yield from (f"{id} is in the log {found[id]} times" for id in told if found[id] != 1)
    yield from (f"{id} was never acknowledged" for id in found if id not in told)


def _misplaced(log: list[Message], calls: list[Call]) -> Iterator[str]:
    """Find gaps, changed text, and answers that are not what the log says."""
    for place, message in enumerate(log, 1):
        if message.seq != place:
            yield f"{message.id} at {message.seq} stands where {place} should be"
        if message.content != f"said in {message.id}" or message.state != "live":
            yield f"{message.id} is not what was written"
    stored = {m.id: (m.seq, m.turn, m.total) for m in log}
    for call in calls:
        for id, *told in call.answers:
            if stored.get(id) != tuple(told):
                yield f"{id}: the caller was told {told}, the log says {stored.get(id)}"


def _parted(calls: Iterable[Call]) -> Iterator[str]:
    for call in calls:
        if any(b[1] != a[1] + 1 for a, b in pairwise(call.answers)):
            yield f"writer {call.writer}, call {call.number}: its messages do not stand together"


def _out_of_turn(calls: list[Call]) -> Iterator[str]:
    """Find calls of one writer that stand before what it had finished earlier."""
    for writer in range(WRITERS):
        mine = [call for call in calls if call.writer == writer]
        yield from (
            f"writer {writer}: call {b.number} stands before call {a.number}"
            for a, b in pairwise(sorted(mine, key=lambda call: call.first))
            if b.rounds < a.rounds
        )


def _out_of_time(calls: list[Call]) -> Iterator[str]:
    """Find messages that stand before one that was acknowledged before they were sent.

    The monotonic clock is the system's, so times of different processes compare.
    """
    ended = sorted(calls, key=lambda call: call.acknowledged)
    finished = 0
    latest = 0
    for call in sorted(calls, key=lambda call: call.sent):
        while ended[finished].acknowledged < call.sent:
            latest = max(latest, ended[finished].last)
            finished += 1
        if call.first < latest:
            yield f"position {call.first} was sent after {latest} was acknowledged"


def _miscounted(log: list[Message], calls: list[Call]) -> Iterator[str]:
    """Find turns and totals that are not what the contract says."""
    given = {id: call.turn for call in calls for id, *_ in call.answers}
    turns = total = 0
    for message in log:
        total += message.tokens
        turn = given.get(message.id)
        if turn is None:
            turns += message.role == "user"
            turn = turns
        if message.turn != turn:
            yield f"position {message.seq} has turn {message.turn}, not {turn}"
        if message.total != total:
            yield f"position {message.seq} has total {message.total}, not {total}"


def _figures(log: list[Message], calls: list[Call]) -> dict[str, int | float | str]:
    spans = sorted((call.sent, call.acknowledged) for call in calls)
    steps = [b.created_at - a.created_at for a, b in pairwise(log)]
    return {
        "appends acknowledged": len(calls),
        "appends under way at once with the one before": sum(
            b[0] < a[1] for a, b in pairwise(spans)
        ),
        "messages": len(log),
        "turns": max((message.turn for message in log), default=0),
        "steps back of the clock from one message to the next": sum(step < 0 for step in steps),
        "largest step back in seconds": round(-min(steps, default=0.0)),
    }


PROOF = Proof(
    name="P4",
    promise="one total order per session, no clock in it",
    unit="appends by 8 processes with 2 event loops each to one session",
    small=200,
    closing=4000,
    long=400_000,
    run=run,
    on={kind: partial(run_on, kind) for kind in ("postgres", "redis", "cluster")},
)
