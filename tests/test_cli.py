"""The command, as people and programs meet it: in a real terminal where it matters."""

import asyncio
import fcntl
import io
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import sysconfig
import termios
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from rich.console import Console

import keepthread as keepthread_package
from keepthread import (
    Attachment,
    Hybrid,
    Memory,
    Message,
    Options,
    SessionInfo,
    SQLiteStore,
    ToolCall,
    View,
)
from keepthread.apps.cli import main
from keepthread.apps.cli.chat.signals import Signals
from keepthread.apps.cli.chat.terminal import Terminal
from keepthread.apps.cli.commands import doctor
from keepthread.apps.cli.report_types import ContextReport
from keepthread.apps.cli.sanitize import sanitize
from keepthread.apps.cli.screen import Screen
from keepthread.context.why import Why
from keepthread.errors import Unavailable
from keepthread.memory.search.search import Hit
from keepthread.protocols import Store
from keepthread.stores.postgres.schema import FORMAT
from keepthread.testing.contract import FULL, Letters, new_session, user
from keepthread.types import Selection
from servers.postgres import PostgresServer
from servers.redis import RedisCluster
from tests import preloaded
from tests.spent import ENGINES, cpu_of_program, least_ratio

CODE = "import sys; from keepthread.apps.cli import main; sys.exit(main())"
NASTY = "evil \x1b[31mred\x1b]0;owned\x07 \u202e\x9b2J\x7f\ud800"
ANA = ("--owner", "ana")
BEA = ("--owner", "bea")
COMMANDS = (
    ["sessions"],
    ["show", "a", *ANA],
    ["why", "a", *ANA],
    ["export", "-o", "out.jsonl"],
    ["import", "out.jsonl"],
    ["copy", "sqlite:///chat.db", "sqlite:///other.db"],
    ["backup", "copy.db"],
    ["migrate"],
    ["prune", "--days", "1", "--yes"],
    ["forget", "--author", "bea", "--dry-run"],
    ["index"],
    ["compact", "--all"],
    ["verify"],
    ["recount"],
    ["doctor"],
    ["config"],
    ["config", "memory.strategy"],
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store to copy."""
    path = tmp_path_factory.mktemp("filled") / "chat.db"
    asyncio.run(fill(path))
    return path


@pytest.fixture
def folder(filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder to work in, with a store named by the environment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEEPTHREAD_STORE", "sqlite:///chat.db")
    monkeypatch.setenv("COLUMNS", "100")
    if data := os.environ.get("KEEPTHREAD_TEST_DATA"):
        monkeypatch.setenv("TIKTOKEN_CACHE_DIR", f"{data}/tiktoken")
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    shutil.copy(filled, tmp_path)
    return tmp_path


async def fill(path: Path) -> None:
    async with await SQLiteStore.open(path, durability="process") as store:
        memory = Memory(store, Options(counter=Letters()))
        session = await memory.session("a", owner="ana", title="Trip", system_prompt="Be brief.")
        for number in range(60):
            async with session.turn(f"Question {number} about the weather in Jakarta") as turn:
                await turn.finish(f"Answer {number}: sunny. " * 5)
        await session.pin((await session.messages(limit=1))[0].id)
        other = await memory.session("b", owner="bea", title=NASTY)
        call = ToolCall(id="c", name=f"tool {NASTY}", arguments=NASTY)
        await other.append(
            Message(role="user", content=f"two\nlines [bold]no markup[/] :smile: {NASTY}"),
            Message(role="assistant", tool_calls=(call,), name=NASTY),
            Message(role="tool", content="gone", tool_call_id="c"),
            Message(role="user", content="see", attachments=(Attachment(media_type="a/b"),)),
            Message(role="assistant", content="x", origin="web", source=f"web:{NASTY}"),
        )
        await store.erase(other.key, [3])


class Result(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def keepthread(*arguments: str) -> Result:
    """Run the command as a program would: no terminal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, Path(os.devnull).open() as nothing:
        patch.setattr(sys, "argv", ["keepthread", *arguments])
        patch.setattr(sys, "stdin", nothing)
        with redirect_stdout(out), redirect_stderr(err):
            status = main()
    return Result(status, *(stream.buffer.getvalue().decode() for stream in (out, err)))


def in_process(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Run the command in a process of its own."""
    command = [sys.executable, "-c", CODE, *arguments]
    return subprocess.run(command, capture_output=True, check=True, **options)


def ask(*arguments: str) -> list[Any]:
    """Run the command and return the JSON lines it answered with."""
    result = keepthread(*arguments, "--json")
    assert result.returncode in (0, 1), result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def in_terminal(*arguments: str, keys: bytes = b"", until: bytes = b"", width: int = 100) -> str:
    """Run the command in a terminal and return all that came onto its screen.

    `keys` are typed once `until` is seen.
    """
    pid, screen = pty.fork()
    if pid == 0:  # pragma: no cover - another process
        os.execv(sys.executable, [sys.executable, "-c", CODE, *arguments])
    fcntl.ioctl(screen, termios.TIOCSWINSZ, struct.pack("HHHH", 40, width, 0, 0))
    seen = b""
    typed = False
    while select.select([screen], [], [], 60)[0]:
        try:
            data = os.read(screen, 65536)
        except OSError:  # Linux says so when the other side is closed
            break
        if not data:
            break
        seen += data
        if keys and not typed and until in seen:
            typed = True
            os.write(screen, keys)
    os.close(screen)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0, seen
    return seen.decode()


def plain(screen: str) -> str:
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", screen)


# --- starting ---


@pytest.mark.serial
def test_help_costs_at_most_two_and_a_half_times_the_start_of_its_engines() -> None:
    paths = [str(Path(keepthread_package.__file__).parents[1]), sysconfig.get_path("purelib")]
    code = (
        f"import sys; sys.path[:0] = {paths!r}; sys.argv = ['keepthread', '--help'];"
        "from keepthread.apps.cli import main; main()"
    )
    command = [sys.executable, "-I", "-S", "-c", code]
    assert b"Usage: keepthread" in subprocess.run(command, capture_output=True, check=True).stdout
    ratio = least_ratio(lambda: cpu_of_program(code), lambda: cpu_of_program(ENGINES), 2.5)
    print(f"keepthread --help: {ratio:.2f} times the CPU of a program that imports its engines")
    assert ratio <= 2.5


def test_heavy_modules_are_loaded_only_when_needed() -> None:
    code = (
        "import sys; from keepthread.apps.cli.app import app;"
        "app(['--help'], standalone_mode=False);"
        "print(*{'rich', 'tiktoken', 'pydantic', 'psycopg', 'redis', 'yaml', 'platformdirs',"
        "'openai', 'anthropic', 'prompt_toolkit',"
        "'keepthread.apps.cli.settings.settings'} & set(sys.modules))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.splitlines()[-1] == ""


def test_without_the_extra_it_says_what_to_install() -> None:
    source = Path(keepthread_package.__file__).parent.parent
    code = f"import sys; sys.path.insert(0, {str(source)!r}); {CODE}"
    command = [sys.executable, "-I", "-S", "-c", code]  # no installed package is seen
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert (
        "prompt_toolkit, yaml: pip install 'keepthread[cli]', or 'keepthread[chat]'"
        in result.stderr
    )


def test_the_version_is_told() -> None:
    assert re.fullmatch(r"keepthread \d+\.\d+\.\d+\n", keepthread("--version").stdout)


# --- for programs ---


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command[0])
def test_every_command_speaks_json(folder: Path, command: list[str]) -> None:
    if command[0] == "import":
        keepthread("export", "-o", "out.jsonl")
    for arguments in ([*command, "--json"], ["--json", *command]):
        for made in ("copy.db",):
            (folder / made).unlink(missing_ok=True)
        result = keepthread(*arguments)
        assert result.returncode == 0, result.stderr
        answers = [json.loads(line) for line in result.stdout.splitlines()]
        assert answers
        assert all(isinstance(answer, dict) for answer in answers)


def test_json_says_what_there_is(folder: Path) -> None:
    b, a = ask("sessions")
    assert (a["id"], a["owner"], a["messages"]) == ("a", "ana", 120)
    assert b["title"] == NASTY
    assert [s["id"] for s in ask("sessions", "--owner", "ana")] == ["a"]
    assert len(ask("sessions", "--limit", "1")) == 1
    assert [m["seq"] for m in ask("show", "a", *ANA, "--after", "7", "--limit", "2")] == [8, 9]
    (why,) = ask("why", "a", *ANA, "--view", "router")
    assert why["budget"] == 500
    assert why["tokens"] <= 500
    assert why["sections"]["system"] > 0
    assert ask("why", "a", *ANA, "--budget", "300")[0]["budget"] == 300
    assert ask("recount")[0]["counted"] == 124
    assert ask("recount")[0]["counted"] == 0
    assert ask("prune", "--days", "1", "--yes") == [{"pruned": 0, "left": 2}]
    assert ask("prune", "--days", "0", "--yes") == [{"pruned": 2, "left": 0}]
    assert ask("sessions") == []


def test_tenants_are_walls(folder: Path) -> None:
    assert ask("sessions", "--tenant", "other") == []
    assert keepthread("show", "a", *ANA, "--tenant", "other").returncode == 2


@pytest.mark.parametrize(
    ("arguments", "kind", "says"),
    [
        (
            ["show", "aa", *ANA],
            "SessionNotFound",
            "there is no session 'aa'; there is a",
        ),
        (["why", "xyz"], "SessionNotFound", "keepthread sessions"),
        (["export", "nope"], "SessionNotFound", "no session 'nope'"),
        (["why", "a", *ANA, "--view", "nope"], "InvalidInput", "chat, planner, router"),
        (["why", "a", *ANA, "--budget", "3"], "BudgetTooSmall", "the budget is 3"),
        (["why", "a", *ANA, "1"], "InvalidInput", "open the memory with keep_why=20"),
        (
            ["why", "a", *ANA, "--diff", "2"],
            "InvalidInput",
            "open the memory with keep_why=20",
        ),
        (
            ["why", "a", *ANA, "1", "--view", "chat"],
            "InvalidInput",
            "use either them or N",
        ),
        (
            ["why", "a", *ANA, "--strategy", "best"],
            "InvalidInput",
            "window, summarized, hybrid, recall",
        ),
        (["sessions", "--store", "nope.db"], "InvalidInput", "no store at nope.db"),
        (["sessions", "--store", "sqlite:///nope.db"], "InvalidInput", "no store at nope.db"),
        (["sessions", "--store", "ram://"], "InvalidInput", "use a file"),
        (["sessions", "--store", "http://x"], "InvalidInput", "is not a store URL"),
        (["migrate", "--store", "sqlite:///nope.db"], "InvalidInput", "no store at nope.db"),
        (
            ["copy", "sqlite:///chat.db"],
            "Usage",
            "'TARGET': the store to copy into; see `keepthread copy --help`",
        ),
        (["chat", "one", "two"], "Usage", "put a text of several words in quotes; see `keepthread"),
        (["sessions", "--limit", "x"], "Usage", "Invalid value for '--limit': not a whole number;"),
        (
            ["sessions", "--limit", "0"],
            "Usage",
            "it should be greater than or equal to 1; see `keep",
        ),
        (["import", "."], "InvalidInput", ". is a folder: name a file in it; --session SESSION"),
        (["import", __file__], "WrongFormat", "nor a transcript (line 1: it is not valid JSON"),
        (["copy", "sqlite:///nope.db", "sqlite:///x.db"], "InvalidInput", "no store at nope.db"),
        (["copy", "sqlite:///chat.db", "chat.db"], "InvalidInput", "are the same"),
        (["backup", "x", "--store", "redis://h:7"], "InvalidInput", "redis://h:7/… is a server"),
        (["import", "nope.jsonl"], "FileNotFoundError", "nope.jsonl: No such file"),
        (
            ["import", "chat.db"],
            "WrongFormat",
            "is a keepthread store, not an export; `keepthread copy",
        ),
        (["backup", "chat.db"], "InvalidInput", "never overwrites a file"),
        (["backup", "no/where.db"], "Unavailable", "No such file"),
        (["export", "-o", "no/where"], "FileNotFoundError", "no: No such file"),
        (["prune", "--days", "0"], "InvalidInput", "2 of 2 sessions; use --yes"),
        (["prune"], "Usage", "Missing option '--days'"),
        (["compact"], "InvalidInput", "name the sessions to compact, or use --all"),
        (
            ["show", "a"],
            "SessionNotFound",
            "default has no session 'a'; ana has a session with this id: --owner ana",
        ),
        (
            ["forget", "--session", "b", *ANA],
            "SessionNotFound",
            "ana has no session 'b'; bea has a session with this id: --owner bea",
        ),
        (
            ["delete", "b"],
            "SessionNotFound",
            "default has no session 'b'; bea has a session with this id: --owner bea",
        ),
        (
            ["search", "x", "--session", "b"],
            "SessionNotFound",
            "bea has a session with this id: --owner bea",
        ),
        (["compact", "aa", *ANA], "SessionNotFound", "there is no session 'aa'; there is a"),
        (["bogus"], "Usage", "No such command 'bogus'"),
        (["show"], "Usage", "Missing argument"),
    ],
)
def test_an_error_is_one_line_that_says_what_to_do(
    folder: Path, arguments: list[str], kind: str, says: str
) -> None:
    result = keepthread(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    *warnings, line = result.stderr.splitlines()
    assert line.startswith("error: ")
    assert says in line
    assert all(warning.startswith("warning: token counts are estimates") for warning in warnings)
    result = keepthread(*arguments, "--json")
    error = json.loads(result.stderr.splitlines()[-1])
    assert (result.returncode, result.stdout, error["error"]) == (2, "", kind)
    assert says in error["message"]
    assert not (folder / "nope.db").exists()


def test_before_the_first_chat_it_says_where_the_store_will_be_and_what_makes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KEEPTHREAD_STORE")
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "data"))
    result = keepthread("sessions")
    assert result.returncode == 2
    path = folder / "data/keepthread/memory.db"
    assert (
        f"there is no store at {path} yet: `keepthread chat` or `keepthread import` creates one"
        in result.stderr
    )
    keepthread("export", "-o", "out.jsonl", "--store", "sqlite:///chat.db")
    assert not path.parent.exists()
    keepthread("import", "out.jsonl")
    assert [s["id"] for s in ask("sessions")] == ["b", "a"]
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_damage_is_found_named_and_told_by_the_exit_status(folder: Path) -> None:
    assert keepthread("verify").returncode == 0
    with sqlite3.connect("chat.db") as db:
        db.execute("UPDATE messages SET content = x'1b5b33316d' WHERE seq = 7")
    db.close()
    result = keepthread("verify")
    assert result.returncode == 1
    assert re.search(r"1 damaged .*\n.*\na +7 +the row is corrupted", result.stdout)
    assert ask("verify")[0]["damages"][0]["seq"] == 7
    assert "damaged" in keepthread("show", "a", *ANA).stdout
    exported = keepthread("export", "-o", "out.jsonl")
    assert exported.returncode == 1
    assert "message 7 of session 'a'" in exported.stderr


def test_a_reader_that_goes_away_is_no_trouble(folder: Path) -> None:
    shell = f"{sys.executable} -c '{CODE}' export | head -c 10"
    result = subprocess.run(shell, shell=True, capture_output=True, text=True, check=False)
    assert result.stdout.startswith('{"format"')
    assert "Traceback" not in result.stderr


def test_recounting_sets_hidden_tokens_right_and_hides_no_damage(folder: Path) -> None:
    async def hide() -> None:
        async with await SQLiteStore.open("chat.db") as store:
            session = await Memory(store, Options(counter=Letters())).get_session("a", owner="ana")
            await session.rewind(100)
            await session.add_message("user", "Once more?")

    async def visible() -> tuple[int, int]:
        async with await SQLiteStore.open("chat.db") as store:
            session = await Memory(store, Options(counter=Letters())).get_session("a", owner="ana")
            status = await session.status()
            shown = [m for m in await session.messages(limit=500) if not 100 < m.seq <= 120]
            return status.visible_tokens, sum(message.tokens for message in shown)

    asyncio.run(hide())
    with sqlite3.connect("chat.db") as db:
        db.execute("UPDATE messages SET content = x'00' WHERE sid = 1 AND seq = 110")
        db.execute("UPDATE messages SET tokens = 1000000 WHERE sid = 1 AND seq = 112")
    db.close()
    assert ask("recount")[0]["counted"] == 123
    told, summed = asyncio.run(visible())
    assert told == summed
    damages = [damage["seq"] for damage in ask("verify")[0]["damages"]]
    assert damages == [110, 112]


# --- moving ---


def test_export_to_stdout_and_import_from_stdin(folder: Path) -> None:
    exported = in_process("export").stdout
    in_process("import", "-", "--store", "sqlite:///new.db", input=exported)
    assert in_process("export", "--store", "sqlite:///new.db").stdout == exported
    assert "not a keepthread export" in keepthread("import", "-").stderr


def test_import_can_rename_and_says_what_it_kept(folder: Path) -> None:
    keepthread("export", "-o", "out.jsonl")
    assert (folder / "out.jsonl").stat().st_mode & 0o777 == 0o600
    assert not list(folder.glob("*.part"))
    result = keepthread("import", "out.jsonl", "--as", "old/")
    assert result.stderr.startswith("Imported 2 sessions, 125 messages")
    assert {s["id"] for s in ask("sessions")} == {"a", "b", "old/a", "old/b"}
    assert "2 sessions already existed" in keepthread("import", "out.jsonl").stderr


def test_a_backup_is_a_store_of_its_own_though_others_write(folder: Path) -> None:
    stop = threading.Event()

    async def write(store: Store) -> None:
        key = await new_session(store, "busy")
        while not stop.is_set():
            await store.append(key, [user("more " * 500) for _ in range(20)])

    async def main() -> None:
        async with await SQLiteStore.open("chat.db", durability="process") as store:
            key = await new_session(store, "large")
            for _ in range(40):
                await store.append(key, [user("text " * 2000) for _ in range(20)])
            writer = asyncio.create_task(write(store))
            told: list[tuple[int, int]] = []
            async with await SQLiteStore.open("chat.db") as other:
                await other.backup("copy.db", progress=lambda *numbers: told.append(numbers))
            stop.set()
            await writer
            assert len(told) > 2, "the copy did not go step by step"
            assert told[-1][0] == told[-1][1]
            assert len({total for _, total in told}) == 1, "the copy began anew"

    asyncio.run(main())
    assert ask("verify", "--store", "sqlite:///copy.db")[0]["sound"]
    assert (folder / "copy.db").stat().st_mode & 0o777 == 0o600


# --- servers ---


@pytest.fixture(params=["postgres", "redis_server", "redis_cluster"])
def server(request: pytest.FixtureRequest, folder: Path) -> str:
    """Return the address of a server that has nothing on it."""
    found: Any = request.getfixturevalue(request.param)
    if isinstance(found, PostgresServer):
        return found.create_database("command")
    (found.flush if isinstance(found, RedisCluster) else lambda: found.ask("FLUSHALL"))()
    return found.url


def test_every_command_answers_of_a_server_as_of_a_file(folder: Path, server: str) -> None:
    there = ("--store", server)
    if server.startswith("postgresql"):
        refused = keepthread("sessions", *there)
        assert "the database has no keepthread tables" in refused.stderr
        assert "`keepthread migrate`" in refused.stderr
    else:
        assert ask("sessions", *there) == []
    keepthread("export", "-o", "out.jsonl")
    said = keepthread("import", "out.jsonl", *there).stderr
    assert re.search(r"Imported 2 sessions, 125 messages, 1 record into \S+://[\d.:,]+/…\n", said)
    for command in (
        ["sessions"],
        ["show", "a", *ANA],
        ["show", "b", *BEA],
        ["why", "a", *ANA, "--view", "router"],
    ):
        assert ask(*command, *there) == ask(*command)
    keepthread("export", "-o", "again.jsonl", *there)
    assert (folder / "again.jsonl").read_bytes() == (folder / "out.jsonl").read_bytes()
    assert ask("verify", *there)[0]["sound"]
    assert ask("recount", *there) == ask("recount")
    found = {f["what"]: f["found"] for f in ask("doctor", *there)[0]["findings"]}
    feed = {"feed"} if server.startswith("postgresql") else set[str]()
    assert set(found) == {"server", "durability", "counter", "content", "model", "key"} | feed
    assert found["content"] == "2 sessions, 125 messages"
    assert ask("copy", "sqlite:///chat.db", server)[0]["same"]
    assert ask("migrate", *there)[0]["to"] == (FORMAT if server.startswith("postgresql") else 0)
    assert ask("prune", "--days", "0", "--yes", *there) == [{"pruned": 2, "left": 0}]


def test_of_eight_that_migrate_at_once_one_does_it(folder: Path, postgres: PostgresServer) -> None:
    url = postgres.create_database("several")
    command = ["migrate", "--store", url, "--json", "--partitions", "3"]
    preloaded.command("--version")  # the modules are loaded
    with ThreadPoolExecutor(8) as eight:
        ended = list(eight.map(lambda _: preloaded.command(*command), range(8)))
    answers = [json.loads(process.stdout) for process in ended]
    assert [process.returncode for process in ended] == [0] * 8
    assert sorted(answer["from"] for answer in answers) == [0, *[FORMAT] * 7]
    assert {answer["to"] for answer in answers} == {FORMAT}
    parts = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'keepthread.messages'::regclass"
    assert postgres.execute(parts, database="several") == [(3,)]
    again = keepthread("migrate", "--store", url, "--partitions", "9").stderr
    assert f"has format {FORMAT}: nothing to do" in again
    assert "partitions are set when a database is created and cannot be changed later" in again
    assert "has format 11: nothing to do" in keepthread("migrate").stderr
    assert "needs no format" in keepthread("migrate", "--store", "redis://nowhere").stderr


SECRETS = (
    "postgresql://me:s3cret@127.0.0.1:1/db",
    "postgresql://me:s3%zzcret@127.0.0.1:1/db",
    "postgresql://me:s3/cret@127.0.0.1:1/db",
    "postgresql://me:s3@cret@127.0.0.1:1/db",
    "postgresql://me:s3?cret@127.0.0.1:1/db",
    "postgresql://me@127.0.0.1:1/db?password=s3cret",
    "postgresql://me:s3cret@127.0.0.1:nine/db",
    "postgres+x://me:s3cret@127.0.0.1/db",
    "redis://:s3#cret@127.0.0.1:1",
    "redis://me:s3cret@127.0.0.1:nine",
    "redi://me:s3cret@127.0.0.1:1",
    "me:s3cret@127.0.0.1/db",
    "http:me:s3cret@127.0.0.1/db",
)


@pytest.mark.parametrize("url", SECRETS)
def test_a_password_is_never_shown(folder: Path, url: str) -> None:
    for command in (["sessions"], ["backup", "x.db"], ["migrate"], ["import", "none.jsonl"]):
        for more in ([], ["--json"]):
            result = keepthread(*command, "--store", url, *more)
            assert "s3" not in result.stdout + result.stderr, result
            assert "cret" not in result.stdout + result.stderr, result
    for pair in ((url, "sqlite:///x.db"), ("sqlite:///chat.db", url), (url, url)):
        result = keepthread("copy", *pair)
        assert result.returncode == 2
        assert "s3" not in result.stderr


@pytest.mark.serial
def test_servers_that_do_not_answer_are_told_within_seconds(folder: Path) -> None:
    def ask_in_vain(scheme: str) -> tuple[float, str]:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            url = f"{scheme}://me:s3cret@127.0.0.1:{silent.getsockname()[1]}/0"
            start = time.monotonic()
            result = preloaded.command("sessions", "--store", url, "--json")
            return time.monotonic() - start, result.stderr

    preloaded.command("--version")  # the modules are loaded
    with ThreadPoolExecutor() as both:
        for seconds, told in both.map(ask_in_vain, ["postgresql", "redis"]):
            assert seconds < 10
            assert json.loads(told)["error"] == "Unavailable"
            assert "did not answer within 5 seconds" in told
            assert "s3cret" not in told


def test_without_its_driver_a_server_needs_an_extra(folder: Path) -> None:
    for driver, scheme, extra in (
        ("psycopg", "postgresql", "postgres"),
        ("redis", "redis", "redis"),
    ):
        code = f"import sys; sys.modules[{driver!r}] = None; {CODE}"
        for command in ("sessions", "migrate") if extra == "postgres" else ("sessions",):
            run = [sys.executable, "-c", code, command, "--store", f"{scheme}://h/0"]
            result = subprocess.run(run, capture_output=True, text=True, check=False)
            assert result.returncode == 2
            assert f"pip install 'keepthread[{extra}]'" in result.stderr


# --- for people ---


def test_a_person_sees_sessions_in_a_table(folder: Path) -> None:
    screen = plain(in_terminal("sessions"))
    assert re.search(r"session +title +owner +messages +tokens +latest", screen)
    assert re.search(r"a +Trip +ana +120 +\S+ +\d{4}-\d\d-\d\d \d\d:\d\d", screen)


@pytest.mark.parametrize(
    "command",
    [
        ["sessions"],
        ["show", "b", *BEA],
        ["export"],
        ["why", "b", *BEA],
        ["show", NASTY[:5] + "\x1b[1m"],
    ],
)
def test_stored_text_never_reaches_the_terminal_raw(folder: Path, command: list[str]) -> None:
    if command[-1].startswith("evil"):
        assert "\x1b" not in keepthread(*command).stderr
        return
    screen = in_terminal(*command)
    allowed = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[hl]|\x1b\[2K|\x1b\[1A|\r|\n")
    assert "31mred" not in re.sub(r"\\x1b\[31mred|\\u001b\[31mred", "", screen)
    assert "\x1b[31mred" not in screen
    for bad in "\x07\x9b\x7f\u202e":
        assert bad not in screen
    assert allowed.sub("", screen).replace("\t", "").replace("\xa0", " ").isprintable()


def test_nothing_that_a_store_holds_is_drawn_raw() -> None:
    """Ids with control characters cannot be stored through us, but a file may hold any."""
    paper = io.StringIO()
    screen = Screen(Console(file=paper, width=400, highlight=False, markup=False))
    bad = "s\x1b[31mred\x1b]0;owned\x07"
    info = SessionInfo(id=bad, owner=bad, title=bad)
    message = Message(role="user", content=bad, author=bad, seq=1)
    why = ContextReport(view=bad, why=Why(Selection(10, 1, bad, [message], [])))
    screen.sessions([info])
    screen.sessions([info], current="other")
    screen.transcript(info, [message])
    screen.hits([Hit(bad, bad, message, 1.0, bad, bad)])
    screen.why(bad, why)
    screen.context(bad, why)
    screen.rows([[bad, bad]], "one", "two")
    screen.settings([(bad, bad, bad)])
    shown = paper.getvalue()
    assert shown.count(r"s\x1b[31mred\x1b]0;owned\x07") > 12
    assert "\x1b" not in shown
    assert "\x07" not in shown


async def test_the_text_of_an_error_in_a_chat_is_not_shown_raw(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fails() -> None:
        raise Unavailable("the server says: \x1b]0;owned\x07")

    monkeypatch.setenv("TERM", "dumb")
    person = Terminal(os.environ, Signals())
    assert not await person._do(fails())
    assert capsys.readouterr().out == "error: the server says: \\x1b]0;owned\\x07\n"


def test_text_cannot_forge_a_line_of_the_transcript(folder: Path) -> None:
    screen = plain(in_terminal("show", "b", *BEA))
    assert re.search(r"^1  user", screen, re.MULTILINE)
    assert re.search(r"^   lines \[bold\]no markup\[/\] :smile:", screen, re.MULTILINE)
    assert re.search(r"^3  tool .*erased", screen, re.MULTILINE)
    assert re.search(r"^   → tool evil", screen, re.MULTILINE)
    assert re.search(r"^   \+ a/b", screen, re.MULTILINE)
    assert "from web:evil" in screen


def test_a_long_transcript_says_how_to_go_on(folder: Path) -> None:
    assert "117 more: --after 3" in plain(in_terminal("show", "a", *ANA, "--limit", "3"))


def test_why_draws_the_budget_in_colour_and_says_so_without(folder: Path) -> None:
    screen = in_terminal("why", "a", *ANA, "--budget", "900", "--strategy", "window")
    bar = next(line for line in screen.splitlines() if "█" in line)
    assert {"\x1b[35m", "\x1b[33m", "\x1b[32m", "\x1b[36m"} <= set(re.findall(r"\x1b\[\d+m", bar))
    assert len(re.sub(r"[^█░]", "", bar)) == 76
    assert re.search(r"■\s*system\s\d+.*■\s*pins\s\d+.*■\s*window\s\d+.*unused\s\d+", plain(screen))
    assert re.search(
        r"window +\d+ +\d+-\d+ +\d+ +among the newest messages that fit", plain(screen)
    )
    assert re.search(r"older than the window", plain(screen))
    piped = keepthread("why", "a", *ANA, "--budget", "900", "--strategy", "window").stdout
    assert re.search(r"^S+P+w+N+o+·+$", piped, re.MULTILINE)
    assert "S system" in piped
    assert "\x1b" not in piped


# --- contexts that were kept ---


async def keep(path: Path) -> None:
    """Have a program talk that keeps its contexts, with something in every section."""
    views = {"chat": View(3000, Hybrid())}
    async with await SQLiteStore.open(path, durability="process") as store:
        memory = Memory(store, Options(counter=Letters(), views=views, keep_why=4))
        session = await memory.session("kept", system_prompt="Be brief.")
        for number in range(60):
            rule = "Remember that I take no planes." if number % 9 == 0 else "What then?"
            async with session.turn(f"{rule} {number}") as turn:
                if number == 20:
                    await session.add_note("screen", "A map of Lima.")
                    await turn.tool("weather", {"in": "Lima"}, lambda **_: "19 °C", cache_turns=99)
                await turn.context()
                answer = await turn.finish(f"Answer {number}: the harbour. " * 3)
            if number == 1:
                await session.pin(answer.id)
        await session.compact()
        async with session.turn("And on the last day?") as turn:
            await turn.context()
        assert len(await session.explanations()) == 4


@pytest.fixture
def kept(folder: Path) -> Path:
    asyncio.run(keep(folder / "chat.db"))
    return folder


def test_a_kept_context_is_drawn_by_its_number(kept: Path) -> None:
    (newest,), (older,) = ask("why", "kept", "1"), ask("why", "kept", "4")
    assert (newest["number"], newest["turn"], newest["view"]) == (1, 61, "chat")
    assert (older["number"], older["turn"], older["budget"]) == (4, 58, 3000)
    assert newest["at"] > older["at"]
    screen = plain(in_terminal("why", "kept", "1"))
    assert re.search(r"^kept · kept 1 · chat · turn 61 · \d{4}-\d\d-\d\d", screen, re.MULTILINE)
    assert re.search(r"important +\d+ +\d+ +1 +important", screen)


def test_every_section_has_its_letter_in_the_order_of_the_prompt(kept: Path) -> None:
    piped = keepthread("why", "kept", "1").stdout
    assert re.search(r"^S+P+s+i+n+w+t+N+o+·+$", piped, re.MULTILINE)
    legend = re.search(r"^(S system .*)$", piped, re.MULTILINE)
    assert legend
    named = re.findall(r"(\S) (\w+) [\d,]+", legend[1])
    letters = {"tools": "t", "system": "S", "pins": "P", "newest": "N", "unused": "·"}
    assert [letter for letter, _ in named] == [letters.get(name, name[0]) for _, name in named]
    assert len(named) == 10


@pytest.mark.parametrize("width", [60, 80, 100])
def test_no_line_is_wider_than_the_screen_and_no_number_parted_from_its_name(
    kept: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    drawn = in_terminal("why", "kept", "1", width=width)
    compared = in_terminal("why", "kept", "1", "--diff", "4", width=width)
    lines = plain(drawn).splitlines()
    assert max(map(len, lines)) <= width
    assert max(map(len, plain(compared).splitlines())) <= max(width, 80)  # but for its heads
    legend = [line for line in lines if "■" in line]
    assert legend
    assert all(re.fullmatch(r"((■|░) \w+ [\d,]+ *)+", line) for line in legend)


def test_two_contexts_are_compared(kept: Path) -> None:
    (told,) = ask("why", "kept", "1", "--diff", "4")
    assert (told["before"]["number"], told["after"]["number"]) == (4, 1)
    assert told["came"][-1]["section"] == "newest"
    assert told["moved"][0] == {"before": "newest", "after": "window", "ranges": [[118, 118]]}
    screen = plain(in_terminal("why", "kept", "1", "--diff", "4"))
    assert re.search(r"kept 4 · chat · turn 58 .*\n█.*\n\s*\nkept 1 · ", screen.replace("\r", ""))
    assert re.search(r"section +before +after +change", screen)
    assert re.search(r"window +[\d,]+ +[\d,]+ +\+[\d,]+", screen)
    assert re.search(r"added +messages +at +why", screen)
    assert re.search(r"moved +messages +at +why\s+window +1 +118 +newest before", screen)
    same = keepthread("why", "kept", "1", "--diff", "1").stdout
    assert "Both show the same messages" in same


def test_the_next_context_is_compared_with_a_kept_one_by_any_strategy(kept: Path) -> None:
    options = ("--budget", "3000", "--diff", "1")
    (hybrid,) = ask("why", "kept", *options)  # as the settings say
    assert hybrid["after"] == {"view": "chat"}
    assert hybrid["sections"]["summary"]["after"] > 0
    (simple,) = ask("why", "kept", *options, "--strategy", "window")
    assert simple["sections"]["summary"]["after"] == 0
    (told,) = ask("why", "kept", "--strategy", "summarized", "--budget", "3000")
    assert [told] == ask("why", "kept", "--strategy", "summarization", "--budget", "3000")
    assert "summary" in told["sections"]
    assert "important" not in told["sections"]


@pytest.mark.parametrize(("answer", "left"), [(b"n\n", 2), (b"y\n", 0)])
def test_prune_asks_first(folder: Path, answer: bytes, left: int) -> None:
    time.sleep(0.01)
    question = b"0 days?"
    screen = in_terminal("prune", "--days", "0", keys=answer, until=question)
    assert "Permanently delete 2 of 2 sessions, without activity for 0 days? [y/N]" in screen
    assert ("Nothing was deleted" in screen) == bool(left)
    assert len(ask("sessions")) == left


def test_prune_counts_all_that_it_deletes(folder: Path) -> None:
    async def delegate() -> None:
        async with await SQLiteStore.open("chat.db", clock=lambda: 1.0) as store:
            await store.put_session(SessionInfo(id="task", kind="delegate"))

    asyncio.run(delegate())
    assert ask("prune", "--days", "1", "--yes") == [{"pruned": 1, "left": 2}]


def test_an_interrupted_command_leaves_no_half_file_and_no_traceback(folder: Path) -> None:
    async def enlarge() -> None:
        async with await SQLiteStore.open("chat.db", durability="process") as store:
            key = await new_session(store, "large")
            for _ in range(40):
                await store.append(key, [FULL] + [user("text " * 200) for _ in range(500)])

    asyncio.run(enlarge())
    command = [sys.executable, "-c", CODE, "export", "-o", "out.jsonl"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not list(folder.glob("out.jsonl.*.part")):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130
    assert errors == (
        "error: stopped: no partial file is left; run the same command to start over\n"
    )
    assert not list(folder.glob("out.jsonl*"))


# --- the doctor ---


def test_the_doctor_finds_all_well_or_says_what_to_do(folder: Path) -> None:
    found = {f["what"]: f for f in ask("doctor")[0]["findings"]}
    assert set(found) == {
        "file", "size", "journal", "durability", "disk", "SQLite", "counter", "content",
        "model", "key",
    }  # fmt: skip
    assert found["journal"] == {"what": "journal", "found": "wal", "advice": "", "ok": True}
    assert found["content"]["found"] == "2 sessions, 125 messages"
    screen = plain(in_terminal("doctor"))
    assert re.search(r"ok +journal +wal", screen)


@pytest.mark.parametrize(
    ("version", "ok"),
    [("3.6.9", True), ("3.7.0", False), ("3.40.1", False), ("3.51.2", False), ("3.51.3", True)],
)
def test_the_doctor_knows_the_defect_of_old_sqlites(version: str, ok: bool) -> None:
    assert doctor.about_sqlite(version).ok == ok


def test_the_doctor_knows_network_disks() -> None:
    mounts = (
        "/dev/sda1 / ext4 rw 0 0\n"
        "server:/x /home/a\\040b nfs4 rw 0 0\n"
        "tmpfs /home/a\\040b/t tmpfs rw 0 0\n"
    )
    assert doctor.about_disk(Path("/var/chat.db"), mounts).ok
    remote = doctor.about_disk(Path("/home/a b/chat.db"), mounts)
    assert (remote.found, remote.ok) == ("nfs4", False)
    assert doctor.about_disk(Path("/home/a b/t/chat.db"), mounts).found == "tmpfs"
    assert doctor.about_disk(Path("/chat.db"), "").found == "unknown"


def test_the_doctor_warns_of_what_was_left_unfinished(folder: Path) -> None:
    async def begin() -> None:
        async with await SQLiteStore.open("chat.db") as store:
            await store.put_session(SessionInfo(id="half", ready=False))

    asyncio.run(begin())
    content = ask("doctor")[0]["findings"][-1]
    assert "1 is not ready" in content["advice"]
    assert "still being written" in keepthread("show", "half").stderr


def test_an_estimate_is_named_as_such(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    counter = ask("doctor")[0]["findings"][-2]
    assert counter["found"] == "~o200k, an estimate"
    assert "pip install 'keepthread[tokens]'" in counter["advice"]
    assert "warning: token counts are estimates" in keepthread("why", "a", *ANA).stderr
    assert (
        "token counts are estimates"
        in json.loads(keepthread("recount", "--json").stderr)["warning"]
    )


# --- harmless text ---


def test_harmless_text_keeps_what_people_write() -> None:
    family = "👩\u200d👩\u200d👧 日本語 naïve\u00a0x"
    assert sanitize(family) == family
    assert sanitize("a\nb\tc\r\n", lines=True) == "a\nb\tc\n"
    assert sanitize("a\nb\rc\u2028") == "a\\nb\\rc\\u2028"
    assert sanitize(NASTY).isascii()
