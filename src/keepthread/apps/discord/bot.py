"""The Discord bot: answers messages once and in order, and catches up on missed ones."""

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, NamedTuple

import aiohttp
import discord
import yarl
from discord import app_commands
from discord.gateway import DiscordWebSocket, KeepAliveHandler
from discord.http import Route

from keepthread.apps.discord.commands import (
    CLEAR,
    FACTS,
    FORGET,
    MOST_TEXT,
    REMEMBER,
    BotCommands,
    RunCommand,
)
from keepthread.apps.discord.conversations import FAILED, Post, Talks
from keepthread.apps.discord.posting import OUTAGES, patiently, post, typing
from keepthread.apps.discord.queue import Lanes
from keepthread.apps.discord.reading import command_of, heard_of, is_of_person
from keepthread.apps.discord.split import parts
from keepthread.apps.discord.types import Heard, Rules
from keepthread.context.quoting import sendable
from keepthread.errors import InvalidInput, KeepthreadError, Unavailable

_MOST_DIRECT: Final = 100
_MOST_CHANNELS: Final = 10_000
_LEAVING: Final = 1.0
"""Seconds to wait for an unused socket to close."""
_LONGEST_KEY: Final = 100
_ABOUT: Final = {
    CLEAR: "Start over: I no longer use earlier messages of this channel.",
    REMEMBER: "Store a fact about you, which I use in every channel when you write.",
    FACTS: "List what I know about you; only you can see it.",
    FORGET: "Erase everything you ever wrote to me, and all facts about you.",
}

_log: Final = logging.getLogger("keepthread.discord")

# The bot does not use voice, so missing voice libraries need no warning.
discord.VoiceClient.warn_nacl = discord.VoiceClient.warn_dave = False


class Pace(NamedTuple):
    """Waiting times, and how far to look back, in seconds."""

    identify: float = 5.0
    """Before a new session is started; Discord allows one in five seconds."""
    guilds: float = 2.0
    """For guilds to arrive after a session starts."""
    silence: float = 60.0
    """Before a silent gateway connection is dropped."""
    catch_up: float = 300.0
    """How far to look back for messages that were missed; 0 means not at all."""


class DiscordBot(discord.Client):
    """A client that passes messages to the conversations and posts their replies."""

    def __init__(
        self,
        talks: Talks,
        rules: Rules,
        *,
        on_event: Callable[[str], object] = lambda _: None,
        base_url: str | None = None,
        pace: Pace | None = None,
    ) -> None:
        """Initialize with conversations and rules; `base_url` is a Discord-compatible API."""
        self._pace = pace or Pace()
        super().__init__(
            intents=discord.Intents(
                guilds=True, guild_messages=True, dm_messages=True, message_content=True
            ),
            allowed_mentions=discord.AllowedMentions.none(),  # whatever a model says
            max_messages=None,
            guild_ready_timeout=self._pace.guilds,
            heartbeat_timeout=self._pace.silence,
        )
        self._talks = talks
        self._rules = rules
        self._on_event = on_event
        self._base_url = base_url
        self._lanes = Lanes()
        self._connects = 0
        self._catching: asyncio.Task[None] | None = None
        self._newest: dict[int, int] = {}
        """The newest message received in each channel."""
        self._known: dict[int, int] = {}
        """The same, when the session began."""
        self._direct: dict[int, discord.abc.Messageable] = {}
        self._commands = BotCommands(talks, rules)
        self._tree = app_commands.CommandTree(self)
        self._offer()

    async def serve(self, token: str) -> None:
        """Run until the bot is closed."""
        if self._base_url is not None:
            Route.BASE = self._base_url
        try:
            async with self:
                await self._stay(token)
        except discord.LoginFailure:
            raise InvalidInput(
                "Discord rejects the token: copy the bot's token again from its page in the "
                "developer portal"
            ) from None
        except discord.PrivilegedIntentsRequired:
            raise InvalidInput(
                "the bot may not read messages: switch on `Message Content Intent` on its page in"
                " the developer portal"
            ) from None
        except (discord.ConnectionClosed, discord.HTTPException) as error:
            raise Unavailable(f"Discord has ended the connection: {error}") from error
        except (OSError, aiohttp.ClientError, discord.GatewayNotFound) as error:
            raise Unavailable(f"Discord cannot be reached: {error}") from error

    async def _stay(self, token: str) -> None:
        await self.login(token)
        while not self.is_closed():
            try:
                await self.connect()
            except RuntimeError:
                if not self.is_closed():  # else it was closed while it was connecting
                    raise
            except AssertionError:  # so aiohttp takes a connection that breaks while it begins
                await asyncio.sleep(self._pace.identify)

    async def close(self) -> None:
        """Cancel answers in progress and disconnect; they are resumed at the next start."""
        if self._catching is not None:
            self._catching.cancel()
        await self._lanes.close()
        await super().close()
        # A connection that was cut, or was just beginning, leaves the thread that sends its
        # heartbeats, and its socket.
        for thread in threading.enumerate():
            if isinstance(thread, KeepAliveHandler):
                state: object = getattr(thread.ws, "_connection", None)
                if state is self._connection:
                    thread.stop()
                    with suppress(Exception):
                        await asyncio.wait_for(thread.ws.socket.close(), _LEAVING)

    def dispatch(self, event: str, /, *args: Any, **options: Any) -> None:
        """Dispatch events, unless the bot is closed."""
        if not self.is_closed():
            super().dispatch(event, *args, **options)

    # --- what discord.py calls ---

    async def setup_hook(self) -> None:
        """Register the slash commands after login."""
        if self._base_url is not None:
            _, url, _ = await self.http.get_bot_gateway()
            DiscordWebSocket.DEFAULT_GATEWAY = yarl.URL(url)
        try:
            await self._tree.sync()
        except discord.HTTPException as error:
            self._on_event(f"slash commands could not be registered: {error}")

    async def before_identify_hook(self, shard_id: int | None, *, initial: bool = False) -> None:
        """Wait before a new session is started."""
        del shard_id
        if not initial:
            await asyncio.sleep(self._pace.identify)

    async def on_connect(self) -> None:
        """Hold back what arrives in a new session: something older may have been missed."""
        self._connects += 1
        self._lanes.hold()
        self._known = dict(self._newest)

    async def on_ready(self) -> None:
        """Read the messages that were missed, then continue."""
        number, self._catching = self._connects, asyncio.current_task()
        if number == 1:
            self._greet()
        try:
            await self._catch_up()
        finally:
            if number == self._connects:
                self._lanes.go_on()

    async def on_message(self, message: discord.Message) -> None:
        """Take a message; nothing is awaited, so that they stay in the order of their arrival."""
        self._take(message)

    # --- reading messages ---

    def _take(self, message: discord.Message) -> None:
        assert self.user is not None, "it is logged in"
        if not is_of_person(message):
            return
        heard = heard_of(message, self.user)
        verdict = self._rules.verdict(heard)
        if verdict is None:
            return
        self._newest[heard.channel] = max(heard.id, self._newest.pop(heard.channel, 0))
        if heard.guild is None:
            self._direct.pop(heard.channel, None)  # the latest are last
            self._direct[heard.channel] = message.channel
        for known, most in ((self._direct, _MOST_DIRECT), (self._newest, _MOST_CHANNELS)):
            if len(known) > most:
                del known[next(iter(known))]
        dealing = partial(self._talks.keep, heard)
        if verdict == "answer":
            dealing = partial(self._answer, message, heard)
        self._lanes.put(heard.channel, heard.id, dealing)

    async def _catch_up(self) -> None:
        if not self._pace.catch_up:
            return
        past = datetime.now(UTC) - timedelta(seconds=self._pace.catch_up)
        floor = discord.utils.time_snowflake(past)
        async with asyncio.TaskGroup() as group:
            for id, channel, newest in self._places():
                after = max(floor, self._known.get(id, 0))
                if newest is None or newest > after:
                    group.create_task(self._catch_up_in(channel, after))

    async def _catch_up_in(self, channel: discord.abc.Messageable, after: int) -> None:
        async def take_all() -> None:
            async for message in channel.history(limit=None, after=discord.Object(after)):
                self._take(message)

        try:
            await patiently(take_all)
        except (*OUTAGES, discord.HTTPException) as error:
            _log.warning("missed messages of a channel could not be read: %s", type(error).__name__)

    def _places(self) -> Iterator[tuple[int, discord.abc.Messageable, int | None]]:
        """Yield the channels to look at, each with its newest message, if that is known."""
        for guild in self.guilds:
            for channel in (*guild.channels, *guild.threads):
                parent = channel.parent_id if isinstance(channel, discord.Thread) else None
                allowed = self._rules.allow(guild.id, channel.id, parent)
                if allowed and isinstance(channel, discord.abc.Messageable):
                    yield channel.id, channel, channel.last_message_id or 0
        for id, direct in self._direct.items():
            yield id, direct, None

    # --- answering ---

    async def _answer(self, message: discord.Message, heard: Heard) -> None:
        if command := self._commands.find(heard.text):
            said = await self._carried_out(command, heard)
        else:
            async with typing(message.channel):
                said = await self._talks.ask(heard)
        if said is None:
            return
        await post(message, said)
        with suppress(KeepthreadError):  # then it is posted again if the message is redelivered
            await self._talks.posted(heard)

    async def _carried_out(self, command: RunCommand, heard: Heard) -> Post | None:
        """Return a command's result; None if it already ran."""
        try:
            return None if await self._talks.is_posted(heard) else Post(await command(heard))
        except KeepthreadError as error:
            _log.warning("a command failed: %s", type(error).__name__)
            return Post(FAILED, failed=True)

    def _offer(self) -> None:
        """Register the slash commands; the result is visible only to the caller."""

        @self._tree.command(name=CLEAR[1:], description=_ABOUT[CLEAR])
        async def _clear(interaction: discord.Interaction[Any]) -> None:
            await self._defer(interaction, CLEAR)

        @self._tree.command(name=REMEMBER[1:], description=_ABOUT[REMEMBER])
        @app_commands.describe(fact="One sentence, such as: I am vegetarian.")
        async def _remember(
            interaction: discord.Interaction[Any], fact: app_commands.Range[str, 1, MOST_TEXT]
        ) -> None:
            await self._defer(interaction, f"{REMEMBER} {fact}")

        @self._tree.command(name=FACTS[1:], description=_ABOUT[FACTS])
        @app_commands.describe(confirm="The key of a waiting fact, to confirm it.")
        async def _facts(
            interaction: discord.Interaction[Any],
            confirm: app_commands.Range[str, 1, _LONGEST_KEY] | None = None,
        ) -> None:
            await self._defer(interaction, f"{FACTS} confirm {confirm}" if confirm else FACTS)

        group, _, name = FORGET[1:].partition(" ")
        forget = app_commands.Group(name=group, description=_ABOUT[FORGET])
        self._tree.add_command(forget)

        @forget.command(name=name, description=_ABOUT[FORGET])
        async def _forget(interaction: discord.Interaction[Any]) -> None:
            await self._defer(interaction, FORGET)

    async def _defer(self, interaction: discord.Interaction[Any], text: str) -> None:
        """Acknowledge a command that has to wait for its turn in the channel."""
        await interaction.response.defer(ephemeral=True, thinking=True)
        heard = command_of(interaction, text)
        self._lanes.put(heard.channel, heard.id, partial(self._respond, interaction, heard))

    async def _respond(self, interaction: discord.Interaction[Any], heard: Heard) -> None:
        command = self._commands.find(heard.text)
        said = await self._carried_out(command, heard) if command else Post(FAILED, failed=True)
        if said is None:
            return
        first, *more = parts(sendable(said.text))
        await interaction.edit_original_response(content=first)
        for part in more:
            await interaction.followup.send(part, ephemeral=True, suppress_embeds=True)

    # --- startup report ---

    def _greet(self) -> None:
        assert self.user is not None, "it is logged in"
        self._on_event(f"logged in as {self.user} ({self.user.id})")
        joined = {guild.id: f"{guild.name} ({guild.id})" for guild in self.guilds}
        for id in sorted(self._rules.guilds):
            self._on_event(f"answers in {joined[id]}" if id in joined else self._invitation(id))
        for id in sorted(joined.keys() - self._rules.guilds):
            self._on_event(f"is silent in {joined[id]}: to allow it, add {id} to discord.guilds")
        if not joined and not self._rules.guilds:
            self._on_event(self._invitation())

    def _invitation(self, id: int | None = None) -> str:
        wanted = discord.Permissions(
            view_channel=True,
            send_messages=True,
            send_messages_in_threads=True,
            read_message_history=True,
        )
        url = discord.utils.oauth_url(self.application_id or 0, permissions=wanted)
        return f"is not in {f'guild {id}' if id else 'any guild'} yet: invite it by {url}"
