"""The surface as programs use it: a memory and a session, awaited, blocking, or on the spot."""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from bench.corpus import COUNTER, SESSION, tokens_of
from bench.ours import Inside, result
from keepthread import Context, Memory, Message, Options, Session, sync
from keepthread.memory import material as gather
from keepthread.types import Gathered


class Counted:
    """A counter that knows the answer, so that counting takes no time and all around it does."""

    name = COUNTER

    def __init__(self, size: int) -> None:
        self._tokens = tokens_of(size)

    def count(self, message: Message) -> int:
        """Return what any message of that size costs."""
        return self._tokens


def uncounted(messages: Iterable[Message]) -> list[Message]:
    """Return messages as a program has them, before they are counted."""
    return [replace(message, tokens=0, counter="") for message in messages]


def _address(path: Path) -> str:
    return f"sqlite:///{path}"


class Awaiting:
    """A session whose methods are awaited on an event loop."""

    def __init__(self, path: Path, size: int, messages: Iterable[Message] = ()) -> None:
        self._messages: Iterator[Message] = iter(uncounted(messages))
        self._runner = asyncio.Runner()
        self._memory, self._session = self._runner.run(self._open(path, size))

    async def _open(self, path: Path, size: int) -> tuple[Memory, Session]:
        memory = await Memory.open(_address(path), counter=Counted(size))
        return memory, await memory.session(SESSION)

    def append(self, count: int) -> None:
        """Append the next messages, one after another."""
        self._runner.run(self._append(count))

    async def _append(self, count: int) -> None:
        append = self._session.append
        for message in islice(self._messages, count):
            await append(message)

    def context(self, count: int, *, budget: int) -> None:
        """Ask for a context and the reason for each choice, so many times."""
        self._runner.run(self._context(count, budget))

    async def _context(self, count: int, budget: int) -> None:
        context = self._session.context
        for _ in range(count):
            _ = (await context(budget=budget)).why.choices

    def close(self) -> None:
        """Close the memory and the loop."""
        self._runner.run(self._memory.close())
        self._runner.close()


class Blocking:
    """A session of the blocking twin, in a thread without an event loop."""

    def __init__(self, path: Path, size: int, messages: Iterable[Message]) -> None:
        self._messages: Iterator[Message] = iter(uncounted(messages))
        self._memory = sync.Memory.open(_address(path), counter=Counted(size))
        self._session = self._memory.session(SESSION)

    def append(self, count: int) -> None:
        """Append the next messages, one after another."""
        append = self._session.append
        for message in islice(self._messages, count):
            append(message)

    def close(self) -> None:
        """Close the memory."""
        self._memory.close()


class OnTheSpot:
    """A session whose store does its work at once: no event loop, no other thread."""

    def __init__(self, inside: Inside, size: int) -> None:
        self._store, self._key = inside.store, inside.keys[0]
        self._session = result(
            Memory(inside.store, Options(counter=Counted(size))).session(SESSION)
        )

    def gather(self, count: int, *, budget: int) -> None:
        """Read what a context is chosen from, so many times."""
        for _ in range(count):
            self.gathered(budget)

    def gathered(self, budget: int) -> Gathered:
        """Return what a context is chosen from, as `keepthread.memory.material` asks for it."""
        what = self._store.gather(
            self._key,
            tokens=budget,
            min_messages=gather.LEAST,
            kinds=(gather.MARKS,),
            follow=gather._FOLLOWED,
        )
        return result(what)

    def context(self, count: int, *, budget: int) -> None:
        """Ask for a context and the reason for each choice, so many times."""
        for _ in range(count):
            _ = self.chosen(budget).why.choices

    def chosen(self, budget: int) -> Context:
        """Return one context."""
        return result(self._session.context(budget=budget))
