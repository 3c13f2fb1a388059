"""What tests share: where data outside the tree is, and how Hypothesis searches."""

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import settings

from servers import Missing
from servers import postgres as postgres_servers
from servers import redis as redis_servers

pytest.register_assert_rewrite("keepthread.testing.contract", "keepthread.testing.finding")

settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("ci", parent=settings.get_profile("here"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")


Started = TypeVar("Started")
_BLOCKS = "MEMORY|MODEL|SUMMARIZER|EMBEDDER|CHAT|DISCORD|VIEWS"
_OWN = re.compile(rf"KEEPTHREAD_(STORE|STATE|CONFIG|({_BLOCKS})_.*)")
_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "DISCORD_TOKEN")


@pytest.fixture(scope="session", autouse=True)
def nobodys_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the settings, keys and conversations of whoever runs the tests out of them."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if _OWN.fullmatch(name) or name in _KEYS]:
            patch.delenv(name)
        for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"):
            patch.setenv(name, str(tmp_path_factory.mktemp(name.lower())))
        yield


def started(start: Callable[[], Started]) -> Started:
    """Start a server that tests share; without its program skip, but never in CI."""
    try:
        return start()
    except Missing as missing:
        if os.environ.get("CI"):
            pytest.fail(f"{missing}; CI runs everything")
        pytest.skip(str(missing))


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_servers.PostgresServer]:
    """Give a running server that all tests share; those that hurt it start their own."""
    server = started(postgres_servers.new_server)
    yield server
    server.close()


@pytest.fixture(scope="session")
def redis_server() -> Iterator[redis_servers.RedisServer]:
    """Give a running server that all tests share; those that hurt it start their own."""
    server = started(redis_servers.new_server)
    yield server
    server.close()


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[redis_servers.RedisCluster]:
    """Give a running cluster that all tests share."""
    cluster = started(redis_servers.new_cluster)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def vocabularies(test_data: Path) -> Iterator[Path]:
    """Let tiktoken find its vocabularies without a network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_CACHE_DIR", str(test_data / "tiktoken"))
        yield test_data / "tiktoken"


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Return the folder of vocabularies, data and models, or skip with the way to get it."""
    folder = os.environ.get("KEEPTHREAD_TEST_DATA")
    if folder and Path(folder).is_dir():
        return Path(folder)
    message = "set KEEPTHREAD_TEST_DATA to the folder with tiktoken/, data/ and models/"
    if os.environ.get("CI"):
        pytest.fail(f"{message}: CI runs everything")
    pytest.skip(message)
