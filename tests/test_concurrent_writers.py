"""Many writers of one owner at once, beside searches, erasures, forks, facts and the feed."""

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from keepthread import Memory, Message
from keepthread.stores.kinds import BLOB_USE
from keepthread.stores.ram import RamStore
from keepthread.types import Record, Scope
from tests.seeds import SEED

if TYPE_CHECKING:
    from servers.postgres import PostgresServer
    from servers.redis import RedisServer

MEMORIES, WRITERS, EACH = 3, 12, 12
SESSIONS = ["s0", "s1", "s2", "s3"]
PATIENCE = 120.0


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/chat.db"
    if request.param == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres")
        return postgres.create_database("writers")
    redis: RedisServer = request.getfixturevalue("redis_server")
    redis.ask("FLUSHALL")
    return redis.url


class Crowd:
    """Programs that use the same sessions, each with a memory of its own, and their notes."""

    def __init__(self, memories: list[Memory]) -> None:
        self.memories = memories
        self.acknowledged: dict[str, list[tuple[int, str]]] = defaultdict(list)
        """By session: the position and the id of each message."""
        self.shown: dict[str, list[str]] = defaultdict(list)
        """By session: the ids of messages in the order of the feed."""
        self.is_over = False

    async def write(self, writer: int) -> None:
        name = SESSIONS[writer % len(SESSIONS)]
        session = await self.memories[writer % MEMORIES].session(name)
        for number in range(EACH):
            text, id = f"writer {writer} likes apples {number}", f"{writer}-{number}"
            message = Message(role="user", content=text, id=id, author=f"p{writer % 3}")
            (stored,) = await session.append(message)
            self.acknowledged[session.key].append((stored.seq, stored.id))

    async def repeat(self, work: Callable[[int], Awaitable[Any]]) -> None:
        number = 0
        while not self.is_over:
            number += 1
            await work(number)

    async def search(self, number: int) -> None:
        await self.memories[number % MEMORIES].search("apples", limit=5)

    async def forget(self, number: int) -> None:
        await self.memories[0].forget(author=f"p{number % 3}")

    async def fork(self, number: int) -> None:
        await (await self.memories[1].session("s1")).fork(id=f"f{number}")
        if number % 2:
            await self.memories[1].delete_session(f"f{number}")

    async def note(self, number: int) -> None:
        attribute, value = f"likes {number % 7}", str(number)
        facts = self.memories[number % MEMORIES].facts
        await facts.remember(f"thing {number}", attribute=attribute, value=value)

    async def follow(self, cursor: str | None) -> None:
        """Read the feed until it has shown the last session, and has nothing more.

        The order of changes of different sessions is not defined.
        """
        rng, is_last, page = random.Random(SEED), False, list[Any]([None])
        feed = self.memories[2].for_owner("default")
        while page or not is_last:
            page = await feed.changes(after=cursor, limit=rng.choice((1, 7, 100)), wait=0.2)
            cursor = page.next
            for change in page:
                is_last |= change.session == "last"
                if change.kind == "messages_added":
                    self.shown[change.key] += change.ids


async def test_no_write_is_lost_doubled_or_out_of_order(
    url: str, request: pytest.FixtureRequest
) -> None:
    async with asyncio.timeout(PATIENCE), AsyncExitStack() as stack:
        memories = [await stack.enter_async_context(Memory.open(url)) for _ in range(MEMORIES)]
        crowd = Crowd(memories)
        start = (await memories[0].for_owner("default").changes(limit=0)).next
        for name in SESSIONS:
            await memories[0].session(name)
        following = asyncio.create_task(crowd.follow(start))
        works = [crowd.forget, crowd.fork]
        if not url.startswith("redis"):  # it has no index
            works += [crowd.search, crowd.note, crowd.note]
        others = [asyncio.create_task(crowd.repeat(work)) for work in works]
        await asyncio.gather(*(crowd.write(writer) for writer in range(WRITERS)))
        crowd.is_over = True
        await asyncio.gather(*others)
        await memories[0].session("last")
        await following
        await check(crowd)
    if url.startswith("postgresql"):
        postgres: PostgresServer = request.getfixturevalue("postgres")
        query = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'writers'"
        assert postgres.execute(query, database="postgres") == [(0,)]


async def check(crowd: Crowd) -> None:
    assert sum(map(len, crowd.acknowledged.values())) == WRITERS * EACH
    for key, stored in crowd.acknowledged.items():
        ids = [id for _, id in sorted(stored)]
        assert len({seq for seq, _ in stored}) == len(stored)
        assert [id for id in crowd.shown[key] if id in set(ids)] == ids
    assert all(max(Counter(ids).values()) == 1 for ids in crowd.shown.values())
    for name in SESSIONS:
        session = await crowd.memories[0].session(name)
        messages = await session.messages().read()
        places = [(message.seq, message.id) for message in messages if message.state == "live"]
        assert set(places) <= set(crowd.acknowledged[session.key])
        assert len(set(places)) == len(places)
    assert (await crowd.memories[1].admin.verify()).sound


class DeletedInTheMeantime(RamStore):
    """A store in which another program deletes a session before its blobs are listed."""

    async def scan(self, scope: Scope, kind: str | None = None, **bounds: Any) -> list[Record]:
        if kind == BLOB_USE and scope.session and await self.get_session("fork", "default"):
            await self.delete_session(scope.session)
        return await super().scan(scope, kind, **bounds)


async def test_forgetting_passes_over_a_session_that_is_deleted_in_the_meantime() -> None:
    async with Memory(DeletedInTheMeantime()) as memory:
        session = await memory.session("fork")
        await session.append(Message(role="user", content="a secret", author="p"))
        await memory.forget(author="p")
        assert await memory.list_sessions() == []
