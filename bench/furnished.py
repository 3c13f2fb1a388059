"""A session in a file with all that a context can have: pins, notes, remembered results, a summary.

The earliest messages are pinned, and notes and results follow them. Then a long log has many
messages that cost no tokens, and every log ends with the same thousand: so windows stand at the
same place whatever the length, and the length alone differs.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import chain, islice, repeat
from pathlib import Path

from bench import Run
from bench.corpus import COUNTER, SESSION, messages, texts, tokens_of
from bench.ours import Inside
from keepthread import Hybrid, Memory, Message, Session, View, Window
from keepthread.context import summary as told
from keepthread.context.sections import HYBRID
from keepthread.memory.material import position_key
from keepthread.stores.kinds import FOLD
from keepthread.types import Scope, Span

STRATEGIES = {
    "window": Window(),
    "hybrid": Hybrid(sections=[each for each in HYBRID if each.name != "recalled"]),
}
"""What is recalled is looked for, and measured by `bench search`."""
SHORT = 1000
"""Messages of the shortest log, about."""
PINS, NOTES, RESULTS = 20, 5, 3
_KEPT = 5
_BY_TURNS = 250  # newest messages, which are compacted as they come
_SMALL = 110  # bytes of what is pinned, noted or remembered, so that all of it is shown
_SUMMARY_LINES = 28
_FOR_EVER = 10_000_000  # turns
_STEPS = 20


class Quarters:
    """A counter that takes a quarter of the letters, so that counting takes next to no time."""

    name = COUNTER

    def count(self, message: Message) -> int:
        """Return what a text of that length usually costs."""
        return tokens_of(len(message.content))


def fill(run: Run, path: Path, size: int, number: int) -> None:
    """Fill a file with a session of about so many messages."""
    asyncio.run(_furnish(path, messages(_SMALL, 2 * PINS)))
    some = messages(size, SHORT)
    for_nothing = chain.from_iterable(repeat(messages(size, SHORT, tokens=0)))
    with closing(Inside(path)) as inside:
        for done in _parts(number - SHORT):
            run.progress(f"context, {size} bytes: {done.start:,} of {number:,} messages stored")
            inside.fill(islice(for_nothing, len(done)))
        inside.fill(some[:-_BY_TURNS])
    asyncio.run(_compact(path, some[-_BY_TURNS:]))


def _parts(number: int) -> Iterator[range]:
    """Yield a number in a few even parts, none of which parts a turn."""
    step = max(2, number // _STEPS // 2 * 2)
    return (range(start, min(start + step, number)) for start in range(0, number, step))


async def _furnish(path: Path, said: Sequence[Message]) -> None:
    """Begin a session with messages to pin, notes and results."""
    small = texts(_SMALL)
    async with await _open(path) as memory:
        session = await memory.session(SESSION)
        for message in (await session.append(*said))[:PINS]:
            await session.pin(message.id)
        for number in range(NOTES):
            await session.add_note(f"note {number}", small[number])
        for number in range(RESULTS):
            await session.cache_tool("look", {"at": number}, small[-number], _FOR_EVER)


async def _compact(path: Path, newest: Sequence[Message]) -> None:
    """Write a summary of all there is; the newest turns then come one by one and are compacted."""
    async with await _open(path, hybrid=View(1, Hybrid())) as memory:
        session = await memory.session(SESSION)
        await _summarize(memory, session)
        for place in range(0, len(newest), 2):
            await session.append(*newest[place : place + 2])
            await memory._runtime.background.settle()  # compaction is not to lag behind


async def _summarize(memory: Memory, session: Session) -> None:
    """Write the record that the folder would have left after compaction everything so far."""
    (last,) = await memory.store.tail(session.key, limit=1)
    small = texts(_SMALL)
    value = {
        "text": "\n".join(f"- User: {text}" for text in small[:_SUMMARY_LINES]),
        "last": last.seq,
        "turn": last.turn,
        "number": last.turn // 5,
        "tokens": last.total,
        "origin": "user",
        "kept": [[PINS + 1 + 2 * n, 0.9, "a decision: “we decided”"] for n in range(_KEPT)],
        "head": last.seq,
        "by": "lines",
    }
    behind = Span(session=session.key, first=1, last=last.seq)
    key = position_key(last.seq)
    await memory.store.put(Scope(session=session.key), FOLD, key, value, made_of=[behind])


async def _open(path: Path, **views: View) -> Memory:
    return await Memory.open(f"sqlite:///{path}", counter=Quarters(), views=views)


class Furnished:
    """That session, awaited on an event loop, with a view for each strategy."""

    def __init__(self, path: Path, budget: int) -> None:
        self._runner = asyncio.Runner()
        views = {name: View(budget, strategy) for name, strategy in STRATEGIES.items()}
        self._memory = self._runner.run(_open(path, **views))
        self._session = self._runner.run(self._memory.session(SESSION))

    def context(self, count: int, *, view: str) -> None:
        """Ask for a context and the reason for each choice, so many times."""
        self._runner.run(self._context(count, view))

    async def _context(self, count: int, view: str) -> None:
        context = self._session.context
        for _ in range(count):
            _ = (await context(view)).why.choices

    def context_after_step(self, count: int) -> None:
        """Ask for hybrid contexts, each as if it were the first to tell the past that way."""
        for _ in range(count):
            told._fit.cache_clear()
            self.context(1, view="hybrid")

    def shown(self, view: str) -> dict[str, int]:
        """Return how many messages of each section a context shows."""
        found: dict[str, int] = {}
        for choice in self._runner.run(self._session.context(view)).why.shown:
            found[choice.section] = found.get(choice.section, 0) + choice.messages
        return found

    def close(self) -> None:
        """Close the memory and the loop."""
        self._runner.run(self._memory.close())
        self._runner.close()
