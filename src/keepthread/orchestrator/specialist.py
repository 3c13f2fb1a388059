"""A specialist: a model with some tools and one task, which it sees alone."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from keepthread.errors import KeepthreadError, ModelRefused
from keepthread.orchestrator.nouns import Limits, Runnable, Subtask, Tell, Used
from keepthread.protocols import ChatModel
from keepthread.turn import Turn
from keepthread.types import JSON, Message, Reply, ToolCall

_NOTHING: Final = "the model said nothing"


class Specialist:
    """Carries out one step in a child turn."""

    def __init__(
        self,
        subtask: Subtask,
        tools: Sequence[Runnable],
        model: ChatModel,
        *,
        limits: Limits,
        tell: Tell,
    ) -> None:
        """Know the step, and what it may use."""
        self._subtask = subtask
        self._tools = {each.tool.name: each for each in tools}
        self._model = model
        self._limits = limits
        self._tell = tell

    async def work(self, child: Turn) -> str:
        """Return what came of the step; one that was done before is not done again."""
        if child.answer is not None:
            return child.answer.content
        reply = await self._asked(child, tools=self._limits.rounds > 0)
        for left in range(self._limits.rounds - 1, -1, -1):
            if not reply.tool_calls:
                break
            calls = reply.tool_calls[: self._limits.calls]
            said = Message(
                role="assistant", content=reply.content, tool_calls=calls, native=reply.native
            )
            await child.append(said)
            await asyncio.gather(*(self._call(child, call) for call in calls))
            reply = await self._asked(child, tools=left > 0)
        if not reply.content.strip():
            raise ModelRefused(_NOTHING)
        return (await child.finish(reply.content, cut=reply.cut)).content

    async def _asked(self, child: Turn, *, tools: bool) -> Reply:
        context = await child.context(budget=self._limits.prompt_tokens)
        offered = [each.tool for each in self._tools.values()] if tools else []
        return await self._model.complete(context.messages, system=context.system, tools=offered)

    async def _call(self, child: Turn, call: ToolCall) -> None:
        """Run a tool and record its result; whatever goes wrong, the model is told."""
        found, arguments = self._tools.get(call.name), _arguments(call)
        if found is None or arguments is None:
            known = ", ".join(self._tools) or "none"
            wrong = f"no tool {call.name} here; there are: {known}" if found is None else "no JSON"
            text = f"(failed: {wrong})"
            await child.append(Message(role="tool", content=text, tool_call_id=call.id))
            self._tell(Used(self._subtask, call.name, arguments or {}, failed=wrong))
            return
        ran = failed = ""

        async def run(**given: JSON) -> JSON:
            nonlocal ran
            ran = call.name
            async with asyncio.timeout(self._limits.tool_seconds):
                return await found.run(**given)

        try:
            await child.tool(
                call.name,
                arguments,
                run,
                call_id=call.id,
                lifetime=found.lifetime,
                effects=found.effects,
            )
        except KeepthreadError:
            raise
        except Exception as error:  # noqa: BLE001 - a tool may raise anything; it is recorded
            failed = str(error) or type(error).__name__
        remembered = not ran and not failed
        self._tell(Used(self._subtask, call.name, arguments, remembered, failed))


def _arguments(call: ToolCall) -> Mapping[str, JSON] | None:
    """Return what a model wants to give a tool; None if it cannot be understood."""
    try:
        value: Any = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, JSON]", value) if isinstance(value, dict) else None
