"""P5: a message is stored exactly once, however often and by whomever it is sent again.

Eight processes append the same ids to the same sessions, each in an order of its own. They give
up waiting at random moments and try again; some are killed and started again. On servers the server
is restarted under them, in order or by SIGKILL, and no caller may be shown an error. Every caller
must get the same stored message, and nobody may put another body under a known id.
"""

import asyncio
import os
import random
import signal
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import NamedTuple

from keepthread.errors import Conflict
from keepthread.protocols import Store
from keepthread.types import Message, SessionInfo, SessionKey, ToolCall
from proofs import Outcome, Progress, Proof
from proofs.places import Place, file_url, new_place, opened
from proofs.processes import fresh_processes

WRITERS = 8
SESSIONS = 4
WINDOW = 32  # ids that all writers are busy with at about the same time
AT_ONCE = 8
CALLS_PER_KILL = 400
MOST_KILLS = 500
HOW_TO_STOP = (signal.SIGINT, signal.SIGKILL)
PATIENCE = 60.0
ATTEMPTS = 5
LINE = 27


class Answer(NamedTuple):
    """What one caller was told about one id; `check` is over the whole message."""

    number: int
    seq: int
    check: int


def run(size: int, seed: int, progress: Progress) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        return _run(
            _Crew(path, file_url(path / "once.db"), max(1, size // WRITERS), seed), progress
        )


def run_on(kind: str, size: int, seed: int, progress: Progress) -> Outcome:
    for attempt in range(ATTEMPTS):
        with new_place(kind) as place, tempfile.TemporaryDirectory() as folder:
            crew = _Crew(Path(folder), place.url, max(1, size // WRITERS), seed + attempt, place)
            outcome = _run(crew, progress)
        # On a busy machine the writers may be done before the server is stopped: then more follow.
        if outcome.broken or all(crew.restarts):
            break
    broken = outcome.broken if all(crew.restarts) else (*outcome.broken, "too few restarts")
    more = {"server stopped in order": crew.restarts[0], "server killed": crew.restarts[1]}
    return Outcome(figures={**outcome.figures, **more}, broken=broken)


def _run(crew: "_Crew", progress: Progress) -> Outcome:
    broken = crew.work(progress)
    answers = [answer for writer in range(WRITERS) for answer in _answers(crew.folder, writer)]
    tallies = sum((_tallies(crew.folder, writer) for writer in range(WRITERS)), Counter())
    logs, sound = asyncio.run(_read_all(crew))
    if not sound:
        broken.append("verify finds damage")
    broken += [*_not_once(logs, crew.ids), *_differing(logs, answers)]
    broken += [f"a caller was shown: {line}" for line in tallies if line.startswith("error")]
    figures = {
        "ids": crew.ids,
        "answers": len(answers),
        "given up and tried again": tallies["given up"],
        "other bodies refused": tallies["conflict"],
        "processes killed": crew.kills,
        "messages stored": sum(map(len, logs)),
        "violations": len(broken),
    }
    return Outcome(figures=figures, broken=tuple(broken))


def _message(number: int) -> Message:
    """Return the body that an id stands for; its tokens and time are whoever comes first's."""
    return Message(
        id=f"{number:032x}" if number % 2 else f"message {number}",
        role="assistant" if number % 3 else "user",
        content=f"body {number} \x00\ud800",
        tool_calls=(ToolCall(id="c", name="t", arguments="{"),) if number % 3 == 1 else (),
        meta={"b": number, "a": [0.5, None]} if number % 5 == 0 else {},
    )


# --- the crew ---


class _Crew:
    """The writers, and the one who kills some of them, or their server, and starts them again."""

    def __init__(
        self, folder: Path, url: str, ids: int, seed: int, place: Place | None = None
    ) -> None:
        self.folder = folder
        self.url = url
        self.place = place
        self.restarts = [0, 0]
        self.ids = ids
        self.seed = seed
        self.rng = random.Random(seed)
        self.kills = 0
        self.keys = asyncio.run(self._new_sessions())

    async def _new_sessions(self) -> list[SessionKey]:
        async with opened(self.url) as store:
            infos = [SessionInfo(id=f"session {n}") for n in range(SESSIONS)]
            return [(await store.put_session(info)).key for info in infos]

    def work(self, progress: Progress) -> list[str]:
        """Let all write until each has every answer; say which ended badly or not at all."""
        size = self.ids * WRITERS
        writers = [self._start(number, 0) for number in range(WRITERS)]
        marks = _marks(self.rng, size)
        done, moved = 0, time.monotonic()
        while any(writer.is_alive() for writer in writers):
            time.sleep(0.01)
            if (now_done := self._done()) != done:
                done, moved = now_done, time.monotonic()
            if time.monotonic() - moved > PATIENCE:
                for writer in writers:
                    writer.kill()
                return [f"nothing moved for {PATIENCE:.0f} s at {done} of {size}"]
            if marks and done >= marks[0]:
                marks.pop(0)
                self._kill_one(writers)
                if self.place and any(writer.is_alive() for writer in writers):
                    self._restart(self.place)
            progress(min(done, size), size)
        codes = [writer.exitcode for writer in writers]
        return [f"writer {n} ended with status {code}" for n, code in enumerate(codes) if code]

    def _start(self, number: int, life: int) -> ForkServerProcess:
        processes = fresh_processes()
        seed = f"{self.seed}/{number}/{life}"
        args = (self.folder, self.url, self.keys, number, self.ids, seed)
        writer = processes.Process(target=_write, args=args)
        writer.start()
        return writer

    def _kill_one(self, writers: list[ForkServerProcess]) -> None:
        number = self.rng.randrange(WRITERS)
        if writers[number].is_alive():
            writers[number].kill()
            writers[number].join()
            self.kills += 1
            writers[number] = self._start(number, self.kills)

    def _restart(self, place: Place) -> None:
        """Stop the server, in order and by force in turn, and let all wait for its return."""
        which = sum(self.restarts) % len(HOW_TO_STOP)
        place.go_down(HOW_TO_STOP[which])
        place.come_back()
        self.restarts[which] += 1

    def _done(self) -> int:
        sizes = [_file(self.folder, n, "answers").stat().st_size for n in self._begun()]
        return sum(sizes) // LINE

    def _begun(self) -> Iterator[int]:
        return (n for n in range(WRITERS) if _file(self.folder, n, "answers").exists())


def _marks(rng: random.Random, size: int) -> list[int]:
    """Return at how many answers somebody dies; at the very end nobody would notice."""
    kills = min(max(2, size // CALLS_PER_KILL), MOST_KILLS)
    return sorted(rng.randrange(size * 3 // 4) for _ in range(kills))


# --- one writer ---


def _write(
    folder: Path, url: str, keys: list[SessionKey], number: int, ids: int, seed: str
) -> None:
    asyncio.run(_Writer(folder, url, keys, number, random.Random(seed)).run(ids))


class _Writer:
    """One process; what it was told is on file before it goes on, so its death loses nothing."""

    def __init__(
        self, folder: Path, url: str, keys: list[SessionKey], number: int, rng: random.Random
    ) -> None:
        self.url = url
        self.keys = keys
        self.rng = rng
        self.now = 1.7e9 + rng.uniform(-1e6, 1e6)  # no two clocks agree
        self.known = {answer.number for answer in _answers(folder, number)}
        self.answers = _append_to(_file(folder, number, "answers"))
        self.tallies = _append_to(_file(folder, number, "tallies"))

    async def run(self, ids: int) -> None:
        async with opened(self.url, patience=PATIENCE, clock=lambda: self.now) as store:
            for start in range(0, ids, WINDOW):
                window = list(range(start, min(ids, start + WINDOW)))
                if self.known.issuperset(window):
                    continue  # done in an earlier life; a window cut short is done again
                self.rng.shuffle(window)
                for first in range(0, len(window), AT_ONCE):
                    some = window[first : first + AT_ONCE]
                    await asyncio.gather(*(self.settle(store, number) for number in some))

    async def settle(self, store: Store, number: int) -> None:
        """Send one message until it is answered, and now and then try to replace it."""
        message = _message(number)
        try:
            stored = await self.send(store, number, message)
        except Exception as error:
            self.tally(f"error {error!r:.200}")
            raise
        check = zlib.crc32(repr(stored).encode("utf-8", "surrogatepass"))
        os.write(self.answers, b"%8d %8d %08x\n" % (number, stored.seq, check))
        if self.rng.random() < 0.05:
            await self.replace(store, number)

    async def send(self, store: Store, number: int, message: Message) -> Message:
        key = self.keys[number % SESSIONS]
        while True:
            patience = self.rng.uniform(0, 0.02) if self.rng.random() < 0.2 else None
            tokens = self.rng.randrange(1000)
            again = Message(**{f: getattr(message, f) for f in BODY}, tokens=tokens)
            try:
                async with asyncio.timeout(patience):
                    [stored] = await store.append(key, [again])
            except TimeoutError:
                self.tally("given up")
            else:
                return stored

    async def replace(self, store: Store, number: int) -> None:
        """Try another body under a known id, behind a message that must not be stored then."""
        known = _message(number)
        other = Message(role=known.role, content="another body", id=known.id)
        behind = Message(role="user", content="never", id=f"never {number}")
        try:
            await store.append(self.keys[number % SESSIONS], [behind, other])
        except Conflict:
            self.tally("conflict")
        else:
            self.tally(f"error: another body under {known.id} was taken")

    def tally(self, what: str) -> None:
        os.write(self.tallies, f"{what}\n".encode())


BODY = ("id", "role", "content", "tool_calls", "meta")


def _file(folder: Path, writer: int, what: str) -> Path:
    return folder / f"{what}-{writer}"


def _append_to(path: Path) -> int:
    """Open for whole lines that survive the death of their writer."""
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)


def _answers(folder: Path, writer: int) -> list[Answer]:
    path = _file(folder, writer, "answers")
    lines = path.read_text().splitlines() if path.exists() else []
    return [Answer(int(n), int(seq), int(check, 16)) for n, seq, check in map(str.split, lines)]


def _tallies(folder: Path, writer: int) -> Counter[str]:
    path = _file(folder, writer, "tallies")
    return Counter(path.read_text().splitlines() if path.exists() else [])


# --- the check ---


async def _read_all(crew: _Crew) -> tuple[list[list[Message]], bool]:
    async with opened(crew.url) as store:
        logs = [await store.read(key, limit=crew.ids + 1000) for key in crew.keys]
        return logs, (await store.verify()).sound


def _not_once(logs: list[list[Message]], ids: int) -> Iterator[str]:
    """Find what is missing, doubled, changed, out of place or was never to be stored."""
    for place, log in enumerate(logs):
        wanted = {(m := _message(number)).id: m for number in range(place, ids, SESSIONS)}
        found = Counter(message.id for message in log)
        yield from (f"{id} is stored {found[id]} times" for id in wanted if found[id] != 1)
        for seq, message in enumerate(log, 1):
            body = wanted.get(message.id)
            if body is None:
                yield f"{message.id} should not be stored"
            elif any(getattr(message, field) != getattr(body, field) for field in BODY):
                yield f"{message.id} is not what was sent"
            if message.seq != seq:
                yield f"position {seq} of session {place} holds {message.seq}"


def _differing(logs: list[list[Message]], answers: list[Answer]) -> Iterator[str]:
    """Find callers who were told something else than what is stored."""
    stored: dict[str, tuple[int, int]] = {}
    for message in (message for log in logs for message in log):
        stored[message.id] = message.seq, zlib.crc32(repr(message).encode("utf-8", "surrogatepass"))
    for number, seq, check in answers:
        if stored.get(_message(number).id) != (seq, check):
            yield f"a caller was told that message {number} is at {seq}, and it is not"


PROOF = Proof(
    name="P5",
    promise="exactly once under retry",
    unit="appends by 8 processes of the same ids",
    small=400,
    closing=8000,
    long=1_000_000,
    run=run,
    on={kind: partial(run_on, kind) for kind in ("postgres", "redis", "cluster")},
)
