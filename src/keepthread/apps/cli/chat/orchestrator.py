"""The servers of a chat's tools; and the orchestrator, with the agents of the settings."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from keepthread.apps.cli.chat.notices import without_tools
from keepthread.apps.cli.chat.steps import Steps, used_line
from keepthread.apps.cli.chat.talk import Talk
from keepthread.apps.cli.chat.tool_calls import Ask, ToolGate, guarded
from keepthread.apps.cli.report_types import counted
from keepthread.apps.cli.settings.fields import tools_of
from keepthread.apps.cli.settings.load import allow_tool, config_file
from keepthread.apps.cli.settings.mcp import read_servers
from keepthread.apps.cli.settings.settings import AgentSettings, Settings
from keepthread.apps.cli.wiring import model_of
from keepthread.context.context import Context
from keepthread.errors import InvalidInput
from keepthread.memory.turn import Turn
from keepthread.orchestrator import (
    AnswerPiece,
    Event,
    Limits,
    Models,
    NamedAgent,
    Runnable,
    ToolsRefused,
    Used,
    run,
)
from keepthread.orchestrator.mcp import Server, Servers, State
from keepthread.types import Reply

if TYPE_CHECKING:
    from keepthread.apps.cli.chat.plain import ToolDisplay

_LARGEST: Final = 1 << 20
"""Bytes of an agent's system prompt in a file."""
_LIMITS: Final = Limits(tool_seconds=240.0)  # a call may wait for the person


def tools_in_chat(
    allowed: str | None,
    environ: Mapping[str, str],
    notify: Callable[[str], object],
    ask: Ask | None,
) -> "Tools":
    """Start the servers of a person's `mcp.json`; `allowed` and `ask` say what may run."""
    found = read_servers(environ, Path.cwd())
    for note in found.notes:
        notify(note)
    gate = ToolGate(
        tools_of(allowed),
        setting="chat.allowed_tools",
        ask=ask,
        save=lambda tool: allow_tool(config_file(environ), tool),
        notify=notify,
    )
    return Tools(found.servers, notify, gate)


class Tools:
    """MCP servers that run as long as the chat does."""

    def __init__(
        self, servers: Sequence[Server], notify: Callable[[str], object], gate: ToolGate
    ) -> None:
        """Begin to start them; the gate decides which tools with side effects may run."""
        self._servers = Servers(servers, on_event=notify)
        self._named = servers
        self.gate = gate
        self._ready = asyncio.Event()
        self._over = asyncio.Event()
        self._running = asyncio.create_task(self._run())

    async def ready(self) -> Sequence[Runnable]:
        """Return the tools, once all servers have started or failed to."""
        waiting = asyncio.create_task(self._ready.wait())
        await asyncio.wait({waiting, self._running}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._running.done():
            self._running.result()
        return guarded(self._servers, self._named, self.gate)

    @property
    def started(self) -> bool:
        """Return whether all servers have started, or failed to."""
        return self._ready.is_set() or self._running.done()

    @property
    def states(self) -> list[State]:
        """Return the state of each server."""
        return self._servers.states

    async def close(self) -> None:
        """End the servers."""
        self._over.set()
        if not self._ready.is_set():
            self._running.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        # One task enters and leaves them, as the library below requires.
        async with self._servers:
            self._ready.set()
            await self._over.wait()


class ChatOrchestrator:
    """Answers by a route, a plan and its steps."""

    def __init__(
        self,
        talk: Talk,
        tools: Tools,
        agents: Sequence[NamedAgent] = (),
        *,
        memory_tools: bool = False,
    ) -> None:
        """Answer in a talk from now on; `memory_tools` offers `remember` and `search_memory`."""
        self._talk = talk
        self.tools = tools
        self.agents = agents
        self._memory_tools = memory_tools
        self._refused: set[str] = set()
        """The models whose service takes no tools."""
        self.display: ToolDisplay | None = None
        self.show: Callable[[Sequence[str]], object] = lambda _: None
        """Shows the progress, in lines."""
        self.steps = Steps()
        """How the latest request was handled."""
        talk.answering = self.answer

    async def answer(self, turn: Turn, context: Context) -> AsyncGenerator[str | Reply]:
        """Yield the pieces of an answer, and at the end the whole."""
        self.steps = Steps()
        happened: asyncio.Queue[Event | None] = asyncio.Queue()
        if not self.tools.started:
            self.show(["starting tools"])
        tools, models = await self.tools.ready(), Models.all(self._talk.model)
        self.tools.gate.begin(self._talk.last)
        noted = happened.put_nowait
        work = asyncio.create_task(
            run(
                turn,
                turn.user.content,
                tools,
                models,
                agents=self.agents,
                memory_tools=self._offers,
                limits=replace(_LIMITS, answer_prompt_tokens=context.selection.budget),
                on_event=noted,
            )
        )
        work.add_done_callback(lambda _: happened.put_nowait(None))
        try:
            while (event := await happened.get()) is not None:
                if isinstance(event, AnswerPiece):
                    yield event.text
                else:
                    await self._note(event)
            answer = await work
            yield Reply(content=answer.text, usage=answer.usage, truncated=answer.truncated)
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])

    async def close(self) -> None:
        """End the servers, and close the models of agents."""
        await self.tools.close()
        await close_models(self.agents)

    @property
    def _offers(self) -> bool:
        """Return whether the memory's own tools are offered; not where notes would be lost."""
        refused = self._talk.model.name in self._refused
        return self._memory_tools and self._talk.persistence.stores_now and not refused

    async def _note(self, event: Event) -> None:
        if isinstance(event, ToolsRefused):
            name = self._talk.model.name
            self._refused.add(name)
            self._talk.persistence.notify(without_tools(name, event.reason))
        elif isinstance(event, Used) and not event.subtask.id:  # by the model that answers
            if self._talk.last:
                self._talk.last.text = ""  # what was said before the call is recorded with it
            if self.display:
                await self.display.called(f"· {used_line(event)}")
        else:
            self.steps.take(event, await self._left(event))
            self.show(self.steps.lines())

    async def _left(self, event: Event) -> str:
        """Return for how many turns a cached result remains valid."""
        if not isinstance(event, Used) or not event.remembered:
            return ""
        session = await self._talk.session()
        for each in await session.cached_tools():
            if (each.name, each.arguments) == (event.tool, event.arguments):
                return f", {each.left} of {counted(each.cache_turns, 'turn')} left"
        return ""


# --- agents ---


def agents_of(settings: Settings, environ: Mapping[str, str]) -> list[NamedAgent]:
    """Return the agents of the settings; those that name the same model share it."""
    named = {agent.model for agent in settings.agents.values()}
    models = {name: model_of(settings.model, environ, name=name) for name in named if name}
    return [
        NamedAgent(
            name=name,
            description=agent.description,
            system_prompt=_prompt(name, agent),
            model=models.get(agent.model or ""),
            tools=agent.tools,
            facts=agent.facts,
            shared_facts=agent.shared_facts,
        )
        for name, agent in settings.agents.items()
    ]


def _prompt(name: str, agent: AgentSettings) -> str:
    """Return an agent's system prompt, which may be in a file."""
    if agent.system_file is None:
        return agent.system or ""
    path = Path(agent.system_file).expanduser()
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
        if len(text) <= _LARGEST:
            return text.decode()
        reason = "it is larger than 1 MB"
    except OSError as error:
        reason = error.strerror or type(error).__name__
    except UnicodeDecodeError:
        reason = "it is not UTF-8 text"
    raise InvalidInput(
        f"agents.{name}.system_file is {path}, which cannot be read: {reason}. Correct the path, or"
        f" write the prompt into agents.{name}.system"
    )


async def close_models(agents: Sequence[NamedAgent]) -> None:
    """Close the models that agents have of their own."""
    for model in {id(agent.model): agent.model for agent in agents}.values():
        if close := getattr(model, "close", None):
            await close()
