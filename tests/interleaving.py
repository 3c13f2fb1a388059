"""Operations that meet: one runs whole before a store call of another, or the other ends there."""

import asyncio
import hashlib
import time
from collections.abc import Awaitable, Callable, Collection
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from itertools import count
from math import inf
from typing import Any, Final, NamedTuple, TypeAlias

from keepthread import Attachment, Memory, Message, OwnerMemory, Scope
from keepthread.context.full_text import blobs_of
from keepthread.errors import (
    Conflict,
    KeepthreadError,
    MessageNotFound,
    NotFound,
    SessionExists,
    SessionGone,
    SessionNotFound,
    Stale,
)
from keepthread.memory.blobs.types import Described
from keepthread.memory.forgetting.follow import all_sessions
from keepthread.protocols import Store
from keepthread.stores.kinds import BLOB, BLOB_CHUNK, BLOB_UPLOAD, FORGET, LEASE
from proofs.interposed import memory_over
from tests.dying import Killed

DATA: Final = b"a signed contract " * 300
NEW: Final = b"a new contract " * 300
LARGE: Final = "large secret " * 300
DIGEST: Final = hashlib.sha256(DATA).hexdigest()
TEA, CAT = "I like tea", "I have a cat"
SEEN: Final = "see the secret contract"
OTHER: Final = "other secret"
OF_SESSION: Final = frozenset({"question secret", "answer secret", SEEN, LARGE})
DAYS: Final = 2 * 86_400.0
SECONDS: Final = 60.0
"""How long two operations may take: longer is a deadlock."""

Run: TypeAlias = Callable[[Memory, str | None], Awaitable[object]]
Check: TypeAlias = Callable[[OwnerMemory], Awaitable[bool]]


def attached(text: str, id: str, digest: str = DIGEST) -> Message:
    file = Attachment(media_type="a/b", name="x", uri=f"blob:{digest}")
    return Message(role="user", content=text, id=id, attachments=(file,))


async def set_up(bob: OwnerMemory) -> None:
    """Write what operations are tried on."""
    session = await bob.session("s")
    await bob.blobs.put(DATA, name="x")
    async with session.turn("question secret") as turn:
        await turn.finish("answer secret")
    await session.append(attached(SEEN, "att"), Message(role="user", content=LARGE, id="large"))
    await session.fork(id="f0")
    await (await bob.session("t")).append(Message(role="user", content=OTHER, id="other"))
    await bob.facts.remember(TEA)
    await bob.search("secret")  # so that an index has them


# --- operations ---


class Kept(NamedTuple):
    """Something that was written, and the operations that may erase it."""

    name: str
    check: Check
    lost_to: Collection[str]


class Operation(NamedTuple):
    """One operation of an owner; `id` is that of a forgetting."""

    run: Run
    kept: Kept | None = None
    erases: Collection[str] = ()
    """The texts that a forgetting erases."""
    refusals: tuple[type[KeepthreadError], ...] = (
        *(Conflict, MessageNotFound, NotFound, SessionExists, SessionGone, SessionNotFound, Stale),
    )


def has_message(session: str, id: str) -> Check:
    async def check(bob: OwnerMemory) -> bool:
        try:
            messages = await (await bob.get_session(session)).messages(limit=1000)
        except SessionNotFound:
            return False
        return any(m.id == id and m.state == "live" for m in messages)

    return check


def has_blob(data: bytes) -> Check:
    async def check(bob: OwnerMemory) -> bool:
        try:
            return await bob.blobs.read(hashlib.sha256(data).hexdigest()) == data
        except KeepthreadError:
            return False

    return check


def has_fact(text: str) -> Check:
    async def check(bob: OwnerMemory) -> bool:
        return any(fact.text == text for fact in await bob.facts.list())

    return check


def appends(session: str, message: Message) -> Run:
    async def run(memory: Memory, _: str | None) -> None:
        await (await memory.get_session(session, owner="bob")).append(message)

    return run


def forgets(**query: Any) -> Run:
    return lambda memory, id: memory.for_owner("bob").forget(**query, id=id)


async def fork(memory: Memory, _: str | None) -> None:
    await (await memory.get_session("s", owner="bob")).fork(id="f1")


async def forget_a_fact(memory: Memory, _: str | None) -> None:
    facts = memory.for_owner("bob").facts
    for fact in await facts.list():
        if fact.text == TEA:
            await facts.forget(fact.key)


FORGETS: Final = ("forget everything", "forget a session", "forget a message", "forget since")
OF_ALL: Final = ("forget everything", "forget since", "prune")
ALL_TEXTS: Final = OF_SESSION | {OTHER}
_FOUND: Final = (SessionNotFound, MessageNotFound)
"""The errors of a forgetting that has nothing to forget; a deleted session is no other error."""

OPERATIONS: Final[dict[str, Operation]] = {
    "forget everything": Operation(forgets(everything=True), None, ALL_TEXTS, ()),
    "forget a session": Operation(forgets(session="s"), None, OF_SESSION, _FOUND),
    "forget a message": Operation(forgets(session="s", message="att"), None, {SEEN}, _FOUND),
    "forget since": Operation(forgets(since=0), None, ALL_TEXTS, ()),
    "delete a session": Operation(lambda memory, _: memory.delete_session("s", owner="bob")),
    "fork": Operation(fork),
    "put a blob": Operation(
        lambda memory, _: memory.for_owner("bob").blobs.put(NEW),
        Kept("new blob", has_blob(NEW), {"forget everything"}),
    ),
    "put a blob again": Operation(
        lambda memory, _: memory.for_owner("bob").blobs.put(DATA),
        Kept("blob that was put again", has_blob(DATA), FORGETS),
    ),
    "append a large text": Operation(
        appends("t", Message(role="user", content="LATE " * 800, id="late large")),
        Kept("large text", has_message("t", "late large"), OF_ALL),
    ),
    "append an attachment": Operation(
        appends("t", attached("again", "late att")),
        Kept("message with an attachment", has_message("t", "late att"), OF_ALL),
    ),
    "append": Operation(
        appends("s", Message(role="user", content="late", id="late")),
        Kept(
            "late message",
            has_message("s", "late"),
            (*OF_ALL, "forget a session", "delete a session"),
        ),
    ),
    "remember a fact": Operation(
        lambda memory, _: memory.for_owner("bob").facts.remember(CAT),
        Kept("fact", has_fact(CAT), {"forget everything"}),
    ),
    "forget a fact": Operation(forget_a_fact),
    "prune": Operation(lambda memory, _: memory.admin.prune(0)),
}
BEFORE: Final = (
    Kept("old message", has_message("t", "other"), OF_ALL),
    Kept("old fact", has_fact(TEA), {"forget everything", "forget a fact"}),
    Kept("old blob", has_blob(DATA), FORGETS),
)
"""What `set_up` wrote."""


def back(number: int) -> list[tuple[Run, Kept]]:
    """Return what an owner writes after all that."""
    data = f"contract {number} ".encode() * 200
    message = attached(f"here is contract {number}", "back", hashlib.sha256(data).hexdigest())
    text, session = f"I bought house {number}", f"new {number}"

    async def put(memory: Memory, _: str | None) -> None:
        await memory.for_owner("bob").blobs.put(data)

    async def append(memory: Memory, _: str | None) -> None:
        await (await memory.session(session, owner="bob")).append(message)

    return [
        (put, Kept(f"blob {number}", has_blob(data), ("forget everything", "forget since"))),
        (append, Kept(f"message {number}", has_message(session, "back"), OF_ALL)),
        (
            lambda memory, _: memory.for_owner("bob").facts.remember(text),
            Kept(f"fact {number}", has_fact(text), {"forget everything"}),
        ),
    ]


# --- trials ---

_operation: ContextVar[str] = ContextVar("operation", default="")
_STALLED: Final = 10
_PAUSE: Final = 0.05


class Trial(NamedTuple):
    """What is tried: an operation, and what happens before one of its calls of the store."""

    first: str
    then: str
    """An operation that runs whole, `cancel` or `kill`."""
    at: int
    beside: bool = False
    """Whether the other operation runs in another process, or what comes nearest to it."""
    id: str | None = None


class Meeting:
    """Counts the store calls of the first operation, and does something before one of them."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.calls = 0
        self.others = 0
        """Calls of the second operation."""
        self.dead = False
        self.act: Callable[[], Awaitable[None]] | None = None

    async def before(self, _: str, __: tuple[Any, ...]) -> None:
        if _operation.get() != "first":
            self.others += 1
            return
        if self.dead:
            raise Killed
        self.calls += 1
        if self.calls == self.at and self.act:
            await self.act()


def started(name: str, work: Awaitable[None]) -> "asyncio.Task[None]":
    """Begin an operation; its store calls are known by its name."""

    async def run() -> None:
        await work

    context = copy_context()
    context.run(_operation.set, name)
    return asyncio.create_task(run(), context=context)


@dataclass
class Life:
    """One owner in one tenant, and what happened so far."""

    store: Store
    kept: list[tuple[float, Kept]] = field(default_factory=list)
    """What is acknowledged, and since when."""
    ends: dict[str, float] = field(default_factory=dict)
    """When operations ended, the last of each name."""
    done: set[str] = field(default_factory=set)
    problems: list[str] = field(default_factory=list)
    numbers: "count[int]" = field(default_factory=count)

    async def run(self, name: str, memory: Memory, id: str | None = None) -> None:
        """Run an operation, and note what it acknowledges."""
        operation, begun = OPERATIONS[name], time.monotonic()
        self.ends[name] = inf
        try:
            await operation.run(memory, id)
        except operation.refusals:
            pass
        except Exception as error:  # noqa: BLE001 - any other error is what we look for
            self.problems.append(f"{name} raises {error!r}")
        else:
            self.done.add(name)
            if operation.kept:
                self.kept.append((begun, operation.kept))
        self.ends[name] = time.monotonic()

    async def write(self, memory: Memory) -> None:
        """Write what must stay."""
        for run, kept in back(next(self.numbers)):
            begun = time.monotonic()
            await run(memory, None)
            self.kept.append((begun, kept))

    # --- invariants ---

    async def check(self, memory: Memory, when: str) -> None:
        """Note whatever does not hold; reading through the store alone completes nothing."""
        found = [
            *await self._left(),
            *await self._unreadable(memory.for_owner("bob")),
            *await self._lost(memory.for_owner("bob")),
            *await self._remembered(memory),
        ]
        self.problems += [f"{problem} {when}" for problem in found]

    async def intents(self, when: str) -> None:
        """Note an intent that is left."""
        if await self.store.scan(Scope(), FORGET):
            self.problems.append(f"an intent is left {when}")

    async def live(self) -> dict[str, list[Message]]:
        """Return the live messages by session."""
        found: dict[str, list[Message]] = {}
        for key, info in (await all_sessions(self.store)).items():
            messages = await self.store.read(key, limit=1000)
            found[info.id] = [m for m in messages if m.state == "live"]
            if len({m.seq for m in messages}) < len(messages):
                self.problems.append(f"two messages of {info.id} have one position")
        return found

    async def _left(self) -> list[str]:
        scopes = [Scope(), Scope(owner="bob")]
        scopes += [Scope(session=key) for key in await all_sessions(self.store)]
        leases = [scope for scope in scopes if await self.store.scan(scope, LEASE)]
        return [f"a lease is left in {scope}" for scope in leases]

    async def _unreadable(self, bob: OwnerMemory) -> list[str]:
        digests = {blob.digest: "a listed blob" for blob in await bob.blobs.list()}
        for id, messages in (await self.live()).items():
            for message in messages:
                digests |= dict.fromkeys(blobs_of(message), f"{id}: {message.id}")
        found: list[str] = []
        for digest, what in digests.items():
            try:
                await bob.blobs.read(digest)
            except KeepthreadError as error:
                found.append(f"{what} cannot be read: {error!r}")
        return found

    async def _lost(self, bob: OwnerMemory) -> list[str]:
        return [
            f"lost: {kept.name}"
            for since, kept in self.kept
            if all(self.ends.get(name, 0) < since for name in kept.lost_to)
            and not await kept.check(bob)
        ]

    async def _remembered(self, memory: Memory) -> list[str]:
        """Return what an acknowledged forgetting has left."""
        texts = {text for name in self.done for text in OPERATIONS[name].erases}
        messages = [m for found in (await self.live()).values() for m in found]
        found = [f"live: {m.content[:20]!r}" for m in messages if self._is_in(m.content, texts)]
        hits = await memory.search("secret", owner="bob", limit=100)
        found += [f"found: {h.message.content[:20]!r}" for h in hits if h.message.content in texts]
        if self.done & {"forget everything", "forget a fact"} and await has_fact(TEA)(
            memory.for_owner("bob")
        ):
            found.append("live: a forgotten fact")
        return found

    def _is_in(self, content: str, texts: Collection[str]) -> bool:
        """Return whether a text is one of these; of a large one, a log has the beginning."""
        return content in texts or (LARGE in texts and content.startswith(LARGE[:100]))

    async def half(self, name: str, when: str) -> None:
        """Note whether an interrupted forgetting is done in part."""
        texts = OPERATIONS[name].erases
        messages = [m for found in (await self.live()).values() for m in found]
        left = [m for m in messages if self._is_in(m.content, texts)]
        before = {"forget a message": 2, "forget a session": 8}.get(name, 9)
        if texts and len(left) not in (0, before):
            self.problems.append(f"{len(left)} of {before} forgotten messages are live {when}")

    async def sweep(self) -> None:
        """Remove what uploads have left, two days later; note chunks that stay, and damages."""
        later = memory_over(self.store, clock=lambda: time.time() + DAYS)
        await later._services.blobs("bob").sweep()
        records = {
            kind: await self.store.scan(Scope(owner="bob"), kind)
            for kind in (BLOB, BLOB_CHUNK, BLOB_UPLOAD)
        }
        chunks = {record.key.partition(":")[0] for record in records[BLOB_CHUNK]}
        described = {Described.of(record).upload for record in records[BLOB]}
        if orphans := chunks - described:
            self.problems.append(f"{len(orphans)} uploads have chunks and no description")
        if records[BLOB_UPLOAD]:
            self.problems.append("a note of an upload is left")
        if damages := (await self.store.verify()).damages:
            self.problems.append(f"damages: {damages}")


async def attempt(store: Store, trial: Trial) -> tuple[int, list[str]]:
    """Try something in an empty tenant; return how many calls there were, and what is wrong."""
    life, meeting = Life(store), Meeting(trial.at)
    other = memory_over(store)
    memory = memory_over(store, meeting.before)
    begun = time.monotonic()
    await set_up(other.for_owner("bob"))
    await memory.search("secret", owner="bob")
    life.kept += [(begun, kept) for kept in BEFORE]
    tasks: list[asyncio.Task[None]] = []

    async def run_whole() -> None:
        """Run the second operation until it ends, or waits for the first."""
        second = started("second", life.run(trial.then, other if trial.beside else memory))
        tasks.append(second)
        stalled, seen = 0, -1
        while not second.done() and stalled < _STALLED:
            await asyncio.wait([second], timeout=_PAUSE)
            stalled, seen = (stalled + 1, seen) if meeting.others == seen else (0, meeting.others)

    async def cancel() -> None:
        tasks[0].cancel()
        await asyncio.sleep(0)

    async def kill() -> None:
        meeting.dead = True
        raise Killed

    meeting.act = {"cancel": cancel, "kill": kill}.get(trial.then, run_whole)
    tasks.append(started("first", life.run(trial.first, memory, trial.id)))
    await asyncio.wait(tasks, timeout=SECONDS)
    await asyncio.wait(tasks, timeout=SECONDS)  # with the second operation
    if waiting := [task for task in tasks if not task.done()]:
        for task in waiting:
            task.cancel()
        return meeting.calls, [f"{trial.first} and {trial.then} wait for each other"]
    for task in tasks:
        ended = task.cancelled() or task.exception()
        if ended and not (ended is True or isinstance(ended, Killed)):
            life.problems.append(f"{trial.first} raises {ended!r}")
    meeting.act = None
    calls = meeting.calls
    await _after(life, trial, memory, other)
    return calls, life.problems


async def _after(life: Life, trial: Trial, memory: Memory, other: Memory) -> None:
    """Check what is left at once, after more was written, and after a new start."""
    interrupted = trial.then in ("cancel", "kill")
    if trial.then != "kill":
        await memory.idle()
        await other.idle()
        await life.intents("at once")
    if not interrupted:
        await life.check(other, "at once")
    life.ends |= {name: time.monotonic() for name, at in life.ends.items() if at == inf}
    await life.write(other)
    memory = await new_start(life)
    await life.intents("after a new start")
    if interrupted:
        await life.check(memory, "after a new start")
        await life.half(trial.first, "after a new start")
        await life.run(trial.first, memory, trial.id)
        await memory.idle()
        await life.intents("after it was repeated")
        await life.write(memory)
        memory = await new_start(life)
    await life.sweep()
    await life.check(memory, "in the end")


async def new_start(life: Life) -> Memory:
    """Return the memory of a new process whose first call is a search."""
    memory = memory_over(life.store)
    await memory.search("secret", owner="bob")
    return memory
