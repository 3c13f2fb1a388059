"""Names that look alike are different: nothing of one is ever of another.

All owners, tenants, sessions or authors of a test are in one store, of one process and one pool, so
that what a cache confuses is seen. Every text that is written has the number of its name.
"""

import json
import re
from hashlib import sha256
from itertools import chain
from typing import Any

import pytest

from keepthread import Memory, Message, Options, OwnerMemory
from keepthread.errors import SessionNotFound
from keepthread.models.tokens import Estimator
from keepthread.protocols import Store
from keepthread.protocols.server import KeptAnswer, RequestId
from keepthread.stores.outbox.store import OutboxStore
from keepthread.testing.tables import NOW, a_key, an_entry
from tests import hostile_pairs
from tests.every_store import store

__all__ = ["store"]

PAIRED = list(dict.fromkeys(chain(*hostile_pairs.NAMES)))
GOING = list(dict.fromkeys(first for first, _ in hostile_pairs.NAMES))
"""The first of each pair, which is deleted or forgotten: the second stays."""
CHARACTERS = [
    *("a;b", "a{b}", "{a}", "a,b", "[a]", "a?b", "*", "..", ".", " ", "a'--", "%00", "-1", "null"),
    *("\u0130", "i\u0307", "\u2163", "IV", "\U0001f600", "default:0", "x" * 255, "x" * 254 + "y"),
]
"""What a path, a key or a query could read, and the longest names."""
NAMES = [*PAIRED, *CHARACTERS]
SESSIONS = ("bob", "BOB", "caf\u00e9", "cafe\u0301")


@pytest.fixture
def memory(store: Store) -> Memory:
    return Memory(store, Options(counter=Estimator(), recall="owner"))


def mark(number: int) -> str:
    return f"mark{number}x"


def marks(told: Any) -> set[int]:
    """Return the numbers of the names whose texts are in an answer."""
    return {int(number) for number in re.findall(r"mark(\d+)x", repr(told))}


async def write(own: OwnerMemory, number: int, *, finds: bool) -> None:
    """Write to every place that an owner has."""
    text = mark(number)
    session = await own.session("s", title=text, system_prompt=text)
    async with session.turn(f"Common words of {text}.", id="m") as turn:
        await turn.tool("look", {"it": 1}, lambda it: f"{text} {it}", cache_turns=9)
        await turn.finish(f"Noted: {text}.")
    await own.blobs.put(f"file of {text}".encode(), name=text)
    if finds:
        await own.facts.remember(f"Common fact of {text}.")


async def told(own: OwnerMemory, *, finds: bool) -> list[Any]:
    """Return all that an owner is told, in parts."""
    session = await own.get_session("s")
    parts: list[Any] = [
        await own.list_sessions(limit=1000),
        await session.messages(),
        await session.cached_tools(),
        (await session.context(budget=2000)).text,
        [await own.blobs.read(blob.digest) for blob in await own.blobs.list()],
        [line async for line in own.export()],
    ]
    if finds:
        parts += [
            await own.search("common", limit=1000),
            await own.facts.list(),
            await own.facts.search("common", limit=1000),
        ]
    return parts


async def check(own: OwnerMemory, number: int, *, finds: bool) -> None:
    parts = await told(own, finds=finds)
    assert [marks(part) for part in parts] == [{number}] * len(parts), own.owner
    # The owner is told once of what was written once.
    assert [len(part) for part in parts[:2]] == [1, 4]
    if finds:
        assert [len(part) for part in parts[-2:]] == [1, 1]


async def test_owners_with_similar_names_share_nothing(memory: Memory) -> None:
    async with memory:
        finds = await memory.store.finder() is not None
        starts = {owner: (await memory.for_owner(owner).changes(limit=0)).next for owner in PAIRED}
        for number, owner in enumerate(PAIRED):
            await write(memory.for_owner(owner), number, finds=finds)
        for number, owner in enumerate(PAIRED):
            await check(memory.for_owner(owner), number, finds=finds)
        for number, owner in enumerate(PAIRED if finds else ()):  # again, from what is cached now
            assert marks(await memory.for_owner(owner).facts.list()) == {number}
        await _wait_for_feed(memory.for_owner(PAIRED[-1]), starts[PAIRED[-1]])
        for owner in PAIRED:
            page = await memory.for_owner(owner).changes(after=starts[owner], limit=1000)
            assert {change.owner for change in page} == {owner}
            kinds = [change.kind for change in page]
            assert kinds.count("session_created") == 1, owner


async def _wait_for_feed(own: OwnerMemory, after: str | None) -> None:
    """Wait until the last change is shown: Redis shows a second once it is over."""
    messages = 0
    while messages < 3:  # the question, the call with its result, and the answer
        page = await own.changes(after=after, wait=5)
        messages += sum(change.kind == "messages_added" for change in page)
        after = page.next


async def test_forgetting_an_owner_leaves_owners_with_similar_names_alone(memory: Memory) -> None:
    async with memory:
        finds = await memory.store.finder() is not None
        for number, owner in enumerate(PAIRED):
            await write(memory.for_owner(owner), number, finds=finds)
        for owner in GOING:
            own = memory.for_owner(owner)
            planned = await own.forget(everything=True, dry_run=True)
            receipt = await own.forget(everything=True, id="one")
            assert receipt.messages == planned.messages == 4
            assert receipt.records["blob"] == 1
            assert await own.list_sessions() == []
            assert await own.blobs.list() == []
            assert [stored.receipt.messages for stored in await own.receipts()] == [4]
        for number, owner in enumerate(PAIRED):
            if owner not in GOING:
                await check(memory.for_owner(owner), number, finds=finds)
                assert await memory.for_owner(owner).receipts() == []
        assert (await memory.admin.verify()).sound


async def test_tenants_with_similar_names_share_nothing(memory: Memory) -> None:
    if isinstance(memory.store, OutboxStore):
        pytest.skip("an outbox belongs to one tenant")
    async with memory:
        finds = await memory.store.finder() is not None
        tenants = sorted(PAIRED, key=lambda name: (name != "default", name))  # the memory's own
        for number, name in enumerate(tenants):
            await write(memory.tenant(name).for_owner("ann"), number, finds=finds)
        for number, name in enumerate(tenants):
            tenant = memory.tenant(name)
            await check(tenant.for_owner("ann"), number, finds=finds)
            assert marks(await tenant.admin.list_sessions(limit=1000)) == {number}
            assert await tenant.store.owners() == ["ann"]
            if finds:
                assert marks(await tenant.admin.search("common", limit=1000)) == {number}
        assert sorted(await memory.admin.list_tenants(limit=1000)) == sorted(tenants)
        for name in GOING[1::2]:
            await memory.admin.delete_tenant(name)
        for name in GOING[::2]:
            forgotten = await memory.tenant(name).for_owner("ann").forget(everything=True)
            assert forgotten.messages == 4
        for number, name in enumerate(tenants):
            if name in GOING:
                assert await memory.tenant(name).admin.list_sessions() == []
            else:
                await check(memory.tenant(name).for_owner("ann"), number, finds=finds)
                assert (await memory.tenant(name).admin.verify()).sound
        left = set(tenants) - set(GOING[1::2])
        assert set(await memory.admin.list_tenants(limit=1000)) == left


async def test_sessions_with_similar_ids_share_nothing(memory: Memory) -> None:
    async with memory:
        finds = await memory.store.finder() is not None
        for number, id in enumerate(NAMES):
            session = await memory.session(id, title=mark(number))
            await session.append(Message(role="user", content=f"common {mark(number)}", id="m"))
        owner = memory.for_owner("default")
        for number, id in enumerate(NAMES):
            session = await memory.get_session(id)
            parts: list[Any] = [
                await session.messages(),
                (await session.context(budget=2000)).text,
                [line async for line in owner.export(session=id)],
            ]
            if finds:
                parts.append(await owner.search("common", session=id, limit=1000))
            assert [marks(part) for part in parts] == [{number}] * len(parts), id
        deleted, forgotten, erased = {*GOING[::3], *CHARACTERS[::2]}, GOING[1::3], GOING[2::3]
        for id in deleted:
            await memory.delete_session(id)
        for id in forgotten:
            assert (await owner.forget(session=id)).messages == 1
        for id in erased:
            assert (await owner.forget(session=id, message="m")).messages == 1
        gone = deleted | {*forgotten}
        for id in NAMES:
            if id in gone:
                with pytest.raises(SessionNotFound):
                    await memory.get_session(id)
            else:
                (message,) = await (await memory.get_session(id)).messages()
                assert message.state == ("erased" if id in erased else "live"), id
        left = {session.id for session in await memory.list_sessions(limit=1000)}
        assert left == {*NAMES} - gone


async def test_one_id_is_a_session_of_each_owner_with_a_similar_name(memory: Memory) -> None:
    async with memory:
        places = [(owner, id) for owner in SESSIONS for id in SESSIONS]
        for number, (owner, id) in enumerate(places):
            session = await memory.session(id, owner=owner)
            await session.append(Message(role="user", content=mark(number), id="m"))
        await memory.forget(owner="bob", session="BOB")
        for number, (owner, id) in enumerate(places):
            if (owner, id) != ("bob", "BOB"):
                session = await memory.get_session(id, owner=owner)
                assert marks(await session.messages()) == {number}


@pytest.mark.parametrize("field", ["author", "source"])
async def test_forgetting_by_name_takes_nothing_of_similar_names(
    memory: Memory, field: str
) -> None:
    async with memory:
        session = await memory.session("channel", owner="channel")
        named: dict[str, dict[str, Any]] = {
            name: {field: name if field == "author" else f"web:{name}"} for name in PAIRED
        }
        await session.append(
            *(Message(role="user", content="Hello.", **each) for each in named.values())
        )
        own = memory.for_owner("channel")
        for number, name in enumerate(GOING):
            forget = own.forget if number % 2 else memory.admin.forget
            assert (await forget(**named[name])).messages == 1
            states = [message.state for message in await session.messages(limit=1000)]
            erased = [name for name, state in zip(PAIRED, states, strict=True) if state != "live"]
            assert set(erased) == set(GOING[: number + 1])


async def test_facts_of_similar_sources_agents_and_subjects_are_of_one_each(
    memory: Memory,
) -> None:
    async with memory:
        if await memory.store.finder() is None:
            pytest.skip("facts need an index")
        facts = memory.for_owner("ann").facts
        for number, name in enumerate(PAIRED):
            same: dict[str, Any] = {"attribute": "city", "value": mark(number)}
            await facts.remember(
                f"It is in {mark(number)}.", **same, source=f"mcp:{name}", many=True
            )
            await facts.remember(f"I am in {mark(number)}.", **same, agent=name)
            if name == name.strip():  # a subject is written without blanks around it
                await facts.remember(f"The other is in {mark(number)}.", **same, subject=name)
        found = await facts.list()  # none replaced another
        assert len([fact for fact in found if fact.source]) == len(PAIRED)
        assert [fact.agent for fact in found if fact.agent] == PAIRED
        subjects = [fact.subject for fact in found if fact.subject]
        assert subjects == [name for name in PAIRED if name == name.strip()]
        for name in GOING:
            receipt = await memory.forget(owner="ann", source=f"mcp:{name}")
            assert receipt.records == {"fact": 1}, name
        left = [fact.source for fact in await facts.list() if fact.source]
        assert left == [f"mcp:{name}" for name in PAIRED if name not in GOING]


async def test_the_rows_of_a_server_are_those_of_one_tenant_caller_and_key(store: Store) -> None:
    if isinstance(store, OutboxStore):
        pytest.skip("a store with an outbox has no tables of a server")
    tables = store.server_tables()
    requests = [
        request
        for name in PAIRED
        for request in (
            RequestId(name, "caller", "key"),
            RequestId("acme", name, "key"),
            RequestId("acme", "caller", name),
        )
    ]
    digest = sha256(b"a request").digest()
    for number, request in enumerate(requests):
        begun = await tables.begin_request(request, digest, NOW)
        assert begun.state == "new", request
        assert await tables.end_request(request, begun.token, KeptAnswer(200, (), b"%d" % number))
    for number, request in enumerate(requests):
        again = await tables.begin_request(request, digest, NOW + 1)
        assert again.answer is not None
        assert json.loads(again.answer.body or b"") == number
    for number, name in enumerate(PAIRED):
        await tables.add_key(a_key(f"key {number}", name, owner=name))
        await tables.audit(an_entry(mark(number), name))
    for number, name in enumerate(PAIRED):
        (key,) = await tables.list_keys(tenant=name)
        assert (key.id, key.owner) == (f"key {number}", name)
        assert marks(await tables.list_audit(tenant=name)) == {number}
