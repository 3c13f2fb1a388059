"""Mistakes in calls: the error or the warning says what to write instead."""

import logging
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import keepthread.sync
from keepthread import Memory, Message, fit
from keepthread.errors import Damaged, InvalidInput, WrongFormat
from keepthread.testing.contract import Letters

WHOLE: Any = {"role": "user", "content": "Hello"}


def memory(**options: Any) -> Any:
    return Memory.open("ram://", counter=Letters(), **options)


def test_fit_says_how_to_write_a_message() -> None:
    with pytest.raises(
        InvalidInput, match=r"not \{'role': .*; write Message\(role='user', content"
    ):
        fit([WHOLE], 100)


async def test_append_says_how_to_write_a_message() -> None:
    async with memory() as opened:
        session = await opened.session("s")
        with pytest.raises(InvalidInput, match=r"write Message\(role='user', content='…'\)"):
            await session.append(WHOLE)
        with pytest.raises(InvalidInput, match=r"write Message\(role='user', content='…'\)"):
            await opened.store.append(session.key, [WHOLE])


async def test_a_budget_in_place_of_a_view_is_noticed() -> None:
    number: Any = 500
    async with memory() as opened:
        session = await opened.session("s")
        with pytest.raises(InvalidInput, match=r"did you mean budget=500\?"):
            await session.context(number)
        async with session.turn("Hello") as turn:
            with pytest.raises(InvalidInput, match=r"did you mean budget=500\?"):
                await turn.context(number)


async def test_a_turn_must_be_entered_first() -> None:
    async with memory() as opened:
        session = await opened.session("s")
        turn = session.turn("Hello")
        for call in (
            lambda: turn.finish("Hi"),
            lambda: turn.append(Message(role="assistant", content="Hi")),
            turn.context,
            lambda: turn.tool("clock", {}, lambda: "noon"),
        ):
            with pytest.raises(InvalidInput, match=r"enter it first: `async with session\.turn"):
                await call()
        with pytest.raises(InvalidInput, match="enter it first"):
            turn.delegate("Look it up")
        async with turn:
            await turn.finish("Hi")
        assert [m.content for m in await session.messages()] == ["Hello", "Hi"]


def test_a_text_file_is_not_a_store(tmp_path: Path) -> None:
    notes, broken = tmp_path / "notes.txt", tmp_path / "broken.db"
    notes.write_text("Buy milk.\n" * 200)
    broken.write_bytes(bytes(range(1, 255)) * 20)
    with (
        pytest.raises(WrongFormat, match="is a text file, not a keepthread store; check the path"),
        keepthread.sync.Memory.open(f"sqlite:///{notes}"),
    ):
        pass
    with (
        pytest.raises(Damaged, match="is not an SQLite database, or its header is damaged"),
        keepthread.sync.Memory.open(f"sqlite:///{broken}"),
    ):
        pass
    assert notes.read_text() == "Buy milk.\n" * 200


async def test_times_may_be_datetimes_with_a_time_zone() -> None:
    noon, later = datetime(2026, 5, 1, 12, tzinfo=UTC), datetime(2026, 5, 2, 12, tzinfo=UTC)
    naive = datetime(2026, 5, 1, 12)  # noqa: DTZ001
    async with memory() as opened:
        session = await opened.session("s")
        for at, text in ((noon, "early tea"), (later, "late tea")):
            await session.append(Message(role="user", content=text, created_at=at.timestamp() + 1))
        found = await opened.search("tea", since=later)
        assert [hit.message.content for hit in found] == ["late tea"]
        found = await opened.search("tea", until=later)
        assert [hit.message.content for hit in found] == ["early tea"]
        facts = opened.facts
        fact = await facts.remember("Likes tea.", since=noon)
        assert fact.since == noon.timestamp()
        assert (await facts.edit(fact.key, since=later)).since == later.timestamp()
        assert (await opened.forget(session="s", until=later, dry_run=True)).any
        for call in (
            lambda: opened.search("tea", since=naive),
            lambda: opened.forget(session="s", since=naive),
            lambda: facts.remember("Likes milk.", since=naive),
            lambda: facts.edit(fact.key, since=naive),
            lambda: facts.list(at=naive),
        ):
            with pytest.raises(InvalidInput, match="has no time zone"):
                await call()


async def test_an_answer_that_is_dropped_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "keepthread")
    async with memory() as opened:
        session = await opened.session("s")
        async with session.turn("Hello") as turn:
            await turn.finish("Hi")
            await turn.finish("Hi")
            assert caplog.messages == []
            assert (await turn.finish("Good morning")).content == "Hi"
    assert caplog.messages == [
        "turn 1 of session 's' already has an answer; the new one is discarded"
    ]


async def test_a_cache_that_is_ignored_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "keepthread")
    async with memory() as opened:
        session = await opened.session("s")
        async with session.turn("Book it") as turn:
            await turn.tool("book", {}, lambda: "done", side_effects=True)
            await turn.tool("look", {}, lambda: "done", cache_turns=2)
            assert caplog.messages == []
            await turn.tool("book", {}, lambda: "done", cache_turns=2, side_effects=True)
    assert caplog.messages == ["cache_turns of tool 'book' is ignored, because it has side effects"]


async def test_a_system_prompt_that_is_ignored_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "keepthread")
    async with memory() as opened:
        await opened.session("s", system_prompt="Be brief.")
        await opened.session("s", system_prompt="Be brief.")
        await opened.session("s")
        assert caplog.messages == []
        for _ in range(2):
            session = await opened.session("s", system_prompt="Be long.")
    assert session.info.system_prompt == "Be brief."
    (logged,) = caplog.messages
    assert logged.startswith("session 's' already exists, so system_prompt is ignored")


async def test_add_turn_is_another_name_of_add_message() -> None:
    async with memory() as opened:
        session = await opened.session("s")
        await session.add_turn("user", "Hello")
        assert [m.content for m in await session.messages()] == ["Hello"]
