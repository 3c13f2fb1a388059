"""The charts of the docs are what their committed runs give."""

import json
import re

import pytest

from bench.figures import FIGURES, PROOFS
from scripts.figures import CHARTS, DATA, FAULTS, FOLDER, charts

KEYS = {"figure", "command", "machine", "python", "commit", "date"}


@pytest.mark.parametrize("name", CHARTS)
def test_a_run_says_where_when_and_from_what_it_was_measured(name: str) -> None:
    data = json.loads((DATA / f"{name}.json").read_text("utf-8"))
    assert data.keys() > KEYS
    assert data["figure"] == name
    assert name in FIGURES
    assert re.fullmatch(r"[0-9a-f]{7,40}", data["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", data["date"])


def test_the_charts_are_those_that_the_runs_give_today() -> None:
    drawn = charts()
    assert {path.name for path in FOLDER.iterdir()} == drawn.keys()
    for name, chart in drawn.items():
        assert (FOLDER / name).read_text("utf-8") == chart, "run scripts/figures, and look"


def test_every_proof_in_the_chart_held_and_is_drawn_with_its_count() -> None:
    proofs = json.loads((DATA / "faults.json").read_text("utf-8"))["proofs"]
    assert {row["name"]: row["size"] for row in proofs} == PROOFS
    assert all(row["held"] for row in proofs)
    chart = (FOLDER / "faults-light.svg").read_text("utf-8")
    for row in proofs:
        what, counted = FAULTS[row["name"]]
        assert f"{row['name']}: {what}" in chart
        assert f"{sum(row['figures'][each] for each in counted):,} times" in chart
