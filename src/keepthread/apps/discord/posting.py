"""Posting on Discord: in parts, each taken once; and the sign that somebody is at it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final

import aiohttp
import discord

from keepthread.apps.discord.conversations import Post
from keepthread.apps.discord.split import parts
from keepthread.context.quoting import sendable

OUTAGES: Final = (OSError, TimeoutError, aiohttp.ClientError, discord.DiscordServerError)
"""Errors that say that Discord cannot be reached, and nothing about the request."""
_PAUSES: Final = (1.0, 2.0, 4.0, 8.0)
_TYPING: Final = 8.0
"""Seconds after which the sign is renewed; it is shown for ten."""


async def post(message: discord.Message, said: Post) -> None:
    """Post what is said to a message, in parts.

    Each part has a nonce that follows from the message, by which Discord takes it once, for some
    minutes: so each may be tried again. An excuse has another, so that an answer may come later.
    """
    mark = "x" if said.failed else "a"
    for number, part in enumerate(parts(sendable(said.text))):
        await _send(message, part, f"{message.id}{mark}{number}", reply=number == 0)


async def _send(message: discord.Message, part: str, nonce: str, *, reply: bool) -> None:
    # Discord fetches a link to preview it, and a model may have put what it read into one.
    send = partial(message.channel.send, part, nonce=nonce, suppress_embeds=True)
    if reply:
        reference = message.to_reference(fail_if_not_exists=False)
        # Where history may not be read, nothing can be replied to.
        with suppress(discord.HTTPException):
            await patiently(partial(send, reference=reference))
            return
    await patiently(send)


async def patiently(ask: Callable[[], Awaitable[object]]) -> None:
    """Ask Discord for something, again and again while it is away, and then no more."""
    for pause in _PAUSES:
        try:
            await ask()
        except OUTAGES:
            await asyncio.sleep(pause)
        else:
            return
    await ask()


@asynccontextmanager
async def typing(channel: discord.abc.Messageable) -> AsyncGenerator[None]:
    """Let people see that we are at it; nobody waits for that, and it may fail."""
    done = asyncio.Event()
    task = asyncio.create_task(_type(channel, done))
    try:
        yield
    finally:
        done.set()
        task.cancel()
        await asyncio.wait([task])


async def _type(channel: discord.abc.Messageable, done: asyncio.Event) -> None:
    while not done.is_set():
        with suppress(*OUTAGES, discord.HTTPException):
            await channel.typing()
        with suppress(TimeoutError):
            async with asyncio.timeout(_TYPING):
                await done.wait()
