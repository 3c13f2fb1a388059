"""The tool calls of a model in a turn; and a specialist: a model with tools and one task alone."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final, NamedTuple, cast

from keepthread.context.ids import distinct_calls
from keepthread.errors import InvalidInput, ModelError, ModelRefused, ToolError, ToolUnavailable
from keepthread.memory.facts.model_tools import TOOLS
from keepthread.memory.tool_calls import run_tool
from keepthread.memory.turn import Turn
from keepthread.models.failures import may_refuse_tools
from keepthread.orchestrator.models import NO_TEXT
from keepthread.orchestrator.types import EventHandler, Limits, Runnable, Subtask, Used, noop
from keepthread.protocols import ChatModel
from keepthread.types import JSON, Message, Reply, Tool, ToolCall

MEMORY_TOOLS: Final = {tool.name: Runnable(tool, noop) for tool in TOOLS}
"""`remember` and `search_memory`, to offer to a model; the memory runs them itself."""


class ToolUse(NamedTuple):
    """Runs the tools that a model calls in a turn, and records their results."""

    turn: Turn
    tools: Mapping[str, Runnable]
    """The tools it may use, by name."""
    limits: Limits
    on_use: Callable[[str, Mapping[str, JSON], bool, str], object]
    """Gets the tool's name, its arguments, whether the result was cached, and how it failed."""
    memory_tools: Collection[str] = ()
    """Those of the tools that are the memory's own."""

    async def run(self, reply: Reply) -> None:
        """Record what the model said, and run all that it calls."""
        await self.record(reply)
        await self.call(reply)

    async def record(self, reply: Reply) -> None:
        """Record what the model said and calls."""
        await self.turn.append(_said(reply))

    async def call(self, reply: Reply) -> None:
        """Run all that it calls, which was recorded."""
        async with side_by_side() as group:
            for number, call in enumerate(reply.tool_calls, 1):
                group.create_task(self._call(call, number))

    async def _call(self, call: ToolCall, number: int) -> None:
        """Run a tool and record its result; any failure becomes the result that the model sees."""
        tool, given = self._chosen(call, number)
        name, id = call.name, call.id
        life: dict[str, Any] = {"cache_turns": tool.cache_turns, "side_effects": tool.side_effects}
        ran, failed = False, ""

        async def run(**arguments: JSON) -> JSON:
            nonlocal ran, failed
            ran = True
            try:
                return await _within(self.limits.tool_seconds, run_tool(tool.run, arguments))
            except Exception as error:
                failed = str(error) or type(error).__name__
                raise

        try:
            if name in self.memory_tools and tool is self.tools.get(name):
                await self.turn.memory_tool(name, given, call_id=id)
                ran = True
            else:
                await self.turn.tool(name, given, run, call_id=id, **life)
        except Exception as error:
            if not failed and not isinstance(error, InvalidInput):
                raise  # an error of the store, not of the tool
            failed = failed or str(error)
        if failed and not ran:
            text = f"(failed: {failed})"
            await self.turn.append(Message(role="tool", content=text, tool_call_id=call.id))
        self.on_use(name, given, not ran and not failed, failed)

    def _chosen(self, call: ToolCall, number: int) -> tuple[Runnable, Mapping[str, JSON]]:
        """Return the tool and the arguments of a call; for a wrong call, a tool that says why."""
        found, arguments = self.tools.get(call.name), _arguments(call)
        if number > self.limits.calls:
            return _refusing(f"at most {self.limits.calls} calls at once; call it again"), {}
        if found is None:
            return _refusing(f"there is no such tool here; there are: {', '.join(self.tools)}"), {}
        if arguments is None:
            return _refusing("the arguments are not a JSON object"), {}
        return found, arguments


class Specialist(NamedTuple):
    """Runs one step in a delegated turn."""

    child: Turn
    subtask: Subtask
    tools: Mapping[str, Runnable]
    """The tools it may use, by name."""
    model: ChatModel
    limits: Limits
    on_event: EventHandler
    memory_tools: Collection[str] = ()
    """Those of the tools that are the memory's own."""

    async def work(self, finish: Callable[..., Awaitable[Message]]) -> Message:
        """Let the model call tools until it answers; finish with that answer and return it."""
        use = ToolUse(self.child, self.tools, self.limits, self._used, self.memory_tools)
        reply = await until_answered(use, self._asked, self.limits.rounds)
        return await finish(reply.content, truncated=reply.truncated)

    def _used(self, name: str, given: Mapping[str, JSON], cached: bool, failed: str) -> None:
        self.on_event(Used(self.subtask, name, given, cached, failed))

    async def _asked(self, may_call: bool) -> Reply:
        context = await self.child.context(budget=self.limits.prompt_tokens)
        offered = [each.tool for each in self.tools.values()] if may_call else []
        asked = partial(self.model.complete, context.messages, system=context.system)
        try:
            reply = await asked(tools=offered)
        except ModelError as error:
            # A service that takes no tools can do a step that needs none.
            if not offered or not self._needs_none or not may_refuse_tools(error):
                raise
            reply = await asked()
        return with_distinct_calls(reply)

    @property
    def _needs_none(self) -> bool:
        """Return whether it is offered the memory's own tools alone."""
        return all(name in self.memory_tools for name in self.tools)


async def until_answered(
    use: ToolUse, ask: Callable[[bool], Awaitable[Reply]], rounds: int
) -> Reply:
    """Ask a model, and run the tools that it calls, until it answers or no round is left.

    `ask` is given whether it may call tools. Calls after the last round are not run.
    """
    reply = await ask(rounds > 0)
    for left in range(rounds - 1, -1, -1):
        if not reply.tool_calls:
            break
        await use.run(reply)
        reply = await ask(left > 0)
    if not reply.content.strip():
        raise ModelRefused(NO_TEXT)
    # The provider's own items must not repeat calls that were not run.
    return reply._replace(tool_calls=(), native=None) if reply.tool_calls else reply


def with_distinct_calls(reply: Reply) -> Reply:
    """Return an answer whose calls have ids that differ."""
    calls = distinct_calls(reply.tool_calls)
    return reply if calls is reply.tool_calls else reply._replace(tool_calls=calls, native=None)


def _said(reply: Reply) -> Message:
    return Message(
        role="assistant",
        content=reply.content,
        tool_calls=reply.tool_calls,
        native=reply.native,
    )


def _arguments(call: ToolCall) -> Mapping[str, JSON] | None:
    """Return the arguments of a call; None if they are not a JSON object."""
    try:
        value: Any = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return None
    return cast("dict[str, JSON]", value) if isinstance(value, dict) else None


def _refusing(why: str) -> Runnable:
    async def run() -> JSON:
        raise ToolError(why)

    return Runnable(Tool("refused"), run)


async def _within(seconds: float, running: Awaitable[JSON]) -> JSON:
    """Wait for a tool until its deadline; one that was cancelled from within has failed."""
    deadline = asyncio.timeout(seconds)
    try:
        async with deadline:
            return await running
    except TimeoutError:
        if not deadline.expired():
            raise
        raise ToolUnavailable(f"it took longer than {seconds:g} seconds") from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise ToolUnavailable("it was cancelled") from None


@asynccontextmanager
async def side_by_side() -> AsyncGenerator[asyncio.TaskGroup]:
    """Run tasks concurrently; if one fails, cancel the others and raise its error unchanged."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
