"""The bare driver: a list of values of the same bytes for each session, no keepthread."""

import random
from typing import Any

import redis.asyncio

from bench.corpus import COUNTER, texts, tokens_of
from bench.rates import TASKS, together
from bench.tasks import EACH, READ
from keepthread.stores.codec import USER, Row, digest, new_id
from keepthread.stores.redis.rows import guard_of, pack_row

RANDOM_KEY = "bare:__rand_int__"
"""A session's list, as redis-benchmark says it: it puts twelve digits there."""


def values(size: int, number: int) -> list[bytes]:
    """Return messages as keepthread would have packed them into one value each."""
    counter, tokens, contents = COUNTER.encode(), tokens_of(size), texts(size)
    found: list[bytes] = []
    for seq in range(1, number + 1):
        id, content = new_id(), contents[seq % len(contents)].encode()
        sha = digest(id, USER, content, None)
        numbers = (tokens, counter, seq, seq, seq * tokens, 1.8e9 + seq, sha)
        row = Row(seq, bytes.fromhex(id), USER, content, None, *numbers, guard_of(1, seq, *numbers))
        found.append(pack_row(row))
    return found


class Bare:
    """Tasks that share as many connections; every command is sent by itself."""

    def __init__(self, url: str, sessions: int, size: int) -> None:
        self._client: Any = redis.asyncio.Redis.from_url(url, max_connections=TASKS, protocol=2)
        self._keys = [f"bare:{number:012}" for number in range(sessions)]
        self._values = values(size, EACH)
        self._chance = random.Random(7)

    async def fill(self) -> None:
        """Give every list its values, the first of each before the second of any."""
        for value in self._values:
            pipeline = self._client.pipeline(transaction=False)
            for key in self._keys:
                pipeline.rpush(key, value)
            await pipeline.execute()

    def _some(self, task: int, count: int) -> list[str]:
        return self._chance.choices(self._keys[task::TASKS], k=count)

    async def append(self, count: int) -> None:
        """Push a value, so many times."""
        await together(count, self._append)

    async def _append(self, task: int, count: int) -> None:
        for number, key in enumerate(self._some(task, count)):
            await self._client.rpush(key, self._values[number % EACH])

    async def newest(self, count: int) -> None:
        """Read the last values of a list, so many times."""
        await together(count, self._newest)

    async def _newest(self, task: int, count: int) -> None:
        for key in self._some(task, count):
            assert len(await self._client.lrange(key, -READ, -1)) == READ

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()
