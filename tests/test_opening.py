"""Opening a memory: what fails leaves nothing open."""

import re
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from keepthread import Hybrid, Memory, Options, RamStore, View, Window, sync
from keepthread.errors import InvalidInput
from keepthread.memory.services import MAX_TENANTS as MAX_MEMORIES
from keepthread.models.tokens import Estimator
from keepthread.stores.postgres.engine import MAX_TENANTS, PgEngine
from servers.redis import RedisServer


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(params=["sqlite", "sqlite with an outbox", "redis", "ram"])
def opening(
    request: pytest.FixtureRequest, tmp_path: Path, redis_server: RedisServer
) -> dict[str, Any]:
    if request.param == "redis":
        redis_server.ask("FLUSHALL")
        return {"url": f"redis://127.0.0.1:{redis_server.port}", "counter": Estimator()}
    if request.param == "ram":
        return {"url": "ram://", "counter": Estimator()}
    outbox = {"outbox": f"{tmp_path}/chat.outbox"} if "outbox" in request.param else {}
    return {"url": f"sqlite:///{tmp_path}/chat.db", "counter": Estimator(), **outbox}


@pytest.mark.parametrize("wrong", [{"keep_why": -1}, {"tenant": ""}])
async def test_a_failed_open_leaves_no_threads_descriptors_or_locks(
    opening: dict[str, Any], wrong: dict[str, Any]
) -> None:
    async with Memory.open(**opening) as memory:
        await memory.session("s")
    threads, open_files = threading.active_count(), descriptors()
    for _ in range(3):
        with pytest.raises(InvalidInput):
            await Memory.open(**opening, **wrong)
    assert threading.active_count() <= threads
    assert descriptors() <= open_files
    async with Memory.open(**opening) as memory:  # no lock is held by what failed
        await memory.session("s")


def test_a_failed_blocking_open_leaves_no_threads_descriptors_or_locks(
    opening: dict[str, Any],
) -> None:
    sync.Memory.open(**opening).close()
    threads, open_files = threading.active_count(), descriptors()
    for _ in range(3):
        with pytest.raises(InvalidInput):
            sync.Memory.open(**opening, keep_why=-1)
    assert threading.active_count() <= threads
    assert descriptors() <= open_files
    sync.Memory.open(**opening).close()


async def test_what_a_memory_remembers_of_tenants_and_owners_is_bounded() -> None:
    async def connect() -> Any:
        raise AssertionError("nothing is asked")

    engine = PgEngine(connect, size=1, timeout=1.0, several=False, declare=lambda *_: None)
    for number in range(1, 3 * MAX_TENANTS):
        engine.note_tenant(f"t{number}", number)
    known = [number for number in range(1, 3 * MAX_TENANTS) if engine.tenant_number(f"t{number}")]
    assert 0 < len(known) <= MAX_TENANTS
    assert engine.tenant_number(f"t{known[-1]}") == known[-1] == 3 * MAX_TENANTS - 1


# --- tenants ---


async def test_the_memory_of_a_tenant_is_kept() -> None:
    async with Memory.open("ram://", counter=Estimator(), keep_why=3) as memory:
        other = memory.tenant("other")
        assert memory.tenant("other") is other is other.tenant("other")
        assert memory.tenant("another") is not other
        assert (other.counter, other.views) == (memory.counter, memory.views)
        async with other:  # another user of the same tenant may still need it
            await other.session("s")
        assert [info.id for info in await memory.tenant("other").list_sessions()] == ["s"]
        assert await memory.list_sessions() == []
        for wrong in ("", None, ["other"]):
            with pytest.raises(InvalidInput, match="tenant"):
                memory.tenant(wrong)  # pyright: ignore[reportArgumentType]


async def test_the_memories_of_tenants_are_bounded_and_the_latest_stay() -> None:
    memory = Memory(RamStore(), Options(counter=Estimator()))
    first, second = memory.tenant("t1"), memory.tenant("t2")
    for number in range(3, MAX_MEMORIES + 1):
        memory.tenant(f"t{number}")
    assert memory.tenant("t1") is first
    memory.tenant("one more")
    assert memory.tenant("t1") is first
    assert memory.tenant("t2") is not second
    assert len([*memory._tenants]) == MAX_MEMORIES
    await memory.close()


# --- options that are refused ---


@pytest.mark.parametrize("outbox", [None, "chat.outbox"])
def test_a_path_is_refused_with_its_url(tmp_path: Path, outbox: str | None) -> None:
    for opened in (Memory.open, sync.Memory.open):
        with pytest.raises(InvalidInput, match=f"not by a path; write 'sqlite:///{tmp_path}/a.db'"):
            opened(tmp_path / "a.db", outbox=outbox)  # pyright: ignore[reportArgumentType]
        with pytest.raises(InvalidInput, match=r"by its URL, such as 'sqlite:///chat\.db', not"):
            opened(None, outbox=outbox)  # pyright: ignore[reportArgumentType]


async def test_the_url_that_is_named_for_a_path_opens_it(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as refused:
        Memory.open(tmp_path / "a.db")  # pyright: ignore[reportArgumentType]
    async with Memory.open(str(refused.value).split("'")[1], counter=Estimator()) as memory:
        await memory.session("s")
    assert (tmp_path / "a.db").exists()


@pytest.mark.parametrize("view", [4000, Window(), None])
def test_a_view_that_is_not_one_is_refused(view: Any) -> None:
    wanted = r"^view 'chat' must be a View\(budget, strategy\), such as View\(4000\), not "
    with pytest.raises(InvalidInput, match=wanted):
        Memory.open("ram://", views={"chat": view})
    with pytest.raises(InvalidInput, match=wanted):
        Options(views={"chat": view})


async def test_a_memory_that_is_not_open_yet_says_how_to_open_it() -> None:
    opening: Any = Memory.open("ram://")
    with pytest.raises(AttributeError, match=r"write `async with Memory.open\(…\) as memory:` or"):
        await opening.session("s")
    assert not hasattr(opening, "session")
    async with opening as memory:
        session = await memory.session("s")
        with pytest.raises(TypeError, match=r"`await session.messages\(\)`"):
            list(cast("Any", session.messages()))


async def test_a_context_and_a_hit_are_printed_in_a_line(tmp_path: Path) -> None:
    async with Memory.open(f"sqlite:///{tmp_path}/a.db") as memory:
        session = await memory.session("s")
        await session.add_message("user", "Hazelnuts " + "and walnuts " * 50)
        context = await session.context(budget=2000)
        assert re.fullmatch(
            r"<Context: 1 message, [\d,]+ of 2,000 tokens; print\(context.why\)>", str(context)
        )
        (hit,) = await memory.search("hazelnuts")
        assert repr(hit).startswith("Hit(session='s', owner='default', seq=1, score=")
        assert len(repr(hit)) < 160


@pytest.mark.parametrize("budget", ["4000", 4000.0, True, None, -1])
def test_a_budget_is_a_number_of_tokens(budget: Any) -> None:
    with pytest.raises(InvalidInput, match="a view's budget must be a whole number of tokens"):
        View(budget)
    with pytest.raises(InvalidInput, match=r"not '4000'; did you mean 4000\?$"):
        View("4000")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_a_view_takes_an_instance_of_a_strategy() -> None:
    wrong: Any = Hybrid
    with pytest.raises(InvalidInput, match=r"not the class Hybrid; did you mean Hybrid\(\)\?$"):
        View(100, wrong)
    wrong = "hybrid"
    with pytest.raises(InvalidInput, match=r"such as Window\(\) or Hybrid\(\), not 'hybrid'$"):
        View(100, wrong)
    assert View(100, Hybrid()) == View(100, strategy=Hybrid())


@pytest.mark.parametrize("url", ["ram://", "sqlite:///a.db", "postgresql://nowhere/", "redis://x"])
@pytest.mark.parametrize("level", ["full", "", 1])
def test_a_durability_that_is_unknown_is_refused_with_those_that_are(url: str, level: Any) -> None:
    wanted = rf"^durability must be one of memory, process, power, replicated, not {level!r}$"
    with pytest.raises(InvalidInput, match=wanted):
        Memory.open(url, durability=level)
