"""Owners are walls: every public operation with what is another owner's, on every store."""

import random
from pathlib import Path

import pytest

from keepthread import Memory, Message
from keepthread.errors import InvalidInput, SessionNotFound
from keepthread.protocols import Store
from proofs.owner_walls import OTHER, OwnerWalls, operations
from tests.every_store import store
from tests.seeds import SEED

__all__ = ["store"]


async def test_every_operation_with_what_is_anothers_is_as_with_what_never_was(
    store: Store,
) -> None:
    walls = OwnerWalls(store)
    await walls.settle()
    rng = random.Random(SEED)
    waiting = [(*each, share) for each in operations() for share in (0.0, 0.5, 1.0)]
    rng.shuffle(waiting)
    for kind, name, share in waiting:
        await walls.probe(kind, name, rng, share)
    await walls.memory.idle()
    assert walls.tally.broken == []
    assert walls.tally.changed == 0


async def test_the_walls_notice_an_operation_that_looks_beyond(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    walls = OwnerWalls(store)
    await walls.settle()
    asker = walls.askers[0].handle
    monkeypatch.setattr(asker, "_owner", OTHER)
    for kind, name in operations():
        if name in ("get_session", "list_sessions", "search"):
            await walls.probe(kind, name, random.Random(1))
    assert walls.tally.broken


async def test_two_owners_use_one_id_without_noticing(store: Store) -> None:
    memory = Memory(store)
    ann, bob = memory.for_owner("ann"), memory.for_owner("bob")
    for owner in (ann, bob):
        session = await owner.create_session("trip")
        await session.add_message("user", f"I am {owner.owner}.")
    assert [m.content for m in await (await ann.get_session("trip")).messages()] == ["I am ann."]
    await ann.delete_session("trip")
    with pytest.raises(SessionNotFound):
        await ann.get_session("trip")
    assert [m.content for m in await (await bob.get_session("trip")).messages()] == ["I am bob."]
    with pytest.raises(SessionNotFound):
        await memory.get_session("trip")  # a missing owner is `default`, never anyone


async def test_everything_of_an_owner_is_forgotten_only_on_request(store: Store) -> None:
    memory = Memory(store)
    for name in ("ann", "bob"):
        session = await memory.for_owner(name).session("s")
        await session.add_message("user", "hello")
    ann = memory.for_owner("ann")
    with pytest.raises(InvalidInput, match="everything=True"):
        await ann.forget()
    with pytest.raises(InvalidInput, match="everything=True"):
        await ann.forget(session="s", everything=True)
    assert (await ann.forget(everything=True)).messages == 1
    assert await ann.list_sessions() == []
    assert len(await memory.for_owner("bob").list_sessions()) == 1


async def test_a_person_joins_a_shared_session_with_their_own_facts(tmp_path: Path) -> None:
    async with Memory.open(f"sqlite:///{tmp_path}/m.db") as memory:
        channel = await memory.for_owner("channel").session("c")
        bob = memory.for_owner("bob")
        await bob.facts.remember("Likes tea.")
        async with bob.join(channel).turn("What do I like?") as turn:
            assert "tea" in (await turn.context(budget=2000)).text
        async with channel.turn("What does the channel like?") as turn:
            assert "tea" not in (await turn.context(budget=2000)).text


async def test_a_receipt_names_nothing_of_another_owner(store: Store) -> None:
    memory = Memory(store)
    text = "The very same sentence, which is long enough to be searched for."
    for name in ("ann", "bob"):
        session = await memory.for_owner(name).session(f"of {name}", title=f"{text} {name}")
        await session.append(Message(role="user", content=text, id="m"))
    receipt = await memory.for_owner("ann").forget(session="of ann", message="m")
    assert (receipt.messages, receipt.found) == (1, 0)
    assert "of bob" not in str(receipt)
    assert not any("of bob" in place for place in receipt.repeated)
    for_all = await memory.admin.forget(author="nobody")
    assert not for_all.messages
