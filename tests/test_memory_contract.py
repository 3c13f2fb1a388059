"""The contract of a memory: on every store in this process, and through a server over each."""

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from keepthread import Memory
from keepthread.models.tokens import Estimator
from keepthread.testing.memory import FindingMemoryContract, MemoryContract
from servers.postgres import PostgresServer
from servers.redis import RedisServer
from tests.http_world import Served, listening, url_of


@asynccontextmanager
async def in_process(url: str) -> AsyncIterator[Memory]:
    async with Memory.open(url, counter=Estimator(), keep_why=20) as memory:
        yield memory


SOME = 11
"""Every store has the hostile inputs in its own contract, too."""


class TestRamMemory(FindingMemoryContract):
    hostile_step = SOME

    def opened(self, folder: Path) -> AbstractAsyncContextManager[Memory]:
        return in_process("ram://")


@pytest.mark.nightly
class TestSQLiteMemory(FindingMemoryContract):
    hostile_step = SOME

    def opened(self, folder: Path) -> AbstractAsyncContextManager[Memory]:
        return in_process(url_of(folder))


@pytest.mark.nightly
class TestPostgresMemory(FindingMemoryContract):
    hostile_step = SOME

    @pytest.fixture(autouse=True)
    def _server(self, postgres: PostgresServer) -> None:
        self.url = postgres.url()

    def opened(self, folder: Path) -> AbstractAsyncContextManager[Memory]:
        return in_process(self.url)


@pytest.mark.nightly
class TestRedisMemory(MemoryContract):
    hostile_step = SOME

    @pytest.fixture(autouse=True)
    def _server(self, redis_server: RedisServer) -> None:
        self.url = redis_server.url

    def opened(self, folder: Path) -> AbstractAsyncContextManager[Memory]:
        return in_process(self.url)


class OverHttp(MemoryContract):
    """The same, through a server and the client of it."""

    served: Served
    sends_json = True

    @pytest.fixture(autouse=True)
    def _server(self, request: pytest.FixtureRequest) -> None:
        self.served = request.getfixturevalue(self.fixture)

    fixture = ""

    def opened(self, folder: Path) -> AbstractAsyncContextManager[Memory]:
        return Memory.open(self.served.address, key=self.served.key(None))

    async def settled(self) -> None:
        self.served.settle()


@pytest.fixture(scope="module")
def over_ram() -> Iterator[Served]:
    with listening("ram://") as served:
        yield served


@pytest.fixture(scope="module")
def over_sqlite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with listening(url_of(tmp_path_factory.mktemp("served"))) as served:
        yield served


@pytest.fixture(scope="module")
def over_postgres(postgres: PostgresServer) -> Iterator[Served]:
    with listening(postgres.empty()) as served:
        yield served


@pytest.fixture(scope="module")
def over_redis(redis_server: RedisServer) -> Iterator[Served]:
    with listening(redis_server.url) as served:
        yield served


@pytest.mark.nightly
class TestServedRamMemory(OverHttp, FindingMemoryContract):
    fixture = "over_ram"


class TestServedSQLiteMemory(OverHttp, FindingMemoryContract):
    hostile_step = 7
    fixture = "over_sqlite"


class TestServedPostgresMemory(OverHttp, FindingMemoryContract):
    hostile_step = SOME
    fixture = "over_postgres"


@pytest.mark.nightly
class TestServedRedisMemory(OverHttp):
    hostile_step = SOME
    fixture = "over_redis"
