"""A scripted mind for pipelines: it knows about the weather, from what it is shown alone."""

import json
import re
from typing import Any, Final

from keepthread.orchestrator import Runnable
from keepthread.orchestrator.prompts import BEGIN, END, prompt
from keepthread.testing.script import Received, Say
from keepthread.types import Tool, ToolCall

DEGREES: Final = {"Jakarta": 32, "Tokyo": 18, "Oslo": 4}
CITY: Final = re.compile("|".join(DEGREES))
STAGES: Final = ("router", "planner", "specialist", "synthesizer")
TOOL: Final = Tool(
    "weather",
    "Tell the weather of a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)


class Weather:
    """A tool that notes for which cities it was run."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def __call__(self, city: str) -> dict[str, Any]:
        self.asked.append(city)
        return {"city": city, "degrees": DEGREES[city]}

    def tool(self, cache_turns: int = 0) -> Runnable:
        return Runnable(TOOL, self, cache_turns)


def stage_of(asked: Received) -> str:
    """Tell who was asked, by the orders that were given."""
    return next(name for name in STAGES if prompt(name) in asked.system)


def remembered(asked: Received) -> str:
    """Return what stands between the two marks of a prompt."""
    lines = asked.text.split("\n")
    return "\n".join(lines[lines.index(BEGIN) + 1 : lines.index(END)]) if BEGIN in lines else ""


def results_in(asked: Received) -> list[str]:
    """Return the tools' results behind the newest words of the user."""
    found: list[str] = []
    for message in asked.body["messages"]:
        content = message["content"]
        parts = [p for p in content or () if isinstance(p, dict) and p["type"] == "tool_result"]
        if message["role"] == "tool":
            found.append(str(content))
        elif parts:
            found += [str(part["content"]) for part in parts]
        elif message["role"] == "user":
            found = []
    return found


def mind(asked: Received) -> str | Say:
    """Answer as a model would that knows no more than what stands in front of it."""
    said = asked.text.rpartition("Request: ")[2]
    before = remembered(asked)
    match stage_of(asked):
        case "router":
            about = "weather" in said or ("weather" in before and CITY.search(said))
            return json.dumps({"kind": "plan" if about else "direct", "why": "as I see it"})
        case "planner":
            return json.dumps({"steps": [_step(city) for city in CITY.findall(said)]})
        case "specialist":
            return _specialist(asked)
        case _:
            return _answer(asked)


def _step(city: str) -> dict[str, Any]:
    task = f"Tell how warm it is in {city}."
    return {"id": city.lower(), "task": task, "tools": ["weather"], "needs": [], "snippet": ""}


def _specialist(asked: Received) -> str | Say:
    cities = CITY.findall(asked.text)
    if results := results_in(asked):
        degrees = re.findall(r"degrees\W+(\d+)", results[0])
        return f"{cities[0]}: {degrees[0]} °C" if degrees else f"{cities[0]}: unknown"
    arguments = json.dumps({"city": cities[0]})
    return Say(tool_calls=[ToolCall(id="call_1", name="weather", arguments=arguments)])


def _answer(asked: Received) -> str:
    found = sorted(re.findall(r"(\w+): (\d+) °C", "\n".join(results_in(asked))))
    if not found:
        return "About what?"
    return " ".join(f"It is {degrees} °C in {city}." for city, degrees in found)
