"""What the pipeline takes apart from models and tools, and how far steps run side by side.

Models are scripted and answer at once; every step calls one tool. The store is a file at `power`.
"""

import asyncio
import json
import platform
import sqlite3
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import Final

from bench import Bar, Benchmark, Report, Row, Run
from bench.measure import median, middle_half, no_collection
from bench.places import file_system
from keepthread import Memory, Message, Session, ToolCall
from keepthread.orchestrator import Ended, Event, Models, Planned, Runnable, orchestrate
from keepthread.testing.model import ScriptedModel
from keepthread.types import JSON, Reply, Tool

_WIDE, _SECONDS = 8, 0.2
_STEPS = 4
_REQUESTS, _QUICK = 20, 2
_STAGE, _CPU = Bar(3), Bar(30)
_ROUTE: Final = '{"kind": "plan", "why": "it needs tools"}'


def measure(run: Run) -> Report:
    """Measure both in a file on a disk."""
    return Report(setting=_setting(run), rows=asyncio.run(_measured(run)))


async def _measured(run: Run) -> list[Row]:
    async with Memory.open(f"sqlite:///{run.disk}/pipeline.db", durability="power") as memory:
        pipeline = Pipeline(memory)
        await pipeline.stage(_tool())  # what is loaded once is loaded now
        stages: list[float] = []
        own: dict[str, list[float]] = {"run each time": [], "remembered": []}
        for number in range(run.rounds):
            run.progress(f"round {number + 1} of {run.rounds}")
            stages.append(await pipeline.stage(_tool(wait=_SECONDS)) / _SECONDS)
            for name, cache_turns in zip(own, (0, 3), strict=True):
                requests = _QUICK if run.quick else _REQUESTS
                own[name].append(await pipeline.cpu(_tool(cache_turns), requests))
    return [
        *_rows("side by side", {f"{_WIDE} steps with tools of 200 ms": stages}, "× one", _STAGE),
        *_rows("CPU", {f"{_STEPS} steps, tools {name}": t for name, t in own.items()}, "ms", _CPU),
    ]


def _rows(group: str, found: dict[str, list[float]], unit: str, bar: Bar) -> Iterator[Row]:
    for name, values in found.items():
        spread = middle_half(values)
        yield Row(group=group, name=name, value=median(values), unit=unit, spread=spread, bar=bar)


class Pipeline:
    """Requests, each in a session of its own."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._numbers = count()

    async def session(self) -> Session:
        """Return a new session."""
        return await self._memory.session(f"session {next(self._numbers)}")

    async def answer(
        self, session: Session, steps: int, tool: Runnable
    ) -> list[tuple[float, Event]]:
        """Answer a request; return what was told, and when."""
        told: list[tuple[float, Event]] = []
        plan = json.dumps({"steps": [_step(number) for number in range(steps)]})
        models = Models(
            ScriptedModel([_ROUTE]),
            ScriptedModel([plan]),
            ScriptedModel([_specialist] * (2 * steps)),
            ScriptedModel(["All is well."]),
        )
        await orchestrate(
            "How is it?",
            session,
            [tool],
            models,
            on_event=lambda event: told.append((time.perf_counter(), event)),
        )
        return told

    async def stage(self, tool: Runnable) -> float:
        """Return the seconds from a plan to the end of its last step."""
        told = await self.answer(await self.session(), _WIDE, tool)
        begun = next(at for at, event in told if isinstance(event, Planned))
        ends = [at for at, event in told if isinstance(event, Ended)]
        assert len(ends) == _WIDE
        return max(ends) - begun

    async def cpu(self, tool: Runnable, requests: int) -> float:
        """Return the CPU milliseconds of a request, all threads included."""
        spent = 0.0
        with no_collection():
            for _ in range(requests):
                session = await self.session()
                start = time.process_time()
                await self.answer(session, _STEPS, tool)
                spent += time.process_time() - start
        return spent / requests * 1000


def _step(number: int) -> JSON:
    task = f"Tell how it is in place {number}."
    return {"id": f"s{number}", "task": task, "tools": ["look"], "needs": [], "snippet": ""}


def _specialist(messages: Sequence[Message], system: str) -> Reply | str:
    asked = messages[-1]
    if asked.role == "tool":
        return f"It is well: {asked.content}"
    arguments = json.dumps({"place": asked.content})
    return Reply(tool_calls=[ToolCall(id="call_1", name="look", arguments=arguments)])


def _tool(cache_turns: int = 0, wait: float = 0.0) -> Runnable:
    return Runnable(Tool("look", "Look how it is."), partial(_look, wait), cache_turns)


async def _look(wait: float, place: str) -> str:
    if wait:
        await asyncio.sleep(wait)
    return f"{place} All well."


def _setting(run: Run) -> list[str]:
    engine = f"SQLite {sqlite3.sqlite_version} at power, on {file_system(run.disk)}"
    return [
        f"Python {platform.python_version()}, {engine}.",
        "Models are scripted and cost next to nothing. CPU is that of the whole process.",
    ]


BENCHMARK = Benchmark(
    name="orchestrator",
    about="what the pipeline takes apart from models and tools",
    measure=measure,
)
