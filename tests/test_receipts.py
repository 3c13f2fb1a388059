"""Receipts are stored: one for each erasure, whoever completes it, and none of the erased text."""

import json
from collections.abc import Callable
from typing import Any, cast

import pytest

from keepthread import Memory, Message, Options, Scope, sync
from keepthread.errors import InvalidInput
from keepthread.interchange.copy import Copying
from keepthread.interchange.export import export
from keepthread.interchange.import_ import import_lines
from keepthread.memory.forgetting.receipt import AffectedAnswer, Receipt
from keepthread.memory.forgetting.receipts import StoredReceipt, keep, read_receipts
from keepthread.protocols import Store
from keepthread.stores.codec import dumps
from keepthread.stores.kinds import RECEIPT
from keepthread.stores.ram import RamStore
from keepthread.testing import ManualClock
from keepthread.testing.contract import Letters
from tests.dying import Dying, Killed
from tests.every_store import store

__all__ = ["store"]

SECRET = "the number is 555-0199, and nobody else has it"
AUTHOR = "a person whom nobody may name"
SOURCE = "web:https://example.org/a-page-that-nobody-may-name"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def memory_over(store: Store, clock: Callable[[], float], **options: Any) -> Memory:
    return Memory(store, Options(counter=Letters(), clock=clock, **options))


async def write(memory: Memory, owner: str, id: str = "s") -> None:
    """Store a session with the secret in every place that a text can be."""
    session = await memory.session(
        id, owner=owner, title=SECRET, tags=[SECRET], system_prompt=SECRET, meta={"a": SECRET}
    )
    async with session.turn(SECRET) as turn:
        await turn.context()
        await turn.finish(f"Noted: {SECRET}")
    await session.append(
        Message(role="user", content=SECRET, author=AUTHOR),
        Message(role="tool", content=SECRET, source=SOURCE),
    )
    await session.fork(id=f"fork of {id}")
    await memory.store.put(Scope(owner=owner), "diary", "1", SECRET)


async def test_a_receipt_is_stored_without_text_for_the_one_who_asked(
    store: Store, clock: ManualClock
) -> None:
    memory = memory_over(store, clock, keep_why=3)
    ana, bea = memory.for_owner("ana"), memory.for_owner("bea")
    for owner in ("ana", "bea"):
        await write(memory, owner)
    await ana.forget(session="s", dry_run=True)
    assert await ana.receipts() == []

    told: list[Receipt] = []
    for query in ({"author": AUTHOR}, {"source": SOURCE}, {"session": "s"}, {"everything": True}):
        clock.advance(1)
        told.insert(0, await ana.forget(**cast(Any, query)))
    await memory.admin.forget(author=AUTHOR)
    await memory.forget(owner="bea")

    kept = await ana.receipts()
    assert [each.receipt.messages for each in kept] == [each.messages for each in told]
    for each, receipt in zip(kept, told, strict=True):
        hidden = {name: None for name in ("author", "source") if name in receipt.asked}
        expected = {**receipt.to_json(), "asked": {**receipt.asked, **hidden}}
        assert each.receipt.to_json() == expected
        assert (each.resumed, each.shortened) == (False, False)
        assert each.began <= each.receipt.at
    assert [each.receipt.asked for each in kept[:2]] == [
        {"owner": "ana"},
        {"owner": "ana", "session": "s"},
    ]
    assert kept[0].receipt.records["diary"] == 1
    assert await bea.receipts() == []  # the operator asked
    assert [each.receipt.asked for each in await memory.admin.receipts()] == [
        {"owner": "bea"},
        {"author": None},
    ]

    # What is left of an owner is receipts, and nothing in them, or anywhere, is text.
    for scope in (Scope(owner="ana"), Scope(owner="bea"), Scope()):
        records = await store.scan(scope)
        assert {record.kind for record in records} <= {RECEIPT}
        data = b"".join(dumps(record.value, "a value") for record in records)
        for text in (SECRET, "555-0199", AUTHOR, SOURCE):
            assert text.encode() not in data


async def test_an_erasure_that_matched_nothing_leaves_no_receipt(
    store: Store, clock: ManualClock
) -> None:
    memory = memory_over(store, clock)
    await write(memory, "ana")
    told = await memory.for_owner("ana").forget(author="nobody")
    assert not told.any
    assert await memory.for_owner("ana").receipts() == []
    assert [record.kind for record in await store.scan(Scope(owner="ana"))] == ["diary"]


# --- interrupted ---


async def test_whoever_completes_an_erasure_there_is_one_receipt_with_all_counts(
    store: Store, clock: ManualClock
) -> None:
    resumed: set[bool] = set()
    for number in range(200):
        at, after = number // 2 + 1, bool(number % 2)
        tenant = store if hasattr(store, "outbox") else store.tenant(f"t{number}")
        owner = f"ana {number}" if at % 2 else None
        memory = memory_over(tenant, clock)
        await write(memory, owner or f"someone {number}", f"s{number}")
        dying = Dying(tenant, at, after=after)
        forgetting = memory_over(cast(Store, dying), clock)
        clock.advance(1)
        before = len(await memory.admin.receipts(limit=1000))
        try:
            if owner:
                await forgetting.for_owner(owner).forget(session=f"s{number}", answers=True)
            else:
                await forgetting.forget(owner=f"someone {number}", answers=True)
            break
        except Killed:
            pass
        clock.advance(1)
        again = memory_over(tenant, clock)  # another process
        kept = await (again.for_owner(owner) if owner else again.admin).receipts(limit=1000)
        if not dying.planned:
            assert len(kept) == (0 if owner else before)
            continue
        assert len(kept) == 1 + (0 if owner else before)
        assert len(await again.admin.receipts(limit=1000)) == before + (not owner)
        receipt = kept[0].receipt
        resumed.add(kept[0].resumed)
        assert kept[0].began <= receipt.at - kept[0].resumed
        assert (receipt.messages, receipt.copies) == ((4, 4) if owner else (8, 0))
        data = dumps(receipt.to_json(), "a receipt")
        assert SECRET.encode() not in data
    else:
        raise AssertionError("the erasure never ended")
    assert resumed == {True, False}  # killed before it was stored, and after


async def test_the_process_that_counted_replaces_what_another_completed() -> None:
    store = RamStore()
    receipt = Receipt(asked={}, at=2.0, records={}, index={}, messages=3)
    kept = StoredReceipt("it", 1.0, receipt)
    planned = kept._replace(receipt=Receipt(asked={}, at=3.0, records={}, index={}), resumed=True)
    for order in ([planned, kept], [kept, planned], [planned, kept, planned]):
        for each in order:
            await keep(store, "ana", each)
        assert await read_receipts(store, "ana", limit=9, cursor=None) == [kept]


# --- lists ---


async def test_receipts_come_in_pages_latest_first_and_cursors_belong_to_one_list(
    store: Store, clock: ManualClock
) -> None:
    numbers = iter(range(1000, 0, -1))  # ids that do not sort by time
    memory = memory_over(store, clock, ids=lambda: f"id{next(numbers)}")
    ana, bea = memory.for_owner("ana"), memory.for_owner("bea")
    for number in range(5):
        for owner in (ana, bea):
            session = await owner.session(f"{number}")
            await session.append(Message(role="user", content="hi"))
            clock.advance(1)
            await owner.forget(session=f"{number}")
    for limit in (1, 2, 5, 9):
        found: list[str] = []
        cursor, pages = None, 0
        while cursor or not pages:
            page = await ana.receipts(limit=limit, cursor=cursor)
            assert len(page) <= limit
            found += [cast(str, each.receipt.asked["session"]) for each in page]
            cursor, pages = page.next, pages + 1
            if limit == 2 and pages == 1:  # a new one does not move the pages that follow
                await (await ana.session("new")).append(Message(role="user", content="hi"))
                await ana.forget(session="new")
        assert [id for id in found if id != "new"] == [f"{number}" for number in range(4, -1, -1)]
        assert pages == -(-len(found) // limit)
    cursor = (await ana.receipts(limit=2)).next
    for other in (bea, memory.admin):
        with pytest.raises(InvalidInput, match="cursor"):
            await other.receipts(cursor=cursor)
    for wrong in ("", "x", "e30"):
        with pytest.raises(InvalidInput, match="cursor"):
            await ana.receipts(cursor=wrong)
    with pytest.raises(InvalidInput, match="limit"):
        await ana.receipts(limit=-1)
    nothing = await ana.receipts(limit=0)
    assert (nothing, nothing.next) == ([], None)


async def test_a_long_receipt_is_shortened_and_says_so() -> None:
    store = RamStore()
    for number, places in enumerate((999, 1000, 1001)):
        answers = [AffectedAnswer("s", seq) for seq in range(places)]
        receipt = Receipt(asked={}, at=2.0, records={}, index={}, answers=answers)
        await keep(store, None, StoredReceipt("it", float(number), receipt))
    kept = await read_receipts(store, None, limit=9, cursor=None)
    assert [(len(each.receipt.answers), each.shortened) for each in kept] == [
        (1000, True),
        (1000, False),
        (999, False),
    ]


# --- leaving the store ---


async def test_a_copy_takes_receipts_along_and_a_file_does_not(
    store: Store, clock: ManualClock
) -> None:
    memory = memory_over(store, clock)
    ana = memory.for_owner("ana")
    for id in ("s", "t"):
        await write(memory, "ana", id)
    await ana.forget(session="s")
    await memory.admin.forget(author=AUTHOR)
    target = RamStore()
    copying = Copying(store, target)
    await copying.run()
    copied = memory_over(target, clock)
    assert await copied.for_owner("ana").receipts() == await ana.receipts()
    assert await copied.admin.receipts() == await memory.admin.receipts()
    assert len(await copied.admin.receipts()) == 1

    lines: list[bytes] = []
    await export(store, lines.append)
    assert not any(b'"receipt"' in line for line in lines)
    (made,) = await store.scan(Scope(owner="ana"), RECEIPT)
    forged = {"scope": {"owner": "ana"}, "kind": RECEIPT, "key": "x", "value": made.value}
    record = {"record": {**forged, "made_of": []}}
    lines.insert(-1, json.dumps(record).encode() + b"\n")
    with pytest.raises(InvalidInput, match="cannot be imported"):
        await import_lines(RamStore(), lines)


def test_the_blocking_twin_lists_them_too() -> None:
    with sync.Memory.open("ram://") as memory:
        ana = memory.for_owner("ana")
        ana.session("s").add_message("user", SECRET)
        ana.forget(session="s")
        memory.forget(owner="ana")
        assert [each.receipt.messages for each in ana.receipts(limit=1)] == [1]
        assert [each.receipt.sessions for each in memory.admin.receipts()] == [0]
