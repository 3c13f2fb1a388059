"""Whether what people say in passing is recalled when it matters, and nothing when it does not.

An owner says many things in conversations, alone or among other messages. Each question or request
then begins a new conversation; most share no word with the statement that answers them. Messages
that need no memory show how much is recalled for nothing. README.md describes the data.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from statistics import fmean
from typing import NamedTuple

from bench import Benchmark, Report, Row, Run
from bench.counters import best, counters
from bench.everyday.asking import Asked, Noise, Owner, views
from bench.everyday.halves import ENGLISH, HALVES, Part, read_half
from bench.recall.corpora import beam
from keepthread import Memory, Message
from keepthread.stores.codec import new_id

BUDGETS = (500, 1000, 4000)
OTHERS = 1000
_QUICK = 10
"""Statements of a quick run."""


class Answers(NamedTuple):
    """All that was asked of an owner."""

    asked: Sequence[Asked]
    noise: Sequence[Noise]


def measure(run: Run) -> Report:
    """Ask the questions of each half, alone and among other messages if there are any."""
    pasts: dict[str, Sequence[Sequence[Message]]] = {"alone": ()}
    if run.data and not run.quick:
        pasts[f"among {OTHERS:,} other messages"] = _others(run)
    rows: list[Row] = []
    for half in HALVES if run.half == "both" else (run.half,):
        parts = read_half(half)
        if run.quick:
            parts = [parts[0].first(_QUICK)]
        for past, others in pasts.items():
            group = f"{half} half, {past}"
            answers: dict[str, Answers] = {}
            for part in parts:
                run.progress(f"{group}: {part.language}")
                answers[part.language] = asyncio.run(_ask(run, part, others))
            rows += _rows(group, answers)
    notes = [] if run.data else ["For other messages, name the folder of BEAM-100K with --data."]
    return Report(setting=_setting(run), rows=rows, notes=notes)


def _others(run: Run) -> list[Sequence[Message]]:
    """Return the first messages of BEAM-100K, a session for each of its segments."""
    assert run.data
    sessions: list[Sequence[Message]] = []
    room = OTHERS
    for segment in (each for talk in beam(run.data) for each in talk.segments):
        # The ids of BEAM are numbers within a chat, and its dates are those of 1970.
        some = [Message(role=each.role, content=each.content) for each in segment[:room]]
        sessions.append(some)
        room -= len(some)
        if not room:
            return sessions
    raise ValueError(f"BEAM-100K in {run.data} has fewer than {OTHERS:,} messages")


async def _ask(run: Run, part: Part, others: Sequence[Sequence[Message]]) -> Answers:
    """Ask everything of a new owner."""
    tenant = f"everyday-{new_id()}"
    async with Memory.open(
        run.store or f"sqlite:///{run.memory / tenant}",
        tenant=tenant,
        views=views(BUDGETS),
        counter=best(),
        recall="owner",
        # A session's delimiter is made of an id, and costs more or fewer tokens.
        ids=partial(next, map("{:032x}".format, count(1))),
    ) as memory:
        owner = Owner(memory, part)
        asking = await owner.new_session()
        await owner.fill(others)
        return Answers(*await owner.ask(asking, BUDGETS))


def _rows(group: str, answers: Mapping[str, Answers]) -> Iterator[Row]:
    """Return what is found in English and in other languages, then the noise."""
    yield from _found(group, "English", answers[ENGLISH].asked, BUDGETS)
    others = {language: each.asked for language, each in answers.items() if language != ENGLISH}
    if others:
        every = [asked for each in others.values() for asked in each]
        yield from _found(group, "other languages", every, BUDGETS)
        for language, asked in others.items():
            yield from _found(group, language, asked, BUDGETS[-1:])
    noise = [each for answer in answers.values() for each in answer.noise]
    for kind in dict.fromkeys(each.message.kind for each in noise):
        tokens = [each.tokens for each in noise if each.message.kind == kind]
        recalled = [each for each in tokens if each]
        named = f"needs no memory, {kind}"
        share = 100 * len(recalled) / len(tokens)
        unit = f"% of {len(tokens)}, {BUDGETS[-1]:,} tokens"
        yield Row(group=group, name=f"{named}: recall anything", value=share, unit=unit)
        yield Row(group=group, name=f"{named}: recalled", value=fmean(tokens), unit="tokens")
        mean = fmean(recalled or [0])
        yield Row(group=group, name=f"{named}: if anything", value=mean, unit="tokens")


def _found(
    group: str, language: str, asked: Sequence[Asked], budgets: Sequence[int]
) -> Iterator[Row]:
    """Return how many questions find an answer, and how many of those that share no word."""
    unshared = [each for each in asked if not each.question.shared]
    for kind, some in {"": asked, ", no word shared": unshared}.items():
        if some:
            unit = f"% of {len(some)}"
            for budget in budgets:
                found = 100 * fmean(each.found[budget] for each in some)
                name = f"{language}{kind}, found in {budget:,} tokens"
                yield Row(group=group, name=name, value=found, unit=unit)


def _setting(run: Run) -> list[str]:
    return [
        "An answer is found if it is in the context by Hybrid, with recall from all sessions of",
        f"the owner. Tokens are counted by {next(iter(counters()))}.",
        f"Stored in {run.store or 'SQLite'}.",
    ]


BENCHMARK = Benchmark(
    name="everyday",
    about="whether everyday statements are recalled when they matter, and only then",
    measure=measure,
)
