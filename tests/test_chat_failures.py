"""What goes wrong around a chat, tried on the real program: it says so, and nothing is lost."""

import os
import pty
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from keepthread.testing.server import Gate, Received, Say, ScriptedServer
from proofs.trials import way_to_mount
from tests.chatting import KEEPTHREAD, PATIENCE, Home, flat, home
from tests.terminal import SHELL

HOLDS = """
import sqlite3, sys
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
"""
# Whom file modes bind: anybody but root, and root without the right to pass them by.
BOUND = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(24, 1); os.execv(sys.argv[1], sys.argv[1:])"
)
SMALL_DISK = 'mount -t tmpfs -o size=1m,mode=0700 tmpfs "$0" && exec "$@"'


def heard(asked: Received) -> str:
    """Say again what was asked."""
    return f"Heard {asked.text}."


def both(*questions: str) -> list[str]:
    """Return questions with the answers that `heard` gives."""
    return [said for text in questions for said in (text, f"Heard {text}.")]


@contextmanager
def held(store: Path) -> Iterator[None]:
    """Let another process keep the store from being written."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDS, store], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        yield
        other.communicate()


def free_port() -> int:
    """Return a port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


# ------------------------------------------------------------------- the model


async def test_a_model_that_is_down_is_told_and_answers_once_it_is_back(tmp_path: Path) -> None:
    with ScriptedServer() as server:
        here = home(tmp_path, server)
    port = int(server.anthropic.rpartition(":")[2])
    with here.chat("--session", "s") as chat:
        told = flat(chat.say("Is anybody there?"))
        assert f"error: 127.0.0.1:{port} cannot be reached" in told
        assert "check that it is running, and check base_url" in told
        with ScriptedServer(otherwise=heard, port=port):
            assert "Heard Is anybody there?." in chat.say("/retry")
        chat.say("And now?")
        chat.leave()
    assert await here.said("s") == [*both("Is anybody there?"), "And now?"]


def test_a_key_that_is_missing_or_wrong_is_told_and_never_shown(tmp_path: Path) -> None:
    with ScriptedServer(key="right") as server:
        here = home(tmp_path, server)
        with here.start(KEEPTHREAD_MODEL_BASE_URL=None) as chat:
            assert chat.ended() == 2
            assert "no API key is set: export OPENAI_API_KEY=…" in chat.seen
        with here.chat(OPENAI_API_KEY="sk-quite-wrong") as chat:
            assert "rejects the key (401)" in chat.say("Hello?")
            chat.leave()
            assert b"quite-wrong" not in chat.terminal.raw
        kept = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
        assert not any(b"quite-wrong" in data for data in kept)


async def test_whatever_a_model_does_wrong_costs_its_answer_alone(tmp_path: Path) -> None:
    late = Gate()
    busy = Say(status=429, message="slow down", headers={"Retry-After": "0"})
    script = [
        *(busy, "The second time."),
        *(busy, busy),
        *(Say(status=500, message="boom \x1b[31m"),) * 2,
        Say("One two three four", cut_after=2),
        Say("Five six seven", status=500, message="oops", fails_after=1),
        Say("Late.", hold=late, hold_after=0),
        Say("No more", finish="length"),
        Say(""),
    ]
    with ScriptedServer(script) as server:
        here = home(tmp_path, server, KEEPTHREAD_MODEL_RETRIES="1")
        with here.chat("--session", "s") as chat:
            assert "The second time." in chat.say("busy once")
            told = flat(chat.say("busy twice"))
            assert "rate-limiting requests (429), after 2 attempts" in told
            assert "it says: slow down" in told
            assert "/retry asks again" in told
            told = flat(chat.say("broken"))
            assert (
                r"(500), after 2 attempts: wait a little and ask again (it says: boom \x1b[31m)"
                in told
            )
            assert re.search(
                r"^One two\ncut short: the answer was cut off", chat.say("cut"), re.MULTILINE
            )
            assert re.search(r"^Five\ncut short: .*\(500\)", chat.say("half"), re.MULTILINE)
            chat.send("slow")
            chat.sees_line("·+")
            late.open()
            chat.asked()
            assert re.search(r"> slow\n\nLate\.\n\n>", chat.seen)
            assert "cut short: a limit was reached" in chat.say("long")
            assert "the model returned an empty answer; /retry asks again" in chat.say("mute")
            chat.leave()
        assert b"\x1b[31mboom" not in chat.terminal.raw
        assert [text.strip() for text in await here.said("s")] == [
            *("busy once", "The second time.", "busy twice", "broken", "cut", "One two"),
            *("half", "Five", "slow", "Late.", "long", "No more", "mute"),
        ]


# ------------------------------------------------------------------- the store


async def test_a_store_that_another_process_holds_gets_everything_later(tmp_path: Path) -> None:
    with ScriptedServer(otherwise=heard) as server:
        here = home(tmp_path, server)
        with here.chat("--session", "s") as chat:
            chat.say("one")
            with held(here.store):
                told = flat(chat.say("two"))
                assert "Heard two." in told
                assert "the memory is unavailable: " in told
                assert "another process held the store for too long" in told
                assert "kept in a file until it is available again" in told
                chat.sees(re.compile(r"memory unavailable$", re.MULTILINE))
                assert "try again when it is back" in flat(chat.say("/rename x"))
                chat.say("three")
                # It still knows what was said before it went away.
                assert "Heard one." in server.requests[-1].context
                chat.terminal.type("half a line")
            chat.sees("the memory is available again: 4 messages were delivered")
            chat.sees_at_cursor("half a line")
            chat.key("ctrl-c")
            chat.asked()
            chat.say("four")
            chat.leave()
        assert await here.said("s") == both("one", "two", "three", "four")
        assert "sound" in here.run("verify").stdout.decode()


async def test_what_could_not_be_brought_home_the_next_chat_brings(tmp_path: Path) -> None:
    with ScriptedServer(otherwise=heard) as server:
        here = home(tmp_path, server)
        await here.fill("s", 1)
        whole = here.store.read_bytes()
        here.store.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
        with here.chat("--session", "s") as chat:
            chat.sees("the file is damaged")
            chat.say("while it is broken")
            chat.leave()
        here.store.write_bytes(whole)
        with here.chat("-c") as chat:
            chat.sees("2 messages of an earlier chat were delivered")
            assert "Heard while it is broken." in chat.say("/history")
            chat.leave()
        assert (await here.said("s"))[2:] == both("while it is broken")


async def test_a_file_that_cannot_be_written_is_read_and_left_as_it_is(tmp_path: Path) -> None:
    under = [sys.executable, "-c", BOUND] if os.geteuid() == 0 else []
    with ScriptedServer(otherwise=heard) as server:
        here = home(tmp_path, server)
        await here.fill("s", 1)
        before = here.store.read_bytes()
        here.store.chmod(0o400)
        with here.chat("-c", under=under) as chat:
            assert "Answer 0: " in chat.say("/history")
            assert "the file is write-protected" in flat(chat.say("meanwhile"))
            assert "Heard meanwhile." in chat.say("/history")
            chat.leave()
        assert here.store.read_bytes() == before
        assert list((tmp_path / "state").rglob("*.db"))


def test_on_a_full_disk_a_chat_goes_on_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    prefix = way_to_mount()
    under = [*prefix, "/bin/sh", "-c", SMALL_DISK, str(tmp_path / "data")] if prefix else []
    with ScriptedServer(otherwise=heard) as server:
        here = home(tmp_path, server)
        with here.chat("--session", "s", under=under) as chat:
            chat.say("with room")
            with _full(chat.terminal.pid, tmp_path / "data", mounted=bool(prefix)):
                told = flat(chat.say("without room"))
                assert ("the disk is full" if prefix else "the memory is unavailable") in told
                chat.say("still talking")
                assert "Heard with room." in server.requests[-1].context
            assert "Saved: 6 messages" in chat.say("/save")
            history = chat.say("/history")
            said = re.findall(r"^   (\S.*)$", history, re.MULTILINE)
            assert said == both("with room", "without room", "still talking")
            chat.leave()


@contextmanager
def _full(pid: int, folder: Path, *, mounted: bool) -> Iterator[None]:
    """Leave a program no room: on the disk that it alone sees, or in any file."""
    if mounted:
        seen = Path(f"/proc/{pid}/root{folder}")
        disk = os.statvfs(seen)
        with suppress(OSError):  # the program may have written something since
            (seen / "ballast").write_bytes(bytes(disk.f_bavail * disk.f_frsize))
        yield
        (seen / "ballast").unlink()
    else:
        with _no_files(pid):
            yield


@contextmanager
def _no_files(pid: int) -> Iterator[None]:
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE, (100, resource.RLIM_INFINITY))
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, before)


async def test_where_no_file_can_be_written_a_chat_is_in_memory_and_says_so(tmp_path: Path) -> None:
    with ScriptedServer(otherwise=heard) as server:
        here = home(tmp_path, server)
        with here.chat("--session", "s") as chat:
            chat.say("one")
            with _no_files(chat.terminal.pid):
                told = flat(chat.say("two"))
                assert "new messages are kept only in this process's memory" in told
                chat.sees(re.compile("memory unavailable · not kept$", re.MULTILINE))
                chat.say("three")
                assert "Heard one." in server.requests[-1].context
                assert "the memory is still unavailable" in chat.say("/save")
            assert "Saved: 6 messages" in chat.say("/save")
            chat.leave()
        assert await here.said("s") == both("one", "two", "three")


def test_a_server_that_refuses_keeps_nobody_from_talking(tmp_path: Path) -> None:
    with ScriptedServer(otherwise=heard) as server:
        here = home(tmp_path, server)
        url = f"postgresql://me:hushhush@127.0.0.1:{free_port()}/chats"
        with here.chat("--session", "s", KEEPTHREAD_STORE=url) as chat:
            chat.sees("the memory is unavailable: PostgreSQL: the server cannot be reached")
            chat.say("one")
            chat.say("two")
            assert "Heard one." in server.requests[-1].context
            chat.say("/status")
            chat.leave()
            assert "hushhush" not in chat.seen
            assert r"\n" not in chat.seen
        assert list((tmp_path / "state").rglob("*.db"))


# ------------------------------------------------------------------ the person


async def test_ctrl_c_stops_what_is_being_done_and_no_more(tmp_path: Path) -> None:
    script = [
        Say("Never.", hold=Gate(), hold_after=0),
        Say("One two three", hold=Gate(), hold_after=2),
        "Four.",
    ]
    with ScriptedServer(script) as server:
        here = home(tmp_path, server)
        with here.chat("--session", "s") as chat:
            chat.key("ctrl-c")
            chat.sees("Ctrl-D quits")
            chat.type("never sent")
            chat.key("ctrl-c")
            chat.asked()
            chat.send("waiting")
            server.wait_for(1, PATIENCE)
            chat.key("ctrl-c")
            chat.sees("stopped before anything arrived; /retry asks again")
            chat.asked()
            chat.send("counting")
            chat.sees("One two")
            chat.key("ctrl-c")
            chat.sees("cut short: stopped")
            chat.asked()
            server.wait_for(timeout=PATIENCE, dropped=2)
            chat.send("/forget")
            chat.sees("[y/N]")
            chat.key("ctrl-c")
            chat.sees("Nothing was forgotten")
            chat.asked()
            chat.terminal.resize(30, 6)
            chat.terminal.resize(100, 30)
            assert "Four." in chat.say("more")
            chat.leave()
        assert [text.strip() for text in await here.said("s")] == [
            *("waiting", "counting", "One two", "more", "Four."),
        ]


async def test_ctrl_c_stops_a_command_that_takes_long(tmp_path: Path) -> None:
    with ScriptedServer([Say("A summary.", hold=Gate(), hold_after=0)], otherwise=heard) as server:
        here = home(tmp_path, server, KEEPTHREAD_SUMMARIZER_BY="model")
        await here.fill("s", 14)
        with here.chat("-c") as chat:
            chat.send("/compact")
            server.wait_for(1, PATIENCE)
            chat.key("ctrl-c")
            chat.sees("stopped")
            chat.asked()
            chat.leave()


async def test_a_signal_before_the_first_byte_keeps_the_question(tmp_path: Path) -> None:
    with ScriptedServer([Say("Never.", hold=Gate(), hold_after=0)]) as server:
        here = home(tmp_path, server)
        with here.chat() as chat:
            chat.send("Will you answer?")
            server.wait_for(1, PATIENCE)
            chat.terminal.signal(signal.SIGTERM)
            assert chat.ended() == 143
            assert "Traceback" not in chat.seen
        assert await here.said() == ["Will you answer?"]


async def test_a_window_that_is_closed_in_the_middle_of_an_answer_keeps_it(tmp_path: Path) -> None:
    with ScriptedServer([Say("One two three", hold=Gate(), hold_after=2)]) as server:
        here = home(tmp_path, server)
        assert _closed_in_the_middle(here, "Count", b"two") == 129
        assert [text.strip() for text in await here.said()] == ["Count", "One two"]


def _closed_in_the_middle(here: Home, question: str, shown: bytes) -> int:
    """Close the window of a chat once something is shown; return how the program ended."""
    env = {name: value for name, value in here.env.items() if value is not None}
    master, slave = pty.openpty()
    with subprocess.Popen(
        [*SHELL, os.ttyname(slave), KEEPTHREAD, "chat"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "PROMPT_TOOLKIT_NO_CPR": "1", **env},
        cwd=here.folder,
        start_new_session=True,
    ) as program:
        os.close(slave)
        _read_until(master, b"> ")
        os.write(master, f"{question}\r".encode())
        _read_until(master, shown)
        os.close(master)
        return program.wait(PATIENCE)


def _read_until(master: int, words: bytes) -> None:
    seen = b""
    while words not in seen:
        seen += os.read(master, 4096)


# ------------------------------------------------------------------- two of them


async def test_two_chats_on_one_session_answer_at_once_and_know_of_each_other(
    tmp_path: Path,
) -> None:
    gate = Gate()
    script = [Say("Apples it is.", hold=gate, hold_after=1)]
    with ScriptedServer(script, otherwise=heard) as server:
        here = home(tmp_path, server)
        with here.chat("--session", "ours") as one, here.chat("--session", "ours") as two:
            one.send("apples?")
            assert gate.reached.wait(PATIENCE)
            assert "Heard pears?." in two.say("pears?")
            gate.open()
            one.asked()
            one.say("plums?")
            assert "Heard pears?." in server.requests[-1].context
            two.say("cherries?")
            assert "Apples it is." in server.requests[-1].context
            assert "Heard plums?." in two.say("/history")
            one.leave()
            two.leave()
        said = await here.said("ours")
        assert sorted(said) == sorted(
            ["apples?", "Apples it is.", *both("pears?", "plums?", "cherries?")]
        )
        assert said[-4:] == both("plums?", "cherries?")
