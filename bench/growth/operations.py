"""What is measured: each operation does its work once, the part that counts inside of the meter.

What an operation leaves behind is removed outside of it, so that only the dimension grows.
"""

from collections.abc import Awaitable, Callable
from itertools import islice
from typing import TypeAlias

from bench.corpus import COUNTER, tokens_of
from bench.growth.filling import (
    DIMENSIONS,
    EVERYTHING,
    MAIN,
    OWNER,
    World,
    add_session,
    messages,
    question,
    texts,
)
from bench.growth.stores import Meter
from keepthread import Message
from keepthread.interchange.export import export
from keepthread.stores.kinds import MARKS
from keepthread.types import Scope

Operation: TypeAlias = Callable[[World, Meter], Awaitable[object]]
_SOME = 20
"""Messages of a session that an operation works on as a whole."""


def _user(text: str = "") -> Message:
    content = text or question()
    return Message(role="user", content=content, tokens=tokens_of(len(content)), counter=COUNTER)


async def _some_session(world: World, owner: str = OWNER) -> str:
    """Create a session of some messages."""
    name = world.name()
    await add_session(world, name, owner, list(islice(messages(), _SOME)))
    return name


# --- sessions and messages ---


async def open_and_close(world: World, meter: Meter) -> None:
    with meter:
        store = await world.site.open()
        await store.close()


async def get_session(world: World, meter: Meter) -> None:
    with meter:
        await world.memory.get_session(MAIN, owner=OWNER)


async def create_session(world: World, meter: Meter) -> None:
    name = world.name()
    with meter:
        await world.memory.create_session(name, owner=OWNER)
    await world.memory.delete_session(name, owner=OWNER)


async def update_session(world: World, meter: Meter) -> None:
    with meter:
        await world.session.update(title=world.name())


async def append(world: World, meter: Meter) -> None:
    with meter:
        await world.session.append(_user())


async def first_messages(world: World, meter: Meter) -> None:
    with meter:
        await world.session.messages(limit=_SOME)


async def newest_messages(world: World, meter: Meter) -> None:
    end = (await world.store.describe(world.session.key)).messages + 1
    with meter:
        await world.session.messages(before=end, limit=_SOME)


async def list_of_owner(world: World, meter: Meter) -> None:
    with meter:
        await world.memory.list_sessions(owner=OWNER, limit=10)


async def list_of_tenant(world: World, meter: Meter) -> None:
    with meter:
        await world.memory.admin.list_sessions(limit=10)


async def status(world: World, meter: Meter) -> None:
    with meter:
        await world.session.status()


# --- contexts and turns ---


def context(view: str) -> Operation:
    async def operation(world: World, meter: Meter) -> None:
        with meter:
            _ = (await world.session.context(view, query=question())).why.choices

    return operation


def turn(view: str) -> Operation:
    async def operation(world: World, meter: Meter) -> None:
        with meter:
            async with world.session.turn(question()) as one:
                await one.context(view)
                await one.finish(texts()[0])

    return operation


async def compact(world: World, meter: Meter) -> None:
    await world.session.append(*islice(messages(), 10))
    with meter:
        await world.session.compact()


# --- searching ---


async def search_session(world: World, meter: Meter) -> None:
    with meter:
        await world.memory.search(question(), owner=OWNER, session=MAIN)


async def search_owner(world: World, meter: Meter) -> None:
    with meter:
        await world.memory.search(question(), owner=OWNER)


async def search_tenant(world: World, meter: Meter) -> None:
    with meter:
        await world.memory.admin.search(question())


async def index(world: World, meter: Meter) -> None:
    await world.session.append(*islice(messages(), 10))
    with meter:
        await world.memory.index(owner=OWNER)


# --- records of a session ---


async def pin(world: World, meter: Meter) -> None:
    (message,) = await world.session.append(_user())
    with meter:
        await world.session.pin(message.id)
    await world.session.unpin(message.id)


async def add_note(world: World, meter: Meter) -> None:
    with meter:
        await world.session.add_note(world.name(), texts()[1], turns=1)


async def cache_tool(world: World, meter: Meter) -> None:
    with meter:
        await world.session.cache_tool("find", {"at": world.name()}, texts()[2], 1)


async def cached_tool(world: World, meter: Meter) -> None:
    arguments = {"at": world.name()}
    await world.session.cache_tool("find", arguments, texts()[2], 1)
    with meter:
        assert await world.session.cached_tool("find", arguments) == texts()[2]


async def pins(world: World, meter: Meter) -> None:
    with meter:
        await world.session.pins()


async def cached_tools(world: World, meter: Meter) -> None:
    with meter:
        await world.session.cached_tools()


async def compactions(world: World, meter: Meter) -> None:
    with meter:
        await world.session.compactions()


async def rewind(world: World, meter: Meter) -> None:
    stored = await world.session.append(*islice(messages(), 2))
    await _hiding(world, meter, lambda: world.session.rewind(stored[0].seq - 1))


async def clear(world: World, meter: Meter) -> None:
    await _hiding(world, meter, world.session.clear)


async def _hiding(world: World, meter: Meter, hide: Callable[[], Awaitable[None]]) -> None:
    """Hide messages, and show them again."""
    place = (Scope(session=world.session.key), MARKS, MARKS)
    before = await world.store.get(*place)
    with meter:
        await hide()
    await world.store.drop(*place)
    if before:
        await world.store.put(*place, before.value)


# --- copies ---


async def fork(world: World, meter: Meter) -> None:
    await _forked(world, meter, _SOME)


async def fork_whole(world: World, meter: Meter) -> None:
    await _forked(world, meter, None)


async def _forked(world: World, meter: Meter, at: int | None) -> None:
    name = world.name()
    with meter:
        await world.session.fork(at, id=name)
    await world.memory.delete_session(name, owner=OWNER)


async def export_session(world: World, meter: Meter) -> None:
    name = await _some_session(world)
    with meter:
        await export(world.store, len, sessions=[name], owner=OWNER)
    await world.memory.delete_session(name, owner=OWNER)


async def verify(world: World, meter: Meter) -> None:
    with meter:
        assert (await world.memory.admin.verify()).sound


# --- removing ---


async def prune(world: World, meter: Meter) -> None:
    with meter:
        await world.memory.admin.prune(30)


async def delete_session(world: World, meter: Meter) -> None:
    name = await _some_session(world)
    with meter:
        await world.memory.delete_session(name, owner=OWNER)


async def forget_message(world: World, meter: Meter) -> None:
    (message,) = await world.session.append(_user(world.name()))
    with meter:
        await world.memory.forget(owner=OWNER, session=MAIN, message=message.id)


async def preview_forget(world: World, meter: Meter) -> None:
    (message,) = await world.session.append(_user(world.name()))
    with meter:
        await world.memory.forget(owner=OWNER, session=MAIN, message=message.id, dry_run=True)


async def forget_session(world: World, meter: Meter) -> None:
    name = await _some_session(world)
    with meter:
        await world.memory.forget(owner=OWNER, session=name)


async def forget_owner(world: World, meter: Meter) -> None:
    owner = world.name()
    for _ in range(3):
        await _some_session(world, owner)
    with meter:
        await world.memory.forget(owner=owner)


async def receipts(world: World, meter: Meter) -> None:
    with meter:
        await world.memory.for_owner(OWNER).receipts()


# --- facts, blobs, changes ---


async def remember(world: World, meter: Meter) -> None:
    facts, name = world.memory.for_owner(OWNER).facts, world.name()
    with meter:
        fact = await facts.remember(f"Anna's {name} is blue", attribute=name, value="blue")
    await facts.forget(fact.key)


async def list_facts(world: World, meter: Meter) -> None:
    with meter:
        await world.memory.for_owner(OWNER).facts.list(limit=10)


async def search_facts(world: World, meter: Meter) -> None:
    with meter:
        await world.memory.for_owner(OWNER).facts.search(question())


async def blob(world: World, meter: Meter) -> None:
    blobs, data = world.memory.for_owner(OWNER).blobs, world.name().encode() * 1000
    with meter:
        stored = await blobs.put(data)
        await blobs.read(stored.digest)
        await blobs.delete(stored.digest)


async def changes(world: World, meter: Meter) -> None:
    owner = world.memory.for_owner(OWNER)
    after = (await owner.changes(limit=0)).next
    await world.session.append(_user())
    with meter:
        await owner.changes(after=after, limit=10)


OPERATIONS: dict[str, Operation] = {
    "open and close": open_and_close,
    "get a session": get_session,
    "create a session": create_session,
    "update a session": update_session,
    "append": append,
    "first messages": first_messages,
    "newest messages": newest_messages,
    "list sessions of an owner": list_of_owner,
    "list sessions of the tenant": list_of_tenant,
    "status": status,
    "context by window": context("window"),
    "context by summarized": context("summarized"),
    "context by hybrid": context("hybrid"),
    "context by recall": context("recall"),
    "turn with window": turn("window"),
    "turn with hybrid": turn("hybrid"),
    "compact": compact,
    "search a session": search_session,
    "search an owner": search_owner,
    "search the tenant": search_tenant,
    "index 10 messages": index,
    "pin": pin,
    "pins": pins,
    "add a note": add_note,
    "cache a tool result": cache_tool,
    "look up a tool result": cached_tool,
    "cached tool results": cached_tools,
    "compactions": compactions,
    "rewind": rewind,
    "clear": clear,
    "fork at a position": fork,
    "fork": fork_whole,
    "export a session": export_session,
    "verify": verify,
    "prune": prune,
    "delete a session": delete_session,
    "preview a forget": preview_forget,
    "forget a message": forget_message,
    "forget a session": forget_session,
    "forget an owner": forget_owner,
    "receipts": receipts,
    "remember a fact": remember,
    "list facts": list_facts,
    "search facts": search_facts,
    "put, read, delete a blob": blob,
    "changes": changes,
}

SEARCHING = {"search a session", "search an owner", "search the tenant", "index 10 messages"}
FACTS = {"remember a fact", "list facts", "search facts"}
"""Operations that need a store with search, as facts do."""
_RECALLING = {"context by hybrid", "context by recall", "turn with hybrid"}
_INDEXED = {"messages of a session", "messages of an owner", "sessions", "owners", EVERYTHING}
_OF_THE_SESSION = {
    *("messages of a session", "pins", "notes", "cached tool results"),
    *("hidden ranges", "compactions", EVERYTHING),
}
_LINEAR = {
    "verify": {*DIMENSIONS, EVERYTHING},
    "fork": _OF_THE_SESSION,
    "pins": {"pins", EVERYTHING},
    "cached tool results": {"cached tool results", EVERYTHING},
}
FLAT, LOGARITHMIC, LINEAR = "flat", "logarithmic", "linear"


def expected(operation: str, dimension: str) -> str:
    """Say how an operation may grow: linearly only where its output does."""
    if dimension in _LINEAR.get(operation, ()):
        return LINEAR
    if operation in SEARCHING | _RECALLING and dimension in _INDEXED:
        return LOGARITHMIC
    if operation in SEARCHING and dimension in _OF_THE_SESSION:  # each comes with a message or more
        return LOGARITHMIC
    if operation == "search facts" and dimension in ("facts", EVERYTHING):
        return LOGARITHMIC
    return FLAT


LARGEST_LINEAR = 10_000
"""Sizes above are left out where the work is linear: they would take minutes and show the same."""
