"""The benchmarks: a quick run of each gives sound rows. `scripts/nightly` runs these."""

import fcntl
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench.corpus import SIZES
from bench.talks import KINDS, Kind

pytestmark = pytest.mark.nightly
ROOT = Path(__file__).parents[1]
SIZED = [f"{size:,} bytes" for size in SIZES]


def run_quick(name: str, folder: Path) -> list[dict[str, object]]:
    unmeasured = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE")}
    done = subprocess.run(
        [sys.executable, "-m", "bench", name, "--quick", "--json", "--dir", str(folder)],
        cwd=ROOT,
        env=unmeasured,
        capture_output=True,
        text=True,
        timeout=540,  # less than the test's own limit
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return json.loads(done.stdout)


def run_once(name: str, temporary: pytest.TempPathFactory) -> list[dict[str, object]]:
    """Run a benchmark, or take the rows of the process beside this one, which ran it."""
    shared = temporary.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    with (shared / f"bench-{name}.json").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if not (rows := file.read()):
            rows = json.dumps(run_quick(name, temporary.mktemp("disk")))
            file.write(rows)
    return json.loads(rows)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    return run_once("speed", tmp_path_factory)


@pytest.fixture(scope="module")
def prefixes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    return run_once("prefix", tmp_path_factory)


@pytest.fixture(scope="module")
def contexts(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    return run_once("context", tmp_path_factory)


@pytest.fixture(scope="module")
def searches(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    return run_once("search", tmp_path_factory)


@pytest.fixture(scope="module")
def chats(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    return run_once("chat", tmp_path_factory)


@pytest.fixture(scope="module")
def postgres_rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    return run_once("postgres", tmp_path_factory)


@pytest.fixture(scope="module")
def redis_rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    return run_once("redis", tmp_path_factory)


def test_the_server_is_judged_beside_a_bare_route(tmp_path: Path) -> None:
    rows = run_quick("http", tmp_path)
    assert {row["name"]: row["bar"] for row in rows if row["bar"]} == {
        "appends beside the bare route": ">= 0.5",
        "contexts beside the bare route": ">= 0.4",
        "rate with streams": ">= 0.9",
    }
    names = [str(row["name"]) for row in rows]
    assert len(set(names)) == len(names)
    assert len([name for name in names if name.startswith("p99 of a")]) == 4
    assert all(float(str(row["value"])) > 0 for row in rows)


def test_the_proxy_is_judged_beside_a_bare_relay(tmp_path: Path) -> None:
    rows = run_quick("proxy", tmp_path)
    assert {row["name"]: row["bar"] for row in rows if row["bar"]} == {
        "SQLite: added to the first byte, median": "<= 15",
        "PostgreSQL: added to the first byte, median": "<= 30",
    }
    names = [str(row["name"]) for row in rows]
    assert len(set(names)) == len(names)


def test_a_quick_run_gives_whole_rows(
    quick: list[dict[str, object]],
    prefixes: list[dict[str, object]],
    contexts: list[dict[str, object]],
    postgres_rows: list[dict[str, object]],
    redis_rows: list[dict[str, object]],
) -> None:
    for run in ([*quick, *prefixes, *contexts], postgres_rows, redis_rows):
        for found in run:
            assert list(found) == ["name", "value", "unit", "spread", "bar", "holds"]
            assert found["holds"] is None
        names = [found["name"] for found in run]
        assert len(set(names)) == len(names)


def test_a_quick_run_gives_finite_positive_figures(
    quick: list[dict[str, object]],
    contexts: list[dict[str, object]],
    postgres_rows: list[dict[str, object]],
    redis_rows: list[dict[str, object]],
) -> None:
    for found in [*quick, *contexts, *postgres_rows, *redis_rows]:
        value = found["value"]
        assert isinstance(value, int | float)
        assert math.isfinite(value)
        if "×" in str(found["unit"]) or found["bar"]:
            assert value > 0, found


@pytest.mark.parametrize("size", SIZED)
@pytest.mark.parametrize(
    ("name", "bars"),
    [
        ("append inside the store", {"<= 3"}),
        ("await store.append", {"<= 7"}),
        ("await session.append", {"<= 8"}),
        ("sync session.append", {"<= 12"}),
        ("64 concurrent appends, most commits", {"<= 4"}),
        ("64 concurrent appends, rate on disk", {">= 2", ">= 4"}),
        ("await store.tail", {"<= 4"}),
        ("await session.context and its why", {"<= 5"}),
        ("tail of 2,000 messages", {"<= 1.15"}),
        ("context of 2,000 messages", {"<= 1.15"}),
        ("bytes per message, our file", {"<= 1.25"}),
        ("tail, query", {None}),
        ("tail, check", {None}),
        ("tail, decode", {None}),
        ("context, query", {None}),
        ("context, decode", {None}),
        ("context, check", {None}),
        ("context, choose", {None}),
        ("context, hop to the thread and back", {None}),
        ("fdatasync beside that rate", {None}),
    ],
)
def test_every_promise_has_its_row_and_its_bar(
    quick: list[dict[str, object]], name: str, bars: set[str | None], size: str
) -> None:
    by_name = {found["name"]: found for found in quick}
    assert by_name[f"{name}, {size}"]["bar"] in bars


@pytest.mark.parametrize("form", ["text", "OpenAI Chat", "OpenAI Responses", "Anthropic"])
@pytest.mark.parametrize("size", SIZED)
def test_rendering_has_rows_of_its_own(
    quick: list[dict[str, object]], form: str, size: str
) -> None:
    (found,) = [
        r for r in quick if re.fullmatch(rf"rendering \d+ messages, {form}, {size}", str(r["name"]))
    ]
    assert (found["unit"], found["bar"]) == ("µs", None)


@pytest.mark.parametrize(
    ("name", "bar"),
    [
        ("unchanged prefix, 150 tokens a turn, 4,096 in steps", ">= 90"),
        ("unchanged prefix, 350 tokens a turn, 4,096 in steps", ">= 82"),
        ("unchanged prefix, 800 tokens a turn, 4,096 in steps", ">= 68"),
        ("unchanged prefix, 150 tokens a turn, 32,768 in steps", ">= 90"),
        ("unchanged prefix, 350 tokens a turn, 32,768 in steps", ">= 90"),
        ("unchanged prefix, 800 tokens a turn, 32,768 in steps", ">= 90"),
        ("budget used, 150 tokens a turn, 4,096 in steps", ">= 65"),
        ("budget used, 800 tokens a turn, 32,768 in steps", ">= 65"),
        ("unchanged prefix, 350 tokens a turn, 4,096 sliding", None),
        ("budget used, 350 tokens a turn, 4,096 sliding", None),
    ],
)
def test_every_promise_of_a_prefix_has_its_row_and_its_bar(
    prefixes: list[dict[str, object]], name: str, bar: str | None
) -> None:
    by_name = {found["name"]: found for found in prefixes}
    assert by_name[name]["bar"] == bar
    assert 0 < float(str(by_name[name]["value"])) <= 100


@pytest.mark.parametrize("budget", ["4,096", "32,768"])
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_hybrid_context_is_judged_beside_a_simple_one(
    prefixes: list[dict[str, object]], kind: Kind, budget: str
) -> None:
    by_name = {found["name"]: found for found in prefixes}
    where = f"{kind}, {budget}"
    share = {
        name: float(str(by_name[f"unchanged before the tail, {name}, {where}"]["value"]))
        for name in ("window", "hybrid")
    }
    beside = by_name[f"unchanged before the tail, hybrid less window, {where}"]
    assert beside["bar"] == ">= -2"
    assert float(str(beside["value"])) == pytest.approx(share["hybrid"] - share["window"], abs=0.01)
    for name in ("the tail, hybrid", "unchanged in the tail, hybrid"):
        assert by_name[f"{name}, {where}"]["bar"] is None
    if budget == "4,096":  # the larger one is not always filled
        assert by_name[f"budget used, hybrid, {where}"]["bar"] == ">= 80"


@pytest.mark.parametrize("size", SIZED)
@pytest.mark.parametrize(
    ("name", "bar"),
    [
        ("context of 1,000 messages by window", None),
        ("context of 1,000 messages by hybrid", None),
        ("context of 2,000 messages by hybrid, the first after a step", None),
        ("length, window, 2,000 messages", None),
        ("length, hybrid, 2,000 messages", "<= 1.5"),
        ("hybrid, 1,000 messages", "<= 3"),
        ("hybrid, 2,000 messages", "<= 3"),
    ],
)
def test_every_promise_of_a_context_has_its_row_and_its_bar(
    contexts: list[dict[str, object]], name: str, bar: str | None, size: str
) -> None:
    by_name = {found["name"]: found for found in contexts}
    assert by_name[f"{name}, {size}"]["bar"] == bar


SERVER_BARS = [
    *[
        (f"{what}, {size}", bar)
        for size in SIZED
        for what, bar in (
            ("appends beside bare", ">= 0.5"),
            ("contexts beside bare", ">= 0.4"),
            ("appends, keepthread", None),
            ("appends, all to one session", None),
            ("contexts and their why", None),
            ("append, CPU of the client, keepthread", None),
            ("context, CPU of the server, bare", None),
        )
    ],
    ("appends among 6,400 messages", "<= 1.3"),
    ("contexts among 6,400 messages", "<= 1.3"),
    ("append in a session of 500", "<= 1.3"),
    ("context in a session of 500", "<= 1.3"),
    ("a fixed calculation beside", None),
]


def test_every_promise_of_a_search_has_its_row_and_its_bar(
    searches: list[dict[str, object]],
) -> None:
    bars = {str(row["name"]).partition(", ")[0]: row["bar"] for row in searches if row["bar"]}
    assert bars == {
        "search": "<= 3",
        "context by recall": "<= 6",
        "bytes per message": "<= 3.5",
    }
    assert all(isinstance(row["value"], float | int) and row["value"] > 0 for row in searches)


def test_every_promise_of_a_chat_has_its_row_and_its_bar(chats: list[dict[str, object]]) -> None:
    bars: dict[object, set[str]] = {}
    for found in chats:
        if found["bar"]:
            bars.setdefault(found["bar"], set()).add(str(found["name"]))
    above = "above the bare interpreter"
    assert bars["<= 0.12"] == {f"keepthread --help, {above}"}
    where = ("a long session continues", "a new store")
    assert bars["<= 0.35"] == {f"a letter stands in it, {above}, {each}" for each in where}
    logs = ("one session", "4 sessions", "one session, Anthropic's wire")
    said = "added by memory, 100 messages of words by chance in"
    assert bars["<= 10"] == {f"{said} {each}" for each in logs}
    names = [str(found["name"]) for found in chats]
    assert len(set(names)) == len(names)
    by_name = {str(found["name"]): float(str(found["value"])) for found in chats}
    for each in where:
        drawn, typed = by_name[f"it is drawn, {each}"], by_name[f"a letter stands in it, {each}"]
        assert 0 < drawn < typed < by_name[f"all is loaded behind it, the SDK too, {each}"]


@pytest.mark.parametrize(
    ("name", "bar"),
    [
        *SERVER_BARS,
        ("bytes per message, ours of 6,400 messages, 110 bytes", "<= 1.25"),
        ("bytes per message, ours of 3,200 messages, 1,200 bytes", "<= 1.25"),
        *[(f"bare INSERT by pgbench, {size}", None) for size in SIZED],
        *[(f"bare SELECT by pgbench, {size}", None) for size in SIZED],
        *[(f"fdatasync between, {size}", None) for size in SIZED],
    ],
)
def test_every_promise_on_postgres_has_its_row_and_its_bar(
    postgres_rows: list[dict[str, object]], name: str, bar: str | None
) -> None:
    by_name = {found["name"]: found for found in postgres_rows}
    assert by_name[name]["bar"] == bar


@pytest.mark.parametrize(
    ("name", "bar"),
    [
        *SERVER_BARS,
        *[(f"bytes per message, our keys, {size}", None) for size in SIZED],
        *[(f"bytes per message, bare list, {size}", None) for size in SIZED],
    ],
)
def test_every_promise_on_redis_has_its_row_and_its_bar(
    redis_rows: list[dict[str, object]], name: str, bar: str | None
) -> None:
    by_name = {found["name"]: found for found in redis_rows}
    assert by_name[name]["bar"] == bar


def test_a_window_in_steps_keeps_more_than_one_that_slides(
    prefixes: list[dict[str, object]],
) -> None:
    share = {str(found["name"]): float(str(found["value"])) for found in prefixes}
    for kind in KINDS:
        name = f"unchanged prefix, {kind}, 4,096"
        assert share[f"{name} in steps"] > share[f"{name} sliding"]


def test_the_pipeline_is_judged_apart_from_models_and_tools(tmp_path: Path) -> None:
    rows = run_quick("orchestrator", tmp_path)
    assert {row["name"]: (row["unit"], row["bar"]) for row in rows} == {
        "8 steps with tools of 200 ms": ("× one", "<= 3"),
        "4 steps, tools run each time": ("ms", "<= 30"),
        "4 steps, tools remembered": ("ms", "<= 30"),
    }
    assert all(row["holds"] is None for row in rows)
    side_by_side = float(str(rows[0]["value"]))
    assert 1 <= side_by_side < 8  # one after the other would be 8


def test_the_memory_of_a_process_is_measured_at_each_tenth(tmp_path: Path) -> None:
    rows = run_quick("memory", tmp_path)
    for name in ("SQLite", "SQLite with an outbox", "PostgreSQL", "PostgreSQL with an outbox"):
        tenths = [row for row in rows if str(row["name"]).startswith(f"{name}, after")]
        assert len(tenths) == 11
        assert all(float(str(row["value"])) > 10 for row in tenths)
        (more,) = [row for row in rows if row["name"] == f"{name}, more in the second half"]
        assert more["bar"] == "<= 8"
