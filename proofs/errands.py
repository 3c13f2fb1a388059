"""Requests for the pipeline, each with a plan by chance, and a mind that plays all the models.

Everything follows from a seed and a request's number. What is said in the main conversation bears
marks, so that it can be told where a word of it was seen.
"""

import json
import random
import re
import threading
from collections.abc import Sequence
from functools import cache
from typing import Any, Final, NamedTuple

from keepthread.orchestrator.prompts import prompt
from keepthread.testing.script import Received, Say
from keepthread.types import ToolCall

TOOLS: Final = ("good", "flaky", "raw", "hang", "ask", "order")
SYSTEM: Final = "You are MARKSYS."
FACT: Final = "The user is MARKFACT, who wants to see to it step by step."
"""What is known of the owner: for those who answer, and not for specialists."""
MARK: Final = re.compile(r"MARK\w+")
STAGES: Final = ("router", "planner", "specialist", "synthesizer")
_NUMBER: Final = re.compile(r"#(\d+)")
_STEP: Final = re.compile(r"#(\d+) step (s\d)")
_MOST_STEPS: Final = 6


class Wish(NamedTuple):
    """One call of a tool."""

    tool: str
    arguments: str


class Step(NamedTuple):
    """One step of a plan, and what its specialist will do."""

    id: str
    tools: Sequence[str]
    needs: Sequence[str]
    shares: bool
    """Whether the planner tells it a word of the conversation."""
    rounds: Sequence[Sequence[Wish]]


class Errand(NamedTuple):
    """One request."""

    number: int
    direct: bool
    steps: Sequence[Step]

    @property
    def id(self) -> str:
        return f"request-{self.number}"

    @property
    def session(self) -> str:
        return f"session-{self.number % 5}"

    @property
    def word(self) -> str:
        """The mark in what its user says."""
        return f"MARK{self.number}Q"

    @property
    def text(self) -> str:
        return f"#{self.number} I am {self.word}. See to it."

    @property
    def answer(self) -> str:
        return f"MARK{self.number}A it is done, all of it, as you said."

    def result(self, step: str) -> str:
        return f"MARK{self.number}R{step} is what came of {step}."

    def may_see(self, id: str) -> set[str]:
        """Return the marks that a step's specialist may be shown."""
        step = next(each for each in self.steps if each.id == id)
        seen = {MARK.findall(self.result(need))[0] for need in step.needs}
        return seen | {self.word} if step.shares else seen

    def plan(self) -> str:
        return json.dumps(
            {
                "steps": [
                    {
                        "id": step.id,
                        "task": f"#{self.number} step {step.id}: see to it.",
                        "tools": step.tools,
                        "needs": step.needs,
                        "snippet": f"The user is {self.word}." if step.shares else "",
                    }
                    for step in self.steps
                ]
            }
        )


@cache
def errand(seed: int, number: int) -> Errand:
    """Return a request by its number."""
    rng = random.Random(f"{seed} {number}")
    names = [f"s{n}" for n in range(rng.randint(1, _MOST_STEPS))]
    steps = [_step(rng, name, names[:at]) for at, name in enumerate(names)]
    rng.shuffle(steps)
    return Errand(number, rng.random() < 0.1, steps)


def _step(rng: random.Random, name: str, before: Sequence[str]) -> Step:
    tools = rng.sample(TOOLS, rng.randint(0, 3))
    needs = [each for each in before if rng.random() < 0.3]
    wishes = [
        [_wish(rng, tools) for _ in range(rng.randint(1, 3))] for _ in range(rng.randint(0, 2))
    ]
    return Step(name, tools, needs, rng.random() < 0.3, wishes)


def _wish(rng: random.Random, tools: Sequence[str]) -> Wish:
    tool = rng.choice([*tools, "unknown"] if rng.random() < 0.2 or not tools else tools)
    number = rng.choice([0] * (1 if tool == "hang" else 3) + [*range(1, 4)] * 3)
    if tool in ("ask", "order"):
        return Wish(tool, json.dumps({"number": number, "dies": rng.random() < 0.3}))
    return Wish(tool, json.dumps({"number": number}))


class Mind:
    """Plays all the models; now and then it fails, or writes what cannot be used."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.failures = 0
        self._rng = random.Random(f"{seed} mind")
        self._lock = threading.Lock()

    def __call__(self, asked: Received) -> str | Say:
        stage = stage_of(asked)
        with self._lock:
            chance, pieces = self._rng.random(), self._rng.randint(0, 4)
            self.failures += chance < 0.08
        if chance < 0.04:
            return Say(status=500 if chance < 0.02 else 429, message="not now")
        said = self._said(stage, asked)
        if chance < 0.06:
            return Say(said, cut_after=pieces) if isinstance(said, str) else said
        if chance < 0.08:
            return "" if chance < 0.065 else "I am not sure about that {"
        return said

    def _said(self, stage: str, asked: Received) -> str | Say:
        if stage == "specialist":
            return self._worked(asked)
        last = asked.text.rpartition("Request: ")[2] if stage != "synthesizer" else asked.text
        found = self.errand_of(last if _NUMBER.search(last) else asked.context)
        if stage == "router":
            return json.dumps({"kind": "direct" if found.direct else "plan", "why": "so it is"})
        return found.plan() if stage == "planner" else found.answer

    def _worked(self, asked: Received) -> str | Say:
        found, step = self.step_of(asked)
        done = sum(message["role"] == "assistant" for message in asked.body["messages"])
        if done >= len(step.rounds) or asked.body.get("tool_choice") or not asked.body.get("tools"):
            return found.result(step.id)
        wishes = step.rounds[done]
        calls = [
            ToolCall(id=f"call_{n}", name=w.tool, arguments=w.arguments)
            for n, w in enumerate(wishes)
        ]
        if asked.wire != "anthropic" and done:  # the other wire cannot say such a thing
            calls.append(ToolCall(id="call_x", name=calls[0].name, arguments="{broken"))
        return Say(tool_calls=calls)

    def errand_of(self, text: str) -> Errand:
        return errand(self.seed, int(_NUMBER.findall(text)[-1]))

    def step_of(self, asked: Received) -> tuple[Errand, Step]:
        """Return which step a specialist was asked for."""
        number, id = _STEP.findall(asked.context)[-1]
        found = errand(self.seed, int(number))
        return found, next(step for step in found.steps if step.id == id)


def stage_of(asked: Received) -> str:
    """Tell who was asked, by the orders that were given."""
    return next(name for name in STAGES if prompt(name) in asked.system)


def strangers(mind: Mind, asked: Received) -> set[str]:
    """Return the words of the conversation that a specialist was shown and must not have been."""
    found, step = mind.step_of(asked)
    body: Any = {name: value for name, value in asked.body.items() if name != "tools"}
    return set(MARK.findall(json.dumps(body))) - found.may_see(step.id)
