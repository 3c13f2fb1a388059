"""Run the tools that a model calls in a chat, and ask before one with side effects runs.

A permission holds for a version of a tool: how its server is started or reached, and the
description and the schema that the model is shown. A server that changes one of them after it was
allowed is asked about again.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from typing import Final, TypeAlias

from keepthread.apps.cli.chat.plain import Permission, ToolDisplay
from keepthread.apps.cli.chat.steps import used_line
from keepthread.apps.cli.chat.talk import ended
from keepthread.apps.cli.sanitize import sanitize
from keepthread.apps.cli.settings.fields import AllowedTool, ToolName, tools_text
from keepthread.errors import InvalidInput, KeepthreadError, ToolError
from keepthread.memory.tool_calls import INTERRUPTED
from keepthread.memory.turn import Turn
from keepthread.orchestrator import Limits, Runnable, Subtask, Used
from keepthread.orchestrator.mcp import Server, Servers
from keepthread.orchestrator.specialist import MEMORY_TOOLS, ToolUse, with_distinct_calls
from keepthread.types import JSON, Message, Reply, Tool

Ask: TypeAlias = Callable[[str], Awaitable[Permission]]

LIMITS: Final = Limits(tool_seconds=3600.0)
"""A call may wait for the person; each server has a shorter limit of its own."""
_LONGEST_ARGUMENTS: Final = 1000
_REFUSED: Final = "the user did not allow this call; do not repeat it; continue without it"


async def run_calls(
    turn: Turn,
    reply: Reply,
    runnable: Sequence[Runnable],
    memory_tools: Collection[str],
    *,
    recorded: Callable[[], object],
    display: ToolDisplay | None,
) -> None:
    """Record what a model said, run all that it calls, and show each call in one line.

    `recorded` is called once the text is stored with the calls. If this is cancelled, the calls
    that have no result yet get one that says so.
    """
    reply = with_distinct_calls(reply)
    task = Subtask("", turn.user.content)
    used: list[Used] = []

    def note(name: str, given: Mapping[str, JSON], cached: bool, failed: str) -> None:
        used.append(Used(task, name, given, cached, failed))

    own = {name: MEMORY_TOOLS[name] for name in memory_tools}
    tools = {each.tool.name: each for each in runnable} | own
    use = ToolUse(turn, tools, LIMITS, note, frozenset(own))
    recording = asyncio.ensure_future(use.record(reply))
    try:
        await asyncio.shield(recording)
        recorded()
        if display:
            await display.working(
                [f"{sanitize(call.name)} is running" for call in reply.tool_calls]
            )
        await use.call(reply)
    except asyncio.CancelledError:
        await ended(recording)
        if not recording.cancelled() and recording.exception() is None:
            recorded()
            with suppress(KeepthreadError, OSError):  # an open call is quoted by later contexts
                await turn.append(*_interrupted(reply))
        raise
    finally:
        if display:
            for each in used:
                await display.called(f"· {used_line(each)}")


def _interrupted(reply: Reply) -> list[Message]:
    """Return results for calls that have none; of two results of a call, the first stays."""
    return [
        Message(role="tool", content=INTERRUPTED, tool_call_id=call.id, name=call.name)
        for call in reply.tool_calls
    ]


_PARTS: Final = ("how its server is reached", "its description", "its input schema")
"""The parts of a version, each with a digest."""


def allowed_tool(name: ToolName, server: Server, tool: Tool) -> AllowedTool:
    """Return a tool with its version now.

    Variables and headers are left out of it: they contain keys, which change, and a digest of a
    short key would reveal it.
    """
    reached = [server.command, [*server.args], server.cwd, server.url]
    parts = (reached, tool.description, tool.parameters)
    return AllowedTool(name, ".".join(map(_digest, parts)))


def _digest(value: object) -> str:
    return blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=10).hexdigest()


class ToolGate:
    """Lets a tool with side effects run only where the person or their settings allow it."""

    def __init__(
        self,
        allowed: Iterable[AllowedTool],
        *,
        setting: str,
        ask: Ask | None = None,
        save: Callable[[AllowedTool], object] | None = None,
        notify: Callable[[str], object],
    ) -> None:
        """Take what the settings allow, and how to ask; without `ask`, all else is refused.

        `setting` names the setting, `save` adds a tool to it.
        """
        self._allowed = set(allowed)
        self._setting = setting
        self._ask = ask
        self._save = save
        self._notify = notify
        self._asking = asyncio.Lock()
        self._question: object = None
        self._denied: set[AllowedTool] = set()
        self._results: dict[tuple[AllowedTool, str], JSON] = {}
        self._earlier: dict[tuple[AllowedTool, str], JSON] = {}

    def begin(self, question: object) -> None:
        """Begin with a question, or begin again with the same one, as after an outage.

        In the second case a call that was carried out is not carried out again.
        """
        if question is not self._question:
            self._denied.clear()
            self._results.clear()
        self._question = question
        self._earlier = dict(self._results)

    def guard(self, tool: Runnable, version: AllowedTool) -> Runnable:
        """Return a tool that runs only if this version is allowed; else the model is refused."""
        if not tool.side_effects:
            return tool

        async def run(**arguments: JSON) -> JSON:
            call = (version, json.dumps(arguments, sort_keys=True))
            if call in self._earlier:
                return self._earlier.pop(call)
            await self._check(version, arguments)
            result = self._results[call] = await tool.run(**arguments)
            return result

        return tool._replace(run=run)

    async def _check(self, tool: AllowedTool, arguments: Mapping[str, JSON]) -> None:
        async with self._asking:  # one question at a time
            if not {tool, AllowedTool(tool.name)}.isdisjoint(self._allowed):
                return
            changed = self._changed(tool)
            if self._ask is None:
                why = f"since the user allowed it, {changed} changed" if changed else ""
                raise ToolError(
                    f"this tool may change something, {why and f'{why}, '}and nobody can be asked"
                    f" here; the user can allow it in the settings: {self._setting}:"
                    f" {tools_text([tool])}"
                )
            if tool not in self._denied:
                answer = await self._ask(_shown(tool.name, arguments, changed))
                if answer != "no":
                    self._allowed.add(tool)
                    if answer == "always":
                        await self._keep(tool)
                    return
                self._denied.add(tool)
            raise ToolError(_REFUSED)

    def _changed(self, tool: AllowedTool) -> str:
        """Return what differs from the version that was allowed; empty if none was."""
        versions = [each.version for each in self._allowed if each.name == tool.name]
        differing = [_differing(each, tool.version) for each in versions]
        return " and ".join(min(differing, key=len, default=()))

    async def _keep(self, tool: AllowedTool) -> None:
        if self._save is None:
            return
        try:
            await asyncio.to_thread(self._save, tool)
        except (InvalidInput, OSError) as error:
            self._notify(f"allowed in this chat only: {error}")


def guarded(servers: Servers, named: Sequence[Server], gate: ToolGate) -> list[Runnable]:
    """Return the tools of running servers, which `named` describes, guarded by the gate."""
    by_name = {server.name: server for server in named}

    def with_gate(tool: Runnable) -> Runnable:
        name = servers.sources[tool.tool.name]
        return gate.guard(tool, allowed_tool(name, by_name[name[0]], tool.tool))

    return [with_gate(tool) for tool in servers.tools]


def _differing(one: str, other: str) -> list[str]:
    pairs = zip(_PARTS, one.split("."), other.split("."), strict=True)
    return [part for part, before, after in pairs if before != after]


def _shown(name: ToolName, arguments: Mapping[str, JSON], changed: str) -> str:
    """Return a call as the person decides on it."""
    server, tool = name
    given = json.dumps(arguments, ensure_ascii=False)
    rest = len(given) - _LONGEST_ARGUMENTS
    more = f" … and {rest:,} characters more" if rest > 0 else ""
    since = f"Since you allowed {tool} of {server}, {changed} changed. " if changed else ""
    asked = f"{tool} of {server} wants to run with {given[:_LONGEST_ARGUMENTS]}{more}"
    return sanitize(since + asked)
