"""How much of the evidence a context holds: Evidence-in-Budget on LoCoMo and BEAM-100K.

Each conversation is stored through the public interface, and contexts of so many tokens are asked
for by its questions. No model and no judge takes part: both corpora name the messages that answer
a question. Weights were chosen on the first half of each; the bars are read on the other.
"""

import asyncio
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from bench import Bar, Benchmark, Report, Row, Run
from bench.counters import ABSENT, EXACT, best, counters
from bench.recall.asking import HYBRID, RECALL, WINDOW, Asked, Room, views
from bench.recall.corpora import BEAM, LOCOMO, Talk, beam, locomo
from bench.recall.prepared import Prepared
from keepthread import Memory
from keepthread.memory.memory import Opening
from keepthread.models.embedders import OnnxEmbedder
from keepthread.stores.codec import new_id

WORDS, MEANING = "words alone", "with an embedder"
_QUICK = 2


class Corpus(NamedTuple):
    """Conversations, the budgets that are asked for, and what must be reached."""

    name: str
    talks: Sequence[Talk]
    budgets: Sequence[int]
    bars: Mapping[str, Sequence[float]]
    """Evidence-in-Budget for each budget, then R@10 if there is a bar for it."""


def measure(run: Run) -> Report:
    """Ask everything by words alone, and by an embedder if there is one."""
    if EXACT not in counters():
        sys.exit(f"{ABSENT}: every token is to be charged as it is. Set TIKTOKEN_CACHE_DIR")
    rows = [row for corpus in _corpora(run) for row in asyncio.run(_measure(run, corpus))]
    notes = [] if run.model else ["There was no embedder: name a model's folder with --model."]
    return Report(setting=_setting(run), rows=rows, notes=notes)


def _corpora(run: Run) -> Iterator[Corpus]:
    if run.data is None or not (run.data / "locomo" / "locomo10.json").exists():
        sys.exit(
            "LoCoMo and BEAM-100K are not part of this project. Name the folder that has them as"
            " locomo/locomo10.json and beam-100k/N/chat.json: python -m bench recall --data DIR"
        )
    talks = locomo(run.data)
    bars = {WORDS: (78, 84.5, 89, 92.5, 78), MEANING: (83, 88.5, 92, 95.5, 84)}
    budgets = (500, 1000, 2000, 4000)
    yield Corpus(LOCOMO, talks[4 : 4 + _QUICK] if run.quick else talks, budgets, bars)
    if not run.quick:
        bars = {WORDS: (76, 81, 86), MEANING: (76, 81, 86)}
        yield Corpus(BEAM, beam(run.data), (2000, 4000, 8000), bars)


async def _measure(run: Run, corpus: Corpus) -> list[Row]:
    rows = _rows(corpus, WORDS, await _ask(run, corpus, (WINDOW, HYBRID, RECALL), None))
    rows += _merged_rows(corpus, await _ask_merged(run, corpus))
    if run.model:
        embedder = Prepared(OnnxEmbedder(run.model))
        rows += _rows(corpus, MEANING, await _ask(run, corpus, (HYBRID, RECALL), embedder))
    return rows


def _memory(run: Run, corpus: Corpus, name: str, embedder: Prepared | None = None) -> Opening:
    """Open a memory that has nothing yet."""
    file = run.memory / f"{corpus.name}-{name}".replace(" ", "-")
    return Memory.open(
        run.store or f"sqlite:///{file}",
        tenant=f"recall-{new_id()}",
        views=views(corpus.budgets),
        counter=best(),
        embedder=embedder,
        recall="owner",
    )


async def _ask(
    run: Run, corpus: Corpus, ways: Sequence[str], embedder: Prepared | None
) -> list[Asked]:
    """Ask the questions of each conversation, each in a memory of its own."""
    kind = MEANING if embedder else WORDS
    asked: list[Asked] = []
    async with _memory(run, corpus, kind, embedder) as memory:
        for talk in corpus.talks:
            run.progress(f"{talk.name}, {kind}: {len(talk.questions)} questions")
            if embedder:
                await embedder.prepare([question.text for question in talk.questions])
            room = Room(memory, talk, best())
            await room.fill(ways)
            asked += [await room.ask(question, corpus.budgets) for question in talk.questions]
    return asked


async def _ask_merged(run: Run, corpus: Corpus) -> list[Asked]:
    """Ask by words alone, where all conversations of a half have one owner."""
    asked: list[Asked] = []
    async with _memory(run, corpus, "merged") as memory:
        owners = {True: "held out", False: "development"}
        rooms = [Room(memory, talk, best(), owners[talk.held_out]) for talk in corpus.talks]
        for room in rooms:
            await room.fill((RECALL,))
        for room, talk in zip(rooms, corpus.talks, strict=True):
            run.progress(f"{talk.name}, merged: {len(talk.questions)} questions")
            asked += [await room.ask(question, corpus.budgets) for question in talk.questions]
    return asked


def _merged_rows(corpus: Corpus, asked: Sequence[Asked]) -> list[Row]:
    """Return what is found in all conversations of a half at once, and what in the other half."""
    group = f"{corpus.name}, merged: by {RECALL}, all conversations of a half under one owner"
    rows = [
        _row(group, f"{budget:,} tokens", asked, _share(RECALL, budget))
        for budget in corpus.budgets
    ]
    return [*rows, _row(group, "R@10", asked, lambda each: each.best)]


def _rows(corpus: Corpus, kind: str, asked: Sequence[Asked]) -> list[Row]:
    """Return what is judged, then the same by kinds of questions."""
    held_out = [each for each in asked if each.talk.held_out]
    judged = f"{corpus.name}, {kind}: % of the evidence, {len(held_out)} questions held out"
    by_kind = f"{corpus.name}, {kind}: by {RECALL}, by kinds of questions"
    rows: list[Row] = []
    for way in dict.fromkeys(way for way, _ in asked[0].shares):
        for n, budget in enumerate(corpus.budgets):
            limit = corpus.bars[kind][n] if way == RECALL else None
            name = f"{way}, {budget:,} tokens"
            rows.append(_row(judged, name, asked, _share(way, budget), limit))
    best = corpus.bars[kind][len(corpus.budgets) :]
    rows.append(_row(judged, "R@10", asked, lambda each: each.best, best[0] if best else None))
    for name in sorted({each.question.kind for each in asked}):
        some = [each for each in asked if each.question.kind == name]
        for budget in corpus.budgets:
            title = f"{name.replace('_', ' ')}, {budget:,} tokens"
            rows.append(_row(by_kind, title, some, _share(RECALL, budget)))
        title = f"{name.replace('_', ' ')}, R@10"
        rows.append(_row(by_kind, title, some, lambda each: each.best))
    return rows


def _share(way: str, budget: int) -> Callable[[Asked], float]:
    return lambda each: each.shares[way, budget]


def _row(
    group: str,
    name: str,
    asked: Sequence[Asked],
    value: Callable[[Asked], float],
    limit: float | None = None,
) -> Row:
    held_out = [100 * value(each) for each in asked if each.talk.held_out]
    every = fmean(100 * value(each) for each in asked)
    corpus, kind, *_ = group.split(":")[0].split(", ")
    return Row(
        group=group,
        name=f"{corpus} {kind}, {name}",
        value=fmean(held_out),
        unit=f"% ({every:.1f} of all)",
        bar=Bar(limit, at_least=True) if limit is not None else None,
    )


def _setting(run: Run) -> list[str]:
    return [
        "Held out: LoCoMo's conversations 5 to 9 and BEAM's chats 11 to 20; weights were chosen",
        "on the others. A message that is shown in part counts by the share of its tokens; every",
        f"token is charged by o200k. Stored in {run.store or 'SQLite'}: for recall a session for",
        "each segment, for window and hybrid all in one.",
    ]


BENCHMARK = Benchmark(
    name="recall",
    about="how much of the evidence for a question its context holds",
    measure=measure,
)
