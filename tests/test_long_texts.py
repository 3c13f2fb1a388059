"""Texts over the limit of a message: kept whole as blobs, shown cut, on every store."""

import asyncio
import io
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from keepthread import Attachment, Memory, Message, Options, Session
from keepthread.context.full_text import blobs_of, full_text_of
from keepthread.errors import Conflict, InvalidInput, MessageNotFound, NotFound, Stale, TooLarge
from keepthread.interchange.copy import Copying
from keepthread.interchange.export import export
from keepthread.interchange.import_ import import_lines
from keepthread.memory.blobs.types import BlobSizes
from keepthread.models.tokens import Estimator
from keepthread.protocols import Store
from keepthread.stores import RamStore, SQLiteStore
from keepthread.stores.kinds import BLOB, BLOB_CHUNK, BLOB_USE, RECEIPT
from keepthread.types import Record, Scope
from tests.dying import Dying, Killed
from tests.every_store import store

__all__ = ["store"]

SMALL = BlobSizes(chunk=500, text=2000, blob=9000)
ANN = Scope(owner="ann")


def memory_over(store: Store) -> Memory:
    return Memory(store, Options(counter=Estimator(), blob_sizes=SMALL))


def long(word: str, size: int = 5000) -> str:
    return "".join(f"{word} {n}. " for n in range(size))[:size]


async def session_over(store: Store) -> Session:
    return await memory_over(store).for_owner("ann").session("s")


async def test_a_long_answer_is_kept_whole_and_shown_by_its_beginning(store: Store) -> None:
    session, text = await session_over(store), long("Zürich")
    async with session.turn("Tell me all.") as turn:
        answer = await turn.finish(text)
        assert await turn.finish(text) == answer
    size = len(text.encode())
    assert len(answer.content.encode()) <= 2000
    assert answer.content.startswith(text[:1500])
    assert f"[… the first part of {size:,} bytes; `session.full_text` returns all …]" in (
        answer.content
    )
    assert (found := full_text_of(answer)) is not None
    assert found.size == size
    assert await session.full_text(answer) == await session.full_text(answer.id) == text
    async with session.turn("And?") as turn:
        shown = (await turn.context(budget=4000)).text
        assert f"the first part of {size:,} bytes" in shown
    assert await session.full_text((await session.messages())[0]) == "Tell me all."


async def left_of(store: Store) -> list[Record]:
    """Return what an owner has, without the receipts of what was forgotten."""
    return [record for record in await store.scan(ANN) if record.kind != RECEIPT]


@pytest.mark.parametrize("letter", ["a", "\xe9", "\u9451", "\U0001f600"])
async def test_a_text_is_long_by_its_bytes_not_by_its_letters(store: Store, letter: str) -> None:
    session, size = await session_over(store), len(letter.encode())
    texts = [letter * (number // size) for number in (1600, 2200)]
    short, long = await session.append(*(Message(role="user", content=each) for each in texts))
    assert (short.content, full_text_of(short)) == (texts[0], None)
    assert full_text_of(long) is not None
    assert await session.full_text(long) == texts[1]


async def test_a_long_tool_result_is_kept_whole_and_shown_by_head_and_tail(store: Store) -> None:
    session, text = await session_over(store), "head" + long("row", 8000) + "tail"
    async with session.turn("go") as turn:
        told = await turn.tool("large", {}, lambda: text, cache_turns=2)
        assert await turn.tool("large", {}, lambda: "another", cache_turns=2) == told
        await turn.finish("done")
    assert told.startswith("head")
    assert told.endswith("tail")
    assert "the middle was left out; `session.full_text` returns all" in told
    (result,) = [m for m in await session.messages() if m.role == "tool"]
    assert await session.full_text(result) == text


async def test_a_tool_result_over_the_limit_is_cut_and_an_answer_refused(store: Store) -> None:
    session = await session_over(store)
    async with session.turn("go") as turn:
        told = await turn.tool("large", {}, lambda: long("row", 9001))
        assert "9,001 bytes, the middle was not kept" in told
        with pytest.raises(TooLarge, match="9,001 bytes; the store's limit is 9,000"):
            await turn.finish(long("x", 9001))
        await turn.finish("short")
    assert await left_of(store) == []


async def test_a_retried_append_stores_nothing_twice(store: Store) -> None:
    session, text = await session_over(store), long("again")
    message = Message(role="user", content=text, id="m")
    (first,) = await session.append(message)
    assert await session.append(message) == [first]
    await session.append(Message(role="user", content=text, id="n"))
    assert len(await store.scan(ANN, BLOB)) == 1
    assert len(await store.scan(ANN, BLOB_USE)) == 2
    with pytest.raises(Conflict):
        await session.append(Message(role="user", content=long("other"), id="m"))
    assert len(await store.scan(ANN, BLOB)) == 1


async def test_what_is_not_appended_leaves_no_blob(store: Store) -> None:
    session = await session_over(store)
    await session.add_message("user", "hello")
    with pytest.raises(Stale):
        await session.append(Message(role="user", content=long("late")), expect=0)
    assert await left_of(store) == []
    assert await store.scan(Scope(session=session.key), BLOB_USE) == []


async def test_an_attachment_refers_to_a_blob_that_exists(store: Store) -> None:
    memory = memory_over(store)
    ann = memory.for_owner("ann")
    session = await ann.session("s")
    blob = await ann.blobs.put(b"image" * 300, media_type="image/png", name="a.png")
    given = Attachment(media_type=blob.media_type, name=blob.name, uri=blob.uri)
    await session.append(Message(role="user", content="Look.", attachments=[given]))
    (stored,) = await session.messages()
    assert blobs_of(stored) == [blob.digest]
    assert not await ann.blobs.delete(blob.digest)
    assert await ann.blobs.read(blob.digest) == b"image" * 300
    theirs = await memory.for_owner("bob").session("s")
    with pytest.raises(NotFound, match="does not exist; store its bytes first"):
        await theirs.append(Message(role="user", content="Look.", attachments=[given]))
    assert await theirs.messages() == []
    assert await store.scan(Scope(owner="bob")) == []


async def test_a_deleted_session_releases_its_blobs(store: Store) -> None:
    memory = memory_over(store)
    ann = memory.for_owner("ann")
    text, other = long("shared"), long("alone")
    for name in ("one", "two"):
        session = await ann.session(name)
        await session.append(Message(role="user", content=text))
        await session.append(Message(role="user", content=f"{other} {name}"))
    kept = await ann.blobs.put(b"put by the program")
    await ann.delete_session("one")
    assert len(await store.scan(ANN, BLOB)) == 3
    last = await ann.get_session("two")
    assert [await last.full_text(m) for m in await last.messages()] == [text, f"{other} two"]
    await ann.delete_session("two")
    assert [r.key for r in await store.scan(ANN, BLOB)] == [kept.digest]
    assert len(await store.scan(ANN, BLOB_CHUNK)) == 1
    assert await store.scan(ANN, BLOB_USE) == []


async def test_what_the_program_put_outlives_the_messages_that_refer_to_it(store: Store) -> None:
    memory = memory_over(store)
    ann = memory.for_owner("ann")
    blob = await ann.blobs.put(b"image" * 300)
    given = Attachment(media_type="image/png", uri=blob.uri)
    for id in ("one", "two"):
        session = await ann.session(id)
        await session.append(Message(role="user", content="Look.", attachments=[given]))
        await ann.delete_session(id)
    assert await ann.blobs.read(blob.digest) == b"image" * 300
    assert await ann.blobs.delete(blob.digest)


async def test_a_fork_keeps_its_blobs_without_the_original(store: Store) -> None:
    memory = memory_over(store)
    ann = memory.for_owner("ann")
    session, text = await ann.session("s"), long("forked")
    await session.append(Message(role="user", content=text))
    await session.append(Message(role="user", content=long("later")))
    fork = await session.fork(1, id="f")
    await ann.delete_session("s")
    assert [await fork.full_text(m) for m in await fork.messages()] == [text]
    assert len(await store.scan(ANN, BLOB)) == 1
    await ann.delete_session("f")
    assert await left_of(store) == []


async def test_a_delegate_and_its_parent_keep_a_long_answer(store: Store) -> None:
    session, text = await session_over(store), long("found")
    async with session.turn("go") as turn, turn.delegate("Look") as child:
        answer = await child.finish(text)
    assert "the first part of" in answer.content
    (result,) = [m for m in await session.messages() if m.role == "tool"]
    assert result.content.startswith(text[:500])


async def test_a_long_text_is_searched_by_its_first_part(store: Store) -> None:
    if await store.finder() is None:
        pytest.skip("this store has no search")
    memory = memory_over(store)
    ann = memory.for_owner("ann")
    session = await ann.session("s")
    await session.append(Message(role="user", content=f"The quetzal flew. {long('row')}"))
    (hit,) = await ann.search("quetzal")
    assert "quetzal" in await session.full_text(hit.message)


async def test_what_is_not_a_message_is_refused(store: Store) -> None:
    session = await session_over(store)
    with pytest.raises(NotFound):
        await session.full_text("nothing")
    with pytest.raises(InvalidInput):
        await session.full_text(7)  # pyright: ignore[reportArgumentType]


# --- forgetting ---


async def test_a_forgotten_message_takes_the_blobs_that_only_it_refers_to(store: Store) -> None:
    memory = memory_over(store)
    ann = memory.for_owner("ann")
    session, shared, alone = await ann.session("s"), long("shared"), long("alone")
    for id, text in (("a", shared), ("b", shared), ("c", alone)):
        await session.append(Message(role="user", content=text, id=id))
    blob = await ann.blobs.put(b"attached" * 100)
    given = Attachment(media_type="text/plain", uri=blob.uri)
    await session.append(Message(role="user", id="d", attachments=[given]))
    preview = await ann.forget(session="s", message="c", dry_run=True)
    assert preview.records["blob"] == 1
    assert len(await store.scan(ANN, BLOB)) == 3
    for id, left in (("a", 3), ("c", 2), ("d", 1)):
        receipt = await ann.forget(session="s", message=id)
        assert receipt.found == 0
        assert len(await store.scan(ANN, BLOB)) == left, id
    assert await session.full_text("b") == shared
    await session.append(Message(role="user", content=alone, id="c"))  # a late delivery
    assert len(await store.scan(ANN, BLOB)) == 1
    await ann.forget(session="s")
    assert await left_of(store) == []
    assert await store.scan(Scope(session=session.key), BLOB_USE) == []


async def test_a_reference_that_a_deleted_session_left_keeps_no_blob(store: Store) -> None:
    ann = memory_over(store).for_owner("ann")
    put = await ann.blobs.put(b"attached" * 100)
    attached = Attachment(media_type="text/plain", uri=put.uri)
    one, two = [await ann.session(id) for id in ("one", "two")]
    for session in (one, two):
        await session.append(Message(role="user", content=long("same"), attachments=[attached]))
    await store.delete_session(one.key)  # by a process that died before it released the blobs
    receipt = await ann.forget(session="two")
    assert receipt.records["blob"] == 2
    assert await left_of(store) == []


@pytest.mark.parametrize("choice", [{"session": "s"}, {"session": "s", "message": "m"}])
async def test_an_erasure_that_another_process_completes_leaves_no_blob(
    choice: dict[str, Any],
) -> None:
    """The process is killed before and after each of its writes."""
    everywhere = RamStore()
    for number in range(400):
        store = everywhere.tenant(f"t{number}")
        ann = memory_over(store).for_owner("ann")
        put = await ann.blobs.put(b"attached" * 300)
        attached = Attachment(media_type="text/plain", uri=put.uri)
        session = await ann.session("s")
        given = Message(role="user", content=long("said"), attachments=[attached], id="m")
        await session.append(given)
        dying = Dying(store, number // 2 + 1, after=bool(number % 2))
        try:
            await memory_over(cast(Store, dying)).for_owner("ann").forget(**choice)
        except Killed:
            await memory_over(store).for_owner("ann").receipts()  # completes what was begun
            if (await store.find(session.key, ids=["m"]))[0].state == "live":
                continue  # it had not begun
            assert await left_of(store) == [], number
            assert await store.scan(Scope(session=session.key), BLOB_USE) == [], number
        else:
            break
    else:
        raise AssertionError("the erasure never ended")
    assert await left_of(store) == []


async def test_a_forgotten_owner_has_no_blobs_left(store: Store) -> None:
    memory = memory_over(store)
    ann, bob = memory.for_owner("ann"), memory.for_owner("bob")
    for owner in (ann, bob):
        session = await owner.session("s")
        await session.append(Message(role="user", content=long("same")))
        await owner.blobs.put(b"put" * 500)
    await memory._services.blobs("ann").upload().write(bytes(3000))  # by a process that died
    receipt = await ann.forget(everything=True)
    assert receipt.records["blob"] == 2
    assert await left_of(store) == []
    assert len(await bob.blobs.list()) == 2


async def test_forgetting_and_referring_at_the_same_time_keep_every_live_text(
    store: Store,
) -> None:
    memory = memory_over(store)
    ann = memory.for_owner("ann")
    session, text = await ann.session("s"), long("raced", 3000)

    async def append(name: str) -> None:
        for n in range(3):
            await session.append(Message(role="user", content=text, id=f"{name}{n}"))

    async def forget() -> None:
        for n in range(3):
            with suppress(MessageNotFound):
                await ann.forget(session="s", message=f"a{n}")

    await asyncio.gather(append("a"), append("b"), forget())
    for message in await session.messages():
        if message.state == "live":
            assert await session.full_text(message) == text


async def test_no_byte_of_a_forgotten_blob_is_left_in_a_file(tmp_path: Path) -> None:
    store = await SQLiteStore.open(tmp_path / "m.db")
    ann = memory_over(store).for_owner("ann")
    await (await ann.session("s")).append(Message(role="user", content=long("quetzal")))
    await ann.blobs.put(b"a file of ann's, with its secrets " * 40)
    texts = [str(chunk.value).encode() for chunk in await store.scan(ANN, BLOB_CHUNK)]
    receipt = await ann.forget(everything=True)
    assert (receipt.found, receipt.probes > 0) == (0, True)
    await store.close()
    left = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    pieces = [text[n : n + 24] for text in texts for n in range(0, len(text) - 24, 24)]
    assert len(pieces) > 100
    assert not any(piece in left for piece in pieces)


# --- leaving the store ---


async def test_blobs_leave_with_their_messages_and_are_followed_there(
    store: Store, tmp_path: Path
) -> None:
    memory = memory_over(store)
    ann = memory.for_owner("ann")
    session, text = await ann.session("s"), long("moved")
    await session.append(Message(role="user", content=text, id="m"))
    await ann.blobs.put(b"put" * 400)
    other = await ann.session("t")
    await other.append(Message(role="user", content=long("stays")))
    for names, number in ((["s"], 1), ([], 3)):
        file = io.BytesIO()
        await export(store, file.write, sessions=names, owner="ann")
        there = RamStore()
        await import_lines(there, io.BytesIO(file.getvalue()))
        await check_moved(there, text, number)
    target = await SQLiteStore.open(tmp_path / "copy.db")
    copying = Copying(store, target)
    await copying.run()
    await check_moved(target, text, 3)
    await target.close()


async def check_moved(there: Store, text: str, number: int) -> None:
    ann = memory_over(there).for_owner("ann")
    session = await ann.get_session("s")
    assert await session.full_text("m") == text
    assert len(await ann.blobs.list()) == number
    await ann.forget(session="s")
    assert len(await ann.blobs.list()) == number - 1
    await ann.forget(everything=True)
    assert await left_of(there) == []
