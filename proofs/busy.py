"""Verify a store while other processes write to it: a healthy store is never called damaged.

`python -m proofs.busy URL SEED` is one of those processes. It writes until its input ends, in every
way that the store offers: sessions, messages, copies, erasures, records, recounts and deletions.
"""

import asyncio
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any, Final

from keepthread.errors import Busy, Conflict, MessageNotFound, SessionGone, Stale
from keepthread.models.tokens import Estimator
from keepthread.protocols import Store
from keepthread.types import Message, Scope, SessionInfo, SessionKey, Span
from proofs import Progress
from proofs.places import opened

ROOT: Final = Path(__file__).resolve().parent.parent
WRITERS: Final = 2
RACES: Final = (SessionGone, MessageNotFound, Stale, Conflict, Busy)
"""What one writer may meet because of another."""
PATIENCE: Final = 60.0
MOST_SESSIONS: Final = 12


# --- the verifier ---


async def verify_beside_writers(
    url: str, times: int, seed: int, progress: Progress, *, sessions: int = 200
) -> tuple[Counter[str], list[str]]:
    """Verify a store several times while it is written to; return figures and false damage.

    `sessions` are there before: the longer they take to read, the more is written in the meantime.
    """
    figures = Counter({"beside writers: verified": 0, "beside writers: false damage": 0})
    broken: list[str] = []
    async with opened(url, patience=PATIENCE, durability="process") as store:
        for number in range(sessions):
            session = await store.put_session(SessionInfo(id=f"{number}"))
            await store.append(session.key, [Message(role="user", content="text")])
        writers = [await _started(url, f"{seed}/{number}") for number in range(WRITERS)]
        try:
            for done in range(times):
                found = await store.verify()
                figures["beside writers: verified"] += 1
                figures["beside writers: messages seen"] += found.messages
                if found.damages:
                    figures["beside writers: false damage"] += 1
                    broken.append(f"verification {done} beside writers: {found.damages[0]}")
                progress(done + 1, times)
        finally:
            for writer in writers:
                counts, errors = await asyncio.wait_for(writer.communicate(b""), PATIENCE)
                figures["beside writers: writes"] += int(counts.decode() or 0)
                if writer.returncode:
                    broken.append(f"a writer failed: {errors.decode()[-500:]}")
        at_rest = await store.verify()
        if not at_rest.sound:
            broken.append(f"after the writers ended: {at_rest.damages[0]}")
        if not at_rest.messages or figures["beside writers: writes"] < times:
            broken.append("the writers hardly wrote: the test is blind")
    return figures, broken


async def _started(url: str, seed: str) -> asyncio.subprocess.Process:
    """Start a writer; it has begun to write when this returns."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "proofs.busy", url, seed),
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    if not await asyncio.wait_for(process.stdout.readline(), PATIENCE):
        _, errors = await process.communicate()
        raise RuntimeError(f"a writer did not begin: {errors.decode()[-500:]}")
    return process


# --- a writer ---


class Writer:
    """Writes to a store at random, and knows the sessions that it made."""

    def __init__(self, store: Store, seed: str) -> None:
        self.store = store
        self.name = seed
        self.rng = random.Random(seed)
        self.keys: list[SessionKey] = []
        self.made = 0
        self.writes = 0

    async def write(self) -> None:
        """Write once."""
        kinds = (self.begin, self.append, self.copy, self.erase, self.record, self.recount)
        weights = (12, 12, 1, 2, 3, 1)
        if not self.keys:
            await self.begin()
        elif len(self.keys) > MOST_SESSIONS:
            await self.delete()
        else:
            (work,) = self.rng.choices(kinds, weights)
            await work()
        self.writes += 1

    async def begin(self) -> None:
        key = (await self.store.put_session(self._session())).key
        self.keys.append(key)
        await self.store.append(key, self._messages())

    async def append(self) -> None:
        await self.store.append(self._key(), self._messages())

    async def copy(self) -> None:
        """Copy a session as a fork does: hidden until it is complete."""
        messages = await self.store.read(self._key(), limit=1000)
        session = await self.store.put_session(self._session(ready=False))
        self.keys.append(session.key)
        for start in range(0, len(messages), 5):
            await self.store.load(session.key, messages[start : start + 5])
        now = await self.store.describe(session.key)
        await self.store.put_session(
            SessionInfo(id=now.id, key=now.key, epoch=now.epoch, created_at=now.created_at)
        )

    async def erase(self) -> None:
        key = self._key()
        messages = await self.store.tail(key, limit=5)
        await self.store.erase(key, [message.seq for message in messages[:2]])

    async def record(self) -> None:
        key = self._key()
        scope = self.rng.choice((Scope(), Scope(owner="ana"), Scope(session=key)))
        name = f"{self.rng.randrange(5)}"
        if self.rng.random() < 0.3:
            await self.store.drop(scope, "kind", name)
        else:
            spans = (Span(session=key, first=1, last=1),)
            await self.store.put(scope, "kind", name, {"n": self.writes}, made_of=spans)

    async def recount(self) -> None:
        await self.store.recount(self._key(), Estimator())

    async def delete(self) -> None:
        key = self.keys.pop(self.rng.randrange(len(self.keys)))
        await self.store.delete_session(key)

    def _key(self) -> SessionKey:
        return self.rng.choice(self.keys)

    def _session(self, **options: Any) -> SessionInfo:
        self.made += 1
        return SessionInfo(id=f"{self.name} {self.made}", owner="ana", **options)

    def _messages(self) -> list[Message]:
        count = self.rng.choice((1, 1, 2, 5, 20))
        return [
            Message(role="user", content="text " * self.rng.randrange(50)) for _ in range(count)
        ]


async def serve(url: str, seed: str) -> None:
    """Write until the input ends; print the number of writes."""
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with opened(url, patience=PATIENCE, durability="process") as store:
        writer = Writer(store, seed)
        await writer.write()
        print("begun", flush=True)
        while not ended.done():
            try:
                await writer.write()
            except RACES:
                continue
    print(writer.writes)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
