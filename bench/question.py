"""What memory adds to one question: a whole turn by `Hybrid` with `recall="owner"`, as data grows.

    python -m bench.question --on sqlite --messages 10000 1000000

The owner has so many messages, in sessions of a hundred. In a session of its own a question is
asked, its context is made, and an answer is stored, turn after turn. Printed are the CPU of this
process and of the server's processes for one turn, the calls to the store, how many of them follow
one another, and, with `--show`, what they were.
"""

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench.corpus import SIZES
from bench.furnished import Quarters
from bench.measure import no_collection
from bench.rates import children, quarter_of_memory, server_cpu
from bench.search import Language
from keepthread import Compaction, Hybrid, Memory, Message, Session, View
from servers.postgres import new_server

OWNER = "ana"
SESSION = 100
"""Messages of a session."""
_BUDGET = 4_000
_SEED = 7
_BEFORE = 200
"""Messages of the asking session before the first question: more than a context shows."""
TURNS = 10
"""Questions of a round."""
_AT_ONCE = 50
"""Sessions that are written at the same time, by as many connections as there are."""


class Asked(NamedTuple):
    """What one question took: milliseconds of CPU, calls to the store, and round trips.

    A call that begins before another ends is part of the same round trip.
    """

    client: float
    server: float
    calls: float = 0.0
    trips: float = 0.0

    @property
    def total(self) -> float:
        """Return the CPU of both sides."""
        return self.client + self.server


class Calls:
    """Counts what is asked of a store: statements of PostgreSQL, or jobs of SQLite's threads."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        self.trips = 0
        """The longest chain of calls, each of which began when the one before had ended."""

    def clear(self) -> None:
        """Begin to count again."""
        self.made.clear()
        self.trips = 0

    def watch(self) -> None:
        """Count from now on, in every store of this process."""
        from keepthread.stores.sqlite.engine import Engine

        for name in ("read", "write"):
            self._wrap(Engine, name, lambda args: args[0].__qualname__.split(".<")[0])
        try:
            from keepthread.stores.postgres.engine import PgLink
        except ImportError:
            return
        self._wrap(PgLink, "run", lambda args: args[0].decode().split("(")[0][-40:])

    def _wrap(self, owner: type, name: str, label: Callable[[Sequence[Any]], str]) -> None:
        inner = getattr(owner, name)

        async def counted(self_: Any, *args: Any, **named: Any) -> Any:
            self.made[label(args)] += 1
            trip = self.trips + 1
            try:
                return await inner(self_, *args, **named)
            finally:
                self.trips = max(self.trips, trip)

        setattr(owner, name, counted)


async def opened(url: str, **options: Any) -> Memory:
    """Open a memory whose contexts are by `Hybrid`."""
    never = Compaction(turns=1_000_000, batch_size=1)
    views = {"chat": View(_BUDGET, Hybrid())}
    return await Memory.open(
        url, views=views, counter=Quarters(), compaction=never, recall="owner", **options
    )


async def fill(memory: Memory, messages: int, *, owner: str = OWNER, first: int = 0) -> None:
    """Write an owner's sessions from the first on, and index them."""
    language = Language(_SEED + first)

    async def one(number: int, texts: Sequence[Message]) -> None:
        session = await memory.session(f"s{number}", owner=owner)
        await session.append(*texts)

    numbers = range(first // SESSION, messages // SESSION)
    for start in range(numbers.start, numbers.stop, _AT_ONCE):
        some = range(start, min(start + _AT_ONCE, numbers.stop))
        texts = [_spoken(language, SESSION) for _ in some]
        await asyncio.gather(*map(one, some, texts))
        await memory.index(owner=owner)


def _spoken(language: Language, number: int) -> list[Message]:
    return [
        Message(role="assistant" if n % 2 else "user", content=language.text(SIZES[0]))
        for n in range(number)
    ]


async def ask(session: Session, language: Language, turns: int) -> None:
    """Ask some questions, each in a whole turn."""
    for _ in range(turns):
        async with session.turn(language.question()) as turn:
            await turn.context()
            await turn.finish(language.text(SIZES[0]))


async def measure(
    memory: Memory,
    *,
    pids: Callable[[], Sequence[int]] = lambda: (),
    rounds: int = 5,
    turns: int = TURNS,
    calls: Calls | None = None,
    name: str = "asking",
) -> Asked:
    """Return what a question takes: the median of rounds, after one that is not counted."""
    session = await memory.session(name, owner=OWNER)
    language = Language(_SEED)
    await session.append(*_spoken(language, _BEFORE))
    await ask(session, language, 2 * turns)
    found: list[Asked] = []
    if calls:
        calls.clear()
    with no_collection():
        for _ in range(rounds):
            before = server_cpu(pids())
            start = time.process_time()
            await ask(session, language, turns)
            client = time.process_time() - start
            server = server_cpu(pids()) - before
            each = 1000 / turns
            found.append(Asked(client * each, server * each))
    taken = Asked(median(a.client for a in found), median(a.server for a in found))
    if not calls:
        return taken
    asked = rounds * turns
    return taken._replace(calls=calls.made.total() / asked, trips=calls.trips / asked)


async def _run(url: str, pids: Callable[[], Sequence[int]], options: argparse.Namespace) -> None:
    calls = Calls()
    calls.watch()
    filled = 0
    async with await opened(url) as memory:
        for messages in options.messages:
            started = time.perf_counter()
            await fill(memory, messages, first=filled)
            seconds = time.perf_counter() - started
            name = f"asking-{messages}"
            taken = await measure(memory, pids=pids, calls=calls, rounds=options.rounds, name=name)
            print(
                f"{messages:>9,} messages: {taken.total:6.1f} ms"
                f" (client {taken.client:.1f}, server {taken.server:.1f}),"
                f" {taken.calls:.1f} calls in {taken.trips:.1f} round trips;"
                f" {messages - filled:,} messages were written in {seconds:.0f} s",
                flush=True,
            )
            if options.show:
                for what, count in calls.made.most_common():
                    print(f"    {count / (options.rounds * TURNS):5.2f} {what}")
            filled = messages


def _main(options: argparse.Namespace) -> None:
    if options.on == "postgres":
        settings = {"shared_buffers": quarter_of_memory(), "max_wal_size": "8GB"}
        with closing(new_server(autovacuum_naptime="1h", **settings)) as server:
            process = server.process
            assert process
            url = server.create_database("question")
            asyncio.run(_run(url, lambda: children(process.pid)[1:], options))
        return
    with TemporaryDirectory() as folder:
        asyncio.run(_run(f"sqlite:///{folder}/question.db", list, options))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.question", description=__doc__)
    parser.add_argument("--on", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--messages", type=int, nargs="+", default=[10_000], help="smallest first")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--show", action="store_true", help="print the calls to the store")
    _main(parser.parse_args())
