"""Filters of a search against a plain model: the same as to filter every message by hand."""

import asyncio
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepthread import Memory, Message
from keepthread.types import Role
from tests.seeds import SEED, examples

WORDS = ("harbor", "violin", "saffron", "glacier")
ROLES: tuple[Role, ...] = ("user", "assistant", "system")
HOUR = 3600.0
Row: TypeAlias = tuple[str, Role, float, frozenset[str]]
"""The session, role, time and words of a message to write."""


@dataclass(frozen=True)
class Written:
    """A message as the model knows it."""

    session: str
    seq: int
    role: Role
    at: float
    words: frozenset[str]


@dataclass(frozen=True)
class Asked:
    """A search."""

    words: tuple[str, ...]
    since: float | None
    until: float | None
    roles: tuple[Role, ...] | None
    session: str | None
    limit: int

    def matches(self, written: Written) -> bool:
        """Return whether a message is one that the search may find."""
        return (
            bool(written.words.intersection(self.words))
            and (self.since is None or written.at >= self.since)
            and (self.until is None or written.at < self.until)
            and (not self.roles or written.role in self.roles)
            and self.session in (None, written.session)
        )


times = st.integers(0, 60).map(lambda n: 1_700_000_000 + n * HOUR / 2)
messages = st.tuples(
    st.sampled_from("ab"),
    st.sampled_from(ROLES),
    times,
    st.frozensets(st.sampled_from(WORDS), max_size=3),
)
searches = st.builds(
    Asked,
    words=st.lists(st.sampled_from(WORDS), min_size=1, max_size=2).map(tuple),
    since=st.none() | times,
    until=st.none() | times,
    roles=st.none() | st.lists(st.sampled_from(ROLES), max_size=2).map(tuple),
    session=st.sampled_from([None, None, "a", "b"]),
    limit=st.sampled_from([1, 3, 100]),
)


def batched(rows: Sequence[Row], size: int) -> Iterator[Sequence[Row]]:
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


async def write(memory: Memory, rows: Sequence[Row]) -> list[Written]:
    """Store messages in two sessions; return what the model knows of them."""
    known: list[Written] = []
    for id in "ab":
        session = await memory.session(id, owner="ann")
        own = [row for row in rows if row[0] == id]
        made = [
            Message(role=role, content=" ".join(("said", *sorted(words))), created_at=at)
            for _, role, at, words in own
        ]
        stored = await session.append(*made) if made else []
        known += [
            Written(id, message.seq, role, at, words)
            for message, (_, role, at, words) in zip(stored, own, strict=True)
        ]
    return known


async def check(memory: Memory, known: list[Written], asked: Asked) -> None:
    """Search, and require what the model says."""
    hits = await memory.search(
        " ".join(asked.words),
        owner="ann",
        session=asked.session,
        since=asked.since,
        until=asked.until,
        roles=asked.roles,
        limit=asked.limit,
    )
    found = [(hit.session, hit.message.seq) for hit in hits]
    wanted = {(each.session, each.seq) for each in known if asked.matches(each)}
    assert len(set(found)) == len(found) == min(asked.limit, len(wanted))
    assert wanted.issuperset(found)


@settings(deadline=None, max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(some=st.lists(messages, max_size=25), asked=st.lists(searches, min_size=1, max_size=6))
@pytest.mark.parametrize("kind", ["ram", "sqlite"])
def test_a_filtered_search_finds_what_filtering_every_message_finds(
    kind: str, some: list[Row], asked: list[Asked]
) -> None:
    async def run(url: str) -> None:
        async with Memory.open(url) as memory:
            known = await write(memory, some)
            for each in asked:
                await check(memory, known, each)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(run("ram://" if kind == "ram" else f"sqlite:///{folder}/chat.db"))


def many(chance: random.Random, count: int) -> list[Row]:
    """Return messages of which every second one holds the first word."""
    return [
        (
            "ab"[number * 2 // count],
            chance.choice(ROLES),
            1_700_000_000 + number * 60.0,
            frozenset([WORDS[0]] if number % 2 else [chance.choice(WORDS)]),
        )
        for number in range(count)
    ]


@pytest.mark.parametrize("kind", ["ram", "sqlite", "postgres"])
def test_a_filter_finds_the_oldest_of_thousands_of_matches(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """More matches than candidates of a search: the filter comes before the cut."""
    urls = {"ram": lambda: "ram://", "sqlite": lambda: f"sqlite:///{tmp_path}/chat.db"}
    url = urls.get(kind, lambda: request.getfixturevalue("postgres").empty())()
    chance = random.Random(SEED)

    begin = 1_700_000_000.0

    async def run() -> None:
        async with Memory.open(url) as memory:
            known = [
                written
                for batch in batched(many(chance, 2400), 400)
                for written in await write(memory, batch)
            ]
            word = (WORDS[0],)
            for asked in (
                Asked(word, None, begin + 1200, None, None, 100),
                Asked(word, begin + 70_000, begin + 72_000, None, None, 100),
                Asked(word, begin + 143_000, None, ("user",), None, 100),
                Asked(word, None, begin + 6000, ("system",), None, 100),
            ):
                await check(memory, known, asked)

    asyncio.run(run())


@pytest.mark.parametrize("kind", ["ram", "sqlite", "postgres"])
async def test_a_time_of_a_filter_belongs_to_what_begins_there(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    urls = {"ram": "ram://", "sqlite": f"sqlite:///{tmp_path}/chat.db"}
    url = urls[kind] if kind in urls else request.getfixturevalue("postgres").empty()
    first, last = 1_700_000_000.0, 1_700_000_060.0
    rows: list[Row] = [
        ("a", "user", first, frozenset(["harbor"])),
        ("a", "user", last, frozenset(["harbor"])),
        ("b", "user", last, frozenset(["harbor"])),
    ]
    async with Memory.open(url) as memory:
        known = await write(memory, rows)
        for since, until in ((last, None), (first, last), (None, first), (last, last + 1)):
            await check(memory, known, Asked(("harbor",), since, until, None, None, 100))
