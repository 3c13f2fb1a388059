"""A conversation in a session, alone or with notes, cached results, pins and compactions."""

import random
from collections.abc import Mapping, Sequence

from bench.corpus import words
from bench.counters import Counter
from bench.prefix.prompts import Prompts, Shares
from bench.talks import Kind, system_prompt, talk
from keepthread import Memory, Message, Session, Turn, View

BUDGETS = (4096, 32_768)
SEED = 1
OTHER_SEEDS = (2, 3, 4)
PINS = 20
_PINNED_AT = 30  # messages of the conversation that are there
_NOTES = {0: "screen", 3: "file", 6: "plan", 9: "place"}  # before which turn comes which
_NOTE_WORDS = 9
_RESULT_WORDS = (12, 20)
_LIFETIMES = (3, 8)
_CHANCE = 0.2  # of a new result before a turn
_MOST_RESULTS = 3
_LOOKED_UP = 4  # turns from one use of the profile to the next, so that it lives on
_PROFILE_LIFETIME = 8


class Company:
    """What a program puts beside a conversation: notes of 100 tokens, results up to 200, pins."""

    def __init__(self, session: Session, seed: int) -> None:
        self._session = session
        self._chance = random.Random(f"company {seed}")
        self._said: list[str] = []

    async def before(self, number: int) -> None:
        """Do what comes before a turn."""
        session, chance = self._session, self._chance
        if key := _NOTES.get(number):
            await session.add_note(key, words(chance, _NOTE_WORDS))
        if number % _LOOKED_UP == 0 and await session.cached_tool("profile", {}) is None:
            await self._remember("profile", {}, _PROFILE_LIFETIME)
        remembered = await session.cached_tools()
        if chance.random() < _CHANCE and len(remembered) < _MOST_RESULTS:
            await self._remember("page", {"number": number}, chance.randint(*_LIFETIMES))

    async def _remember(self, name: str, args: Mapping[str, int], cache_turns: int) -> None:
        result = words(self._chance, self._chance.randint(*_RESULT_WORDS))
        await self._session.cache_tool(name, dict(args), result, cache_turns)

    async def said(self, messages: Sequence[Message]) -> None:
        """Take note of what was said, and pin the earliest of it once there is enough."""
        if len(self._said) >= _PINNED_AT:
            return
        self._said += [message.id for message in messages]
        if len(self._said) >= _PINNED_AT:
            for id in self._said[:PINS]:
                await self._session.pin(id)


async def hold(
    kind: Kind,
    seed: int,
    turns: int,
    views: Mapping[str, View],
    counter: Counter,
    *,
    company: bool = False,
) -> dict[str, Shares]:
    """Hold a conversation once, and return what its prompts come to under each view."""
    prompts = {name: Prompts(counter) for name in views}

    async def call(turn: Turn) -> None:
        for name, seen in prompts.items():
            seen.add(await turn.context(name))

    ids = random.Random(f"ids {seed}")
    async with Memory.open(
        "ram://", views=views, counter=counter, ids=lambda: f"{ids.getrandbits(128):032x}"
    ) as memory:
        session = await memory.session("talk", system_prompt=system_prompt(seed))
        beside = Company(session, seed) if company else None
        for number, talked in enumerate(talk(kind, seed, turns)):
            if beside:
                await beside.before(number)
            async with session.turn(talked.asked) as turn:
                said = [turn.user]
                await call(turn)
                for each in talked.rounds:
                    said += await turn.append(each.call)
                    said += await turn.append(*each.results)
                    await call(turn)
                said.append(await turn.finish(talked.answered))
            if beside:
                await beside.said(said)
                await memory._runtime.background.settle()  # so that compaction is not by chance
    return {name: seen.shares for name, seen in prompts.items()}
