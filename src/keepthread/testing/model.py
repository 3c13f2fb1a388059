"""A scripted model, which records its calls."""

import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from keepthread.types import JSON, Message, Reply, Tool, Usage

Line: TypeAlias = str | Reply | BaseException | Callable[[Sequence[Message], str], str | Reply]
"""One line of a script: an answer, an error to raise, or what makes an answer of the question."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One call of a scripted model."""

    messages: Sequence[Message]
    system: str = ""
    tools: Sequence[Tool] = ()
    schema: Mapping[str, JSON] | None = None
    max_tokens: int | None = None


class ScriptedModel:
    """Answers with the lines of a script, in order; `calls` records the requests.

    >>> model = ScriptedModel(["Sunny.", TimeoutError()])
    """

    def __init__(self, script: Sequence[Line] = (), *, name: str = "scripted") -> None:
        """Take the script, and the name of the model."""
        self.name = name
        self.calls: list[ModelCall] = []
        self._script = tuple(script)

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        system: str = "",
        tools: Sequence[Tool] = (),
        schema: Mapping[str, JSON] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        asked = ModelCall(
            messages=tuple(messages),
            system=system,
            tools=tuple(tools),
            schema=schema,
            max_tokens=max_tokens,
        )
        self.calls.append(asked)
        if len(self.calls) > len(self._script):
            raise AssertionError(
                f"the script of {self.name!r} has {len(self._script)} lines; "
                f"this is call {len(self.calls)}"
            )
        return _reply(self._script[len(self.calls) - 1], asked)

    async def stream(
        self,
        messages: Sequence[Message],
        *,
        system: str = "",
        tools: Sequence[Tool] = (),
        schema: Mapping[str, JSON] | None = None,
        max_tokens: int | None = None,
    ) -> AsyncIterator[str | Reply]:
        reply = await self.complete(
            messages, system=system, tools=tools, schema=schema, max_tokens=max_tokens
        )
        for word in re.findall(r"\s*\S+|\s+", reply.content):
            yield word
        yield reply


def _reply(line: Line, asked: ModelCall) -> Reply:
    if isinstance(line, BaseException):
        raise line
    said = line if isinstance(line, str | Reply) else line(asked.messages, asked.system)
    reply = Reply(content=said) if isinstance(said, str) else said
    return reply if reply.usage else reply._replace(usage=_usage(asked, reply))


def _usage(asked: ModelCall, reply: Reply) -> Usage:
    """Return an estimated usage: a token for four characters."""
    heard = len(asked.system) + sum(_length(message) for message in asked.messages)
    return Usage(input=heard // 4, output=_length(reply) // 4)


def _length(said: Message | Reply) -> int:
    return len(said.content) + sum(len(call.name + call.arguments) for call in said.tool_calls)
