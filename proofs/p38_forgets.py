"""P38: what a forgetting began, it ends; what came later stays.

A process forgets in two tenants while it also writes there, and is killed before a call of its
store, or at any moment. A process that was open all the time writes more. After a new start the
first call in each tenant is a search: the forgetting must be done, or never have begun. Then it is
repeated, with or without its id, more is written, and the memory is opened again. Nothing that was
acknowledged and that the forgetting does not match may be lost, nothing forgotten may come back,
and no intent may stay. Intents are stored in small parts.
"""

import asyncio
import hashlib
import os
import random
import signal
import tempfile
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

from keepthread import Attachment, Memory, Message, OwnerMemory, Scope
from keepthread.context.full_text import blobs_of
from keepthread.errors import KeepthreadError, MessageNotFound, SessionNotFound
from keepthread.memory.forgetting.follow import all_sessions
from keepthread.protocols import Store
from keepthread.stores.codec import dumps
from keepthread.stores.kinds import FORGET
from proofs import Outcome, Progress, Proof
from proofs.interposed import opened, opened_store, store_intents_in_parts_of
from proofs.places import file_url, new_place
from proofs.processes import fresh_processes

KILLED: Final = 9
AT_ANY_MOMENT: Final = 0.2
"""The share of processes that are killed at any moment, and not before a call."""
AFTER_THE_KILL: Final = 0.5
REPEATED: Final = 0.7
ROUNDS: Final = 3
"""How often a process writes during a forgetting, and after it."""
WORD: Final = "zebra"
"""A word that all messages have, to search for."""
QUERIES: Final[Mapping[str, Mapping[str, Any]]] = {
    "everything": {"everything": True},
    "session": {"session": "talk"},
    "message": {"session": "talk", "message": "first"},
    "author": {"author": "bob"},
    "since": {"since": 0},
}


class Plan(NamedTuple):
    """One forgetting in one tenant."""

    tenant: str
    query: str
    id: str | None


class Item(NamedTuple):
    """Something that was written and acknowledged."""

    owner: str
    kind: str
    """`fact`, `blob` or `message`."""
    text: str
    author: str | None = None

    @property
    def data(self) -> bytes:
        return f"{self.text} ".encode() * 100

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @property
    def session(self) -> str:
        return f"session of {self.text}"

    def matches(self, query: str) -> bool:
        """Return whether a query of Bob's means it, if it is there when the query begins."""
        if self.owner != "bob" or query in ("session", "message"):
            return False
        of_bob = query == "since" or self.author in (None, "bob")
        return query == "everything" or (self.kind == "message" and of_bob)

    async def write(self, owner: OwnerMemory) -> None:
        if self.kind == "fact":
            await owner.facts.remember(self.text)
        elif self.kind == "blob":
            await owner.blobs.put(self.data)
        else:
            blob = await owner.blobs.put(f"attached {self.text}".encode() * 100)
            file = Attachment(media_type="text/plain", uri=blob.uri)
            large = f"{WORD} {self.text} " * 100
            message = Message(
                role="user", content=large, author=self.author, attachments=(file,), id="it"
            )
            await (await owner.session(self.session)).append(message)

    async def is_kept(self, owner: OwnerMemory) -> bool:
        """Return whether all of it can be read."""
        try:
            if self.kind == "fact":
                return any(fact.text == self.text for fact in await owner.facts.list(limit=1000))
            if self.kind == "blob":
                return await owner.blobs.read(self.digest) == self.data
            (message,) = await (await owner.get_session(self.session)).messages()
            for digest in blobs_of(message):
                await owner.blobs.read(digest)
        except KeepthreadError:
            return False
        return message.state == "live" and message.content.startswith(f"{WORD} {self.text} ")


KINDS: Final = ("fact", "blob", "message")


async def write_life(memory: Memory, tenant: str) -> None:
    """Write what is forgotten, in part or as a whole: messages of two authors, a fork, a fact."""
    bob = memory.tenant(tenant).for_owner("bob")
    talk = await bob.session("talk")
    for number, text in enumerate(TEXTS["talk of bob"]):
        id = "first" if text == FIRST else f"number {number}"
        long = text * 200 if "long" in text else text
        await talk.append(
            Message(role="user", content=long, author="bob", id=id),
            Message(role="user", content=TEXTS["talk of guests"][0], author="guest"),
        )
    await talk.fork(id="fork")
    await (await bob.session("more")).append(
        Message(role="user", content=TEXTS["more of bob"][0], author="bob")
    )
    await bob.facts.remember(FACT)


FIRST: Final = f"the {WORD} is the first thing; "
FACT: Final = "I had a cat"
TEXTS: Final[Mapping[str, Sequence[str]]] = {
    "talk of bob": (
        FIRST,
        *(f"the {WORD} number {n} is a secret; " for n in range(4)),
        f"the {WORD} is a long secret; ",
    ),
    "talk of guests": (f"the {WORD} of a guest; ",),
    "more of bob": (f"the {WORD} is elsewhere; ",),
}


def forgotten(query: str) -> Collection[str]:
    """Return the texts of the life that a query means."""
    if query == "message":
        return {FIRST}
    guests = () if query == "author" else TEXTS["talk of guests"]
    more = () if query == "session" else TEXTS["more of bob"]
    return {*TEXTS["talk of bob"], *guests, *more}


# --- the process that is killed ---


def forget_and_write(
    url: str, plans: Sequence[Plan], entries: int, at: int, pipe: Connection
) -> None:
    """Forget in every tenant, and write there; end before a call of the store."""
    store_intents_in_parts_of(entries)
    asyncio.run(_forget_and_write(url, plans, at, pipe))


async def _forget_and_write(url: str, plans: Sequence[Plan], at: int, pipe: Connection) -> None:
    calls = 0

    async def before(_: str, __: tuple[Any, ...]) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            os._exit(KILLED)

    async with opened(url, before) as memory:
        await asyncio.gather(*(_one_tenant(memory, plan, pipe) for plan in plans))
    pipe.send(("calls", "", calls))


async def _one_tenant(memory: Memory, plan: Plan, pipe: Connection) -> None:
    tenant = memory.tenant(plan.tenant)

    async def forget() -> None:
        await tenant.for_owner("bob").forget(**QUERIES[plan.query], id=plan.id)
        pipe.send(("receipt", plan.tenant, None))

    async def write(when: str, owners: Sequence[str]) -> None:
        for number in range(ROUNDS):
            for owner in owners:
                item = Item(owner, KINDS[number % 3], f"{when} {number} of {owner}", "carl")
                await item.write(tenant.for_owner(owner))
                pipe.send((when, plan.tenant, item))

    await asyncio.gather(forget(), write("during", ("amy", "bob")))
    await write("after", ("amy", "bob"))


# --- what must hold ---


@dataclass(slots=True)
class Tally:
    """What was seen so far."""

    kills: int = 0
    before: int = 0
    completed: int = 0
    receipts: int = 0
    writes: int = 0
    searches: int = 0
    broken: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Tenant:
    """What one tenant must have."""

    plan: Plan
    store: Store
    """The store itself: reading it completes no forgetting."""
    tally: Tally
    where: str
    items: list[Item] = field(default_factory=list)
    done: bool = False
    """Whether the forgetting returned its receipt."""

    def expect(self, so: bool, otherwise: str) -> None:
        if not so:
            self.tally.broken.append(f"{self.where}, {self.plan}: {otherwise}")

    async def write(self, memory: Memory, when: str) -> None:
        """Write what must stay."""
        for owner in ("amy", "bob"):
            for kind in KINDS:
                item = Item(owner, kind, f"{when} of {owner}")
                await item.write(memory.tenant(self.plan.tenant).for_owner(owner))
                self.items.append(item)

    async def start(self, memory: Memory, when: str) -> None:
        """Search, as the first call, and check all that must hold then."""
        tenant = memory.tenant(self.plan.tenant)
        hits = await tenant.search(WORD, owner="bob", limit=100)
        self.tally.searches += 1
        await self.check(tenant, [hit.message.content for hit in hits], when)

    async def check(self, tenant: Memory, found: Sequence[str], when: str) -> None:
        """Hold a tenant to having no intent, all that must stay, and nothing that is forgotten."""
        store = self.store.tenant(self.plan.tenant)
        texts = forgotten(self.plan.query)
        left = await store.scan(Scope(), FORGET)
        self.expect(not left, f"{len(left)} records of an intent are left {when}")
        live = await _live(store)
        back = sorted(text for text in texts if any(text in each for each in live))
        if self.done:
            self.expect(not back, f"{back} is live {when}")
            shown = sorted(text for text in texts if any(text in each for each in found))
            self.expect(not shown, f"{shown} is found {when}")
            kept = await _in_records(store, texts)
            self.expect(not kept, f"{kept} is in records {when}")
        else:
            self.expect(not back or len(back) == len(texts), f"only {back} is live {when}")
            self.done = not back
        facts = {fact.text for fact in await tenant.for_owner("bob").facts.list()}
        whole = self.plan.query == "everything"
        self.expect((FACT in facts) is not (whole and self.done), f"a fact is wrong {when}")
        for text in {*_all_texts()} - {*texts}:
            self.expect(any(text in each for each in live), f"lost {when}: {text!r}")
        for item in self.items:
            self.tally.writes += 1
            self.expect(await item.is_kept(tenant.for_owner(item.owner)), f"lost {when}: {item}")

    async def repeat(self, memory: Memory) -> None:
        """Forget again, which means more if it is a new forgetting."""
        bob = memory.tenant(self.plan.tenant).for_owner("bob")
        is_known = self.plan.id is not None and bool(await bob.receipts())
        try:
            await bob.forget(**QUERIES[self.plan.query], id=self.plan.id)
        except (SessionNotFound, MessageNotFound):
            self.expect(self.done, "a repeated forgetting finds nothing")
        self.done = True
        if not is_known:
            self.items = [item for item in self.items if not item.matches(self.plan.query)]


def _all_texts() -> list[str]:
    return [text for texts in TEXTS.values() for text in texts]


async def _live(store: Store) -> list[str]:
    found: list[str] = []
    for key in await all_sessions(store):
        messages = await store.read(key, limit=1000)
        found += [message.content for message in messages if message.state == "live"]
    return found


async def _in_records(store: Store, texts: Collection[str]) -> list[str]:
    scopes = [Scope(), Scope(owner="bob")]
    scopes += [Scope(session=key) for key in await all_sessions(store)]
    records = [record for scope in scopes for record in await store.scan(scope)]
    data = b"".join(dumps(record.value, "a value") for record in records)
    return sorted(text for text in texts if text.encode() in data)


# --- all of it ---


class Killing:
    """Kills processes that forget, and looks at what the next ones make of it."""

    def __init__(self, url: str, tally: Tally, rng: random.Random) -> None:
        self._url = url
        self._tally = tally
        self._rng = rng
        self._calls = 0
        """How many store calls a process makes that is not killed."""
        self._seconds = 0.0

    async def one(self, number: int) -> None:
        rng = self._rng
        plans = [
            Plan(f"{name} {number}", rng.choice(list(QUERIES)), rng.choice([None, "an id"]))
            for name in ("acme", "zoo")
        ]
        async with opened_store(self._url) as store:
            tenants = [Tenant(plan, store, self._tally, f"kill {number}") for plan in plans]
            async with opened(self._url) as beside:
                for plan in plans:
                    await write_life(beside, plan.tenant)
                await asyncio.to_thread(self._kill, plans, tenants, whole=not self._calls)
                if rng.random() < AFTER_THE_KILL:
                    for tenant in tenants:
                        await tenant.write(beside, "after the kill")
            await self._go_on(tenants)
        self._tally.kills += 1

    async def _go_on(self, tenants: Sequence[Tenant]) -> None:
        """Start again, repeat what was interrupted, write, and start once more."""
        async with opened(self._url) as memory:
            for tenant in tenants:
                was_done = tenant.done
                await tenant.start(memory, "after a new start")
                self._tally.receipts += was_done
                self._tally.completed += tenant.done and not was_done
                self._tally.before += not tenant.done
            for tenant in tenants:
                if self._rng.random() < REPEATED:
                    await tenant.repeat(memory)
                await tenant.write(memory, "after all")
        async with opened(self._url) as memory:
            for tenant in tenants:
                await tenant.start(memory, "after another start")

    def _kill(self, plans: Sequence[Plan], tenants: Sequence[Tenant], *, whole: bool) -> None:
        """Let a process forget and write, and kill it; note what it acknowledged."""
        moment = not whole and self._rng.random() < AT_ANY_MOMENT
        at = 0 if whole or moment else self._rng.randint(1, self._calls)
        entries = self._rng.randint(1, 3)
        fresh = fresh_processes()
        mine, theirs = fresh.Pipe(duplex=False)
        process = fresh.Process(
            target=forget_and_write, args=(self._url, plans, entries, at, theirs)
        )
        begun = time.monotonic()
        process.start()
        theirs.close()
        if moment:
            process.join(self._rng.uniform(0, self._seconds))
            process.kill()
        by_name = {tenant.plan.tenant: tenant for tenant in tenants}
        with suppress(EOFError):
            while True:
                what, of, told = mine.recv()
                if what == "calls":
                    self._calls, self._seconds = told, time.monotonic() - begun
                elif what == "receipt":
                    by_name[of].done = True
                elif what == "after" or not told.matches(by_name[of].plan.query):
                    by_name[of].items.append(told)
        mine.close()
        process.join()
        if process.exitcode not in (0, KILLED, -signal.SIGKILL):
            self._tally.broken.append(f"{plans}: a process ended with {process.exitcode}")


async def prove(url: str, size: int, seed: int, tally: Tally, progress: Progress) -> None:
    killing = Killing(url, tally, random.Random(seed))
    for number in range(size):
        await killing.one(number)
        progress(number + 1, size)


def run(size: int, seed: int, progress: Progress) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        return _outcome(file_url(Path(folder) / "memory.db"), size, seed, progress)


def run_on(kind: str, size: int, seed: int, progress: Progress) -> Outcome:
    with new_place(kind) as place:
        return _outcome(place.url, size, seed, progress)


def _outcome(url: str, size: int, seed: int, progress: Progress) -> Outcome:
    tally = Tally()
    asyncio.run(prove(url, size, seed, tally, progress))
    figures = {
        "kills": tally.kills,
        "forgettings in two tenants": 2 * tally.kills,
        "killed before anything was noted": tally.before,
        "done after a new start": tally.completed,
        "with a receipt before the kill": tally.receipts,
        "writes that were looked for": tally.writes,
        "searches as the first call": tally.searches,
    }
    return Outcome(figures=figures, broken=tuple(tally.broken))


PROOF: Final = Proof(
    name="P38",
    promise="what a forgetting began, it ends; what came later stays",
    unit="kills of processes that forget in two tenants",
    small=12,
    closing=300,
    long=5_000,
    run=run,
    on={"postgres": partial(run_on, "postgres")},
)
