"""A bot on Discord put together: a model or the orchestrator behind it, and a memory."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

from keepthread.channels.rules import Rules
from keepthread.channels.talks import Talks
from keepthread.cli.answering import chatting, orchestrating
from keepthread.cli.call import Call
from keepthread.cli.chat.counter import chat_counter
from keepthread.cli.chat.signals import Signals
from keepthread.cli.config import Config
from keepthread.cli.kinds import numbers_of
from keepthread.cli.mcpfile import McpFile, read_servers
from keepthread.cli.settings import DiscordSettings, Settings
from keepthread.cli.stores import place_of
from keepthread.cli.wiring import memory_arguments, model_of
from keepthread.errors import InvalidInput
from keepthread.memory import Memory
from keepthread.orchestrator import Models
from keepthread.orchestrator.servers import Servers

if TYPE_CHECKING:
    from keepthread.channels.discord import DiscordBot
    from keepthread.models.remote import RemoteModel

SYSTEM: Final = (
    "You answer in a channel on Discord, where several people may write. Each of their messages"
    " begins with the name and number of who wrote it; yours do not. Write Discord's Markdown, and"
    " be brief."
)
_LOGGERS: Final = ("discord", "keepthread")
_IN_PROCESS: Final = "ram://"


async def run(
    call: Call, environ: Mapping[str, str], *, orchestrated: bool = False, with_tools: bool = False
) -> int:
    """Be there until a signal ends it; return the exit status."""
    settings = call.config.settings
    token = _token(settings.discord, environ)
    model = model_of(settings.model, environ)
    found = read_servers(environ, Path.cwd()) if with_tools else McpFile()
    for note in found.notes:
        call.warn(note)
    signals = Signals()
    async with (
        _memory(call.config, model, environ) as memory,
        Servers(found.servers, tell=call.warn) as servers,
    ):
        planned = orchestrated or with_tools
        talks = Talks(
            memory,
            orchestrating(Models.all(model), servers.tools) if planned else chatting(model),
            system=settings.chat.system or SYSTEM,
            by_person=settings.discord.session == "channel_and_user",
        )
        bot = _bot(talks, settings.discord, call.say)
        call.say(f"{model.name} answers; {_kept(settings)}")
        signals.listen()
        serving = asyncio.create_task(bot.serve(token))
        with _told(call.warn), signals.during(serving.cancel), suppress(asyncio.CancelledError):
            await serving
    return signals.status


def _token(settings: DiscordSettings, environ: Mapping[str, str]) -> str:
    if token := environ.get(settings.token_variable, "").strip():
        return token
    raise InvalidInput(
        f"there is no token: export {settings.token_variable}=… with the token of your bot, which"
        " its page in Discord's developer portal shows (discord.token_env names another variable)"
    )


def _bot(talks: Talks, settings: DiscordSettings, tell: Callable[[str], object]) -> "DiscordBot":
    try:
        from keepthread.channels.discord import (  # noqa: PLC0415 - what the extra brings
            DiscordBot,
            Pace,
        )
    except ModuleNotFoundError as error:
        raise InvalidInput(
            f"a bot on Discord needs {error.name}: pip install 'keepthread[discord]'"
        ) from None
    rules = Rules(
        guilds=frozenset(numbers_of(settings.guilds)),
        channels=frozenset(numbers_of(settings.channels)),
        reply=cast(Literal["mention", "always"], settings.reply),
        direct=settings.direct,
        listen=settings.listen,
    )
    pace = Pace(catch_up=settings.catch_up)
    return DiscordBot(talks, rules, tell=tell, base_url=settings.base_url, pace=pace)


@asynccontextmanager
async def _memory(
    config: Config, model: "RemoteModel", environ: Mapping[str, str]
) -> AsyncGenerator[Memory]:
    """Open the memory, and close it and the model at the end."""
    settings = config.settings
    address = settings.address if settings.memory.enabled else _IN_PROCESS
    if settings.memory.enabled:
        config.make_room()
    given = memory_arguments(settings, model, environ)
    try:
        async with Memory.open(address, counter=chat_counter(environ), **given) as memory:
            yield memory
    finally:
        await model.close()


def _kept(settings: Settings) -> str:
    if not settings.memory.enabled:
        return "what is said is kept nowhere but in this program"
    return f"what is said is kept in {place_of(settings.address)}"


@contextmanager
def _told(warn: Callable[[str], object]) -> Generator[None]:
    """Tell what is logged in one line each, while the block runs."""
    teller = _Teller(warn)
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    for logger in loggers:
        logger.addHandler(teller)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(teller)


class _Teller(logging.Handler):
    """Passes on what is worth a warning, without tracebacks."""

    def __init__(self, warn: Callable[[str], object]) -> None:
        super().__init__(logging.WARNING)
        self._warn = warn

    def emit(self, record: logging.LogRecord) -> None:
        self._warn(record.getMessage())
