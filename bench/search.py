"""What finding takes: a search and a recalled context against FTS5's own ranking of the same words.

The texts are made of thirty thousand words, frequent and rare as words of a language are. The bare
engine has one FTS5 table of the same texts and is asked for the best 300 by its own `bm25`.
"""

import asyncio
import platform
import random
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import accumulate, cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import Bar, Benchmark, Report, Row, Run
from bench.bare import Bare, BareRow
from bench.corpus import COUNTER, SIZES
from bench.furnished import Quarters
from bench.measure import Work, cpu_in_turn
from bench.places import file_system
from bench.speed.rows import microseconds, named, times
from keepthread import Compaction, Hybrid, Memory, Message, Recall, View
from keepthread.recall.words import STOP

OWNER = "ana"
_MANY, _SOME, _QUICK = 200_000, 10_000, 1_000
_SESSION = 100
_VOCABULARY = 30_000
_QUESTIONS = 40
_WORDS = (4, 7)
_BUDGET = 2_000
_SEARCH, _CONTEXT, _BYTES = Bar(3), Bar(6), Bar(3.5)
_BARE = "SELECT rowid, bm25(texts) FROM texts WHERE texts MATCH ? ORDER BY bm25(texts) LIMIT 300"


class Language:
    """Words by chance, as frequent as words are: the next one always a little rarer."""

    def __init__(self, seed: int, speaker: int | None = None) -> None:
        """Take a seed of the words; texts of another speaker are others."""
        self._chance = random.Random(seed)
        letters = [f"{a}{b}" for a in "bdfgklmnprstvz" for b in "aeiou"]
        words = ["".join(self._chance.choices(letters, k=3)) for _ in range(_VOCABULARY)]
        self._words = [word for word in dict.fromkeys(words) if word not in STOP]
        self._shares = list(accumulate(1 / (rank + 10) for rank in range(len(self._words))))
        if speaker is not None:
            self._chance = random.Random(f"{seed} {speaker}")

    def text(self, size: int) -> str:
        """Return a text of just that many bytes."""
        some = self._chance.choices(self._words, cum_weights=self._shares, k=size // 6)
        return " ".join(some).ljust(size, ".")[:size]

    def question(self) -> str:
        """Return a question of a few words."""
        number = self._chance.randint(*_WORDS)
        return " ".join(self._chance.choices(self._words, cum_weights=self._shares, k=number))


class Asked:
    """Our side: a memory over a file that is indexed, asked one question after another."""

    def __init__(self, path: Path, texts: Sequence[str], questions: Sequence[str]) -> None:
        self._runner = asyncio.Runner()
        self._memory: Memory
        self._questions = cycle(questions)
        self._runner.run(self._fill(path, texts))

    async def _fill(self, path: Path, texts: Sequence[str]) -> None:
        # Compacts are not what is measured: they are made in the background if a view wants them.
        never = Compaction(turns=len(texts), batch_size=1)
        views = {"recall": View(_BUDGET, Recall()), "hybrid": View(2 * _BUDGET, Hybrid())}
        memory = await Memory.open(
            f"sqlite:///{path}", views=views, counter=Quarters(), compaction=never, recall="owner"
        )
        self._memory = memory
        roles = cycle(("user", "assistant"))
        for number, start in enumerate(range(0, len(texts), _SESSION)):
            session = await memory.session(f"s{number}", owner=OWNER)
            said = texts[start : start + _SESSION]
            await session.append(*(Message(role=next(roles), content=text) for text in said))
        await memory.index(owner=OWNER)
        self._session = session

    def search(self, count: int) -> None:
        """Search so many times."""
        self._runner.run(self._search(count))

    async def _search(self, count: int) -> None:
        for question in islice(self._questions, count):
            assert await self._memory.search(question, owner=OWNER)

    def context(self, count: int, view: str) -> None:
        """Ask for so many contexts, each with its account."""
        self._runner.run(self._context(count, view))

    async def _context(self, count: int, view: str) -> None:
        for question in islice(self._questions, count):
            context = await self._session.context(view, query=question)
            assert "recalled" in context.why.sections

    def close(self) -> None:
        self._runner.run(self._memory.close())
        self._runner.close()


class BareIndex:
    """The bare engine's side: one FTS5 table of the same texts."""

    def __init__(self, path: Path, texts: Sequence[str], questions: Sequence[str]) -> None:
        self._db = sqlite3.connect(path)
        self._db.execute("CREATE VIRTUAL TABLE texts USING fts5(text, tokenize='porter unicode61')")
        self._db.executemany("INSERT INTO texts VALUES (?)", ((text,) for text in texts))
        self._db.commit()
        self._questions = cycle(" OR ".join(question.split()) for question in questions)

    def search(self, count: int) -> None:
        """Ask for the best 300, so many times."""
        for question in islice(self._questions, count):
            self._db.execute(_BARE, (question,)).fetchall()

    def close(self) -> None:
        self._db.close()


def measure(run: Run) -> Report:
    """Measure searching in a large log, contexts over a smaller one, and bytes."""
    rows = [
        *_searched(run, _QUICK if run.quick else _MANY, ("search",), {"search": _SEARCH}),
        *_searched(run, _QUICK if run.quick else _SOME, ("recall", "hybrid"), {"recall": _CONTEXT}),
        *(row for size in SIZES for row in _bytes(run, size)),
    ]
    return Report(setting=_setting(run), rows=rows)


def _searched(run: Run, number: int, ways: Sequence[str], bars: dict[str, Bar]) -> Iterator[Row]:
    language = Language(number)
    run.progress(f"{number:,} messages are written and indexed")
    texts = [language.text(SIZES[0]) for _ in range(number)]
    questions = [language.question() for _ in range(_QUESTIONS)]
    rounds: list[dict[str, float]] = []
    with TemporaryDirectory(dir=run.memory) as folder, ExitStack() as stack:
        ours = stack.enter_context(closing(Asked(Path(folder) / "ours", texts, questions)))
        bare = stack.enter_context(closing(BareIndex(Path(folder) / "bare", texts, questions)))
        work: dict[str, Work] = {"bare": bare.search}
        for way in ways:
            work[way] = ours.search if way == "search" else partial(ours.context, view=way)
        slices = 2 if run.quick else 4
        cpu_in_turn(work, slices=1, count=_QUESTIONS)
        for done in range(run.rounds):
            run.progress(f"{number:,} messages: round {done + 1} of {run.rounds}")
            rounds.append(cpu_in_turn(work, slices=slices, count=_QUESTIONS))
    group = f"{number:,} messages of {SIZES[0]} bytes, CPU"
    yield microseconds(group, f"FTS5, the best 300 of {number:,}", [r["bare"] for r in rounds])
    for way in ways:
        name = "search" if way == "search" else f"context by {way}, with its why"
        name = f"{name}, {number:,} messages"
        yield microseconds(group, f"{name}, time", [r[way] for r in rounds])
        yield times(group, name, rounds, way, "bare", bar=bars.get(way))


def _bytes(run: Run, size: int) -> Iterator[Row]:
    """Compare the file with its index to the bare table without one; once, it does not vary."""
    number = _QUICK if run.quick else 2 * _SOME
    run.progress(f"bytes, {size} bytes")
    language = Language(size)
    texts = [language.text(size) for _ in range(number)]
    rows: list[BareRow] = [
        (f"s{n // _SESSION}", n, n.to_bytes(16), "user", text, float(n))
        for n, text in enumerate(texts)
    ]
    with TemporaryDirectory(dir=run.memory) as folder:
        ours, bare = Path(folder) / "ours", Path(folder) / "bare"
        with closing(Bare(bare, rows)) as table:
            table.fill()
        with closing(Asked(ours, texts, [language.question()])):
            pass
        taken = {path: path.stat().st_size / number for path in (ours, bare)}
    group = "bytes per message with search, without vectors"
    name = named("bytes per message, bare table", size)
    yield Row(group=group, name=name, value=taken[bare], unit="bytes")
    name = named("bytes per message, our file with its index", size)
    yield Row(group=group, name=name, value=taken[ours] / taken[bare], unit="× bare", bar=_BYTES)


def _setting(run: Run) -> list[str]:
    return [
        (
            f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version},"
            f" CPU on {file_system(run.memory)}, tokens counted as {COUNTER} by length."
        ),
        (
            f"One owner, sessions of {_SESSION} messages; {_QUESTIONS} questions of"
            f" {_WORDS[0]} to {_WORDS[1]} words; contexts by recall have {_BUDGET:,} tokens."
        ),
        f"Medians of {run.rounds} interleaved rounds; the spread is the middle half of them.",
    ]


BENCHMARK = Benchmark(
    name="search",
    about="what a search and a recalled context take, and the bytes of the index",
    measure=measure,
)
