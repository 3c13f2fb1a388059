"""Tasks of one process that append to, and ask for contexts of, the sessions of any store."""

import random
from collections.abc import Sequence
from itertools import cycle

from bench.corpus import messages, tokens_of
from bench.furnished import Quarters
from bench.rates import TASKS, together
from keepthread import Memory, Options, Session
from keepthread.memory.material import LEAST
from keepthread.protocols import Store

READ = 64
"""Messages that a context is chosen from."""
EACH = 100
"""Messages of a session, which are more than a context reads."""
_ACTIVE = 1008  # sessions that are spoken in, as many of a large store as of a small one
_SAMPLE = 20


class Tasks:
    """A filled store, some of its sessions in use: s1, s2 and so on; `long` is one beside."""

    def __init__(self, store: Store, sessions: int, size: int, long: int = 0) -> None:
        self.store = store
        self.sessions = sessions
        self.size = size
        self.long = long
        self.used: list[Session] = []
        self._memory = Memory(store, Options(counter=Quarters()))
        self._messages = cycle(messages(size, 256))
        self._budget = READ * tokens_of(size)
        self._chance = random.Random(7)
        self._ends: dict[str, Session] = {}

    @property
    def messages(self) -> int:
        """Return how many there were at first."""
        return self.sessions * EACH

    async def begin(self, *, verify: bool) -> None:
        """Choose sessions and look at some, or at everything there is."""
        many = min(_ACTIVE, self.sessions)
        chosen = self._chance.sample(range(1, self.sessions + 1), many)
        self.used = [await self._memory.session(f"s{number}") for number in chosen]
        self._ends = {"short": self.used[-1]}
        if self.long:
            self._ends["long"] = await self._memory.session("long")
        for session in self.used[:_SAMPLE]:
            await self._check(session)
        if verify:
            assert (await self.store.verify()).sound

    async def _check(self, session: Session) -> None:
        found = await self.store.read(session.key, limit=EACH)
        assert [message.state for message in found] == ["live"] * EACH
        info = await self.store.describe(session.key)
        assert (info.state, info.messages) == ("live", EACH)
        read = await self.store.gather(session.key, tokens=self._budget, min_messages=LEAST)
        assert len(read.messages) == READ

    def _some(self, task: int, count: int) -> Sequence[Session]:
        """Return which of its sessions a task turns to each time."""
        return self._chance.choices(self.used[task::TASKS], k=count)

    async def append(self, count: int) -> None:
        """Append a message to one of many sessions, so many times."""
        await together(count, self._append)

    async def _append(self, task: int, count: int) -> None:
        append, coming = self.store.append, self._messages
        for session in self._some(task, count):
            await append(session.key, [next(coming)])

    async def append_to_one(self, count: int) -> None:
        """Append from all tasks to the same session."""
        await together(count, lambda _, count: self.append_alone(count, which="short"))

    async def append_alone(self, count: int, *, which: str) -> None:
        """Append to the long session or to a short one."""
        key, append, coming = self._ends[which].key, self.store.append, self._messages
        for _ in range(count):
            await append(key, [next(coming)])

    async def context(self, count: int) -> None:
        """Ask for a context of one of many sessions and the reason for each choice."""
        await together(count, self._context)

    async def _context(self, task: int, count: int) -> None:
        for session in self._some(task, count):
            _ = (await session.context(budget=self._budget)).why.choices

    async def context_alone(self, count: int, *, which: str) -> None:
        """Ask for contexts of the long session or of a short one."""
        session = self._ends[which]
        for _ in range(count):
            _ = (await session.context(budget=self._budget)).why.choices
