"""Clients that send the whole history with each call, and set breakpoints where agents do."""

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from bench.corpus import words
from bench.talks import Kind, Talked, system_prompt, talk
from keepthread.apps.proxy.types import WireName

_TOOLS = 8
_TOOL_WORDS = 120
_RECALLED_WORDS = 230


class Call(NamedTuple):
    """One call of a model."""

    body: dict[str, Any]
    turn: int
    """The question that it belongs to."""
    recalled: str
    """The text that memory has for that question."""


def _recalled(seed: int, turn: int) -> str:
    text = words(random.Random(f"recalled {seed} {turn}"), _RECALLED_WORDS)
    return f"<keepthread-memory>\n{text}\n</keepthread-memory>"


def _descriptions(seed: int) -> list[str]:
    chance = random.Random(f"tools {seed}")
    return [words(chance, _TOOL_WORDS) for _ in range(_TOOLS)]


class OpenAIClient:
    """A client of OpenAI's chat completions."""

    wire: WireName = "openai-chat"

    def __init__(self, kind: Kind, seed: int, turns: int) -> None:
        self._talk = list(talk(kind, seed, turns))
        self._seed = seed

    def calls(self) -> Iterator[Call]:
        tools = [
            {"type": "function", "function": {"name": f"tool_{n}", "description": text}}
            for n, text in enumerate(_descriptions(self._seed))
        ]
        history: list[Any] = [{"role": "system", "content": system_prompt(self._seed)}]
        for turn, talked in enumerate(self._talk):
            for added in _chat(talked):
                if added[-1]["role"] != "assistant" or "tool_calls" in added[0]:
                    history += added
                    body = {"model": "m", "tools": tools, "messages": list(history)}
                    yield Call(body, turn, _recalled(self._seed, turn))
                else:
                    history += added


def _chat(talked: Talked) -> Iterator[Sequence[dict[str, Any]]]:
    """Yield what is added before each call of a turn, then the answer."""
    yield [{"role": "user", "content": talked.asked}]
    for each in talked.rounds:
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in each.call.tool_calls
        ]
        results = [
            {"role": "tool", "tool_call_id": result.tool_call_id, "content": result.content}
            for result in each.results
        ]
        yield [{"role": "assistant", "tool_calls": calls}, *results]
    yield [{"role": "assistant", "content": talked.answered}]


class AnthropicClient:
    """A client of Anthropic's messages.

    Its system prompt and its last block are breakpoints, with two marks also the last block of the
    user's side before.
    """

    wire: WireName = "anthropic"

    def __init__(self, kind: Kind, seed: int, turns: int, marks: int = 1) -> None:
        self._talk = list(talk(kind, seed, turns))
        self._seed = seed
        self._marks = marks

    def calls(self) -> Iterator[Call]:
        tools = [
            {"name": f"tool_{n}", "description": text, "input_schema": {"type": "object"}}
            for n, text in enumerate(_descriptions(self._seed))
        ]
        system = [_marked({"type": "text", "text": system_prompt(self._seed)})]
        history: list[Any] = []
        for turn, talked in enumerate(self._talk):
            for said, heard in _blocks(talked):
                if said:
                    history.append({"role": "assistant", "content": said})
                if heard:
                    history.append({"role": "user", "content": heard})
                    messages = _with_marks(history, self._marks)
                    body = {"model": "m", "tools": tools, "system": system, "messages": messages}
                    yield Call(body, turn, _recalled(self._seed, turn))


def _blocks(talked: Talked) -> Iterator[tuple[list[Any], list[Any]]]:
    """Yield what the assistant said, and what the user's side answered."""
    yield [], [{"type": "text", "text": talked.asked}]
    for each in talked.rounds:
        calls = [
            {"type": "tool_use", "id": c.id, "name": c.name, "input": {"query": c.arguments}}
            for c in each.call.tool_calls
        ]
        results = [
            {"type": "tool_result", "tool_use_id": r.tool_call_id, "content": r.content}
            for r in each.results
        ]
        yield calls, results
    yield [{"type": "text", "text": talked.answered}], []


def _with_marks(history: Sequence[Any], marks: int) -> list[Any]:
    """Return a history with breakpoints at the end of its last turns of the user's side."""
    messages = list(history)
    for at in range(len(messages) - 1, max(-1, len(messages) - 2 * marks), -2):
        *before, last = messages[at]["content"]
        messages[at] = {**messages[at], "content": [*before, _marked(last)]}
    return messages


def _marked(block: dict[str, Any]) -> dict[str, Any]:
    return {**block, "cache_control": {"type": "ephemeral"}}
