"""Processes that fork while they write, for P1: `python -m proofs.forker`.

A parent keeps a store open, writes to it and forks; each child opens the same store for itself and
writes until it is killed. Now and then the parent closes its store and opens it again: whatever a
child believes about locks that only its parent has, it loses its log at that moment. The parent
kills children at random, and the proof kills them all.
"""

import asyncio
import multiprocessing
import os
import random
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, NamedTuple

from proofs.places import opened
from proofs.writer import FLAWS, SESSIONS, append_for_ever, session_key

MOST_CHILDREN: Final = 3
PARENT_TASKS: Final = 2
CHILD_TASKS: Final = 3


class Job(NamedTuple):
    """What to write where; `writer` makes the ids of this process unlike all others."""

    folder: Path
    url: str
    writer: str
    seed: int

    def of(self, child: int) -> "Job":
        """Return the job of a child."""
        return self._replace(writer=f"{self.writer}.{child}", seed=self.seed + child)


# --- writing ---


async def write(job: Job, tasks: int, until: Callable[[], Awaitable[object]]) -> None:
    """Open the store, append from several tasks until told, and close the store."""
    acks = os.open(job.folder / "acks", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    async with opened(job.url) as store:
        keys = [await session_key(store, name) for name in SESSIONS]
        names = [f"{job.writer}.{task}" for task in range(tasks)]
        rngs = [random.Random(f"{job.seed} {task}") for task in range(tasks)]
        writing = asyncio.gather(
            *map(partial(append_for_ever, store.append, keys, acks), names, rngs)
        )
        await asyncio.wait([writing, asyncio.ensure_future(until())], return_when="FIRST_COMPLETED")
        writing.cancel()
        with suppress(asyncio.CancelledError):
            await writing
    os.close(acks)


def write_in_child(job: Job) -> None:
    """Write, in a process that was forked, until killed."""
    try:
        asyncio.run(write(job, CHILD_TASKS, asyncio.Event().wait))
    except BaseException:  # noqa: BLE001 - the proof reads it
        traceback.print_exc()
    os._exit(1)


class Parent:
    """A thread that writes; between two forks it closes its store and opens it again."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._rng = random.Random(job.seed)
        self._open = threading.Event()
        self._forked = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def before_fork(self) -> None:
        """Wait until the store is open."""
        self._open.wait()

    def after_fork(self) -> None:
        """Let the store be closed."""
        self._open.clear()
        self._forked.set()

    def _run(self) -> None:
        try:
            for life in range(1_000_000):
                self._forked.clear()
                asyncio.run(write(self._job.of(life), PARENT_TASKS, self._until_fork))
        except BaseException:  # noqa: BLE001 - the proof reads it
            traceback.print_exc()

    async def _until_fork(self) -> None:
        self._open.set()
        while not self._forked.is_set():  # noqa: ASYNC110 - another thread sets it
            await asyncio.sleep(0.005)
        await asyncio.sleep(self._rng.uniform(0, 0.3))


# --- forking ---


def fork(job: Job) -> int:
    """Start a child by `os.fork`."""
    if pid := os.fork():
        return pid
    write_in_child(job)
    raise AssertionError


def fork_by_multiprocessing(job: Job) -> int:
    """Start a child by multiprocessing."""
    process = multiprocessing.get_context("fork").Process(target=write_in_child, args=(job,))
    process.start()
    assert process.pid
    return process.pid


def fork_for_ever(start: Callable[[Job], int], job: Job) -> None:
    """Start children and kill children, while another thread writes."""
    rng = random.Random(job.seed)
    parent = Parent(job.of(0))
    children: list[int] = []
    for number in range(1, 1_000_000):
        parent.before_fork()
        children.append(start(job.of(number)))
        parent.after_fork()
        if len(children) > MOST_CHILDREN:
            victim = children.pop(rng.randrange(len(children)))
            os.kill(victim, signal.SIGKILL)
            with suppress(ChildProcessError):
                os.waitpid(victim, 0)


# --- a prefork server ---


def serve(job: Job) -> None:
    """Run gunicorn, which forks its workers from a parent that has the store open."""
    from gunicorn.app.base import BaseApplication

    rng = random.Random(job.seed)
    numbers = iter(range(1, 1_000_000))
    parent = Parent(job.of(0))

    def when_ready(server: Any) -> None:
        threading.Thread(target=kill_workers, args=(server, rng), daemon=True).start()

    def pre_fork(server: Any, worker: Any) -> None:
        parent.before_fork()
        worker.number = next(numbers)
        threading.Timer(0.02, parent.after_fork).start()  # there is no hook in the parent

    def post_worker_init(worker: Any) -> None:
        mine = job.of(worker.number)
        threading.Thread(target=write_in_child, args=(mine,), daemon=True).start()

    class Server(BaseApplication):
        def load_config(self) -> None:
            settings = {
                "bind": f"unix:{job.folder}/socket",
                "workers": MOST_CHILDREN,
                "preload_app": True,
                "loglevel": "critical",
                "when_ready": when_ready,
                "pre_fork": pre_fork,
                "post_worker_init": post_worker_init,
            }
            for name, value in settings.items():
                self.cfg.set(name, value)

        def load(self) -> Callable[..., list[bytes]]:
            return lambda environ, start_response: []

    Server().run()


def kill_workers(server: Any, rng: random.Random) -> None:
    """Kill a worker now and then; the server forks another."""
    while True:
        threading.Event().wait(rng.uniform(0.1, 0.5))
        if workers := list(server.WORKERS):
            with suppress(ProcessLookupError):
                os.kill(rng.choice(workers), signal.SIGKILL)


MODES: Final[Mapping[str, Callable[[Job], None]]] = {
    "os.fork": lambda job: fork_for_ever(fork, job),
    "multiprocessing": lambda job: fork_for_ever(fork_by_multiprocessing, job),
} | ({"gunicorn": serve} if find_spec("gunicorn") else {})


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # Python warns of any fork beside threads
    mode, folder, url, writer, seed, flaw = sys.argv[1:]
    FLAWS[flaw]()
    MODES[mode](Job(Path(folder), url, writer, int(seed)))
