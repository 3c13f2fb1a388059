"""Two owners may have sessions with the same id, and each command means the one it is given."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from keepthread import Memory
from tests.test_cli import keepthread

OWNERS = ("default", "ana", "bea")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a folder with a store in which each owner has a session `main`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEEPTHREAD_STORE", "sqlite:///chat.db")

    async def fill() -> None:
        async with Memory.open("sqlite:///chat.db") as memory:
            for owner in OWNERS:
                own = memory.for_owner(owner)
                session = await own.session("main", title="Same")
                await session.add_message("user", f"apples of {owner}")
                await own.facts.remember(f"Is {owner}")
            await memory.for_owner("bea").session("only")

    asyncio.run(fill())
    return tmp_path


def ask(*arguments: str) -> list[dict[str, Any]]:
    done = keepthread("--json", *arguments)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def said(*arguments: str) -> list[str]:
    return [message["content"] for message in ask("show", "main", *arguments)]


def error(*arguments: str) -> str:
    done = keepthread(*arguments)
    assert done.returncode == 2
    return done.stderr.strip()


@pytest.mark.usefixtures("folder")
def test_a_session_is_of_the_owner_that_is_named_or_of_the_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert said() == ["apples of default"]
    monkeypatch.setenv("KEEPTHREAD_MEMORY_OWNER", "ana")
    assert said() == ["apples of ana"]
    assert said("--owner", "bea") == ["apples of bea"]
    (why,) = ask("why", "main", "--owner", "bea")
    assert why["session"] == "main"
    lines = ask("export", "main")
    assert [line["session"]["owner"] for line in lines if "session" in line] == ["ana"]
    assert [fact["text"] for fact in ask("facts")] == ["Is ana"]


@pytest.mark.usefixtures("folder")
def test_commands_over_a_store_cover_all_owners_unless_one_is_named() -> None:
    assert sorted(s["owner"] for s in ask("sessions")) == ["ana", "bea", "bea", "default"]
    assert {s["owner"] for s in ask("sessions", "--owner", "ana")} == {"ana"}
    assert sorted(hit["owner"] for hit in ask("search", "apples")) == sorted(OWNERS)
    assert [hit["owner"] for hit in ask("search", "apples", "--owner", "ana")] == ["ana"]
    (hit,) = ask("search", "apples", "--session", "main", "--owner", "bea")
    assert hit["snippet"] == "apples of bea"
    shown = keepthread("search", "apples").stdout
    assert "main · ana · 1" in shown
    assert "·" not in keepthread("search", "apples", "--owner", "ana").stdout.splitlines()[0]


@pytest.mark.usefixtures("folder")
def test_an_id_that_only_others_have_names_them_but_not_in_a_chat(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = "error: default has no session 'only'; bea has a session with this id: --owner bea"
    for command in ("show", "why", "export", "compact", "delete", "forget --session"):
        assert error(*command.split(), "only").endswith(expected)
    several = (
        "carl has no session 'main'; ana, bea, default have sessions with this id: --owner NAME"
    )
    assert several in error("show", "main", "--owner", "carl")
    assert "there is no session 'onyl'; there is only" in error("show", "onyl", "--owner", "bea")
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    told = error("chat", "-r", "only", "-p", "x", "--model", "m")
    assert told.endswith("there is no session 'only'; `keepthread sessions` lists them")


@pytest.mark.usefixtures("folder")
def test_deleting_and_forgetting_a_session_leaves_those_of_others() -> None:
    (done,) = ask("delete", "main", "--yes", "--owner", "ana")
    assert done == {"deleted": "main", "messages": 1}
    assert said() == ["apples of default"]
    (receipt,) = ask("forget", "--session", "main", "--yes", "--owner", "bea")
    assert (receipt["messages"], receipt["found"]) == (1, 0)
    assert said() == ["apples of default"]
    assert sorted((s["owner"], s["id"]) for s in ask("sessions")) == [
        ("bea", "only"),
        ("default", "main"),
    ]


@pytest.mark.usefixtures("folder")
def test_forgetting_without_an_owner_covers_all_of_them() -> None:
    (receipt,) = ask("forget", "--since", "2020-01-01", "--yes", "--owner", "ana")
    assert receipt["messages"] == 1
    (receipt,) = ask("forget", "--since", "2020-01-01", "--yes")
    assert receipt["messages"] == 2


def test_transcripts_of_sessions_with_the_same_name_are_all_written(folder: Path) -> None:
    (done,) = ask("export", "--to", "out")
    assert done["sessions"] == 4
    written = [path.read_text() for path in (folder / "out").rglob("*.md")]
    assert len(written) == 4
    assert all(any(f"apples of {owner}" in text for text in written) for owner in OWNERS)
