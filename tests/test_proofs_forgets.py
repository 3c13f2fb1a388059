"""The promise that what a forgetting began ends, in small, and that its proof is not blind."""

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from keepthread import Memory, Scope
from keepthread.stores.kinds import FORGET
from proofs.interposed import opened
from proofs.p38_forgets import PROOF, QUERIES, Item, Plan, Tally, Tenant, write_life
from tests.proving import hold


def test_what_a_forgetting_began_it_ends_and_what_came_later_stays() -> None:
    hold(PROOF)


@pytest.mark.nightly
def test_the_promise_holds_on_postgres() -> None:
    hold(PROOF, PROOF.on["postgres"], 10)


@pytest.fixture
async def memory(tmp_path: Path) -> AsyncIterator[Memory]:
    async with opened(f"sqlite:///{tmp_path / 'memory.db'}") as memory:
        yield memory


async def broken(memory: Memory, query: str, *, done: bool, items: list[Item]) -> list[str]:
    tenant = Tenant(Plan("acme", query, None), memory.store, Tally(), "here", items, done)
    await tenant.start(memory, "now")
    return tenant.tally.broken


@pytest.mark.parametrize("query", QUERIES)
async def test_a_forgetting_that_ended_is_found_whole(memory: Memory, query: str) -> None:
    await write_life(memory, "acme")
    bob = memory.tenant("acme").for_owner("bob")
    assert await broken(memory, query, done=False, items=[]) == []
    await bob.forget(**QUERIES[query])
    items = [Item("bob", kind, f"later {kind}") for kind in ("fact", "blob", "message")]
    for item in items:
        await item.write(bob)
    assert await broken(memory, query, done=True, items=items) == []
    assert await broken(memory, query, done=False, items=items) == []


async def forget_half(memory: Memory) -> None:
    await memory.forget(session="talk", message="number 1", owner="bob")


async def leave_an_intent(memory: Memory) -> None:
    await memory.store.put(Scope(), FORGET, "x:000000", {"parts": 2})


async def nothing(_: Memory) -> None:
    """Do nothing."""


@pytest.mark.parametrize(
    ("bug", "done", "items", "what"),
    [
        (forget_half, False, [], "only"),
        (leave_an_intent, False, [], "an intent are left"),
        (nothing, True, [], "is live"),
        (nothing, True, [], "is found"),
        (nothing, False, [Item("bob", "fact", "a fact")], "lost"),
        (nothing, False, [Item("amy", "blob", "a blob")], "lost"),
        (nothing, False, [Item("bob", "message", "a message")], "lost"),
    ],
)
async def test_the_proof_notices(
    memory: Memory,
    bug: Callable[[Memory], Awaitable[None]],
    done: bool,
    items: list[Item],
    what: str,
) -> None:
    await write_life(memory, "acme")
    await bug(memory.tenant("acme"))
    assert what in "\n".join(await broken(memory, "session", done=done, items=items))
