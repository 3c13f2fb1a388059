"""Opening a memory: what fails leaves nothing open."""

import threading
from pathlib import Path
from typing import Any

import pytest

from keepthread import Memory, sync
from keepthread.errors import InvalidInput
from keepthread.models.tokens import Estimator
from keepthread.stores.postgres.engine import MAX_TENANTS, Engine
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
    spool = {"spool": f"{tmp_path}/chat.spool"} if "outbox" in request.param else {}
    return {"url": f"sqlite:///{tmp_path}/chat.db", "counter": Estimator(), **spool}


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

    engine = Engine(connect, size=1, timeout=1.0, several=False, declare=lambda *_: None)
    for number in range(1, 3 * MAX_TENANTS):
        engine.note_tenant(f"t{number}", number)
    known = [number for number in range(1, 3 * MAX_TENANTS) if engine.tenant_number(f"t{number}")]
    assert 0 < len(known) <= MAX_TENANTS
    assert engine.tenant_number(f"t{known[-1]}") == known[-1] == 3 * MAX_TENANTS - 1
