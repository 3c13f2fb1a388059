"""A program that answers requests by the pipeline until there are none left, or it is killed."""

import asyncio
import os
import random
import sys
from pathlib import Path
from typing import Final

from keepthread import Memory, Session
from keepthread.errors import KeepthreadError, ToolError
from keepthread.models import AnthropicModel, OpenAIModel
from keepthread.orchestrator import Limits, Models, Routed, Runnable, orchestrate
from keepthread.orchestrator.mcp import Rule, Server, Servers
from keepthread.types import JSON, Tool
from proofs.errands import FACT, SYSTEM, Errand, errand

ROOT: Final = Path(__file__).resolve().parent.parent
ABREAST: Final = 3
LIMITS: Final = Limits(subtask_seconds=15, tool_seconds=2, stage_seconds=30)
NUMBER: Final = {"type": "object", "properties": {"number": {"type": "integer"}}}


class Answerer:
    """Takes requests from a list, a few at a time, and notes what becomes of them."""

    def __init__(self, folder: Path, seed: int, server: str) -> None:
        self._notes = os.open(folder / "notes", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        self._address = f"sqlite:///{folder}/chat.db"
        self._journal = str(folder / "deaths")
        self._seed = seed
        self._models = (
            OpenAIModel("gpt", key="k", base_url=f"{server}/v1", retries=0),
            AnthropicModel("claude", key="k", base_url=server, retries=0),
        )

    async def run(self, numbers: list[int]) -> None:
        command = ["-m", "proofs.mortal", self._journal]
        mortal = Server(
            "mortal",
            sys.executable,
            command,
            cwd=str(ROOT),
            rules={"ask": Rule(side_effects=False)},
        )
        async with Memory.open(self._address) as memory, Servers([mortal]) as servers:
            tools = [*OWN, *servers.tools]
            owner = (await memory.session(errand(self._seed, 0).session)).info.owner
            await memory.for_owner(owner).facts.remember(FACT)
            async with asyncio.TaskGroup() as group:
                for _ in range(ABREAST):
                    group.create_task(self._work(memory, tools, numbers))

    async def _work(self, memory: Memory, tools: list[Runnable], numbers: list[int]) -> None:
        while numbers:
            each = errand(self._seed, numbers.pop(0))
            session = await memory.session(each.session, system_prompt=SYSTEM)
            await self._answer(each, session, tools)

    async def _answer(self, each: Errand, session: Session, tools: list[Runnable]) -> None:
        def told(event: object) -> None:
            if isinstance(event, Routed):
                self._note("asked", each)

        models = Models.all(self._models[each.number % 2])
        try:
            answer = await orchestrate(
                each.text, session, tools, models, id=each.id, limits=LIMITS, on_event=told
            )
        except KeepthreadError as error:
            self._note("failed", each, type(error).__name__)
        except Exception as error:  # noqa: BLE001 - what we look for
            self._note("broke", each, repr(error))
        else:
            self._note("answered", each, answer.text)

    def _note(self, what: str, each: Errand, text: str = "") -> None:
        """Write a line that is there at once, whatever happens next."""
        flat = text.replace("\n", " ")
        os.write(self._notes, f"{what} {each.number} {flat}\n".encode())


# --- tools that need no server ---


async def good(number: int) -> JSON:
    return {"number": number}


async def flaky(number: int) -> JSON:
    if random.random() < 0.5:
        raise random.choice([OSError("the line is dead"), ToolError("no"), KeyError("x")])
    return f"for once {number}"


async def raw(number: int) -> JSON:
    if number == 0:
        return {1, 2}  # pyright: ignore[reportReturnType] - a tool may give anything
    if number == 1:
        raise asyncio.CancelledError
    return "x" * 200_000


async def hang(number: int) -> JSON:
    await asyncio.sleep(60 if number == 0 else 0.01)
    return "at last"


OWN: Final = [
    Runnable(Tool("good", "Give a number.", NUMBER), good, cache_turns=3),
    Runnable(Tool("flaky", "Fail at times.", NUMBER), flaky, cache_turns=2),
    Runnable(Tool("raw", "Give anything.", NUMBER), raw),
    Runnable(Tool("hang", "Take long.", NUMBER), hang, side_effects=True),
]


if __name__ == "__main__":
    folder, seed, server, *rest = sys.argv[1:]
    asyncio.run(Answerer(Path(folder), int(seed), server).run([int(each) for each in rest]))
