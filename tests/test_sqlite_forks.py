"""Forks of a process that has a SQLite store open.

Each test is a program of its own: a fork of the test process would copy its threads.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")

BEGINNING = """
import asyncio, ctypes, multiprocessing, os, signal, sys, threading, warnings
warnings.simplefilter("ignore")  # Python warns of any fork beside threads
from pathlib import Path
from keepthread import Message, sync
from keepthread.models.tokens import Estimator
from keepthread.errors import Busy, StoreClosed, Unavailable
from keepthread.stores.sqlite import uses
from keepthread.stores.sqlite.file import DatabaseFile, connect
from keepthread.stores.sqlite.file import FileLock

path = Path(sys.argv[1])
url = f"sqlite:///{path}"

def opened():
    return sync.Memory.open(url, counter=Estimator())

def say(session, text):
    return session.append(Message(role="user", content=text))[0].seq

def texts():
    with opened() as memory:
        return [message.content for message in memory.session("s").messages()]

def write_in_child(*said):
    with opened() as memory:
        for text in said:
            say(memory.session("s"), text)

def forked(work):
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    os._exit(0)

def wait_for(pid):
    assert os.waitpid(pid, 0)[1] == 0

def open_file():
    DatabaseFile(path, synchronous="FULL", timeout=1, connect=connect).open_for_writing()

def refused():
    try:
        open_file()
    except Unavailable as error:
        assert "forked" in str(error), error
    else:
        raise AssertionError("the file was opened")
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "chat.db"


def run(path: Path, code: str) -> str:
    """Run a program and return what it printed."""
    ran = subprocess.run(
        [sys.executable, "-c", BEGINNING + code, str(path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_a_forked_child_that_opens_the_file_again_loses_nothing(path: Path) -> None:
    printed = run(
        path,
        """
memory = opened()
say(memory.session("s"), "parent")
to_child, to_parent = os.pipe(), os.pipe()

def child():
    try:
        memory.session("s")
    except StoreClosed as error:
        assert "fork" in str(error)
    mine = opened()
    say(mine.session("s"), "child 1")
    os.write(to_parent[1], b"x")
    os.read(to_child[0], 1)
    say(mine.session("s"), "child 2")
    os.write(to_parent[1], b"x")
    signal.pause()

pid = forked(child)
os.read(to_parent[0], 1)
memory.close()  # a child without locks of its own would lose its log here
os.write(to_child[1], b"x")
os.read(to_parent[0], 1)
print(texts())
os.kill(pid, signal.SIGKILL)
os.waitpid(pid, 0)
print(texts())
""",
    )
    assert printed == "['parent', 'child 1', 'child 2']\n" * 2


def test_the_parent_goes_on_after_a_fork(path: Path) -> None:
    printed = run(
        path,
        """
with opened() as memory:
    session = memory.session("s")
    for n in range(5):
        say(session, f"parent {n}")
        wait_for(forked(lambda: write_in_child(f"child {n}")))
    print(len(session.messages()))
print(len(texts()))
""",
    )
    assert printed == "10\n10\n"


def test_a_fork_waits_for_the_running_transaction(path: Path) -> None:
    run(
        path,
        """
memory = opened()
session = memory.session("s")
began = threading.Event()

def slow(db):
    began.set()
    threading.Event().wait(0.3)

thread = threading.Thread(target=lambda: memory._loop.run(memory.store.backend.engine.write, slow))
thread.start()
began.wait()
wait_for(forked(lambda: write_in_child("child")))
thread.join()
say(session, "parent")
memory.close()
assert texts() == ["child", "parent"]
""",
    )


def test_threads_that_fork_and_write_at_once_do_not_wait_for_each_other(path: Path) -> None:
    run(
        path,
        """
memory = opened()
session = memory.session("s")

def fork_often(number):
    for n in range(4):
        wait_for(forked(lambda: write_in_child(f"child {number} {n}")))

def write_often(number):
    for n in range(40):
        say(session, f"parent {number} {n}")
        session.messages()

threads = [threading.Thread(target=fork_often, args=(n,)) for n in range(3)]
threads += [threading.Thread(target=write_often, args=(n,)) for n in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
memory.close()
found = texts()
assert len(found) == len(set(found)) == 3 * 4 + 2 * 40, len(found)
with opened() as memory:
    assert memory.admin.verify().sound
""",
    )


def test_a_fork_inside_a_transaction_keeps_the_file_from_the_child_alone(path: Path) -> None:
    run(
        path,
        """
memory = opened()
session = memory.session("s")
memory._loop.run(memory.store.backend.engine.write, lambda db: wait_for(forked(refused)))
memory._loop.run(memory.store.backend.engine.read, lambda db: wait_for(forked(refused)))
assert say(session, "parent") == 1
""",
    )


def test_a_child_that_returns_into_the_writer_thread_commits_nothing(path: Path) -> None:
    run(
        path,
        """
memory = opened()
session = memory.session("s")
said, pids = say(session, "one"), []

def fork_and_return(db):
    pids.append(os.fork())

memory._loop.run(memory.store.backend.engine.write, fork_and_return)
os.waitpid(pids[0], 0)
assert say(session, "two") == 2
memory.close()
assert texts() == ["one", "two"]
""",
    )


def test_a_fork_does_not_wait_for_ever(path: Path) -> None:
    run(
        path,
        """
uses.FORK_TIMEOUT = 0.2
memory = opened()
session = memory.session("s")
began, go = threading.Event(), threading.Event()

def stuck(db):
    began.set()
    go.wait()

thread = threading.Thread(target=lambda: memory._loop.run(memory.store.backend.engine.read, stuck))
thread.start()
began.wait()
wait_for(forked(refused))
go.set()
thread.join()
wait_for(forked(lambda: write_in_child("child")))
assert say(session, "parent") == 2
""",
    )


def test_workers_of_multiprocessing_open_their_own_store(path: Path) -> None:
    run(
        path,
        """
def work(n):
    write_in_child(f"{n} a", f"{n} b")
    return n

with opened() as memory:
    say(memory.session("s"), "parent")
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert sorted(pool.map(work, range(6))) == list(range(6))
    say(memory.session("s"), "end")
assert len(texts()) == 14
""",
    )


def test_a_program_that_forks_without_python_is_refused_in_the_child(path: Path) -> None:
    run(
        path,
        """
memory = opened()
say(memory.session("s"), "parent")
if (pid := ctypes.PyDLL(None).fork()) == 0:
    try:
        refused()
    except BaseException:
        os._exit(1)
    os._exit(0)
wait_for(pid)
memory.close()
""",
    )


def test_a_forked_child_does_not_hold_its_parents_lock(path: Path) -> None:
    run(
        path,
        """
lock = FileLock(path)
assert lock.take()
ready, go = os.pipe(), os.pipe()

def child():
    assert not FileLock(path).take()
    lock.release()  # not the child's to release
    os.write(ready[1], b"x")
    os.read(go[0], 1)

pid = forked(child)
os.read(ready[0], 1)
assert not FileLock(path).take()
lock.release()
assert FileLock(path).take()
os.write(go[1], b"x")
wait_for(pid)
""",
    )


def test_a_lock_is_free_after_its_owner_died_though_a_child_of_it_lives(path: Path) -> None:
    run(
        path,
        """
ready, go = os.pipe(), os.pipe()

def grandchild():
    os.write(ready[1], b"x")
    os.read(go[0], 1)

def owner():
    assert lock.take()
    forked(grandchild)
    os.read(ready[0], 1)

lock = FileLock(path)
wait_for(forked(owner))
assert FileLock(path).take()
os.write(go[1], b"x")
""",
    )


def test_an_outbox_stays_its_owners_over_a_fork(path: Path) -> None:
    run(
        path,
        """
import asyncio
from keepthread.stores.outbox.file import OutboxFile

async def main():
    box = await OutboxFile.open(path, tenant="t", target="x")
    pid = os.fork()
    if pid == 0:
        os._exit(asyncio.new_event_loop().run_until_complete(child()))
    wait_for(pid)
    assert await box.waiting() == {}
    await box.close()

async def child():
    try:
        await OutboxFile.open(path, tenant="t", target="x")
    except Busy:
        return 0
    return 1

asyncio.run(main())
""",
    )
