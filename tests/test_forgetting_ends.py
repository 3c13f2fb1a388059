"""A forgetting that began ends, however it is interrupted; and what was written after it stays."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from keepthread import Attachment, Memory, Message, OwnerMemory, Scope
from keepthread.memory.forgetting import plan
from keepthread.memory.forgetting.follow import all_sessions
from keepthread.protocols import Store
from keepthread.stores.kinds import FORGET
from proofs.interposed import opened, opened_store
from proofs.processes import fresh_processes
from tests.forgetting_processes import KILLED, forget_in_a_process, forget_with_a_late_fork
from tests.seeds import SEED

SECRET = "the number is 555-0199"
CONTRACT = b"%PDF the contract that Bob signed"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'memory.db'}"
    return request.getfixturevalue("postgres").empty()


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """Return the store itself: reading it completes no forgetting."""
    async with opened_store(url) as store:
        yield store


# --- what is written, and what is left ---


async def write_secrets(bob: OwnerMemory) -> None:
    """Write a session with a fork, and a fact and a blob, all to be forgotten."""
    session = await bob.session("old")
    await session.append(Message(role="user", content=SECRET, author="bob"))
    await session.append(Message(role="user", content="from Amy", author="amy"))
    await session.fork(id="fork")
    await bob.facts.remember("I had a cat")
    await bob.blobs.put(b"old bytes")


async def come_back(bob: OwnerMemory) -> None:
    """Write what an owner writes after a forgetting."""
    await bob.facts.remember("I am allergic to peanuts")
    blob = await bob.blobs.put(CONTRACT, media_type="application/pdf", name="contract.pdf")
    session = await bob.session("new")
    contract = Attachment(media_type="application/pdf", name="contract.pdf", uri=blob.uri)
    await session.append(Message(role="user", content="my contract", attachments=(contract,)))


async def assert_back(bob: OwnerMemory) -> None:
    """Require all that was written after a forgetting, and nothing else."""
    assert [fact.text for fact in await bob.facts.list()] == ["I am allergic to peanuts"]
    assert [await bob.blobs.read(blob.digest) for blob in await bob.blobs.list()] == [CONTRACT]
    found = await (await bob.get_session("new")).messages()
    assert [message.content for message in found] == ["my contract"]


async def living(store: Store) -> list[str]:
    """Return the texts of all live messages, of whatever session."""
    found: list[str] = []
    for key in await all_sessions(store):
        messages = await store.read(key, limit=1000)
        found += [message.content for message in messages if message.state == "live"]
    return found


async def intents(store: Store) -> int:
    return len(await store.scan(Scope(), FORGET))


# --- interruptions ---


class Gate:
    """Holds a store's first call of a method until it is opened."""

    def __init__(self, method: str) -> None:
        self._method = method
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def __call__(self, method: str, _: tuple[Any, ...]) -> None:
        if method == self._method and not self.reached.is_set():
            self.reached.set()
            await self.open.wait()


async def cancel_at(gate: Gate, forgetting: Awaitable[object]) -> None:
    """Cancel a forgetting while its store is slow to answer."""
    task = asyncio.ensure_future(forgetting)
    await gate.reached.wait()
    task.cancel()
    gate.open.set()
    with pytest.raises(asyncio.CancelledError):
        await task


async def killed(target: Callable[..., None], *args: Any, **kwargs: Any) -> bool:
    """Run a function in a process of its own, and return whether that was killed."""
    process = fresh_processes().Process(target=target, args=args, kwargs=kwargs)
    process.start()
    await asyncio.to_thread(process.join)
    assert process.exitcode in (0, KILLED)
    return process.exitcode == KILLED


# --- canceled ---


async def test_a_canceled_forgetting_ends_in_the_background(url: str, store: Store) -> None:
    gate = Gate("erase")
    async with opened(url, gate) as memory:
        bob = memory.for_owner("bob")
        await write_secrets(bob)
        await cancel_at(gate, bob.forget(author="bob"))
        await memory.idle()
        assert await living(store) == ["from Amy"] * 2
        assert await intents(store) == 0
        assert len(await bob.receipts()) == 1


async def test_closing_waits_for_a_canceled_forgetting(url: str, store: Store) -> None:
    gate = Gate("erase")
    async with opened(url, gate) as memory:
        bob = memory.for_owner("bob")
        await write_secrets(bob)
        await cancel_at(gate, bob.forget(author="bob"))
    async with opened(url) as memory:
        assert await intents(store) == 0
        assert await living(store) == ["from Amy"] * 2


@pytest.mark.parametrize("repeat", ["again", "by its id", "not at all"])
async def test_what_is_written_after_a_canceled_forgetting_stays(
    url: str, store: Store, repeat: str
) -> None:
    gate = Gate("erase")
    async with opened(url, gate) as memory:
        bob = memory.for_owner("bob")
        await write_secrets(bob)
        id = "mine" if repeat == "by its id" else None
        await cancel_at(gate, bob.forget(everything=True, id=id))
        if repeat != "not at all":
            await bob.forget(everything=True, id=id)
        await memory.idle()
        await come_back(bob)
    async with opened(url) as memory:
        bob = memory.for_owner("bob")
        await assert_back(bob)
        await memory.for_owner("eve").session("hers")
        await assert_back(bob)
        assert await intents(store) == 0


# --- killed ---


@pytest.mark.parametrize("repeat", ["again", "by its id", "not at all"])
async def test_what_is_written_after_a_killed_forgetting_stays(
    url: str, store: Store, repeat: str
) -> None:
    id = "mine" if repeat == "by its id" else None
    async with opened(url) as memory:
        bob = memory.tenant("acme").for_owner("bob")
        await write_secrets(bob)
        assert await killed(forget_in_a_process, url, "acme", id, everything=True)
        if repeat != "not at all":
            await bob.forget(everything=True, id=id)
            assert await intents(store.tenant("acme")) == 0
        await come_back(bob)
    async with opened(url) as memory:
        acme = memory.tenant("acme")
        bob = acme.for_owner("bob")
        assert await bob.search("number") == []
        await assert_back(bob)
        await acme.for_owner("eve").session("hers")
        await assert_back(bob)
        assert await intents(store.tenant("acme")) == 0
        assert await living(store.tenant("acme")) == ["my contract"]
        assert await bob.receipts()


@pytest.mark.parametrize("by", [{"author": "bob"}, {"session": "old", "author": "bob"}])
async def test_a_message_that_is_appended_after_a_killed_forgetting_stays(
    url: str, store: Store, by: dict[str, str]
) -> None:
    async with opened(url) as memory:
        bob = memory.tenant("acme").for_owner("bob")
        await write_secrets(bob)
        assert await killed(forget_in_a_process, url, "acme", None, **by)
        session = await bob.get_session("old")
        await session.append(Message(role="user", content="I am back", author="bob"))
    async with opened(url) as memory:
        acme = memory.tenant("acme")
        assert await acme.for_owner("bob").search("number") == []
        assert sorted(await living(store.tenant("acme"))) == ["I am back", "from Amy", "from Amy"]
        assert await intents(store.tenant("acme")) == 0


async def first_line(memory: Memory) -> None:
    async for _ in memory.for_owner("bob").export():
        return


FIRST: dict[str, Callable[[Memory], Awaitable[object]]] = {
    "admin.list_sessions": lambda memory: memory.admin.list_sessions(),
    "admin.search": lambda memory: memory.admin.search("number"),
    "blobs.list": lambda memory: memory.for_owner("bob").blobs.list(),
    "blobs.put": lambda memory: memory.for_owner("eve").blobs.put(b"hers"),
    "changes": lambda memory: memory.for_owner("bob").changes(),
    "export": first_line,
    "facts.list": lambda memory: memory.for_owner("bob").facts.list(),
    "facts.remember": lambda memory: memory.for_owner("eve").facts.remember("I have a dog"),
    "list_sessions": lambda memory: memory.list_sessions(owner="bob"),
    "receipts": lambda memory: memory.for_owner("bob").receipts(),
    "search": lambda memory: memory.search("number", owner="bob"),
    "session": lambda memory: memory.session("hers", owner="eve"),
}


@pytest.mark.parametrize("first", FIRST)
async def test_any_first_call_completes_the_tenants_killed_forgetting(
    url: str, store: Store, first: str
) -> None:
    async with opened(url) as memory:
        await write_secrets(memory.tenant("acme").for_owner("bob"))
        await write_secrets(memory.tenant("other").for_owner("bob"))
    assert await killed(forget_in_a_process, url, "acme", None, everything=True)
    async with opened(url) as memory:
        acme = memory.tenant("acme")
        assert await intents(store.tenant("acme")) == 1
        await FIRST[first](acme)
        assert await intents(store.tenant("acme")) == 0
        assert await living(store.tenant("acme")) == []
        assert await acme.for_owner("bob").facts.list() == []
        assert SECRET in await living(store.tenant("other"))


# --- an intent that grows ---


async def test_an_intent_that_grows_is_completed_wherever_its_process_is_killed(
    url: str, store: Store
) -> None:
    at, running = 0, True
    while running:
        at += 1
        tenant = f"tenant {at}"
        async with opened(url) as memory:
            session = await memory.tenant(tenant).session("s", owner="bob")
            for number in range(4):
                await session.append(
                    Message(role="user", content=f"{SECRET} {number}", author="bob"),
                    Message(role="user", content=f"fine {number}", author="amy"),
                )
        running = await killed(forget_with_a_late_fork, url, tenant, at)
        async with opened(url) as memory:
            here = memory.tenant(tenant)
            assert await here.search("number", owner="bob") == [], f"killed at write {at}"
            assert not any(SECRET in text for text in await living(store.tenant(tenant))), (
                f"killed at write {at}"
            )
            assert await intents(store.tenant(tenant)) == 0, f"killed at write {at}"
            assert len(await here.admin.receipts()) == 1, f"killed at write {at}"
    assert at > 5


# --- beside a deletion ---


async def test_a_session_that_is_deleted_at_any_moment_does_not_stop_a_forgetting(
    url: str,
    store: Store,
) -> None:
    rng = random.Random(SEED)
    at, reached, calls, trials = 0, True, 0, 0
    bob: OwnerMemory

    async def before(_: str, __: tuple[Any, ...]) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            await bob.delete_session("s2")

    async with opened(url) as beside, opened(url, before) as memory:
        while reached:
            at += rng.randint(1, 5)
            trials += 1
            tenant = f"tenant {at}"
            bob = beside.tenant(tenant).for_owner("bob")
            for number in range(3):
                await (await bob.session(f"s{number}")).add_message("user", f"{SECRET} {number}")
            calls = 0
            receipt = await memory.tenant(tenant).for_owner("bob").forget(since=0)
            reached = calls >= at
            assert receipt.messages in (2, 3), f"deleted before call {at}"
            assert await intents(store.tenant(tenant)) == 0, f"deleted before call {at}"
            assert await living(store.tenant(tenant)) == [], f"deleted before call {at}"
            assert len(await bob.receipts()) == 1, f"deleted before call {at}"
    assert trials > 10


# --- two processes ---


async def test_a_session_that_begins_again_beside_its_forgetting_keeps_what_it_has(
    url: str, store: Store
) -> None:
    """The second process completes the erasure before the session begins again."""
    at, reached, calls, begun_again = 0, True, 0, 0
    tenant, is_new = "", False

    async def before(_: str, __: tuple[Any, ...]) -> None:
        nonlocal calls, is_new
        calls += 1
        if calls == at:
            async with opened(url) as other:
                session = await other.tenant(tenant).for_owner("bob").session("old", title="New")
                is_new = session.info.title == "New"
                await session.add_message("user", "I am back")
                await session.add_note("mood", "cheerful")

    async with opened(url) as beside, opened(url, before) as memory:
        while reached:
            at += 1 if url.startswith("sqlite") else 4  # a server is slow to open
            tenant = f"tenant {at}"
            await write_secrets(beside.tenant(tenant).for_owner("bob"))
            calls, is_new = 0, False
            await memory.tenant(tenant).for_owner("bob").forget(session="old")
            reached = calls >= at
            assert await intents(store.tenant(tenant)) == 0, at
            assert SECRET not in await living(store.tenant(tenant)), at
            if is_new:
                begun_again += 1
                session = await beside.tenant(tenant).get_session("old", owner="bob")
                assert session.info.title == "New", at
                assert "I am back" in [m.content for m in await session.messages()], at
                notes = await store.tenant(tenant).scan(Scope(session=session.info.key), "note")
                assert len(notes) == 1, at
    assert begun_again > 2


async def test_a_repeat_returns_the_receipt_of_the_erasure_it_completed(
    url: str, store: Store
) -> None:
    async with opened(url) as memory:
        bob = memory.tenant("acme").for_owner("bob")
        await write_secrets(bob)
        assert await killed(forget_in_a_process, url, "acme", None, author="bob")
        receipt = await bob.forget(author="bob")
        assert (receipt.messages, receipt.copies, receipt.asked["author"]) == (2, 0, "bob")
        assert [stored.receipt.messages for stored in await bob.receipts()] == [2]
        assert (await bob.forget(author="bob")).messages == 0


async def test_the_process_that_stores_a_large_plan_begins_again_if_another_gives_it_up(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that is stored in part has erased nothing: whoever finds it drops it."""
    monkeypatch.setattr(plan, "ENTRIES", 1)
    at, reached, calls = 0, True, 0
    tenant = ""

    async def before(_: str, __: tuple[Any, ...]) -> None:
        nonlocal calls
        calls += 1
        if calls == at:
            async with opened(url) as other:
                await other.tenant(tenant).search("number", owner="bob")

    async with opened(url) as beside, opened(url, before) as memory:
        while reached:
            at += 1 if url.startswith("sqlite") else 4  # a server is slow to open
            tenant = f"tenant {at}"
            session = await beside.tenant(tenant).session("s", owner="bob")
            for author in ("bob", "amy", "bob", "amy", "bob"):
                await session.append(Message(role="user", content=f"of {author}", author=author))
            calls = 0
            receipt = await memory.tenant(tenant).for_owner("bob").forget(author="bob")
            reached = calls >= at
            assert receipt.messages == 3, at
            assert await living(store.tenant(tenant)) == ["of amy"] * 2, at
            assert await store.tenant(tenant).scan(Scope(), FORGET) == [], at
            assert len(await beside.tenant(tenant).for_owner("bob").receipts()) == 1, at
    assert at > 10
