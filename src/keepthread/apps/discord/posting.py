"""Posting on Discord: replies in parts, each posted once, and the typing indicator."""

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
"""Errors that mean Discord is unreachable, whatever the request."""
_PAUSES: Final = (1.0, 2.0, 4.0, 8.0)
_TYPING: Final = 8.0
"""Seconds after which the typing indicator is renewed; Discord shows it for ten."""


async def post(message: discord.Message, said: Post) -> None:
    """Post the reply to a message, in parts.

    Each part has a nonce derived from the message, so that Discord accepts it only once within some
    minutes and it is safe to retry. An apology has its own nonce, so that an answer can still
    follow.
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
    """Retry a request while Discord is unavailable, then give up."""
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
    """Show the typing indicator in the background; failures are ignored."""
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
