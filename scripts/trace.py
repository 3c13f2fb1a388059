"""Trace four common calls: files, root packages, and moves between root packages.

A step is the first run of a function of ours within the call, in the order in which they start;
loops and resumed coroutines are not counted again. A move is a step into another root package
than the one before; the modules beside the packages (types, errors) belong to all of them. Only
the task that makes the call is followed: not the thread that writes to SQLite, nor work in the
background. Contexts are built with a token counter from outside, so that counting is not traced.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

import keepthread
from keepthread import Hybrid, Memory, Message, Session, View, Window
from keepthread.models.tokens import Estimator

PACKAGE: Final = Path(keepthread.__file__).parent


class Step(NamedTuple):
    """A function of ours, where it starts for the first time."""

    file: str
    function: str

    @property
    def root(self) -> str:
        """Return the root package that the function is in; empty for a module beside them."""
        return self.file.rpartition("/")[0].partition("/")[0]


@dataclass(frozen=True)
class Trace:
    """What one call ran through."""

    name: str
    steps: list[Step]

    @property
    def files(self) -> set[str]:
        """Return the files."""
        return {step.file for step in self.steps}

    @property
    def roots(self) -> list[str]:
        """Return the root packages, sorted."""
        return sorted({step.root for step in self.steps if step.root})

    @property
    def moves(self) -> list[tuple[Step, Step]]:
        """Return the pairs of steps that are in different root packages."""
        inside = [step for step in self.steps if step.root]
        return [(a, b) for a, b in pairwise(inside) if a.root != b.root]


async def traced(name: str, call: Callable[[], Awaitable[object]]) -> Trace:
    """Run a call and return what it ran through."""
    steps: list[Step] = []
    seen: set[CodeType] = set()
    mine = asyncio.current_task()

    def profile(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event != "call" or code in seen or asyncio.current_task() is not mine:
            return
        path = Path(code.co_filename)
        if path.is_relative_to(PACKAGE) and code.co_name != "<module>":
            seen.add(code)
            steps.append(Step(path.relative_to(PACKAGE).as_posix(), code.co_qualname))

    sys.setprofile(profile)
    try:
        await call()
    finally:
        sys.setprofile(None)
    return Trace(name, steps)


class Letters:
    """A counter that is not ours, so that only the calls themselves are traced."""

    name = "letters"

    def count(self, message: Message) -> int:
        """Return a quarter of the length."""
        return len(message.content) // 4 + 4


async def _fill(session: Session) -> None:
    for number in range(12):
        async with session.turn(f"Question {number} about the harbor of Jakarta") as turn:
            await turn.finish(f"Answer {number}: the harbor opens at {number + 6}.")


async def traces(folder: Path) -> list[Trace]:
    """Return the traces of the four calls, on SQLite stores in a folder."""
    return [
        await _append(folder / "append.db"),
        await _context(folder / "window.db", Window()),
        await _context(folder / "hybrid.db", Hybrid()),
        await _forget(folder / "hybrid.db"),
    ]


async def _append(path: Path) -> Trace:
    async with Memory.open(f"sqlite:///{path}", counter=Estimator()) as memory:
        session = await memory.session("demo", owner="ana")
        message = Message(role="user", content="When does the harbor open?")
        return await traced("session.append", lambda: session.append(message))


async def _context(path: Path, strategy: Window) -> Trace:
    views = {"chat": View(400, strategy)}
    async with Memory.open(f"sqlite:///{path}", views=views, counter=Letters()) as memory:
        session = await memory.session("demo", owner="ana", system_prompt="Be brief.")
        await _fill(session)
        async with session.turn("When does the harbor of Jakarta open?") as turn:
            await turn.context()  # loads modules and indexes messages, which is done once
            name = f"turn.context() with {type(strategy).__name__}"
            trace = await traced(name, turn.context)
            await turn.finish("At six.")
    return trace


async def _forget(path: Path) -> Trace:
    async with Memory.open(f"sqlite:///{path}", counter=Letters()) as memory:
        ana = memory.for_owner("ana")
        chosen = (await (await ana.get_session("demo")).messages())[1].id
        return await traced("memory.forget", lambda: ana.forget(session="demo", message=chosen))


def main(arguments: list[str]) -> None:
    """Print the traces."""
    parser = argparse.ArgumentParser(description="Trace four common calls.")
    parser.add_argument("--verbose", action="store_true", help="print the functions in order")
    verbose = parser.parse_args(arguments).verbose
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(traces(Path(folder)))
    for trace in found:
        print(
            f"{trace.name}: {len(trace.files)} files, {len(trace.roots)} root packages"
            f" ({', '.join(trace.roots)}), {len(trace.moves)} moves"
        )
        if verbose:
            root = ""
            for step in trace.steps:
                if step.root and step.root != root:
                    root = step.root
                    print(f"  {root}")
                print(f"    {step.file}: {step.function}")
            costly = Counter(f"{a.root} -> {b.root}" for a, b in trace.moves)
            for move, count in costly.most_common():
                print(f"  {count:4} {move}")


if __name__ == "__main__":
    main(sys.argv[1:])
