"""What people expect of a chat: copy, edit, undo, a list of models, and where they were."""

import base64
import re
from pathlib import Path

from rich.cells import cell_len

from keepthread.testing.server import Gate, Say, ScriptedServer
from tests.chatting import flat, home

NO_SCREEN = {"DISPLAY": None, "WAYLAND_DISPLAY": None, "SSH_CONNECTION": None, "SSH_TTY": None}


def program(folder: Path, name: str, body: str) -> Path:
    """Write a program for the person's shell."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return path


async def test_an_answer_is_copied_by_a_program_or_by_the_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    program(folder, "xclip", f'cat > "{tmp_path}/clipboard"')
    with ScriptedServer(["First: ü.", "Second."]) as server:
        place = home(tmp_path, server, **NO_SCREEN)
        with place.chat("--session", "s") as chat:
            chat.say("One")
            assert "by the terminal, if it supports that" in flat(chat.say("/copy"))
            sequence = f"\x1b]52;c;{base64.b64encode('First: ü.'.encode()).decode()}\a"
            assert sequence.encode() in chat.terminal.raw
        path = f"{folder}:/usr/bin:/bin"
        with place.chat("--session", "s", DISPLAY=":0", PATH=path) as chat:
            chat.say("Two")
            assert "by xclip" in flat(chat.say("/copy 2"))
            assert (tmp_path / "clipboard").read_text() == "First: ü."


async def test_an_editor_writes_what_is_sent(tmp_path: Path) -> None:
    editor = program(tmp_path / "bin", "ed it", 'printf "two\\nlines\\n" >> "$1"')
    with ScriptedServer(["Read."]) as server:
        place = home(tmp_path, server, VISUAL=f"'{editor}'", EDITOR="false")
        with place.chat() as chat:
            chat.send("/edit Dear model,")
            chat.sees("Read.")
            chat.asked()
        assert server.requests[0].text == "Dear model,\ntwo\nlines"
        with place.chat(VISUAL="true") as chat:
            assert "Nothing was sent" in chat.say("/edit")
        with place.chat(VISUAL="", EDITOR="false") as chat:
            assert "false ended with status 1; nothing was sent" in chat.say("/edit")
        assert len(server.requests) == 1


async def test_a_clear_and_a_rewind_can_be_undone(tmp_path: Path) -> None:
    with ScriptedServer(["One.", "Two.", "Three.", "Four."]) as server:
        with home(tmp_path, server).chat() as chat:
            chat.say("First")
            chat.say("Second")
            chat.say("/rewind", offer="Second")
            chat.key("ctrl-c")
            chat.asked()
            assert "/undo reverts this" in flat(chat.say("/clear"))
            assert "Undone: /clear" in chat.say("/undo")
            assert "Undone: /rewind. The model sees 2 messages again, from 3 on" in flat(
                chat.say("/undo")
            )
            chat.say("Third")
            assert "nothing to undo" in chat.say("/undo")
        assert re.search("First.*One.*Second.*Two.*Third", flat(server.requests[-1].context))


async def test_the_models_of_a_service_are_listed_and_completed(tmp_path: Path) -> None:
    models = ["scripted", "larger"]
    with ScriptedServer([], models=models) as server, home(tmp_path, server).chat() as chat:
        listed = chat.say("/model")
        assert re.search(r"scripted +in use", listed)
        assert "larger" in listed
        chat.type("/model lar")
        chat.key("tab")
        chat.sees_at_cursor("/model larger")
        chat.key("enter")
        chat.sees("larger is used for the rest of this chat")


async def test_continuing_shows_the_latest_turn_and_whether_it_waits(tmp_path: Path) -> None:
    long = "\n".join(f"Line {n}" for n in range(20))
    with ScriptedServer([long, Say(status=400)]) as server:
        place = home(tmp_path, server)
        place.run("chat", "--session", "s", "-p", "What now?")
        with place.chat("-r", "s") as chat:
            chat.sees("You asked: “What now?”")
            chat.sees("Line 5")
            chat.sees("… /history shows all of it")
            assert "Line 7" not in chat.seen
            chat.say("And then?")
        with place.chat("-c") as chat:
            chat.sees("You asked: “And then?”")
            chat.sees("The latest question has no answer; /retry asks it again")


async def test_a_stream_that_stalls_shows_for_how_long(tmp_path: Path) -> None:
    gate = Gate()
    script = [Say("One two three", hold=gate, hold_after=2)]
    with ScriptedServer(script) as server, home(tmp_path, server).chat() as chat:
        chat.send("Count")
        chat.sees_line(r"One two")
        chat.sees(re.compile(r"[·]+ +[5-9]|\d\d s, Ctrl-C stops it"))
        gate.open()
        chat.sees_line(r"One two three")
        chat.asked()
        assert not any("Ctrl-C stops it" in line for line in chat.terminal.screen)


async def test_wide_signs_keep_their_lines_when_the_window_is_resized(tmp_path: Path) -> None:
    words = "東京は晴れ 🚀 e\u0301te\u0301 " * 12
    gate = Gate()
    script = [Say(f"{words}end", hold=gate, hold_after=20)]
    with (
        ScriptedServer(script) as server,
        home(tmp_path, server).chat(columns=60, KITTY_WINDOW_ID="1") as chat,
    ):
        chat.send("天気" * 10)
        chat.sees("東京は晴れ")
        chat.terminal.resize(40, 30)
        gate.open()
        chat.sees("end")
        chat.asked()
        shown = flat(chat.seen)
        assert shown.count("end") == 1
        assert shown.count("🚀") == 12
        assert all(cell_len(line) <= 40 for line in chat.terminal.screen)
        chat.sees_line(r"天気.*… · scripted · .* tokens")
