"""What a chat in a terminal takes: to start, and to the first piece of an answer."""

import asyncio
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterator
from itertools import count

from bench import Benchmark, Report, Row, Run
from bench.chat import answers, starting
from bench.chat.home import Home, Said, by_chance, home, of_friends
from bench.chat.programs import TELLS_CPU, served
from bench.places import file_system, sync_time

_MESSAGES, _QUICK = 10_000, 100
_SESSIONS, _QUICK_SESSIONS = 100, 4
_ANSWERS = 6_000
"""More than are asked for."""
_UNTOLD = "Where Linux is not, a running program's CPU is not known: the first line is left out."


def measure(run: Run) -> Report:
    """Measure on a disk, against a scripted server that is a process of its own."""
    before = _load()
    number = _QUICK if run.quick else _MESSAGES
    said = [by_chance(number, _ANSWERS)]
    if run.data:
        said.append(of_friends(run.data, number, _ANSWERS))
    rows = [row for each in said for row in _measure(run, each, starts=each is said[0])]
    return Report(
        setting=_setting(run, number, before), rows=rows, notes=[] if TELLS_CPU else [_UNTOLD]
    )


def _measure(run: Run, said: Said, *, starts: bool) -> Iterator[Row]:
    folder = run.disk / said.of.replace(" ", "-")
    folder.mkdir()
    script = folder / "script.json"
    script.write_text(json.dumps(said.answers))
    with served(script) as (openai, anthropic):
        numbers = count()

        def new() -> Home:
            return home(folder / f"new-{next(numbers)}", openai)

        one, many = home(folder / "one", openai), home(folder / "many", openai)
        sessions = _QUICK_SESSIONS if run.quick else _SESSIONS
        for each, parts in ((one, 1), (many, sessions)):
            run.progress(f"{len(said.texts):,} messages are written, {said.of}")
            asyncio.run(each.fill(said.texts, parts))
        if starts:
            yield from starting.measure(run, one, new, openai)
        where = f"{len(said.texts):,} messages of {said.of}"
        for each, parts in ((one, "one session"), (many, f"{sessions} sessions")):
            of = f"{where} in {parts}"
            yield from asyncio.run(answers.measure(run, each, openai, said.questions, of=of))
        if starts:
            of = f"{where} in one session, Anthropic's wire"
            one.speak("anthropic", anthropic)
            asked = answers.measure(
                run, one, anthropic, said.questions, of=of, provider="anthropic"
            )
            yield from asyncio.run(asked)


def _load() -> str:
    return f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"


def _setting(run: Run, number: int, before: str) -> list[str]:
    versions = ", ".join(f"{each} {importlib.metadata.version(each)}" for each in answers.WIRES)
    return [
        (
            f"Python {platform.python_version()}, {versions}; the server is a process of its own;"
            f" {os.cpu_count()} CPUs, load {before} before and {_load()} after."
        ),
        (
            f"SQLite at `power` on {file_system(run.disk)} (fdatasync"
            f" {sync_time(run.disk) * 1000:.3g} ms at the end); one owner; the settings' defaults."
        ),
        (
            f"Starts: medians of {run.rounds} interleaved rounds, and the middle half of them."
            " First pieces: of all questions, each asked on all ways in turn."
        ),
    ]


BENCHMARK = Benchmark(
    name="chat",
    about="what a chat takes to start, and what memory adds to the first piece of an answer",
    measure=measure,
)
