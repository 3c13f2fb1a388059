"""How much the bound on places changes an answer: the ten best with it, and without it.

    python -m bench.overlap --data DIR --on sqlite --messages 100000

For a frequent word, an index returns only the newest places. Each question is ranked twice by
words alone, with that bound and with none, over the messages of one owner. Printed is the mean
share of the ten best pieces that both rankings have. The conversations and the questions are
LoCoMo's; between its sessions are others, whose words follow one another as they do in LoCoMo.
"""

import argparse
import asyncio
import random
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

from bench.question import OWNER, opened
from bench.recall.corpora import Talk, locomo
from keepthread import Memory, Message
from keepthread.memory.search.ranking import SearchScope, ranked
from keepthread.protocols import Searchable
from keepthread.recall.query import query_of
from keepthread.recall.weights import DEFAULT
from keepthread.types import Found
from servers.postgres import new_server

BEST = 10
_SEED = 11
_SESSION = 20
"""Messages of a session between those of LoCoMo, which have about as many."""
_AT_ONCE = 50


class Unbounded:
    """A store's index that returns all places of each word."""

    def __init__(self, finder: Searchable) -> None:
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    async def places(self, *args: Any, **named: Any) -> Found:
        return await self._finder.places(*args, **named, max_places=2**31 - 1)


class Chatter:
    """Messages whose words follow one another as they do in some texts."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._rng = random.Random(_SEED)
        self._after: dict[str, list[str]] = defaultdict(list)
        self._lengths: list[int] = []
        for text in texts:
            words = text.split()
            self._lengths.append(len(words))
            self._after[""] += words[:1]
            for word, following in pairwise(words):
                self._after[word].append(following)

    def text(self) -> str:
        """Return a text as long as one of those."""
        words: list[str] = []
        for _ in range(self._rng.choice(self._lengths)):
            follow = self._after.get(words[-1] if words else "") or self._after[""]
            words.append(self._rng.choice(follow))
        return " ".join(words)

    def session(self) -> list[Message]:
        """Return the messages of a session of two people."""
        authors = self._rng.sample(("Ana", "Ben", "Cleo", "Dan", "Eva", "Finn"), 2)
        return [
            Message(role="user", content=self.text(), author=authors[n % 2])
            for n in range(_SESSION)
        ]


def sessions(talks: Sequence[Talk], messages: int) -> Iterator[Sequence[Message]]:
    """Yield LoCoMo's sessions in any order, with others evenly between them."""
    real = [segment for talk in talks for segment in talk.segments]
    chatter = Chatter([m.content for segment in real for m in segment])
    random.Random(_SEED).shuffle(real)
    others = (messages - sum(map(len, real))) // _SESSION
    for number, segment in enumerate(real):
        yield [Message(role="user", content=m.content, author=m.author) for m in segment]
        for _ in range(others * (number + 1) // len(real) - others * number // len(real)):
            yield chatter.session()


async def fill(memory: Memory, some: Iterator[Sequence[Message]]) -> None:
    """Write one owner's sessions, and index them."""
    for number, texts in enumerate(some):
        session = await memory.session(f"s{number}", owner=OWNER)
        await session.append(*texts)
        if number % _AT_ONCE == 0:
            await memory.index(owner=OWNER)
    await memory.index(owner=OWNER)


async def overlap(memory: Memory, questions: Sequence[str]) -> float:
    """Return the mean share of the best pieces that both rankings have."""
    finder = await memory.store.finder()
    assert finder
    shares: list[float] = []
    for question in questions:
        bounded = await _best(finder, question)
        whole = await _best(Unbounded(finder), question)
        shares.append(len(bounded & whole) / max(1, len(whole)))
    return mean(shares)


async def _best(finder: Any, question: str) -> set[int]:
    ranking = await ranked(
        finder, query_of(question), SearchScope(OWNER, None), vectors=None, weights=DEFAULT
    )
    return {each.place for each in ranking.ranked[:BEST]}


async def _run(url: str, options: argparse.Namespace) -> None:
    talks = locomo(options.data)
    asked = [question.text for talk in talks for question in talk.questions]
    asked = random.Random(_SEED).sample(asked, options.questions)
    async with await opened(url) as memory:
        await fill(memory, sessions(talks, options.messages))
        share = await overlap(memory, asked)
        print(f"{options.messages:,} messages: {share:.3f} of the ten best are the same")


def _main(options: argparse.Namespace) -> None:
    if not (options.data / "locomo" / "locomo10.json").exists():
        sys.exit(
            "LoCoMo is not part of this project: name the folder that has locomo/locomo10.json"
        )
    if options.on == "postgres":
        with closing(new_server(autovacuum_naptime="1h")) as server:
            asyncio.run(_run(server.create_database("overlap"), options))
        return
    with TemporaryDirectory() as folder:
        asyncio.run(_run(f"sqlite:///{folder}/overlap.db", options))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.overlap", description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--on", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--questions", type=int, default=300)
    _main(parser.parse_args())
