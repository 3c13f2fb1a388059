"""What grows: the benchmark notices it, and a small run of each store counts the store's calls."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from bench import Bar, Run
from bench.__main__ import main
from bench.growth import Measured, Which, measure_store, operations
from bench.growth.filling import DIMENSIONS, EVERYTHING, World, sizes
from bench.growth.operations import OPERATIONS
from bench.growth.page import PAGE, filled
from bench.growth.stores import STORES, Cost, Meter

GROWS_TODAY: Mapping[tuple[str, str], set[str]] = {
    ("status", EVERYTHING): {"sqlite"},
    ("forget a session", EVERYTHING): {"sqlite"},
    ("forget an owner", EVERYTHING): {"sqlite"},
}
"""Rows that are known to need more calls as data grows, by operation and dimension: the stores.

A row that no longer grows is taken out of it.
"""


def a_run(tmp_path: Path, only: str | None = None) -> Run:
    return Run(
        quick=True, rounds=1, memory=tmp_path, disk=tmp_path, progress=lambda _: None, only=only
    )


def measured(small: Cost, large: Cost, operation: str = "append") -> Measured:
    return Measured(operation, "owners", "sqlite", [100, 10_000], [small, large], [3.0, 2.5, 1])


@pytest.mark.parametrize(
    "store",
    [pytest.param(s, marks=[] if s == "sqlite" else [pytest.mark.nightly]) for s in STORES],
)
def test_no_operation_needs_more_calls_as_data_grows(store: str, tmp_path: Path) -> None:
    found = measure_store(a_run(tmp_path), store)
    grows = {
        (each.operation, each.dimension) for each in found if not each.bar.holds(each.calls_ratio)
    }
    assert grows == {row for row, stores in GROWS_TODAY.items() if store in stores}


def test_every_operation_is_measured_along_every_dimension(tmp_path: Path) -> None:
    found = measure_store(a_run(tmp_path), "sqlite", Which("[gp]*", "pins"))
    assert [each.operation for each in found] == [n for n in OPERATIONS if n[0] in "gp"]
    assert {each.dimension for each in found} == {"pins"}


@pytest.mark.parametrize("dimension", DIMENSIONS)
def test_three_sizes_are_a_factor_of_ten_apart(dimension: str) -> None:
    small, middle, large = sizes(dimension)
    assert (middle / small, large / middle) == (10, 10)


@pytest.mark.parametrize(
    ("operation", "dimension", "bar"),
    [
        ("append", "owners", 1.3),
        ("search an owner", "messages of an owner", 2.2),  # 1.1 × log 10,000 / log 100
        ("verify", "owners", 110.0),
        ("pins", "pins", 110.0),
        ("pins", "owners", 1.3),
    ],
)
def test_the_bar_follows_from_what_an_operation_returns(
    operation: str, dimension: str, bar: float
) -> None:
    row = Measured(operation, dimension, "sqlite", [100, 10_000], [Cost()] * 2, [1.0])
    assert row.bar == Bar(bar)


def test_a_ratio_is_of_the_largest_size_and_the_smallest() -> None:
    row = measured(Cost(0.001, 0.001, 2), Cost(0.003, 0.002, 3))
    assert (row.cpu_ratio, row.calls_ratio) == (2.5, 1.5)


def test_a_store_that_is_not_asked_at_first_grows_when_it_is() -> None:
    assert measured(Cost(), Cost(calls=1)).calls_ratio == 2.0


def test_parts_can_be_measured_alone() -> None:
    assert Which.of(None) == Which("*", "*", "*")
    assert Which.of("append") == Which("append", "*", "*")
    assert Which.of("/owners/redis") == Which("*", "owners", "redis")


def test_an_operation_that_asks_for_each_session_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def every_session(world: World, meter: Meter) -> None:
        page = await world.memory.list_sessions(owner="anna", limit=1000)
        with meter:
            for info in page:
                await world.store.describe(info.key)

    monkeypatch.setitem(operations.OPERATIONS, "every session", every_session)
    options = ["--quick", "--dir", str(tmp_path), "--only", "every session/sessions/sqlite"]
    assert main(["growth", *options]) == 1
    assert "1 of 1 bars missed" in capsys.readouterr().out
    assert main(["growth", *options, "--json"]) == 1
    figures = json.loads(capsys.readouterr().out)
    assert {"machine", "commit", "date"} <= set(figures)
    (row,) = figures["rows"]
    assert (row["calls"], row["calls_hold"], row["cpu_holds"]) == ([22, 202], False, None)


def test_the_page_about_scale_takes_the_figures_of_a_run() -> None:
    row = {
        "operation": "append",
        "dimension": "messages of a session",
        "sizes": [100, 1000, 10_000],
    }
    costs = {"client_ms": [0.1, 0.1, 0.2], "server_ms": [0.2, 0.2, 0.3], "calls": [1, 1, 2]}
    run = {"machine": "a machine", "python": "3", "date": "2026-01-01"}
    older = {**run, "rows": [{**row, **costs, "store": "sqlite", "calls": [9, 9, 9]}]}
    newer = {**run, "rows": [{**row, **costs, "store": "sqlite"}]}
    once = filled(PAGE.read_text(), [older, newer])
    assert (
        "| append | messages of a session, 100 → 10,000 | 0.3 → 0.5, 1 → 2 calls | — | — |" in once
    )
    assert filled(once, [older, newer]) == once
