"""Whether what was said in eight languages is found again: twenty questions in each.

The tables beside this file were written by hand, before the analyzer was changed for them. A line
is a message, and after a tab a question that it answers; a line without a question is a distractor.
A message is found if it is among the first three hits of its question.
"""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from bench import Bar, Benchmark, Report, Row, Run
from keepthread import Memory, Message

FIRST: Final = 3
BEFORE: Final[Mapping[str, int]] = {
    "arabic": 10,
    "chinese": 14,
    "german": 17,
    "hindi": 13,
    "japanese": 17,
    "korean": 17,
    "russian": 8,
    "thai": 19,
}
"""Found of twenty before single characters were indexed and inflected words had stems."""
BARS: Final[Mapping[str, int]] = {
    "arabic": 18,
    "chinese": 20,
    "german": 20,
    "hindi": 19,
    "japanese": 20,
    "korean": 19,
    "russian": 19,
    "thai": 19,
}


class Table(NamedTuple):
    """Messages in one language, and the questions that some of them answer."""

    language: str
    messages: Sequence[str]
    questions: Mapping[str, str]
    """By question, the message that answers it."""


class Found(NamedTuple):
    """How many questions found their message."""

    first: int
    """As the first hit."""
    among: int
    """Among the first three."""
    missed: Sequence[str]
    """Questions that did not."""


def tables() -> list[Table]:
    """Read all tables."""
    return [_table(file) for file in sorted(Path(__file__).parent.glob("*.tsv"))]


def _table(file: Path) -> Table:
    rows = [line.split("\t") for line in file.read_text("utf-8").splitlines()]
    questions = {row[1]: row[0] for row in rows if len(row) > 1}
    return Table(file.stem, [row[0] for row in rows], questions)


async def ask(table: Table, url: str = "ram://") -> Found:
    """Store the messages of a table in a new memory and ask its questions."""
    first, missed = 0, list[str]()
    async with Memory.open(url) as memory:
        session = await memory.session(table.language, owner=table.language)
        await session.append(*(Message(role="user", content=text) for text in table.messages))
        for question, answer in table.questions.items():
            hits = await memory.search(question, owner=table.language, limit=FIRST)
            found = [hit.message.content for hit in hits]
            first += found[:1] == [answer]
            if answer not in found:
                missed.append(question)
    return Found(first, len(table.questions) - len(missed), missed)


def measure(run: Run) -> Report:
    """Ask everything."""
    rows: list[Row] = []
    for table in tables():
        run.progress(table.language)
        found = asyncio.run(ask(table, run.store or "ram://"))
        now = {"found": found.among, "found as the first hit": found.first}
        for name, value in {**now, "found before": BEFORE[table.language]}.items():
            bar = Bar(BARS[table.language], at_least=True) if name == "found" else None
            rows.append(Row(group=table.language, name=name, value=value, unit="of 20", bar=bar))
    setting = f"twenty questions a language; found is among the first {FIRST} hits"
    return Report(setting=[setting], rows=rows)


BENCHMARK = Benchmark(
    name="languages", about="whether messages in eight languages are found", measure=measure
)
