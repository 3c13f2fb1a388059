"""Why, kept: accounts of contexts, what an answer was written from, and what a session holds."""

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest

from keepthread import Compaction, Hybrid, Memory, Message, Options, Scope, Session, View, sync
from keepthread.errors import InvalidInput
from keepthread.models.summarizers import ByModel
from keepthread.stores.kinds import WHY
from keepthread.stores.ram import RamStore
from keepthread.stores.validation import MAX_BYTES
from keepthread.testing import ManualClock
from keepthread.testing.contract import Letters
from keepthread.testing.model import ScriptedModel

VIEWS = {"chat": View(1500, Hybrid()), "small": View(400)}
SECRET = "We decided: swordfish"


@pytest.fixture(params=["ram", "sqlite"])
async def memory(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Memory]:
    url = "ram://" if request.param == "ram" else f"sqlite:///{tmp_path}/chat.db"
    async with Memory.open(url, counter=Letters(), views=VIEWS, keep_why=5) as opened:
        yield opened


async def talk(session: Session, *texts: str) -> list[Message]:
    answers: list[Message] = []
    for text in texts:
        async with session.turn(text) as turn:
            await turn.context()
            answers.append(await turn.finish(f"Answer to {text}"))
    return answers


# --- accounts ---


async def test_each_context_leaves_an_account_newest_first(memory: Memory) -> None:
    session = await memory.session("s", system_prompt="Be brief.")
    async with session.turn("one"):
        first = await session.context()
        second = await session.context("small", budget=300)
    newest, older = await session.explanations()
    assert (newest.view, newest.turn) == ("small", 1)
    assert str(newest.why) == str(second.why)
    assert str(older.why) == str(first.why)
    assert [kept.view for kept in await session.explanations(1)] == ["small"]


async def test_no_more_than_so_many_are_kept_and_in_their_order(memory: Memory) -> None:
    session = await memory.session("s")
    await session.add_message("user", "hello")
    for budget in range(100, 120):
        await session.context(budget=budget)
    kept = await session.explanations(100)
    assert [each.why.budget for each in kept] == [119, 118, 117, 116, 115]
    assert len(await memory.store.scan(Scope(session=session.key), WHY)) == 5
    assert await session.explanations(0) == []


async def test_none_is_kept_unasked() -> None:
    async with Memory.open("ram://", counter=Letters()) as memory:
        session = await memory.session("s")
        await session.context()
        assert await session.explanations() == []


async def test_a_memory_that_keeps_none_still_reads_those_of_others(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    async with Memory.open(url, counter=Letters(), keep_why=3) as memory:
        session = await memory.session("s")
        await session.context(budget=100)
    async with Memory.open(url, counter=Letters()) as memory:
        (kept,) = await (await memory.get_session("s")).explanations()
        assert kept.why.budget == 100


async def test_what_waits_is_written_when_the_memory_is_closed(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"
    for _ in range(2):
        async with Memory.open(url, counter=Letters(), keep_why=9) as memory:
            session = await memory.session("s")
            await asyncio.gather(*(session.context() for _ in range(3)))
    async with Memory.open(url, counter=Letters()) as memory:
        assert len(await (await memory.get_session("s")).explanations()) == 6


async def test_an_account_says_when_by_the_memory_s_clock() -> None:
    clock = ManualClock(1234.5)
    async with Memory.open("ram://", counter=Letters(), keep_why=3, clock=clock) as memory:
        session = await memory.session("s")
        await session.context()
        assert [kept.at for kept in await session.explanations()] == [1234.5]


async def test_tenants_keep_their_own(memory: Memory) -> None:
    mine = await memory.session("s")
    theirs = await memory.tenant("other").session("s")
    await mine.context(budget=100)
    await theirs.context(budget=200)
    assert [kept.why.budget for kept in await mine.explanations()] == [100]
    assert [kept.why.budget for kept in await theirs.explanations()] == [200]


async def test_no_word_of_anyone_is_kept(memory: Memory) -> None:
    session = await memory.session("s", system_prompt="system swordfish")
    await talk(session, SECRET, *(f"question {n} {'x' * 90}" for n in range(30)))
    await session.compact()
    context = await session.context()
    assert any(choice.section == "important" for choice in context.why.shown)
    kept = await session.explanations()
    assert any(choice.section == "important" for choice in kept[0].why.shown)
    for record in await memory.store.scan(Scope(session=session.key), WHY):
        told = json.dumps(record.value).lower()
        for word in ("swordfish", "decided", "question", "xxx"):
            assert word not in told


async def test_a_record_that_somebody_else_wrote_is_passed_over(memory: Memory) -> None:
    session = await memory.session("s")
    await session.context()
    for key, value in (("0", {}), ("z", "text"), ("zz", {"choices": [{"x": 1}]})):
        await memory.store.put(Scope(session=session.key), WHY, key, value)
    assert len(await session.explanations()) == 1


async def test_an_account_of_a_deleted_session_is_nobodys(memory: Memory) -> None:
    session = await memory.session("s")
    await session.context()
    await memory.delete_session("s")
    again = await memory.session("s")
    assert await again.explanations() == []


@pytest.mark.parametrize("bad", [-1, 1.5, True, "3"])
async def test_how_many_to_keep_is_a_count(bad: object) -> None:
    with pytest.raises(InvalidInput, match="keep_why"):
        Memory(RamStore(), Options(counter=Letters(), keep_why=bad))  # pyright: ignore[reportArgumentType]


def test_the_blocking_surface_keeps_them_too() -> None:
    with sync.Memory.open("ram://", counter=Letters(), keep_why=2) as memory:
        session = memory.session("s")
        for budget in (100, 200, 300):
            session.context(budget=budget)
        assert [kept.why.budget for kept in session.explanations()] == [300, 200]


def test_two_processes_write_at_the_same_time(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from keepthread import Memory\n"
        "from keepthread.testing.contract import Letters\n"
        "async def main():\n"
        "    async with Memory.open(sys.argv[1], counter=Letters(), keep_why=7) as memory:\n"
        "        session = await memory.session('s')\n"
        "        for budget in range(100, 140):\n"
        "            await session.context(budget=budget)\n"
        "asyncio.run(main())\n"
    )
    url = f"sqlite:///{tmp_path}/chat.db"
    command = [sys.executable, "-c", code, url]
    for process in [subprocess.Popen(command) for _ in range(2)]:
        assert process.wait() == 0
    with sync.Memory.open(url, counter=Letters()) as memory:
        kept = memory.get_session("s").explanations(100)
    assert len(kept) == 7
    assert kept[0].why.budget == 139
    assert all(newer.at > older.at - 0.002 for newer, older in pairwise(kept))


# --- what an answer was written from ---


async def test_an_answer_says_what_it_was_written_from(memory: Memory) -> None:
    session = await memory.session("s")
    answers = await talk(session, "one", "two", "three")
    assert [a.meta for a in answers] == [
        {"written_from": [[1, 1]], "lowest_origin": "assistant"},
        {"written_from": [[1, 3]], "lowest_origin": "assistant"},
        {"written_from": [[1, 5]], "lowest_origin": "assistant"},
    ]


async def test_without_a_context_nothing_is_said_of_it(memory: Memory) -> None:
    session = await memory.session("s")
    await session.context()
    async with session.turn("one") as turn:
        assert (await turn.finish("1")).meta == {}


async def test_the_last_context_of_a_turn_counts_and_the_callers_word_stays(
    memory: Memory,
) -> None:
    session = await memory.session("s")
    await talk(session, "one", "two")
    async with session.turn("three") as turn:
        await turn.context()
        await turn.context(newest=False, budget=100)
        answer = await turn.finish(Message(role="assistant", content="3", meta={"mine": 1}))
    assert answer.meta == {
        "mine": 1,
        "written_from": [[1, 4]],
        "lowest_origin": "assistant",
    }
    async with session.turn("four") as turn:
        await turn.context()
        given = Message(role="assistant", content="4", meta={"written_from": "a dream"})
        kept = (await turn.finish(given)).meta
        assert kept == {"written_from": "a dream", "lowest_origin": "assistant"}


async def test_what_stands_behind_a_summary_is_among_it_and_what_is_hidden_is_not() -> None:
    compaction = Compaction(turns=4, batch_size=2)
    views = {"chat": View(2000, Hybrid())}
    async with Memory.open(
        "ram://", counter=Letters(), views=views, compaction=compaction
    ) as memory:
        session = await memory.session("s")
        await talk(session, *(f"question {n}" for n in range(3)))
        await session.rewind(4)
        await talk(session, *(f"again {n} {'x' * 40}" for n in range(40)))
        await session.compact()
        async with session.turn("last") as turn:
            context = await turn.context()
            answer = await turn.finish("done")
    assert any(choice.section == "summary" for choice in context.why.shown)
    behind = [c for c in context.why.left_out if c.reason == "covered by the summary"]
    assert behind[0].last > 6
    ranges = cast(list[list[int]], answer.meta["written_from"])
    assert ranges[0] == [1, 4]
    assert ranges[1][0] == 7
    assert ranges[-1][1] == turn.user.seq


async def test_a_turn_finished_again_keeps_its_first_answer(memory: Memory) -> None:
    session = await memory.session("s")
    await talk(session, "one")
    async with session.turn("two", id="request") as turn:
        await turn.context()
        first = await turn.finish("2")
    async with session.turn("two", id="request") as turn:
        await turn.context(budget=40)
        assert await turn.finish("2") == first


async def test_an_answer_that_just_fits_is_stored_without(memory: Memory) -> None:
    session = await memory.session("s")
    async with session.turn("one") as turn:
        await turn.context()
        answer = await turn.finish("x" * MAX_BYTES)
    assert answer.meta == {}
    assert len(answer.content) == MAX_BYTES


# --- status ---


async def test_status_tells_of_the_summary_and_what_models_took_for_it() -> None:
    model = ScriptedModel(["short", "", "short again"])
    compaction = Compaction(
        summarizer=ByModel(model=model),
        turns=2,
        batch_size=1,
        summary_bytes=100,
        compressed_bytes=80,
    )
    views = {"chat": View(600, Hybrid())}
    async with Memory.open(
        "ram://", counter=Letters(), views=views, compaction=compaction
    ) as memory:
        session = await memory.session("s")
        before = await session.status()
        assert (before.summary_bytes, before.compressions, before.refusals) == (0, 0, 0)
        for n in range(5):
            async with session.turn(f"question {n}") as turn:
                await turn.finish(f"answer {n} " * 20)
        await session.compact()
        status = await session.status()
        assert status.summary_bytes > 0
        assert (status.compressions, status.refusals) == (2, 1)
        assert status.costs.calls == 3
        await session.rewind(0)
        assert (await session.status()).summary_bytes == 0


async def test_status_counts_the_results_that_still_serve(memory: Memory) -> None:
    session = await memory.session("s")
    async with session.turn("one") as turn:
        await turn.tool("look", {"at": "a"}, lambda at: at, cache_turns=2)
        await turn.tool("look", {"at": "b"}, lambda at: at, cache_turns=1)
        assert (await session.status()).cached_tools == 2
        await turn.finish("1")
    assert (await session.status()).cached_tools == 1
