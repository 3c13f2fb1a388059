"""What tests share: where data outside the tree is, and how Hypothesis searches."""

import gc
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest
from hypothesis import HealthCheck, settings

from servers import Missing
from servers import postgres as postgres_servers
from servers import redis as redis_servers
from servers.shared import Server, SharedServers
from tests.seeds import SEED, examples

if TYPE_CHECKING:
    from tests.http_world import Served

pytest.register_assert_rewrite("keepthread.testing.contract", "keepthread.testing.finding")

# In CI, Hypothesis would choose the same examples in every run; here each run tries new ones.
settings.register_profile(
    "keepthread",
    max_examples=examples(40),
    derandomize=False,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],  # a busy machine is not a defect
)
settings.load_profile("keepthread")


Started = TypeVar("Started")
Shared = TypeVar("Shared", bound=Server)
_BLOCKS = "MEMORY|MODEL|SUMMARIZER|EMBEDDER|CHAT|DISCORD|VIEWS"
_OWN = re.compile(rf"KEEPTHREAD_(STORE|STATE|CONFIG|({_BLOCKS})_.*)")
_KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "DISCORD_TOKEN")
_SHARED = SharedServers()
_ENDED = "a server that tests share ended"


_LONG = ("test_proofs_", "test_bench", "test_transcripts", "test_machine", "test_first_chat")


COLLECTED = pytest.StashKey[list[str]]()
"""The ids of all tests of this run, those that are left to the night among them."""
_NIGHTLY = Path(__file__).with_name("nightly.txt")


def nightly_tests() -> list[str]:
    """Return the ids of tests, or their beginnings, that a change does not wait for."""
    lines = [line.strip() for line in _NIGHTLY.read_text("utf-8").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give proofs, benchmarks and transcripts room: on a busy machine they are slow, not stuck.

    They run first, so that no process has one of them left when the other has nothing to do. Tests
    that `nightly.txt` names are left to the night.
    """
    nightly = tuple(nightly_tests())
    if items:
        items[0].config.stash[COLLECTED] = [item.nodeid for item in items]
    for item in items:
        if item.nodeid.startswith(nightly):
            item.add_marker(pytest.mark.nightly)
    items.sort(key=lambda item: not item.path.name.startswith(_LONG))
    for item in items:
        if item.path.name.startswith(_LONG) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C reach what tests start, and keep everybody from looking for a vocabulary online.

    A shell starts what runs in its background with SIGINT ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    data = os.environ.get("KEEPTHREAD_TEST_DATA")
    if data and Path(data).is_dir():
        os.environ["TIKTOKEN_CACHE_DIR"] = str(Path(data) / "tiktoken")


def pytest_runtestloop() -> None:
    """Let the garbage collector pass over what was loaded: it stays until the end."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the run's seed, so that a failure can be replayed."""
    terminalreporter.write_line(f"Seed: {SEED}; to replay, set KEEPTHREAD_SEED={SEED}")
    reports = [each for group in terminalreporter.stats.values() for each in group]
    texts = [
        f"{report.nodeid}: {text}"
        for report in reports
        for name, text in getattr(report, "user_properties", ())
        if name == _ENDED
    ]
    for text in dict.fromkeys(texts):  # a test has a report of its setup, its call and its teardown
        terminalreporter.section("A server that tests share ended", red=True)
        terminalreporter.write_line(text)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start servers again that ended between tests; fail if one that the test uses is lost."""
    _restart_servers(item)
    for name in getattr(item, "fixturenames", ()):
        if name in _SHARED.lost:
            pytest.fail(_SHARED.lost[name], pytrace=False)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Start servers again that ended during the test, before its fixtures need them."""
    _restart_servers(item)


def _restart_servers(item: pytest.Item) -> None:
    # The properties of a test reach the process that prints the summary.
    item.user_properties += [(_ENDED, text) for text in _SHARED.restart()]


@pytest.fixture(scope="session", autouse=True)
def nobodys_settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the developer's settings, keys and conversations out."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if _OWN.fullmatch(name) or name in _KEYS]:
            patch.delenv(name)
        patch.setenv("PAGER", "cat")
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


def share(name: str, start: Callable[[], Shared]) -> Iterator[Shared]:
    """Start a server and give it to all tests of this process, until they end."""
    server = started(start)
    _SHARED.add(name, server)
    yield server
    _SHARED.remove(name)
    server.close()


@pytest.fixture(scope="session")
def postgres() -> Iterator[postgres_servers.PostgresServer]:
    """Give a running server that all tests share; those that hurt it start their own."""
    yield from share("postgres", postgres_servers.new_server)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[redis_servers.RedisServer]:
    """Give a running server that all tests share; those that hurt it start their own."""
    yield from share("redis_server", redis_servers.new_server)


@pytest.fixture(scope="session")
def redis_cluster() -> Iterator[redis_servers.RedisCluster]:
    """Give a running cluster that all tests share."""
    yield from share("redis_cluster", redis_servers.new_cluster)


@pytest.fixture(scope="session")
def vocabularies(test_data: Path) -> Path:
    """Return the folder where tiktoken finds its vocabularies without a network."""
    return test_data / "tiktoken"


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


@pytest.fixture(scope="session")
def served_memory() -> "Iterator[Served]":
    """Serve an empty store over HTTP."""
    from tests.http_world import listening  # FastAPI is slow to load

    with listening("ram://") as server:
        yield server
