"""What grows: each dimension fills a store with one kind of data, everything else being alike.

Every store has an owner with a session in use, and its newest messages are the same whatever its
size: so that the output of an operation does not depend on the size either.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import accumulate, count, cycle, islice
from typing import NamedTuple, TypeAlias

from bench.corpus import COUNTER, tokens_of
from bench.furnished import Quarters
from bench.growth.stores import Site
from keepthread import Hybrid, Memory, Message, Options, Recall, Session, Summarized, View, Window
from keepthread.context.hidden import REWOUND, HiddenRanges
from keepthread.memory.facts.types import Noted
from keepthread.memory.material import position_key
from keepthread.protocols import Store
from keepthread.stores.kinds import FOLD, MARKS
from keepthread.types import JSON, Hidden, Role, Scope, SessionInfo, Span

OWNER = "anna"
MAIN = "main"
NEWEST = 60
"""Messages at the end of the session in use, which its contexts show."""
BUDGET = 1000
FOR_EVER = 1_000_000
"""Turns."""
_AT_ONCE = 500
_TOGETHER = 16
_WORDS, _TEXTS, _LENGTH = 20_000, 4096, 16
_SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in "aeiou"]
_ROLES: Sequence[Role] = ("user", "assistant")
_VIEWS = {
    "window": View(BUDGET, Window(step=0)),
    "summarized": View(BUDGET, Summarized(step=0)),
    "hybrid": View(BUDGET, Hybrid(step=0, recall="owner")),
    "recall": View(BUDGET, Recall(step=0, recall="owner")),
}


class World(NamedTuple):
    """A filled store, and the session in use."""

    site: Site
    size: int
    memory: Memory
    session: Session
    numbers: Iterator[int]
    """Numbers for names that are used once."""

    @property
    def store(self) -> Store:
        """Return the store."""
        return self.memory.store

    def name(self) -> str:
        """Return a name that is new here."""
        return f"new-{next(self.numbers)}"


@cache
def vocabulary() -> list[str]:
    """Return words, the commonest first."""
    chance = random.Random(1)
    found: dict[str, None] = {}
    while len(found) < _WORDS:
        found["".join(chance.choices(_SYLLABLES, k=chance.randint(2, 4)))] = None
    return list(found)


@cache
def texts() -> list[str]:
    """Return texts whose words are as frequent as those of people are: by Zipf's law."""
    chance = random.Random(2)
    weights = list(accumulate(1 / (rank + 10) for rank in range(_WORDS)))
    words = iter(chance.choices(vocabulary(), cum_weights=weights, k=_TEXTS * _LENGTH))
    return [" ".join(islice(words, _LENGTH)) for _ in range(_TEXTS)]


def question() -> str:
    """Return a question of one common word, one that is less so, and one that is rare."""
    words = vocabulary()
    return f"what about {words[60]}, {words[600]} and {words[6000]}?"


def messages() -> Iterator[Message]:
    """Yield messages of user and assistant by turns, counted already."""
    for place, text in enumerate(cycle(texts())):
        tokens = tokens_of(len(text))
        yield Message(role=_ROLES[place % 2], content=text, tokens=tokens, counter=COUNTER)


async def open_world(site: Site, size: int) -> World:
    """Open an empty store."""
    store = await site.open()
    memory = Memory(store, Options(counter=Quarters(), views=_VIEWS, recall="owner"))
    session = await memory.session(MAIN, owner=OWNER)
    return World(site, size, memory, session, count(1))


async def fill(world: World, dimension: str) -> None:
    """Fill a store to its size along one dimension, and index it."""
    await _add(world, 2)
    await (_everything if dimension == EVERYTHING else DIMENSIONS[dimension].fill)(world)
    await _add(world, NEWEST)
    await _summarize(world)
    if await world.store.finder() is not None:
        await world.memory.admin.index()
    world.site.settle()


async def _add(world: World, number: int) -> None:
    """Append messages to the session in use."""
    coming = islice(messages(), number)
    while batch := list(islice(coming, _AT_ONCE)):
        await world.store.append(world.session.key, batch)


async def _summarize(world: World) -> None:
    """Write a summary of the session in use, as compaction would have left it."""
    (last,) = await world.store.tail(world.session.key, limit=1)
    await _put_summary(world, await _after_hidden(world), last)


async def _after_hidden(world: World) -> int:
    """Return the first position after everything hidden, as a summary covers nothing hidden."""
    return max((each.last for each in await world.session.hidden()), default=0) + 1


async def _put_summary(world: World, first: int, last: Message) -> None:
    value: JSON = {
        "text": "\n".join(f"- User: {text}" for text in texts()[:5]),
        "last": last.seq,
        "turn": last.turn,
        "number": last.turn,
        "tokens": last.total,
        "origin": "user",
        "kept": [],
        "head": last.seq,
        "by": "lines",
    }
    key, scope = world.session.key, Scope(session=world.session.key)
    made_of = [Span(session=key, first=first, last=last.seq)]
    await world.store.put(scope, FOLD, position_key(last.seq), value, made_of=made_of)


async def together(work: Iterable[Awaitable[object]]) -> None:
    """Do some pieces of work at a time."""
    coming = iter(work)
    while batch := list(islice(coming, _TOGETHER)):
        await asyncio.gather(*batch)


async def add_session(world: World, id: str, owner: str, said: Sequence[Message]) -> None:
    """Create a session with messages."""
    made = await world.store.put_session(SessionInfo(id=id, owner=owner))
    await world.store.append(made.key, said)


# --- the dimensions ---


async def _messages(world: World) -> None:
    await _add(world, world.size)


async def _messages_of_owner(world: World) -> None:
    """Sessions of a hundred messages, or of ten if there are few."""
    each = 100 if world.size >= 10_000 else 10
    said, every = list(islice(messages(), _TEXTS)), range(world.size // each)
    await together(
        add_session(world, f"m{n}", OWNER, said[n * each % _TEXTS :][:each]) for n in every
    )


async def _sessions(world: World) -> None:
    said = list(islice(messages(), 2))
    await together(add_session(world, f"s{n}", OWNER, said) for n in range(world.size))


async def _owners(world: World) -> None:
    said = list(islice(messages(), 4))
    await together(add_session(world, "talk", f"owner {n}", said) for n in range(world.size))


async def _facts(world: World) -> None:
    repository = world.memory.for_owner(OWNER).facts._repository
    some = (
        Noted(key="", text=texts()[n % _TEXTS], at=1.7e9 + n, attribute=f"a{n}", value=f"v{n}")
        for n in range(world.size)
    )
    await together(repository.add(fact) for fact in some)


async def _pins(world: World) -> None:
    for start in range(0, world.size, _AT_ONCE):
        many = min(_AT_ONCE, world.size - start)
        stored = await world.store.append(world.session.key, list(islice(messages(), many)))
        await together(world.session.pin(message.id) for message in stored)


async def _notes(world: World) -> None:
    add = world.session.add_note
    await _between_turns(world, lambda n: add(f"note {n}", texts()[n % _TEXTS]))


async def _tools(world: World) -> None:
    cache = world.session.cache_tool
    await _between_turns(world, lambda n: cache("look", {"at": n}, texts()[n % _TEXTS], FOR_EVER))


async def _between_turns(world: World, add: Callable[[int], Awaitable[object]]) -> None:
    """Add records, a few in each turn: the current turn is looked for from the end of the log."""
    for start in range(0, world.size, _TOGETHER):
        await _add(world, 2)
        await together(map(add, range(start, min(world.size, start + _TOGETHER))))


async def _hidden(world: World) -> None:
    """Hide every second message, as many rewinds would have."""
    start = (await world.store.describe(world.session.key)).messages
    await _add(world, 2 * world.size)
    tokens = [tokens_of(len(text)) for text in texts()]
    hidden = [
        Hidden(first=start + n, last=start + n, tokens=tokens[(n - 1) % _TEXTS], reason=REWOUND)
        for n in range(2, 2 * world.size + 1, 2)
    ]
    scope = Scope(session=world.session.key)
    await world.store.put(scope, MARKS, MARKS, HiddenRanges(hidden=hidden).to_json())


async def _compactions(world: World) -> None:
    after = (await world.store.describe(world.session.key)).messages
    await _add(world, 2 * world.size)
    end = after + 2 * world.size
    first = await _after_hidden(world)
    while after < end:
        page = await world.store.read(world.session.key, after=after, limit=_AT_ONCE)
        after = page[-1].seq
        answers = [message for message in page if message.role == "assistant"]
        await together(_put_summary(world, first, each) for each in answers)


async def _everything(world: World) -> None:
    """Fill it along each dimension that the store has."""
    for name, dimension in DIMENSIONS.items():
        if await serves(world, name):
            await dimension.fill(world)


async def serves(world: World, dimension: str) -> bool:
    """Tell whether a store has such data; facts need one that searches."""
    return dimension != "facts" or await world.store.finder() is not None


Fill: TypeAlias = Callable[[World], Awaitable[None]]


class Dimension(NamedTuple):
    """One kind of data, and how much of it there is at most."""

    fill: Fill
    most: int


DIMENSIONS = {
    "messages of a session": Dimension(_messages, 1_000_000),
    "messages of an owner": Dimension(_messages_of_owner, 1_000_000),
    "sessions": Dimension(_sessions, 100_000),
    "owners": Dimension(_owners, 10_000),
    "facts": Dimension(_facts, 10_000),
    "pins": Dimension(_pins, 10_000),
    "notes": Dimension(_notes, 10_000),
    "cached tool results": Dimension(_tools, 10_000),
    "hidden ranges": Dimension(_hidden, 10_000),
    "compactions": Dimension(_compactions, 10_000),
}
EVERYTHING = "everything"
"""All dimensions at once, as a quick run has them."""
QUICK = (10, 100)


def sizes(dimension: str) -> list[int]:
    """Return three sizes a factor of ten apart."""
    most = DIMENSIONS[dimension].most
    return [most // 100, most // 10, most]
