"""Answer in a channel: by a model with memory, or by the orchestrator."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

import typer

from keepthread.apps.cli.chat.notices import Debug, Log, logged, pruned, without_tools
from keepthread.apps.cli.chat.orchestrator import agents_of, close_models
from keepthread.apps.cli.chat.signals import Signals
from keepthread.apps.cli.chat.startup import chat_counter
from keepthread.apps.cli.chat.talk import VIEW, meta_of
from keepthread.apps.cli.chat.tool_calls import ToolGate, guarded
from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.settings.discord import DiscordSettings
from keepthread.apps.cli.settings.fields import numbers_of, tools_of
from keepthread.apps.cli.settings.load import Config
from keepthread.apps.cli.settings.mcp import McpFile, read_servers
from keepthread.apps.cli.settings.secrets import secret_of
from keepthread.apps.cli.settings.settings import MemorySettings, Settings
from keepthread.apps.cli.stores import place_of
from keepthread.apps.cli.wiring import memory_arguments, model_of
from keepthread.apps.discord.conversations import Talks
from keepthread.apps.discord.types import AnswerFunction, DiscordQuestion, Rules
from keepthread.errors import InvalidInput, KeepthreadError, ModelRefused
from keepthread.memory.admin import DAY, Admin
from keepthread.memory.memory import Memory
from keepthread.memory.turn import Turn
from keepthread.orchestrator import (
    Agent,
    Event,
    Limits,
    Models,
    NamedAgent,
    Planned,
    Runnable,
    ToolsRefused,
    orchestrate,
)
from keepthread.orchestrator.mcp import Servers
from keepthread.orchestrator.models import NO_TEXT, Counted, Spent
from keepthread.orchestrator.types import EventHandler, noop
from keepthread.protocols import ChatModel
from keepthread.types import Message

if TYPE_CHECKING:
    from keepthread.apps.discord.bot import DiscordBot
    from keepthread.models.base import RemoteModel

_BROKEN_OFF: Final = "\n-# (the answer was cut off)"


def chatting(
    model: ChatModel,
    *,
    memory_tools: bool = False,
    limits: Limits | None = None,
    notify: Callable[[str], object] = noop,
) -> AnswerFunction:
    """Return what asks a model, as a chat does, with `memory_tools` if they are wanted.

    These note facts about the person who asks, and search the messages of the channel.
    """
    takes_tools = True

    def on_event(event: Event) -> None:
        nonlocal takes_tools
        if isinstance(event, ToolsRefused):
            takes_tools = False
            notify(without_tools(model.name, event.reason))

    async def answer(asked: DiscordQuestion) -> str:
        opened = asked.session.turn(
            asked.text, id=asked.id, author=asked.author, attachments=asked.attachments
        )
        own = memory_tools and takes_tools
        agent = Agent(model, (), asked.session, view=VIEW, memory_tools=own, limits=limits)
        async with opened as turn:
            stored = turn.answer or await _said(turn, agent, on_event)
        if stored is None:
            return ""
        return stored.content + (_BROKEN_OFF if stored.meta.get("truncated") else "")

    return answer


async def _said(turn: Turn, agent: Agent, on_event: EventHandler) -> Message | None:
    """Return what a model says, as stored; None if it says nothing."""
    spent = Spent()
    try:
        reply = await agent.answer(turn, Counted(agent.model, spent), on_event)
    except ModelRefused as error:
        if str(error) != NO_TEXT:
            raise
        return None
    meta = meta_of(agent.model.name, spent.usage, truncated=reply.truncated)
    return await turn.finish(Message(role="assistant", content=reply.content, meta=meta))


def orchestrating(
    models: Models,
    tools: Sequence[Runnable] = (),
    agents: Sequence[NamedAgent] = (),
    *,
    memory_tools: bool = False,
    notify: Callable[[str], object] = noop,
) -> AnswerFunction:
    """Return what routes, plans and carries out a request, with `memory_tools` as in a chat."""
    takes_tools = True

    def on_event(event: Event) -> None:
        nonlocal takes_tools
        if isinstance(event, ToolsRefused):
            takes_tools = False
            notify(without_tools(models.synthesizer.name, event.reason))
        elif isinstance(event, Planned) and event.plan and event.problem:
            notify(event.problem)

    async def answer(asked: DiscordQuestion) -> str:
        answered = await orchestrate(
            asked.text,
            asked.session,
            tools,
            models,
            id=asked.id,
            author=asked.author,
            attachments=asked.attachments,
            agents=agents,
            memory_tools=memory_tools and takes_tools,
            on_event=on_event,
        )
        return answered.text

    return answer


SYSTEM: Final = (
    "You answer in a channel on Discord, where several people may write. Each of their messages"
    " begins with the name and number of who wrote it; yours do not. Known facts are about the one"
    " whose message you answer, and about nobody else. Write Discord's Markdown, and be brief."
)
_LOGGERS: Final = ("discord", "keepthread")
_IN_PROCESS: Final = "ram://"


async def run(
    call: Call, environ: Mapping[str, str], *, orchestrated: bool = False, with_tools: bool = False
) -> int:
    """Run until a signal ends it; return the exit status."""
    settings = call.config.settings
    token = _token(settings.discord, environ)
    model = model_of(settings.model, environ)
    found = read_servers(environ, Path.cwd()) if with_tools else McpFile()
    for note in found.notes:
        call.warn(note)
    signals = Signals()
    planned = orchestrated or with_tools
    agents = agents_of(settings, environ) if planned else []
    async with (
        _memory(call.config, model, environ, agents) as memory,
        Servers(found.servers, on_event=call.warn) as servers,
    ):
        gate = ToolGate(
            tools_of(settings.discord.allowed_tools),
            setting="discord.allowed_tools",
            notify=call.warn,
        )
        tools = guarded(servers, found.servers, gate)
        offers = settings.memory.tools and settings.memory.enabled
        talks = Talks(
            memory,
            orchestrating(Models.all(model), tools, agents, memory_tools=offers, notify=call.warn)
            if planned
            else chatting(
                model,
                memory_tools=offers,
                limits=Limits(stage_seconds=settings.model.max_seconds),
                notify=call.warn,
            ),
            system=settings.chat.system or SYSTEM,
            by_person=settings.discord.session == "channel_and_user",
        )
        bot = _bot(talks, settings.discord, call.say)
        call.say(f"model: {model.name}; {_kept(settings)}")
        signals.listen()
        serving = asyncio.create_task(bot.serve(token))
        pruning = asyncio.create_task(_prune(memory.admin, settings.memory, call.say))
        with (
            _warnings_shown(call.warn),
            signals.during(serving.cancel),
            suppress(asyncio.CancelledError),
        ):
            await serving
        pruning.cancel()
    return signals.status


async def _prune(admin: Admin, settings: MemorySettings, notify: Callable[[str], object]) -> None:
    """Delete idle sessions once a day, if the settings say so."""
    while (days := settings.auto_prune_days) is not None:
        with suppress(KeepthreadError, OSError):
            if deleted := await admin.prune(days, daily=True):
                notify(pruned(deleted, days))
        await asyncio.sleep(DAY)


def _token(settings: DiscordSettings, environ: Mapping[str, str]) -> str:
    if token := secret_of(settings.token_variable, environ):
        return token
    raise InvalidInput(
        f"there is no token: export {settings.token_variable}=… with the token of your bot, which"
        " its page in Discord's developer portal shows (discord.token_env names another variable)"
    )


def _bot(talks: Talks, settings: DiscordSettings, notify: Callable[[str], object]) -> "DiscordBot":
    try:
        from keepthread.apps.discord.bot import DiscordBot, Pace  # noqa: PLC0415 - what the extra brings
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"the Discord bot needs {error.name}: pip install 'keepthread[discord]'"
        ) from None
    rules = Rules(
        guilds=frozenset(numbers_of(settings.guilds)),
        channels=frozenset(numbers_of(settings.channels)),
        reply=cast(Literal["mention", "always"], settings.reply),
        direct=settings.direct,
        listen=settings.listen,
    )
    pace = Pace(catch_up=settings.catch_up)
    return DiscordBot(talks, rules, on_event=notify, base_url=settings.base_url, pace=pace)


@asynccontextmanager
async def _memory(
    config: Config,
    model: "RemoteModel",
    environ: Mapping[str, str],
    agents: Sequence[NamedAgent] = (),
) -> AsyncGenerator[Memory]:
    """Open the memory, and close it and the models at the end."""
    settings = config.settings
    address = settings.address if settings.memory.enabled else _IN_PROCESS
    if settings.memory.enabled:
        config.make_room()
    given = memory_arguments(settings, model, environ)
    try:
        counter = chat_counter(environ, settings.tokenizer)
        async with Memory.open(address, counter=counter, **given) as memory:
            yield memory
    finally:
        await model.close()
        await close_models(agents)


def _kept(settings: Settings) -> str:
    if not settings.memory.enabled:
        return "messages are kept only in this process"
    return f"messages are stored in {place_of(settings.address)}"


@contextmanager
def _warnings_shown(warn: Callable[[str], object]) -> Generator[None]:
    """Show each log record in one line, while the block runs."""
    handler = _WarningHandler(warn)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)


class _WarningHandler(logging.Handler):
    """Passes on what is worth a warning, without tracebacks."""

    def __init__(self, warn: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn

    def emit(self, record: logging.LogRecord) -> None:
        self._warn(record.getMessage())


async def discord(
    call: Call,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model (default: from the settings).")
    ] = None,
    orchestrate: Annotated[
        bool,
        typer.Option("--orchestrate", help="Route and plan requests with sub-agents."),
    ] = False,
    tools: Annotated[
        bool,
        typer.Option(
            "--tools",
            help="Also offer the tools of your mcp.json to everyone who can write to the bot.",
        ),
    ] = False,
    log: Log = None,
    debug: Debug = False,
) -> int:
    """Run a Discord bot with memory, until Ctrl-C.

    DISCORD_TOKEN holds the bot's token, and the setting discord.guilds says where it answers.
    """
    call = call.with_flags({"model.name": model})
    with logged(log, debug=debug):
        return await run(call, os.environ, orchestrated=orchestrate, with_tools=tools)
