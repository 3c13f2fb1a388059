"""A Discord bot with a memory: one conversation per channel, and it knows who said what.

    pip install 'keepthread[openai,discord]'
    DISCORD_TOKEN=… OPENAI_API_KEY=… python examples/discord_bot.py

It answers whoever mentions it, and goes on after a restart where it was. Switch on the `Message
Content Intent` on the bot's page in the developer portal. `keepthread discord` is the same, grown
up: rules of who is answered, missed messages, rate limits, `/forget`.
"""

import asyncio
import os
from collections import defaultdict

import discord

from keepthread import Memory
from keepthread.errors import ModelError
from keepthread.models import OpenAIModel

PROMPT = "You are in a Discord channel with several people. Be brief and friendly."
LONGEST = 2000  # characters that Discord takes at once


class Bot(discord.Client):
    """Answers mentions, with the channel's conversation around them."""

    def __init__(self, memory: Memory, model: OpenAIModel) -> None:
        """Take where it remembers, and who thinks."""
        intents = discord.Intents(guilds=True, guild_messages=True, message_content=True)
        super().__init__(intents=intents, allowed_mentions=discord.AllowedMentions.none())
        self._memory = memory
        self._model = model
        self._turns: defaultdict[int, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def on_message(self, message: discord.Message) -> None:
        """Answer, one message after the other in each channel."""
        if message.author.bot or self.user not in message.mentions:
            return
        async with self._turns[message.channel.id]:
            text = await self._answer(message)
        for start in range(0, len(text), LONGEST):
            await message.channel.send(text[start : start + LONGEST])

    async def _answer(self, message: discord.Message) -> str:
        channel = f"discord:{message.channel.id}"
        session = await self._memory.session(channel, owner=channel, system_prompt=PROMPT)
        # The author tells people apart, for the model too. By the id Discord's own number of the
        # message is kept, so that one that arrives twice is answered once.
        async with session.turn(
            message.clean_content, id=str(message.id), author=message.author.name
        ) as turn:
            if turn.answer is not None:
                return ""
            context = await turn.context(budget=4000)
            try:
                reply = await self._model.complete(context.messages, system=context.system)
            except ModelError as error:
                return f"I cannot think right now: {error}"
            return (await turn.finish(reply.content)).content


async def main() -> None:
    """Be there until it is ended."""
    key, url = os.environ["OPENAI_API_KEY"], os.environ.get("OPENAI_BASE_URL")
    model = OpenAIModel(os.environ.get("MODEL", "gpt-5-mini"), key=key, base_url=url)
    async with Memory.open("sqlite:///discord.db") as memory, Bot(memory, model) as bot:
        await bot.start(os.environ["DISCORD_TOKEN"])


asyncio.run(main())
