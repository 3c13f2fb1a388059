"""`keepthread facts`, as people and programs meet it."""

import asyncio
import json
from pathlib import Path

import pytest

from keepthread import Memory, Message
from keepthread.models.tokens import Estimator
from tests.preloaded import KEEPTHREAD
from tests.terminal import Terminal
from tests.test_cli import NASTY, ask, in_process, in_terminal, keepthread, plain

ANA = ("--owner", "ana")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder to work in, with a store that knows two facts and doubts one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEEPTHREAD_STORE", "sqlite:///chat.db")
    asyncio.run(fill())
    return tmp_path


async def fill() -> None:
    async with Memory.open("sqlite:///chat.db", counter=Estimator()) as memory:
        session = await memory.session("trip", owner="ana")
        said = await session.append(
            Message(role="user", content="I live in Oslo."),
            Message(role="user", content="I live in Rome."),
            Message(role="tool", tool_call_id="1", content="She has a boat."),
        )
        facts = memory.for_owner("ana").facts
        for city, message in zip(("Oslo", "Rome"), said[:2], strict=True):
            given = {"attribute": "city", "value": city, "session": "trip", "messages": [message]}
            await facts.remember(f"Lives in {city}.", **given)
        boat = NASTY.replace("\ud800", "")
        await facts.remember(f"Has a boat {boat}", session="trip", messages=[said[2]])


def told(*arguments: str) -> list[tuple[str, str]]:
    return [(fact["state"], fact["text"][:14]) for fact in ask("facts", *arguments)]


def test_facts_are_listed_confirmed_corrected_and_forgotten(folder: Path) -> None:
    assert told(*ANA) == [("live", "Lives in Rome."), ("quarantined", "Has a boat evi")]
    rome, boat = (fact["key"] for fact in ask("facts", *ANA))
    assert ask("facts", "confirm", boat[-8:], *ANA)[0]["state"] == "live"
    edited = ask("facts", "edit", rome[-6:], "Lives in Bari.", "--value", "Bari", *ANA)
    assert (edited[0]["key"], edited[0]["value"]) == (rome, "Bari")
    assert [each for _, each in told("history", rome, *ANA)] == [
        "Lives in Oslo.",
        "Lives in Rome.",
        "Lives in Bari.",
    ]
    assert told("search", "bari", *ANA) == [("live", "Lives in Bari.")]
    result = keepthread("facts", "forget", rome, *ANA)
    assert "Forgot 1; the messages stay" in result.stderr
    assert "Current again: Lives in Oslo." in result.stderr
    added = ask("facts", "add", "Likes tea.", "--attribute", "likes", "--value", "tea", "--many")
    assert (added[0]["many"], added[0]["messages"]) == (True, [])
    assert len(told("--all", *ANA)) == 2


def test_a_long_list_goes_through_the_pager(folder: Path) -> None:
    async def note() -> None:
        async with Memory.open("sqlite:///chat.db", counter=Estimator()) as memory:
            for number in range(30):
                await memory.for_owner("ana").facts.remember(f"Likes song {number}.")

    asyncio.run(note())
    pager = folder / "pager.sh"
    pager.write_text("#!/bin/sh\necho PAGED\nhead -n 4\n")
    pager.chmod(0o755)
    program = [KEEPTHREAD, "facts", *ANA]
    with Terminal(program, cwd=folder, env={"PAGER": str(pager)}, rows=20) as terminal:
        assert terminal.exit_code(60) == 0
        shown = terminal.transcript
    assert shown.startswith("PAGED\n")
    assert shown.count("Likes song") == 2
    assert shown.endswith("1 in quarantine: `keepthread facts confirm KEY` releases it")
    assert keepthread("facts", *ANA).stdout.count("Likes song") == 30


def test_a_person_edits_a_file(folder: Path) -> None:
    assert keepthread("facts", "export", "-o", "ana.md", *ANA).returncode == 0
    page = folder / "ana.md"
    assert page.stat().st_mode & 0o777 == 0o600
    page.write_text(page.read_text().replace("Rome", "Bari").replace("[ ]", "[x]") + "- Sings.\n")
    assert keepthread("facts", "import", "ana.md", *ANA).stderr.strip() == (
        "1 added, 1 edited, 1 confirmed"
    )
    assert keepthread("facts", "import", "ana.md", *ANA).stderr.strip() == (
        "Nothing was changed: every fact in the document is known already"
    )
    lines = [line for line in page.read_text().splitlines() if "boat" not in line]
    page.write_text("\n".join(lines))
    assert "1 forgotten" in keepthread("facts", "import", "ana.md", "--prune", *ANA).stderr
    exported = in_process("facts", "export", *ANA).stdout
    assert b"Lives in Bari." in exported
    assert b"boat" not in exported
    in_process("facts", "import", "-", *ANA, input=exported)
    value = in_process("facts", "export", "--json", "--owner", "ana").stdout
    (folder / "ana.json").write_bytes(value)
    assert ask("facts", "import", "ana.json", *ANA)[0]["added"] == []
    assert json.loads(value)["owner"] == "ana"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["frob"], "there is no action 'frob'; there are list, search, add"),
        (["list", "x"], "list takes no argument"),
        (["add"], "the fact in quotes"),
        (["add", " "], "a fact's text is empty"),
        (["edit"], "Missing argument 'KEY': the fact's key, or its last digits"),
        (["edit", "zzzz", "x"], "no key of ana's facts ends in 'zzzz'; `keepthread facts` lists"),
        (["confirm"], "Missing argument 'KEY': keys of facts"),
        (["history", "a", "b"], "history takes KEY and nothing after it"),
        (["import", "chat.db"], "neither Markdown nor JSON"),
        (["import", "nothing.md"], "No such file"),
        (["import", "bare.md", "--prune"], "has no timestamp"),
        (["import", "prose.md"], "the document has no facts: in Markdown, each fact is a line"),
        (["import", "half.json"], "half.json is neither Markdown nor valid JSON"),
        (["import", "number.json"], "fact 2 has no text"),
        (
            ["import", "time.json"],
            "fact 1 has an invalid time 'yesterday': write 2026-11-16T09:30:00Z, 2026-11-16",
        ),
        (["import", "other.json"], "this is not a document of facts"),
    ],
)
def test_what_cannot_be_done_is_said_in_one_line(
    folder: Path, arguments: list[str], message: str
) -> None:
    (folder / "bare.md").write_text("- Sings.\n")
    (folder / "prose.md").write_text("# Ana\n\nShe sings.\n")
    (folder / "half.json").write_text('[{"fact": "Sings."')
    (folder / "number.json").write_text('[{"fact": "Sings."}, {"fact": 2}]')
    (folder / "time.json").write_text('[{"fact": "Sings.", "updated": "yesterday"}]')
    (folder / "other.json").write_text('{"facts": []}')
    result = keepthread("facts", *arguments, *ANA)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.splitlines()) == 1


def test_actions_are_subcommands_with_a_help_of_their_own(folder: Path) -> None:
    listed = keepthread("facts", "--help").stdout
    assert "history  Show what a fact replaced, oldest first." in listed
    assert "--attribute" not in listed
    usage, *rest = keepthread("facts", "edit", "-h").stdout.splitlines()
    assert usage == "Usage: keepthread facts edit [OPTIONS] KEY [TEXT]"
    assert "  KEY   The fact's key, or its last digits.  [required]" in rest
    assert not any(line.startswith("  --store") for line in rest)
    assert told("--owner", "ana", "search", "rome") == [("live", "Lives in Rome.")]


def test_on_the_screen_nothing_stored_is_raw_and_the_next_step_is_named(folder: Path) -> None:
    screen = in_terminal("facts", "--owner", "ana")
    assert "\x1b[31mred" not in screen
    assert "\\x1b[31mred" in screen
    seen = plain(screen)
    assert "quarantined · trip 3 · tool" in seen
    assert "1 in quarantine: `keepthread facts confirm KEY` releases it" in seen
    nobody = keepthread("facts").stderr
    assert nobody == "No facts about default; owners with facts: ana (--owner NAME)\n"
