"""What starting takes: the help, the first line to type, and one question from start to end."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import Bar, Row, Run
from bench.chat.home import MODEL, Home
from bench.chat.programs import KEEPTHREAD, TELLS_CPU, InTerminal, Seen, Spent
from bench.chat.programs import run as spent_by
from bench.measure import median, middle_half

_CHAT = (KEEPTHREAD, "chat")
_LINES = {"long": "a long session continues", "new": "a new store"}
_HELP, _PROMPT = Bar(0.12), Bar(0.35)
"""Seconds of CPU above the bare interpreter, where 10 million additions take 0.8 s."""
_ABOVE = "above the bare interpreter"
_ADDITIONS = "n = 0\nfor _ in range(10_000_000):\n    n += 1"
_QUESTION = "How is the weather in Jakarta?"
_BARE = """
import asyncio, sys
from openai import AsyncOpenAI

async def ask(url, model, question):
    said = [{"role": "user", "content": question}]
    async with AsyncOpenAI(base_url=url, api_key="none") as client:
        answer = await client.chat.completions.create(model=model, messages=said, stream=True)
        async for chunk in answer:
            print(chunk.choices[0].delta.content if chunk.choices else "", end="", flush=True)

asyncio.run(ask(*sys.argv[1:]))
"""


def measure(run: Run, long: Home, new: Callable[[], Home], url: str) -> Iterator[Row]:
    """Yield the rows of starting: in a home with a long session, and in new ones."""
    bare = (sys.executable, "-c", _BARE, url, MODEL, _QUESTION)
    programs: dict[str, Callable[[], Spent]] = {
        "python": lambda: _run(long, sys.executable, "-c", "pass"),
        "additions": lambda: _run(long, sys.executable, "-c", _ADDITIONS),
        "help": lambda: _run(long, KEEPTHREAD, "--help"),
        "bare": lambda: _run(long, *bare),
        "question": lambda: _run(new(), *_CHAT, "-p", _QUESTION),
        "long question": lambda: _run(long, *_CHAT, "-c", "-p", _QUESTION),
    }
    lines: dict[str, Callable[[], Seen]] = {}
    if TELLS_CPU:
        lines = {"long": lambda: _line(long, *_CHAT, "-c"), "new": lambda: _line(new(), *_CHAT)}
    rounds = _rounds(run, {**programs, **lines})
    yield from _help(rounds)
    for name in lines:
        yield from _prompt(rounds, name)
    yield from _questions(rounds)


def _rounds(run: Run, starts: Mapping[str, Callable[[], Any]]) -> list[dict[str, Any]]:
    """Start all in turn, from another first each time; before, once so that all is compiled."""
    if run.quick:
        return [{name: start() for name, start in starts.items()}]
    found: list[dict[str, Any]] = []
    names = list(starts)
    for number in range(run.rounds + 1):
        run.progress(f"starting: round {number} of {run.rounds}")
        first = number % len(names)
        found.append({name: starts[name]() for name in names[first:] + names[:first]})
    return found[1:]


def _run(home: Home, *program: str | Path) -> Spent:
    return spent_by(program, home.env, home.folder)


def _line(home: Home, *program: str | Path) -> Seen:
    with InTerminal(program, home.env, home.folder) as terminal:
        return terminal.look()


def _help(rounds: Sequence[Mapping[str, Spent]]) -> Iterator[Row]:
    group, bare = "the help", [each["python"] for each in rounds]
    yield from _seconds(group, "the bare interpreter", bare)
    added = [each["additions"].less(each["python"]) for each in rounds]
    yield from _seconds(group, "10 million additions, to compare machines", added)
    yield from _seconds(group, "keepthread --help", [each["help"] for each in rounds])
    above = [each["help"].less(each["python"]) for each in rounds]
    yield from _seconds(group, f"keepthread --help, {_ABOVE}", above, _HELP)


def _prompt(rounds: Sequence[Mapping[str, Any]], name: str) -> Iterator[Row]:
    where = _LINES[name]
    seen: Sequence[Seen] = [each[name] for each in rounds]
    group = f"the first line to type, {where}"
    yield from _seconds(group, f"it is drawn, {where}", [each.drawn for each in seen])
    typed = [each.typed for each in seen]
    yield from _seconds(group, f"a letter stands in it, {where}", typed)
    above = [each[name].typed.less(each["python"]) for each in rounds]
    yield from _seconds(group, f"a letter stands in it, {_ABOVE}, {where}", above, _PROMPT)
    rested = [each.rested for each in seen]
    yield from _seconds(group, f"all is loaded behind it, the SDK too, {where}", rested)


def _questions(rounds: Sequence[Mapping[str, Spent]]) -> Iterator[Row]:
    group = "one question, from start to end"
    ways = {
        "bare": "ten lines with the bare SDK",
        "question": "keepthread chat -p, a new store",
        "long question": "keepthread chat -c -p, a long session",
    }
    for way, name in ways.items():
        yield from _seconds(group, name, [each[way] for each in rounds])


def _seconds(
    group: str, name: str, spent: Sequence[Spent], bar: Bar | None = None
) -> Iterator[Row]:
    for clock, unit in (("cpu", "s CPU"), ("wall", "s")):
        found = [getattr(each, clock) for each in spent]
        yield Row(
            group=group,
            name=name if clock == "cpu" else f"{name}, on the clock",
            value=median(found),
            unit=unit,
            spread=middle_half(found),
            bar=bar if clock == "cpu" else None,
        )
