"""P16: many processes open one cold database in the same moment, and none is turned away.

The processes live through all rounds. In each they are told a path, say that they are ready, and
wait for a byte from one pipe; a single write releases them all. Then each opens the file, makes a
session of its own, appends to it and closes, while the others are still opening.
"""

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Final

from keepthread.errors import KeepthreadError
from keepthread.stores.sqlite import SQLiteStore
from keepthread.types import Message, SessionInfo
from proofs import Outcome, Progress, Proof

ROOT: Final = Path(__file__).resolve().parent.parent
PROCESSES: Final = 28
MESSAGES: Final = 5
STATES: Final = ("absent", "at rest", "empty", "left by a crash")


# --- one of the processes ---


def serve(name: str, gate: int) -> None:
    """Open every file that is named on standard input, as soon as the gate lets go."""
    for line in sys.stdin:
        print("ready", flush=True)
        os.read(gate, 1)
        print(asyncio.run(write(Path(line.rstrip("\n")), name)), flush=True)


async def write(path: Path, name: str) -> str:
    """Make a session and append to it; return what went wrong."""
    try:
        async with await SQLiteStore.open(path) as store:
            session = await store.put_session(SessionInfo(id=name))
            for text in texts(name):
                await store.append(session.key, [Message(role="user", content=text)])
    except Exception as error:  # noqa: BLE001 - whatever it is, the parent counts it
        return repr(error).replace("\n", " ")
    return "stored"


def texts(name: str) -> list[str]:
    return [f"{name} says {number}" for number in range(MESSAGES)]


# --- all of them ---


class Crowd:
    """The processes, and the gate they wait at."""

    def __init__(self) -> None:
        gate, self._gatekeeper = os.pipe()
        self._members = [
            subprocess.Popen(
                [sys.executable, "-m", "proofs.p16_cold_open", f"process {number}", str(gate)],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                pass_fds=[gate],
            )
            for number in range(PROCESSES)
        ]
        os.close(gate)

    def open(self, path: Path) -> list[str]:
        """Let all of them open a file at once, and return what each answered."""
        for member in self._members:
            stream(member.stdin).write(f"{path}\n")
            stream(member.stdin).flush()
        for member in self._members:
            stream(member.stdout).readline()
        os.write(self._gatekeeper, bytes(PROCESSES))
        return [stream(m.stdout).readline().strip() or "it died" for m in self._members]

    def __enter__(self) -> "Crowd":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._gatekeeper)
        for member in self._members:
            member.communicate()


def stream(pipe: IO[str] | None) -> IO[str]:
    assert pipe is not None
    return pipe


async def prepare(path: Path, state: str) -> None:
    """Leave the file as the round wants to find it."""
    if state == "empty":
        path.touch()
    elif state == "at rest":
        async with await SQLiteStore.open(path) as store:
            await store.put_session(SessionInfo(id="before"))
    elif state == "left by a crash":
        source = path.with_name("source.db")
        async with await SQLiteStore.open(source) as store:
            await store.put_session(SessionInfo(id="before"))
            for end in ("", "-wal"):  # a log that whoever comes first has to recover
                shutil.copy(f"{source}{end}", f"{path}{end}")


async def missing(path: Path, state: str) -> list[str]:
    """Return what is not stored as it was written."""
    wrong: list[str] = []
    async with await SQLiteStore.open(path) as store:
        for name in [f"process {number}" for number in range(PROCESSES)]:
            session = await store.get_session(name)
            found = await store.read(session.key) if session else []
            if [message.content for message in found] != texts(name):
                wrong.append(f"{name} finds {len(found)} of its {MESSAGES} messages")
        if state in ("at rest", "left by a crash") and await store.get_session("before") is None:
            wrong.append("the session from before is gone")
        if not (await store.verify()).sound:
            wrong.append("the file is damaged")
    return wrong


def one_round(crowd: Crowd, number: int, waits: list[float]) -> tuple[Sequence[str], list[str]]:
    """Return the errors that processes saw, and what is missing afterwards."""
    state = STATES[number % len(STATES)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder).resolve() / "cold.db"
        asyncio.run(prepare(path, state))
        start = time.monotonic()
        errors = [answer for answer in crowd.open(path) if answer != "stored"]
        waits.append(time.monotonic() - start)
        try:
            return errors, asyncio.run(missing(path, state))
        except KeepthreadError as error:
            return errors, [repr(error)]


def run(size: int, seed: int, progress: Progress) -> Outcome:
    errors: list[str] = []
    lost: list[str] = []
    waits: list[float] = []
    with Crowd() as crowd:
        for number in range(size):
            failed, wrong = one_round(crowd, number, waits)
            errors += failed
            lost += [f"round {number}: {what}" for what in wrong]
            progress(number + 1, size)
    figures = {
        "rounds": size,
        "openings": size * PROCESSES,
        "errors": len(errors),
        "database is locked": sum("locked" in error or "Busy" in error for error in errors),
        "sessions not as written": len(lost),
        "slowest round, seconds": round(max(waits, default=0.0), 2),
    }
    return Outcome(figures=figures, broken=(*errors, *lost))


PROOF: Final = Proof(
    name="P16",
    promise="no lock errors when 28 processes open a cold database at once",
    unit="rounds",
    small=2,
    closing=20,
    long=500,
    run=run,
)

if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
