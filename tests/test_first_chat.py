"""From nothing to a remembered follow-up, as a newcomer gets there, and as the docs tell it."""

import re
from pathlib import Path

import pytest

from keepthread.testing.server import ScriptedServer
from scripts.transcript import PAGE, PLACE, PLANNED_PAGE, written
from tests.chatting import home
from tests.newcomer import COOLER, FirstChat, first_chat, planned_chat

MOST_SECONDS = 120
PATIENCE = 400
MOST_COMMANDS = 5
VERSION = re.compile(r"^(keepthread) \d\S+", re.MULTILINE)
SESSION = re.compile(r"(?<=· )[^·\n]+(?= · /help$)", re.MULTILINE)
"""What the first line of a chat says of its session."""


def opened(seen: str, told: str) -> str:
    """Return a transcript as if each store had been open when the first line was drawn.

    A slow machine draws it before: then the line says so, and is compared no further.
    """
    sessions = iter(SESSION.findall(told))

    def session(found: re.Match[str]) -> str:
        expected = next(sessions, "")
        return expected if found[0] == "opening memory" else found[0]

    return SESSION.sub(session, seen)


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> FirstChat:
    return first_chat(tmp_path_factory.mktemp("newcomer"))


@pytest.mark.timeout(2 * PATIENCE)
def test_a_newcomer_asks_a_follow_up_within_five_commands(seen: FirstChat) -> None:
    assert COOLER in seen.transcript
    assert len(seen.commands) <= MOST_COMMANDS
    assert "memory.forget erases messages forever" in seen.manual, "the guides are in the wheel"


@pytest.mark.nightly  # a busy machine takes longer
@pytest.mark.timeout(2 * PATIENCE)
def test_a_newcomer_asks_a_follow_up_within_two_minutes(seen: FirstChat) -> None:
    print(f"{len(seen.commands)} commands, {seen.seconds:.1f} s of wall time")
    assert seen.seconds < MOST_SECONDS


@pytest.mark.timeout(2 * PATIENCE)
def test_the_docs_show_what_a_newcomer_sees(seen: FirstChat) -> None:
    (shown,) = PLACE.findall(PAGE.read_text())
    told, real = (
        VERSION.sub(r"\1", text) for text in (shown, opened(written(seen.transcript), shown))
    )
    assert told == real, "run scripts/transcript"


VARIES = re.compile(r"\d{4}-\d\d-\d\d-\w+|[\d,]+(?= tokens)|(?<=tokens {8})[\d,]+")
"""A session's id, and tokens: they depend on the vocabularies that are there."""


def test_the_docs_show_a_chat_with_a_plan_that_is_cleared(tmp_path: Path) -> None:
    seen = planned_chat(tmp_path)
    jakarta, tokyo, status, cleared, oslo = seen.split("\n> ")[1:6]
    assert "It is 32 °C in Jakarta." in jakarta
    assert "It is 18 °C in Tokyo." in tokyo  # the router knew from memory what was asked
    assert re.search(r"turns +2\n", status)
    assert "Starting over" in cleared
    assert "°C" not in oslo  # and knows it no more
    (shown,) = PLACE.findall(PLANNED_PAGE.read_text())
    told, real = (
        VARIES.sub("#", VERSION.sub(r"\1", text)) for text in (shown, opened(written(seen), shown))
    )
    assert told == real, "run scripts/transcript"


SLIPS = {
    "": ({}, "Begin with `keepthread init`, then `keepthread chat`"),
    "caht": ({}, "No such command 'caht'. Did you mean 'chat'?"),
    "chat --modle a": ({}, "No such option: --modle"),
    "chat -p hi": ({"KEEPTHREAD_MODEL_NAME": None}, "run `keepthread init`, or use --model NAME"),
    "chat -p hey": (
        {"KEEPTHREAD_MODEL_BASE_URL": None, "OPENAI_API_KEY": None},
        "no API key is set: export OPENAI_API_KEY=…",
    ),
    "chat -p hello": (
        {"OPENAI_API_KEY": "sk-secret"},
        "(it says: Incorrect API key provided.); the key is in OPENAI_API_KEY",
    ),
    "chat -p hi --model b": (
        {},
        (
            "to it.); --model NAME asks another model,"
            " and `keepthread config model` shows the current settings"
        ),
    ),
    "chat -p there": (
        {"KEEPTHREAD_MODEL_BASE_URL": "http://localhost:1"},
        (
            "check that it is running, and check base_url;"
            " `keepthread config model` shows the current settings"
        ),
    ),
    "chat -p again": ({"KEEPTHREAD_MODEL_BASE_ULR": ""}, "did you mean KEEPTHREAD_MODEL_BASE_URL?"),
    "chat -p hi -r 2026": ({}, "there is no session '2026'; `keepthread sessions` lists them"),
    "config memory.stratgy": ({}, "did you mean memory.strategy?"),
    "sessions": ({}, "yet: `keepthread chat` or `keepthread import` creates one"),
}


@pytest.mark.parametrize("typed", SLIPS)
def test_what_goes_wrong_at_first_is_told_with_what_to_do_next(typed: str, tmp_path: Path) -> None:
    env, told = SLIPS[typed]
    with ScriptedServer(key="right", models=["a"]) as server:
        here = home(tmp_path, server, KEEPTHREAD_MODEL_NAME="a", OPENAI_API_KEY="right")
        done = here.run(*typed.split(), **env)
    said = (done.stdout + done.stderr).decode()
    assert told in said
    assert done.returncode == (2 if typed else 0)
    assert "Traceback" not in said
    assert "sk-secret" not in said


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "memory:\n  stratgy: hybrid\n",
            "memory.stratgy is not a setting; did you mean memory.strat",
        ),
        ("memory:\n  strategy: hybird\n", "must be one of window, summarized, hybrid, recall"),
        ("model:\n  api_key: sk-1234\n", "keys come from the environment: export OPENAI_API_KEY=…"),
        ("model:\n  base_url: http://a.example\n", "put it in your own config.yaml"),
    ],
)
def test_a_slip_in_a_file_of_settings_is_told_with_its_place_and_its_cure(
    text: str, told: str, tmp_path: Path
) -> None:
    (tmp_path / "keepthread.yaml").write_text(text)
    with ScriptedServer() as server:
        done = home(tmp_path, server).run("chat", "-p", "hi")
    said = done.stderr.decode()
    assert done.returncode == 2
    assert told in said
    assert f"{tmp_path}/keepthread.yaml, line 2: " in said
    assert "sk-1234" not in said
