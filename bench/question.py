"""What memory adds to one question: a whole turn by `Hybrid` with `recall="owner"`, as data grows.

    python -m bench.question --store sqlite:///FILE --messages 10000

The owner has so many messages, in sessions of a hundred. In a session of its own a question is
asked, its context is made, and an answer is stored, turn after turn. Printed are the CPU of this
process and of the server's processes for one turn, the calls to the store, and, with `--show`, what
they were.
"""

import argparse
import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from bench.corpus import SIZES
from bench.furnished import Quarters
from bench.measure import no_collection
from bench.search import Language
from keepthread import Compaction, Hybrid, Memory, Message, Session, View

OWNER = "ana"
SESSION = 100
"""Messages of a session."""
_BUDGET = 4_000
_SEED = 7
_BEFORE = 200
"""Messages of the asking session before the first question: more than a context shows."""
_AT_ONCE = 50
"""Sessions that are written at the same time, by as many connections as there are."""


class Asked(NamedTuple):
    """What one question took: milliseconds of CPU, and calls to the store."""

    client: float
    server: float
    calls: float

    @property
    def total(self) -> float:
        """Return the CPU of both sides."""
        return self.client + self.server


class Calls:
    """Counts what is asked of a store: statements of PostgreSQL, or jobs of SQLite's threads."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()

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
            return await inner(self_, *args, **named)

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


def server_cpu(pids: Sequence[int]) -> float:
    """Return the CPU seconds of processes."""
    used = 0
    for pid in pids:
        try:
            used += int(Path(f"/proc/{pid}/schedstat").read_text().split()[0])
        except OSError:
            continue
    return used / 1e9


async def measure(
    memory: Memory,
    *,
    pids: Callable[[], Sequence[int]] = lambda: (),
    rounds: int = 5,
    turns: int = 10,
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
        calls.made.clear()
    with no_collection():
        for _ in range(rounds):
            before = server_cpu(pids())
            start = time.process_time()
            await ask(session, language, turns)
            client = time.process_time() - start
            server = server_cpu(pids()) - before
            each = 1000 / turns
            found.append(Asked(client * each, server * each, 0))
    made = sum(calls.made.values()) / (rounds * turns) if calls else 0.0
    return Asked(median(a.client for a in found), median(a.server for a in found), made)


async def _main(options: argparse.Namespace) -> None:
    calls = Calls()
    calls.watch()
    async with await opened(options.store) as memory:
        started = time.perf_counter()
        if options.messages > options.filled:
            await fill(memory, options.messages, first=options.filled)
        filled = time.perf_counter() - started

        def pids() -> list[int]:
            return [int(each) for each in options.pids.read_text().split()] if options.pids else []

        taken = await measure(memory, pids=pids, calls=calls, rounds=options.rounds)
    print(
        f"{options.messages:>9,} messages: {taken.total:6.1f} ms"
        f" (client {taken.client:.1f}, server {taken.server:.1f}), {taken.calls:.1f} calls;"
        f" filled in {filled:.0f} s"
    )
    if options.show:
        for what, count in calls.made.most_common():
            print(f"    {count / (options.rounds * 10):5.2f} {what}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.question", description=__doc__)
    parser.add_argument("--store", required=True)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--filled", type=int, default=0, help="messages that are there already")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pids", type=Path, help="a file that names the server's processes")
    parser.add_argument("--show", action="store_true", help="print the calls to the store")
    asyncio.run(_main(parser.parse_args()))
