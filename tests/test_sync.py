"""The blocking twin: the same surface as the asynchronous one, from any thread, in any place."""

import asyncio
import gc
import inspect
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import keepthread
from keepthread import (
    Message,
    Options,
    ProactiveTool,
    ProvidedNote,
    RamStore,
    ToolCall,
    Verification,
    View,
    sync,
)
from keepthread.errors import (
    BudgetTooSmall,
    InvalidInput,
    SessionNotFound,
    StoreClosed,
    Unavailable,
)
from keepthread.memory.facts.facts import Facts
from keepthread.memory.tool_calls import INTERRUPTED
from keepthread.memory.turn import NO_ANSWER
from keepthread.models.tokens import Estimator
from keepthread.orchestrator import Orchestrator
from keepthread.protocols import Progress
from keepthread.sync import Memory, Session, interchange
from keepthread.sync import loop as hop
from keepthread.types import JSON, SessionKey

TWINS = [
    (keepthread.Memory, sync.Memory),
    (keepthread.Session, sync.Session),
    (keepthread.Turn, sync.Turn),
    (Facts, sync.Facts),
    (Orchestrator, sync.Orchestrator),
]
COLOURS = {"__aenter__": "__enter__", "__aexit__": "__exit__"}


@pytest.fixture(params=["ram", "sqlite"])
def memory(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Memory]:
    url = "ram://" if request.param == "ram" else f"sqlite:///{tmp_path}/chat.db"
    with Memory.open(url, counter=Estimator()) as opened:
        yield opened


def calling(*ids: str) -> Message:
    return Message(role="assistant", tool_calls=[ToolCall(id=id, name="look") for id in ids])


def result(id: str, text: str = "found") -> Message:
    return Message(role="tool", tool_call_id=id, content=text)


def ours() -> set[str]:
    """Name the threads that keepthread has running."""
    return {t.name for t in threading.enumerate() if t.name.startswith("keepthread")}


# --- the surface ---


def public(thing: object) -> set[str]:
    return {name for name in dir(thing) if not name.startswith("_")}


def spelled(annotation: object) -> str:
    """Spell an annotation without modules; what is awaited stands for what it returns."""
    name = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    awaited = {"Opening": "Memory", "Messages": str(list[Message])}
    return awaited.get(name, name)


def shape(function: Callable[..., Any]) -> tuple[Any, ...]:
    signature = inspect.signature(function)
    parameters = [
        (p.name, p.kind, p.default, spelled(p.annotation)) for p in signature.parameters.values()
    ]
    return *parameters, spelled(signature.return_annotation)


async def test_both_surfaces_have_the_same_names() -> None:
    async with keepthread.Memory.open("ram://", counter=Estimator()) as theirs:
        their_session = await theirs.session("s")
        with Memory.open("ram://", counter=Estimator()) as mine:
            my_session = mine.session("s")
            assert public(theirs) == public(mine)
            assert public(their_session) == public(my_session)
            assert public(their_session.turn("a")) == public(my_session.turn("a"))
            assert public(theirs.facts) == public(mine.facts)


@pytest.mark.parametrize(("asynchronous", "blocking"), TWINS, ids=lambda cls: cls.__module__)
def test_each_method_takes_and_returns_the_same(asynchronous: type, blocking: type) -> None:
    names = [n for n in vars(asynchronous) if n in COLOURS or not n.startswith("_")]
    assert names
    for name in names:
        theirs: Any = vars(asynchronous)[name]
        mine: Any = vars(blocking)[COLOURS.get(name, name)]
        assert type(theirs) is type(mine), name
        if isinstance(theirs, property):
            theirs, mine = theirs.fget, mine.fget
        elif isinstance(theirs, staticmethod):
            theirs, mine = theirs.__func__, mine.__func__
        assert not inspect.iscoroutinefunction(mine), name
        assert shape(theirs) == shape(mine), name
        assert mine.__doc__, name


def test_a_memory_is_made_from_the_same() -> None:
    assert shape(keepthread.Memory.__init__) == shape(Memory.__init__)


# --- behaving like it ---


def test_a_turn_is_taken_as_in_the_asynchronous_surface(memory: Memory) -> None:
    session = memory.session("x", owner="ana", system_prompt="Be brief.")
    with session.turn("What is the weather?") as turn:
        assert turn.user.seq == turn.number == 1
        assert turn.answer is None
        turn.append(calling("c1"), result("c1", "32 °C"))
        assert "32 °C" in turn.context(budget=500).text
        answer = turn.finish("32 °C and sunny.", usage={"input": 12})
        assert turn.answer == answer
    assert session.context("router").messages[-1] == answer
    assert [m.role for m in session.messages()] == ["user", "assistant", "tool", "assistant"]


def test_every_method_of_a_session_reaches_it(memory: Memory) -> None:
    session = memory.create_session("x", title="old")
    first, second = session.append(Message(role="user", content="a"), Message(role="assistant"))
    third = session.add_message("user", "b", id="third")
    session.pin(first.id)
    assert session.unpin(first.id)
    assert not session.unpin(first.id)
    fork = session.fork(2, id="y")
    assert [m.digest for m in fork.messages()] == [first.digest, second.digest]
    session.rewind(2)
    assert session.status().visible_messages == 2
    session.clear()
    assert session.status().visible_messages == 0
    assert session.messages(after=2, limit=1) == [third]
    assert session.update(title="new") == session.info == session.refresh()
    assert (session.id, session.owner, session.key) == ("x", "default", session.info.key)
    assert memory.get_session("x").info.title == "new"
    assert {info.id for info in memory.list_sessions()} == {"x", "y"}
    memory.delete_session("y")
    with pytest.raises(SessionNotFound):
        memory.get_session("y")
    assert memory.admin.prune() == 0
    assert memory.admin.verify().sound


def test_a_tenant_shares_the_loop_and_closes_nothing(memory: Memory) -> None:
    memory.session("x")
    with memory.tenant("other") as other:
        assert other.list_sessions() == []
        assert other.views == memory.views
        assert other.counter is memory.counter
    assert [info.id for info in memory.list_sessions()] == ["x"]
    memory.close()
    other.close()


def test_it_stands_on_a_store_that_is_open() -> None:
    store = RamStore()
    with Memory(store, Options(views={"tiny": View(50)}, counter=Estimator())) as memory:
        assert memory.store is store
        memory.session("x").append(Message(role="user", content="hello"))
        assert "hello" in memory.session("x").context("tiny").text


async def test_it_works_inside_a_running_event_loop(memory: Memory) -> None:
    session = memory.session("x")
    with session.turn("from a notebook") as turn:
        turn.finish("fine")
    assert asyncio.get_running_loop().is_running()
    assert len(session.messages()) == 2


def test_threads_share_a_memory(memory: Memory) -> None:
    session = memory.session("x")

    def talk(person: int) -> list[int]:
        numbers: list[int] = []
        for n in range(10):
            with session.turn(f"{person}.{n}") as turn:
                turn.finish(f"answer to {person}.{n}")
                numbers.append(turn.number)
        return numbers

    with ThreadPoolExecutor(8) as pool:
        turns = [number for numbers in pool.map(talk, range(8)) for number in numbers]
    assert sorted(turns) == list(range(1, 81))
    log = session.messages(limit=1000)
    asked = {m.turn: m.content for m in log if m.role == "user"}
    assert {m.turn: m.content for m in log if m.role == "assistant"} == {
        turn: f"answer to {text}" for turn, text in asked.items()
    }


def test_a_generator_takes_a_hundred_turns_and_may_be_left(memory: Memory) -> None:
    session = memory.session("x")

    def conversation() -> Generator[int, None, None]:
        for n in range(101):
            with session.turn(f"question {n}") as turn:
                turn.append(calling("c"))
                yield turn.number
                turn.append(result("c"))
                turn.finish(f"answer {n}")

    talk = conversation()
    assert [next(talk) for _ in range(101)] == list(range(1, 102))
    talk.close()
    log = session.messages(limit=1000)
    assert [m.content for m in log[-2:]] == ["", INTERRUPTED]
    assert len(log) == 100 * 4 + 3


# --- tools ---


def test_a_tool_runs_in_the_callers_thread(memory: Memory) -> None:
    session = memory.session("x")
    threads: list[threading.Thread] = []

    def look(city: str) -> dict[str, int]:
        threads.append(threading.current_thread())
        return {city: len(session.messages())}  # may use the memory itself

    with session.turn("look") as turn:
        turn.append(calling("c"))
        assert turn.tool("look", {"city": "Lima"}, look, call_id="c", cache_turns=2) == '{"Lima":2}'
        assert turn.tool("look", {"city": "Lima"}, look, cache_turns=2) == '{"Lima":2}'
        assert turn.tool("look", {"city": "Lima"}, look) == '{"Lima":3}'
    assert threads == [threading.current_thread()] * 2
    assert session.cached_tool("look", {"city": "Lima"}) == '{"Lima":2}'
    session.cache_tool("see", {}, "a tree", 1)
    assert [(tool.name, tool.result) for tool in session.cached_tools()] == [
        ("look", '{"Lima":2}'),
        ("see", "a tree"),
    ]


def test_providers_are_called_in_the_thread_that_waits() -> None:
    threads: list[threading.Thread] = []

    def screen(data: Mapping[str, JSON]) -> ProvidedNote:
        threads.append(threading.current_thread())
        assert memory.session("other").messages() == []  # may use the memory itself
        return ProvidedNote(f"Page {data['page']}.")

    async def user(_: Mapping[str, JSON]) -> ProvidedNote:
        await asyncio.sleep(0)
        return ProvidedNote("A guest.")

    providers = {"screen": screen, "user": user}
    with Memory.open("ram://", counter=Estimator(), providers=providers) as memory:
        session = memory.session("s")
        assert session.provide({"page": 2}) == ["screen", "user"]
        assert session.provide({"page": 3}) == []
        assert [message.content for message in session.messages()] == ["Page 2.", "A guest."]
    assert threads == [threading.current_thread()]


def test_threads_at_once_run_a_tool_once(memory: Memory) -> None:
    session = memory.session("x")
    runs: list[str] = []
    all_there = threading.Barrier(8)

    def look() -> str:
        runs.append(threading.current_thread().name)
        return runs[0]

    def take_turn(n: int) -> str:
        with session.turn(str(n)) as turn:
            all_there.wait(30)
            return turn.tool("look", {}, look, cache_turns=20)

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(take_turn, range(8))) == set(runs)
    assert len(runs) == 1


def test_what_a_tool_raises_is_recorded_and_raised_where_it_ran(memory: Memory) -> None:
    session = memory.session("x")

    def look() -> str:
        raise ValueError("no such city")

    with session.turn("look") as turn:
        with pytest.raises(ValueError, match="no such city") as caught:
            turn.tool("look", {}, look, cache_turns=2)
        assert session.messages()[-1].content == "(failed: ValueError: no such city)"
    frames = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert frames[-1] == "look"


def test_a_tool_that_raises_leaves_no_cycle_behind(memory: Memory) -> None:
    gc.collect()
    gc.disable()
    try:
        with memory.session("x").turn("look") as turn, pytest.raises(ZeroDivisionError):
            turn.tool("look", {}, lambda: 1 // 0)
        assert not [o for o in gc.get_objects() if isinstance(o, hop.Call)]
    finally:
        gc.enable()


@pytest.mark.parametrize("error", [StopIteration, asyncio.CancelledError, SystemExit])
def test_whatever_a_tool_raises_ends_the_call(memory: Memory, error: type[BaseException]) -> None:
    session = memory.session("x")

    def look() -> str:
        raise error

    def take_turn() -> None:
        with session.turn("look") as turn:
            turn.append(calling("c"))
            turn.tool("look", {}, look, call_id="c", cache_turns=2)

    with pytest.raises((error, RuntimeError)):
        take_turn()
    assert len(session.messages()) == 3
    with session.turn("again") as turn:
        assert turn.tool("look", {}, lambda: "seen", cache_turns=2) == "seen"


def test_a_tool_interrupted_by_ctrl_c_gives_its_place_to_the_next(memory: Memory) -> None:
    session = memory.session("x")

    def interrupted() -> str:
        raise KeyboardInterrupt

    def take_turn() -> None:
        with session.turn("look") as turn:
            turn.append(calling("c"))
            turn.tool("look", {}, interrupted, call_id="c", cache_turns=2)

    with pytest.raises(KeyboardInterrupt):
        take_turn()
    assert [m.content for m in session.messages()] == ["look", "", INTERRUPTED]
    with session.turn("again") as turn:
        assert turn.tool("look", {}, lambda: "seen", cache_turns=2) == "seen"


def test_an_asynchronous_tool_is_refused_by_the_blocking_surface(memory: Memory) -> None:
    async def look() -> str:
        return "seen"

    waiting = look()
    refusal = pytest.raises(InvalidInput, match="the result contains a value of type coroutine")
    with memory.session("x").turn("look") as turn, refusal:
        turn.tool("look", {}, lambda: waiting)
    waiting.close()


def test_closing_waits_for_a_tool_that_runs(tmp_path: Path) -> None:
    memory = Memory.open(f"sqlite:///{tmp_path}/chat.db", counter=Estimator())
    session = memory.session("x")
    begun = threading.Event()

    def look() -> str:
        begun.set()
        while not memory._loop._closed:
            threading.Event().wait(0.001)
        return "seen"

    def take_turn() -> str:
        with session.turn("look") as turn:
            return turn.tool("look", {}, look)

    with ThreadPoolExecutor(1) as pool:
        told = pool.submit(take_turn)
        assert begun.wait(30)
        memory.close()
        with pytest.raises(StoreClosed):
            told.result(timeout=30)
    assert not memory._loop._thread.is_alive()


# --- notes and delegates ---


def test_a_note_is_put_in_once_from_any_thread(memory: Memory) -> None:
    session = memory.session("x")
    tool = ProactiveTool(name="menu", result="soup", cache_turns=2)

    def put_in(_: int) -> bool:
        return session.add_note("screen", "Home", tools=(each for each in [tool]))

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(put_in, range(8))) == 1
    assert session.add_note("screen", "Settings", once=False, turns=1)
    assert session.cached_tool("menu", {}) == "soup"
    assert [m.content for m in session.messages()] == ["Home", "", "soup", "Settings"]


def test_a_delegate_is_a_turn_of_its_own(memory: Memory) -> None:
    session = memory.session("x")
    with session.turn("to Tokyo") as turn:
        with turn.delegate("Find flights", agent="scout", system_prompt="Look.") as child:
            context = child.context()
            child.finish("LH 710")
        with pytest.raises(ValueError, match="none"), turn.delegate("Find trains"):
            raise ValueError("none")
        with turn.delegate("Find ships", snippet="by sea", facts=True):
            pass
        turn.finish("Take LH 710.")
    assert (context.system, context.text) == ("Look.", "User: Find flights")
    results = [m.content for m in session.messages() if m.role == "tool"]
    assert results == ["LH 710", "(failed: ValueError: none)", NO_ANSWER]
    assert [info.id for info in memory.list_sessions()] == ["x"]


# --- errors ---


def test_an_exception_comes_through_with_its_traceback(memory: Memory) -> None:
    session = memory.session("x", system_prompt="long " * 100)
    session.add_message("user", "hello")
    with pytest.raises(BudgetTooSmall) as caught:
        session.context(budget=10)
    frames = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert "test_an_exception_comes_through_with_its_traceback" in frames
    assert "plan" in frames


def test_an_exception_leaves_no_cycle_behind(memory: Memory) -> None:
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            with pytest.raises(SessionNotFound):
                memory.get_session("nobody")
        assert not [o for o in gc.get_objects() if isinstance(o, hop.Call)]
    finally:
        gc.enable()


def test_a_wrong_address_starts_no_thread() -> None:
    before = ours()
    with pytest.raises(InvalidInput, match="is not a store URL"):
        Memory.open("mysql://here")
    assert ours() == before


def test_a_store_that_does_not_open_leaves_no_thread(tmp_path: Path) -> None:
    (tmp_path / "notes.db").write_text("these are notes, and no database" * 100)
    before = ours()
    with pytest.raises(keepthread.KeepthreadError):
        Memory.open(f"sqlite:///{tmp_path}/notes.db", counter=Estimator())
    assert ours() == before


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_leaving_a_turn_by_an_exception_closes_its_calls(
    memory: Memory, error: type[BaseException]
) -> None:
    session = memory.session("x")

    def turn_and_fail() -> None:
        with session.turn("look it up") as turn:
            turn.append(calling("c1", "c2"))
            turn.append(result("c1"))
            raise error

    with pytest.raises(error):
        turn_and_fail()
    assert [m.content for m in session.messages()[2:]] == ["found", INTERRUPTED]
    with session.turn("and now?") as turn:
        assert turn.context().messages[-1] == turn.user


# --- callbacks and interruptions ---


def test_progress_is_reported_in_the_callers_thread(memory: Memory) -> None:
    memory.session("x").append(*(Message(role="user", content=str(n)) for n in range(50)))
    seen: list[tuple[str, int, int]] = []
    found = memory.admin.verify(
        progress=lambda done, of: seen.append((threading.current_thread().name, done, of))
    )
    assert found.messages == 50
    assert seen[-1] == (threading.current_thread().name, 50, 50)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_failing_callback_ends_the_call(memory: Memory, error: type[BaseException]) -> None:
    session = memory.session("x")
    session.add_message("user", "hello")

    def fail(done: int, of: int) -> None:
        raise error("enough")

    with pytest.raises(error, match="enough"):
        memory.admin.verify(progress=fail)
    assert len(session.messages()) == 1
    assert memory.admin.verify().sound


class Stuck(RamStore):
    """Sends Ctrl-C to the program while it waits for an append that never ends."""

    cancelled = False

    async def append(
        self, session: SessionKey, messages: Sequence[Message], **rest: Any
    ) -> list[Message]:
        if messages[0].content != "stuck":
            return await super().append(session, messages, **rest)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled = True
            raise


def test_an_interrupted_call_is_given_up_and_the_memory_stays_usable() -> None:
    store = Stuck()
    with Memory(store, Options(counter=Estimator())) as memory:
        session = memory.session("x")

        def turn_and_wait() -> None:
            with session.turn("look it up") as turn:
                turn.append(calling("c1"))
                turn.append(Message(role="assistant", content="stuck"))

        with pytest.raises(KeyboardInterrupt):
            turn_and_wait()
        assert store.cancelled
        assert [m.content for m in session.messages()] == ["look it up", "", INTERRUPTED]


class Waiting(RamStore):
    """Waits in `verify` until it is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.cancelled = threading.Event()

    async def verify(self, *, progress: Progress | None = None) -> Verification:
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            self.cancelled.set()
            raise


def test_a_call_that_is_interrupted_before_it_waits_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = Waiting()
    with Memory(store, Options(counter=Estimator())) as memory:
        post = memory._loop.post

        def interrupted(call: Callable[..., object], *args: Any) -> None:
            post(call, *args)
            begun = threading.Event()
            post(post_in_order, begun.set)
            assert begun.wait(30)
            raise KeyboardInterrupt

        def post_in_order(done: Callable[[], None]) -> None:
            asyncio.get_running_loop().call_soon(done)  # after the first step of the task

        with monkeypatch.context() as patch:
            patch.setattr(memory._loop, "post", interrupted)
            with pytest.raises(KeyboardInterrupt):
                memory.admin.verify()
        assert store.cancelled.wait(30)
        assert memory.list_sessions() == []


class Stubborn(RamStore):
    """Reports progress even though its caller was interrupted, and does not close."""

    refusal: Exception | None = None

    async def verify(self, *, progress: Progress | None = None) -> Verification:
        assert progress
        progress(1, 2)
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            try:
                progress(2, 2)
            except StoreClosed as refusal:
                self.refusal = refusal
            raise

    async def close(self) -> None:
        raise Unavailable("it does not close")


def test_work_whose_caller_went_away_is_told_at_its_next_report() -> None:
    store = Stubborn()
    memory = Memory(store, Options(counter=Estimator()))

    def interrupt(done: int, of: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        memory.admin.verify(progress=interrupt)
    with pytest.raises(Unavailable, match="it does not close"):
        memory.close()
    assert "no longer waits" in str(store.refusal)
    assert not memory._loop._thread.is_alive()


def test_a_call_from_inside_the_loop_is_refused() -> None:
    class Curious(Estimator):
        def count(self, message: Message) -> int:
            return len(memory.list_sessions())

    with Memory.open("ram://", counter=Curious()) as memory:
        session = memory.session("x")
        with pytest.raises(RuntimeError, match="inside its own event loop"):
            session.add_message("user", "hello")


# --- the end ---


def test_after_closing_every_call_says_so(memory: Memory) -> None:
    session = memory.session("x")
    turn = session.turn("hello")
    memory.close()
    memory.close()
    calls: list[Callable[[], object]] = [memory.list_sessions, session.messages, turn.__enter__]
    for call in calls:
        with pytest.raises(StoreClosed, match="closed"):
            call()


def test_closing_ends_every_thread(tmp_path: Path) -> None:
    before = ours()
    with Memory.open(f"sqlite:///{tmp_path}/chat.db", counter=Estimator()) as memory:
        memory.session("x").add_message("user", "x" * 100_000)  # counted in yet another thread
        assert ours() > before
    assert ours() == before


def test_threads_that_call_while_another_closes_are_answered(tmp_path: Path) -> None:
    memory = Memory.open(f"sqlite:///{tmp_path}/chat.db", counter=Estimator())
    session = memory.session("x")
    under_way = threading.Semaphore(0)

    def talk() -> int:
        for n in range(1_000_000):
            try:
                session.add_message("user", str(n))
            except StoreClosed:
                return n
            under_way.release()
        raise AssertionError

    with ThreadPoolExecutor(6) as pool:
        talks = [pool.submit(talk) for _ in range(6)]
        for _ in range(60):
            under_way.acquire()
        memory.close()
        told = sum(talk.result(timeout=30) for talk in talks)
    with Memory.open(f"sqlite:///{tmp_path}/chat.db", counter=Estimator()) as memory:
        assert memory.get_session("x").status().messages >= told


def test_a_memory_that_is_forgotten_lets_go_of_its_store(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/chat.db"

    def use() -> Session:
        return Memory.open(url, counter=Estimator()).session("x")

    session = use()
    session.add_message("user", "the session keeps the memory")
    mine = session._loop._thread
    assert mine.is_alive()
    del session
    gc.collect()
    mine.join(timeout=30)
    assert not mine.is_alive()


def run_program(text: str, tmp_path: Path) -> str:
    """Run a program that has a memory open as `memory`, and return what it prints."""
    opening = (
        "import os, sys, threading\n"
        "from keepthread.sync import Memory\n"
        "from keepthread.models.tokens import Estimator\n"
        f"memory = Memory.open('sqlite:///{tmp_path}/chat.db', counter=Estimator())\n"
        "session = memory.session('x')\n"
    )
    command = [sys.executable, "-W", "error::ResourceWarning", "-c", opening + text]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return done.stdout


def test_a_program_that_never_closes_ends_all_the_same(tmp_path: Path) -> None:
    text = "print(session.add_message('user', 'hello').seq)\n"
    assert run_program(text, tmp_path) == "1\n"
    busy = (
        "def talk():\n"
        "    while True: session.add_message('user', 'again')\n"
        "threading.Thread(target=talk, daemon=True).start()\n"
        "while session.status().messages < 5: pass\n"
        "print('left')\n"
    )
    assert run_program(busy, tmp_path) == "left\n"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_process_is_told_to_open_its_own(tmp_path: Path) -> None:
    text = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "from keepthread.errors import StoreClosed\n"
        "with memory:\n"
        "    session.add_message('user', 'before')\n"
        "    child = os.fork()\n"
        "    if child == 0:\n"
        "        try: session.messages()\n"
        "        except StoreClosed as error: print(error, flush=True)\n"
        "    else:\n"
        "        assert os.waitpid(child, 0)[1] == 0\n"
        "        print(len(session.messages()))\n"
    )
    printed = run_program(text, tmp_path)
    assert printed == "the memory was opened before a fork; open it again in each process\n1\n"


def test_sessions_are_exported_imported_and_copied(tmp_path: Path) -> None:
    lines: list[bytes] = []
    threads: set[int] = set()
    with Memory.open(f"sqlite:///{tmp_path}/a.db") as memory, Memory.open("ram://") as other:
        memory.for_owner("ana").session("s").append(Message(role="user", content="hello"))

        def progress(done: int, total: int) -> None:
            threads.add(threading.get_ident())

        done = interchange.export(memory, lines.append, owner="ana", progress=progress)
        assert (done.sessions, done.messages) == (1, 1)
        assert threads == {threading.get_ident()}
        assert interchange.import_lines(other, lines).messages == 1
        assert other.for_owner("ana").get_session("s").messages()[0].content == "hello"
        with Memory.open(f"sqlite:///{tmp_path}/b.db") as third:
            assert interchange.copy(memory, third).differences == []
            assert third.for_owner("ana").list_sessions()[0].messages == 1
