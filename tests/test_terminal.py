"""The terminal that tests look at: it behaves as a real one does."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import preloaded
from tests.preloaded import KEEPTHREAD
from tests.terminal import Terminal, svg

SIZE = "import os; size = os.get_terminal_size(); print(size.columns, 'by', size.lines)"
# It sleeps for moments: a signal that comes just before a long sleep would not end it.
WAITS = "import time; print('ready', flush=True)\nwhile True: time.sleep(0.02)"

PROMPT = """
from prompt_toolkit import PromptSession
session = PromptSession(multiline=False, bottom_toolbar=lambda: "toolbar here")
while True:
    try:
        print("said:", repr(session.prompt("> ")), flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
    except EOFError:
        break
"""


def python(code: str) -> list[str]:
    """Return the command that runs a few lines."""
    return [sys.executable, "-c", code]


def test_a_program_controls_the_terminal_it_is_started_in() -> None:
    code = f"{SIZE}; print(os.ctermid(), os.isatty(0), os.tcgetpgrp(0) == os.getpid())"
    with Terminal(python(code), columns=72, rows=9) as terminal:
        assert terminal.exit_code() == 0
        assert terminal.screen[:2] == ["72 by 9", "/dev/tty True True"]


def test_what_scrolled_away_is_kept() -> None:
    with Terminal(python("for n in range(100): print('line', n)"), rows=10) as terminal:
        terminal.wait_for(re.compile(r"^line 99$", re.MULTILINE))
        terminal.exit_code()
        assert terminal.screen == [*(f"line {n}" for n in range(91, 100)), ""]
        assert terminal.transcript.splitlines() == [f"line {n}" for n in range(100)]
        assert terminal.raw.count(b"\r\n") == 100


def test_a_wait_in_vain_fails_with_the_screen() -> None:
    with (
        Terminal(python("print('only this')")) as terminal,
        pytest.raises(AssertionError, match=r"'that' was not shown; the program ended with 0") as e,
    ):
        terminal.wait_for("that")
    assert "│only this " in str(e.value)
    with (
        Terminal(python(WAITS)) as terminal,
        pytest.raises(AssertionError, match=r"'ready' was not shown 2 times; 0\.5 s have passed"),
    ):
        terminal.wait_for("ready", 0.5, times=2)


def test_a_resized_program_is_told_and_nothing_is_lost() -> None:
    code = f"""
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGWINCH}})
print(*range(8), sep='\\n', flush=True)
while signal.sigwait({{signal.SIGWINCH}}): exec({SIZE!r})
"""
    with Terminal(python(code), columns=40, rows=20) as terminal:
        terminal.wait_until(lambda screen: screen[:8] == [*"01234567"])
        terminal.resize(30, 5)
        terminal.wait_until(lambda screen: screen == ["5", "6", "7", "30 by 5", ""])
        terminal.resize(120, 24)
        terminal.wait_for("120 by 24")
        assert terminal.transcript.splitlines() == [*"01234567", "30 by 5", "120 by 24"]


def test_a_program_that_takes_the_whole_screen_gives_it_back() -> None:
    code = r"print('before\x1b[?1049h\x1b[2J\x1b[Hwhole'); input(); print('\x1b[?1049l, after')"
    with Terminal(python(code)) as terminal:
        terminal.wait_until(lambda screen: screen[0] == "whole")
        terminal.enter()
        assert terminal.exit_code() == 0
        assert terminal.transcript == "before, after"


def test_a_prompt_is_answered_edited_and_interrupted() -> None:
    with Terminal(python(PROMPT), columns=60, rows=12) as terminal:
        terminal.wait_for("toolbar here")
        terminal.type("good mörning 世界")
        terminal.key("left")
        terminal.key("backspace")
        terminal.enter()
        terminal.wait_for("said: 'good mörning 界'")
        terminal.key("up")
        terminal.wait_for("> good mörning 界", times=2)
        terminal.key("ctrl-c")
        # Between two prompts a key goes to the terminal itself: wait for the next one.
        terminal.wait_for(re.compile(r"interrupted\n>"))
        terminal.paste("two\nlines")
        terminal.wait_until(lambda screen: any("lines" in line for line in screen))
        terminal.resize(50, 8)
        terminal.enter()
        terminal.wait_for(re.compile(r"said: 'two\\nlines'\n>"))
        terminal.key("ctrl-d")
        assert terminal.exit_code() == 0
    # The terminal told where its cursor is; a program that is not told says so.
    assert b"\x1b[6n" in terminal.raw
    assert "CPR" not in terminal.transcript


def test_a_signal_ends_a_program_and_leaving_the_block_does_as_well() -> None:
    with Terminal(python(WAITS)) as terminal:
        terminal.wait_for("ready")
        assert 0 < terminal.cpu() < 5
        terminal.signal(signal.SIGKILL)
        assert terminal.exit_code() == -signal.SIGKILL
        assert terminal.cpu() > 0
    with Terminal(python(WAITS)) as terminal:
        terminal.wait_for("ready")
    assert terminal.exit_code() == -signal.SIGTERM
    with Terminal(python(WAITS)) as terminal:
        terminal.wait_for("ready")
        terminal.key("ctrl-c")
        terminal.wait_for("KeyboardInterrupt")
        assert terminal.exit_code() == -signal.SIGINT


def test_the_command_is_pictured_in_its_colours_and_alike_each_time() -> None:
    pictures: set[str] = set()
    for _ in range(2):
        with Terminal([KEEPTHREAD, "--help"], columns=90, rows=60) as terminal:
            assert terminal.exit_code() == 0
            pictures.add(svg(terminal, "keepthread --help"))
    (picture,) = pictures
    assert "sessions" in picture
    assert "@font-face" not in picture
    assert re.findall(r"https?://[^\s\"]+", picture) == ["http://www.w3.org/2000/svg"]


def test_cells_keep_their_colours_in_a_picture() -> None:
    code = (
        r"print('\x1b[1;31mred\x1b[0m \x1b[2mfaint\x1b[22m \x1b[38;2;1;2;3mown\x1b[m \x1b[7mback')"
    )
    with Terminal(python(code)) as terminal:
        terminal.exit_code()
        drawn = svg(terminal, "colours")
    styles = dict(re.findall(r"\.(terminal-r\d+) \{ (.*?) \}", drawn))
    texts = re.findall(r'class="(terminal-r\d+)"[^>]*>(\w+)</text>', drawn)
    shown = {words: styles[name] for name, words in texts}
    assert "font-weight: bold" in shown["red"]
    assert "#010203" in shown["own"]
    assert len(set(shown.values())) == 4


@pytest.mark.parametrize(
    "arguments", [["--version"], ["stats", "--store", "sqlite:///none.db"], ["--nonsense"]]
)
def test_a_command_whose_modules_are_loaded_ends_as_one_that_starts_from_nothing(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KEEPTHREAD_TEST_COLD", raising=False)  # the nightly run sets it
    program, env = [str(KEEPTHREAD), *arguments], {**os.environ, "COLUMNS": "70"}
    assert preloaded.may_start(program, env)
    warm = preloaded.run(program, env, tmp_path, b"", 60)
    cold = subprocess.run(
        program, env=env, cwd=tmp_path, input=b"", capture_output=True, check=False
    )
    assert warm.returncode == cold.returncode
    assert warm.stdout == cold.stdout
    assert warm.stderr == cold.stderr
    assert warm.stdout or warm.stderr
