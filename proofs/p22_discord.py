"""P22: on Discord every question is answered in its channel, in order, once; and kept.

People write in many channels while everything happens that happens to a bot: the gateway asks it
to reconnect, breaks off, or forgets its session; messages are delivered twice, posts are refused
for a while or taken though an error is told, and the bot is ended in the middle and started again.
discord.py itself runs against a server here that speaks like Discord's. At the end the bot is
started once more on the same store, and what its model is then given must hold the last twenty
messages of each channel.

Every person has told a fact about themselves, in one of the channels. With each question, in every
channel, the model is given the fact about the one who asks, and about nobody else, though all of
them have the same name; each of them is shown their own by `/facts`. At the end one of them is
forgotten, and the facts about the others stay.
"""

import asyncio
import random
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

from keepthread import Memory, Message
from keepthread.apps.cli.commands.discord import chatting
from keepthread.apps.discord.bot import DiscordBot, Pace
from keepthread.apps.discord.conversations import Talks
from keepthread.apps.discord.types import Rules
from keepthread.models.tokens import Estimator
from keepthread.types import Reply
from proofs import Outcome, Progress, Proof
from tests.discord_server import TOKEN, DiscordServer
from tests.discord_world import Channel

PER_CHANNEL: Final = 20
KNOWN: Final = 20
PEOPLE: Final = 7
PACE: Final = Pace(identify=0.02, guilds=0.02)
PATIENCE: Final = 120.0
MOST_OPEN: Final = 30
"""Questions that wait for an answer before no more are asked."""


class Parrot:
    """A model that answers after a while of chance, and notes what it was given."""

    name = "parrot"

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.asked = 0
        self.given: dict[str, list[str]] = {}
        """What it was given with each question."""

    async def complete(self, messages: Sequence[Message], **_: Any) -> Reply:
        raise NotImplementedError

    async def stream(self, messages: Sequence[Message], **_: Any) -> AsyncIterator[str | Reply]:
        self.asked += 1
        question = messages[-1].content
        self.given[question] = [message.content for message in messages]
        if self._rng.random() < 0.2:
            await asyncio.sleep(self._rng.random() * 0.02)
        yield answer_to(question)
        yield Reply(content=answer_to(question))


def answer_to(question: str) -> str:
    return f"answer to {question}"


class Play:
    """A server, a store, people who write, and a bot that is ended and started again."""

    def __init__(self, server: DiscordServer, folder: Path, channels: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.server = server
        self.url = f"sqlite:///{folder}/memory.db"
        self.model = Parrot(random.Random(seed))
        self.counts: Counter[str] = Counter()
        self.guild = server.world.guild("Harbour")
        self.channels = [server.world.channel(self.guild, f"c{n}") for n in range(channels)]
        self.people = [server.world.user(f"user{n}", "Ana") for n in range(PEOPLE)]
        self.asked: dict[int, list[str]] = defaultdict(list)
        self.by: dict[str, int] = {}
        """Which of the people asked a question."""
        self.known = {number: f"the boat of mark{number:03}mark" for number in range(PEOPLE)}
        """The fact about each of the people."""
        self.looked = 0
        """Contexts in which facts were looked for."""
        self.said: list[dict[str, Any]] = []
        self._bot = AsyncExitStack()
        self._ahead: list[str] = []

    @asynccontextmanager
    async def bot(self, pace: Pace) -> AsyncGenerator[None]:
        """Run a bot until it is ended."""
        async with Memory.open(self.url, counter=Estimator()) as memory:
            rules = Rules(guilds=frozenset([self.guild]))
            talks = Talks(memory, chatting(self.model))
            bot = DiscordBot(talks, rules, base_url=self.server.url, pace=pace)
            before = self.server.gateway.identified
            serving = asyncio.create_task(bot.serve(TOKEN))
            try:
                await self.server.until(lambda: self.server.gateway.identified > before)
                yield
            finally:
                await bot.close()
                await serving

    async def start(self, pace: Pace = PACE) -> None:
        self.server.pardon()
        await self._bot.enter_async_context(self.bot(pace))

    async def end(self) -> None:
        await self._bot.aclose()

    async def ask(self, channel: Channel, who: int | None = None) -> None:
        """Let somebody ask the next question of a channel."""
        number = len(self.asked[channel.id])
        question = f"question {number} in {channel.name}"
        self.asked[channel.id].append(question)
        self.by[question] = self.rng.randrange(PEOPLE) if who is None else who
        text = f"{self.server.world.me.mention} {question}"
        author = self.people[self.by[question]]
        self.said.append(await self.server.say(channel, author, text))

    async def tell_facts(self) -> None:
        """Let everyone tell a fact about themselves, in some channel."""
        for person, fact in zip(self.people, self.known.values(), strict=True):
            place = self.rng.choice(self.channels)
            await self.server.told(place, person, "remember", fact=f"I own {fact}")

    async def listed(self) -> list[str]:
        """Return whom `/facts` shows something else than their own."""
        found: list[str] = []
        for number, person in enumerate(self.people):
            told = await self.server.told(self.rng.choice(self.channels), person, "facts")
            shown = [other for other, fact in self.known.items() if fact in told]
            if shown != [number] * (number in self.known):
                found.append(f"person {number} is shown the facts of {shown}")
        return found

    async def forget_one(self) -> None:
        """Let one of the people be forgotten, and ask on with the others."""
        await self.server.told(self.channels[0], self.people[0], "forget me")
        del self.known[0]
        self.by = {question: who for question, who in self.by.items() if who}
        for who in range(PEOPLE):
            await self.ask(self.rng.choice(self.channels), who)

    def mixed_up(self) -> list[str]:
        """Return the questions that the model was not given exactly the asker's fact with."""
        found: list[str] = []
        for question, who in self.by.items():
            given = "\n".join(self.model.given.get(question, ()))
            shown = [number for number in range(PEOPLE) if f"mark{number:03}mark" in given]
            self.looked += bool(given)
            if given and shown != [who] * (who in self.known):
                found.append(f"{question}, asked by {who}, was given the facts of {shown}")
        return found

    async def trouble(self, pace: Pace) -> None:
        """Let one thing go wrong; each kind once before any comes again."""
        gateway, server, rng = self.server.gateway, self.server, self.rng
        if not self._ahead:
            self._ahead = rng.sample(KINDS, len(KINDS))
        kind = self._ahead.pop()
        self.counts[kind] += 1
        match kind:
            case "reconnects asked for":
                await gateway.ask_to_reconnect()
            case "connections cut":
                gateway.cut()
            case "sessions invalidated":
                await gateway.end_sessions()
            case "sessions lost":
                gateway.lose_sessions()
            case "restarts":
                await self.end()
                await self.start(pace)
            case "messages delivered again":
                await server.say_again(rng.choice(self.said))
            case "posts refused for a while":
                server.interruptions += 1
            case "posts taken though an error was told":
                server.hiccups += 1
            case _:
                server.drops += 1

    def posted(self) -> int:
        return sum(len(self.server.posted(channel)) for channel in self.channels)

    async def settle(self, open_questions: int, patience: float) -> bool:
        """Wait until no more than so many questions are open; tell whether that came to be."""
        wanted = sum(map(len, self.asked.values())) - open_questions
        try:
            await self.server.until(lambda: self.posted() >= wanted, patience)
        except TimeoutError:
            return False
        return True

    def broken(self) -> list[str]:
        """Return where answers are not what they should be."""
        found: list[str] = []
        for channel in self.channels:
            wanted = [answer_to(question) for question in self.asked[channel.id]]
            posted = self.server.posted(channel)
            if posted != wanted:
                same = [a == b for a, b in zip(posted, wanted, strict=False)]
                at = same.index(False) if False in same else len(same)
                found.append(f"{channel.name} has {len(posted)} of {len(wanted)}, wrong at {at}")
        return found

    def forgotten(self) -> list[str]:
        """Return the channels whose last answer did not know the last messages."""
        found: list[str] = []
        for channel in self.channels:
            *earlier, newest = self.asked[channel.id]
            talk = [said for question in earlier for said in (question, answer_to(question))]
            if self.model.given.get(newest, [])[-KNOWN - 1 : -1] != talk[-KNOWN:]:
                found.append(f"{channel.name} was answered without its last {KNOWN} messages")
        return found


KINDS: Final = (
    "reconnects asked for",
    "connections cut",
    "sessions invalidated",
    "sessions lost",
    "restarts",
    "messages delivered again",
    "posts refused for a while",
    "posts taken though an error was told",
    "posts taken though the connection broke",
)


async def play(
    folder: Path,
    size: int,
    seed: int,
    progress: Progress,
    *,
    pace: Pace = PACE,
    patience: float = PATIENCE,
) -> tuple[Play, list[str]]:
    """Let everything happen, and return it with what was wrong."""
    channels = max(1, size // PER_CHANNEL)
    async with DiscordServer(rate=(5, 0.2)) as server:
        scene = Play(server, folder, channels, seed)
        order = [channel for channel in scene.channels for _ in range(PER_CHANNEL)]
        scene.rng.shuffle(order)
        troubles = set(scene.rng.sample(range(len(order)), len(order) // 8))
        await scene.start(pace)
        try:
            await scene.tell_facts()
            for number, channel in enumerate(order):
                await scene.ask(channel)
                if number in troubles:
                    await scene.trouble(pace)
                if not await scene.settle(MOST_OPEN, patience):
                    break
                progress(number + 1, len(order))
            await scene.settle(0, patience)
            broken = scene.broken()
            await scene.end()
            await scene.start(pace)
            for channel in scene.channels:
                await scene.ask(channel)
            await scene.settle(0, patience)
            if broken := broken or [*scene.broken(), *scene.forgotten()]:
                return scene, broken
            broken = [*scene.mixed_up(), *await scene.listed()]
            await scene.forget_one()
            await scene.settle(0, patience)
            return scene, [*broken, *scene.mixed_up(), *await scene.listed()]
        finally:
            await scene.end()


def run(size: int, seed: int, progress: Progress) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        scene, broken = asyncio.run(play(Path(folder), size, seed, progress))
    gateway = scene.server.gateway
    figures = {
        "channels": len(scene.channels),
        "questions": sum(map(len, scene.asked.values())),
        "answers": scene.posted(),
        **{kind: scene.counts[kind] for kind in KINDS},
        "sessions started again": gateway.identified,
        "sessions resumed": gateway.resumed,
        "told to wait": scene.server.limited,
        "did not wait": scene.server.impatient,
        "times the model was asked": scene.model.asked,
        "contexts searched for the facts of others": scene.looked,
        "violations": len(broken),
    }
    if scene.server.impatient:
        broken = [*broken, f"it did not wait {scene.server.impatient} times when told to"]
    return Outcome(figures=figures, broken=tuple(f"seed {seed}: {line}" for line in broken))


PROOF: Final = Proof(
    name="P22",
    promise="on Discord every question is answered in its channel, in order, once; and kept;"
    " and nobody is answered from facts about somebody else",
    unit="messages in channels of 20",
    small=100,
    closing=1_000,
    long=10_000,
    run=run,
)
