"""The servers that all tests of a process share: one that dies is named and started again, once."""

import subprocess
import sys
from pathlib import Path

import pytest

from servers import Missing, start_anew
from servers.postgres import PostgresServer

ROOT = Path(__file__).parents[1]
TESTS = """
import os
import signal
import pytest

LAST = "the last words of a server"


def kill(server):
    with (server.folder / "log").open("a") as log:
        print(LAST, file=log)
    os.kill(server.process.pid, signal.SIGKILL)
    server.process.wait()


@pytest.fixture
def server(shared):
    return getattr(shared, "servers", [shared])[-1]


def test_it_is_killed(server):
    kill(server)


def test_it_works(shared, server):
    if hasattr(shared, "agrees"):
        assert shared.agrees()
        shared.flush()
    elif hasattr(server, "ask"):
        server.ask("SET", "a", "b")
    else:
        assert server.execute("SELECT 1") == [(1,)]


def test_it_is_killed_again(server):
    kill(server)


def test_it_is_lost(shared):
    assert shared


def test_others_work():
    pass
"""
UNUSABLE = """
def test_its_data_is_damaged(postgres):
    postgres.create_database("other")
    (postgres.data / "global" / "pg_control").write_bytes(b"")
    postgres.process.kill()
    postgres.process.wait()


def test_it_is_empty_and_has_its_database(postgres):
    assert postgres.execute("SELECT 1") == [(1,)]
    (names,) = postgres.execute("SELECT count(*) FROM pg_database WHERE datname = 'other'")
    assert names == (0,)
"""


def run_tests(folder: Path, text: str, *options: str) -> str:
    """Run tests in a process of pytest of their own, with our fixtures; return what it prints."""
    path = folder / "test_sharing.py"
    path.write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest", "--rootdir", str(ROOT)]
    command += ["-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider", *options, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "as a worker"])
@pytest.mark.parametrize("name", ["postgres", "redis_server", "redis_cluster"])
def test_a_shared_server_that_dies_is_named_and_started_again_once(
    request: pytest.FixtureRequest, tmp_path: Path, name: str, options: tuple[str, ...]
) -> None:
    request.getfixturevalue(name)  # skips without its program
    output = run_tests(tmp_path, TESTS.replace("shared", name), *options)
    assert "4 passed, 1 error" in output, output
    assert output.count(f"{name} was started again: it ended with status -9") == 1, output
    assert output.count("the last words of a server") == 3, output  # the second log has both
    again = f"{name} is not started again: it ended a second time"
    failure, _, summary = output.partition("A server that tests share ended")
    assert again in failure  # of the test that needs it
    assert "test_it_is_killed: " in summary  # the test in which it died
    assert summary.count(f"{again}; it ended with status -9") == 1


def test_a_shared_server_without_usable_data_is_started_empty(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    assert postgres.process
    output = run_tests(tmp_path, UNUSABLE)
    assert "2 passed" in output, output
    assert output.count("postgres was started again: it ended with status -9") == 1, output


def test_a_server_that_does_not_start_is_tried_again() -> None:
    attempts: list[str] = []

    def start() -> str:
        attempts.append("started")
        if len(attempts) < 3:
            raise RuntimeError("it did not answer in time")
        return "a server"

    assert start_anew(start) == "a server"


def test_a_server_that_never_starts_fails_with_its_last_error() -> None:
    attempts: list[str] = []

    def start() -> str:
        attempts.append("started")
        raise RuntimeError(f"attempt {len(attempts)}")

    with pytest.raises(RuntimeError, match="attempt 3"):
        start_anew(start)


def test_a_server_whose_program_is_missing_is_not_tried_again() -> None:
    attempts: list[str] = []

    def start() -> str:
        attempts.append("started")
        raise Missing("no program")

    with pytest.raises(Missing):
        start_anew(start)
    assert len(attempts) == 1
