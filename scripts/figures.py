"""Draw the charts of the docs from committed runs: the same file for the same data.

`docs/assets/data/NAME.json` is what `python -m bench.figures NAME` measured, with its machine,
commit and date. Each becomes `docs/assets/figures/NAME-light.svg` and `NAME-dark.svg`.
"""

import io
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl

mpl.use("svg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

ASSETS = Path(__file__).parents[1] / "docs" / "assets"
DATA, FOLDER = ASSETS / "data", ASSETS / "figures"
FIXED = {
    "svg.hashsalt": "keepthread",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
SIZE = (7.2, 4.0)


class Palette(NamedTuple):
    """The colors of a chart on a light or a dark page."""

    text: str
    grid: str
    lines: Sequence[str]


PALETTES = {
    "light": Palette("#24292f", "#d0d7de", ("#0550ae", "#1a7f37", "#6e7781", "#9a6700")),
    "dark": Palette("#e6edf3", "#484f58", ("#79c0ff", "#56d364", "#9198a1", "#e3b341")),
}


class Chart(NamedTuple):
    """A chart being drawn: its data, axes and colors."""

    data: Mapping[str, Any]
    axes: Axes
    palette: Palette

    def lines(
        self, xs: Sequence[float], lines: Mapping[str, Sequence[float]], *, named: bool = True
    ) -> None:
        """Draw lines, and name them."""
        marks = ("o", "s", "^", "D")
        for color, mark, (name, ys) in zip(self.palette.lines, marks, lines.items(), strict=False):
            self.axes.plot(xs, ys, color=color, marker=mark, linewidth=2, label=name)
        if named:
            self.axes.legend(frameon=False, loc="best", labelcolor=self.palette.text, fontsize=8)

    def title(self, title: str, x: str, y: str) -> None:
        """Write the title and the axes' names."""
        self.axes.set_title(title, loc="left", color=self.palette.text, fontsize=12, pad=12)
        self.axes.set_xlabel(x)
        self.axes.set_ylabel(y)

    def logarithmic(self, values: Sequence[int]) -> None:
        """Give the x axis these values, the same distance apart for the same factor."""
        self.axes.set_xscale("log")
        self.axes.set_xticks(values, [f"{value:,}" for value in values])
        self.axes.minorticks_off()


NAMES = {
    "sliding window": "newest messages only",
    "hybrid": "Hybrid",
    "recall": "Recall",
    "in steps": "window in steps (default)",
    "sliding": "sliding window",
}
"""The names of the benchmarks' ways, for readers."""


def evidence(chart: Chart, corpus: str) -> None:
    """Draw how much of the evidence contexts hold, against their budget."""
    data = chart.data
    order = ("recall", "hybrid", "sliding window")
    lines = {NAMES[way]: data["evidence_percent"][way] for way in order}
    chart.lines(data["budgets"], lines)
    chart.logarithmic(data["budgets"])
    chart.axes.set_ylim(0, 100)
    title = f"{corpus}: evidence within the budget, {data['questions']:,} held-out questions"
    chart.title(title, "budget in tokens", "% of the evidence in the context")


def cost(chart: Chart, beside: Chart) -> None:
    """Draw the CPU and the tokens of one prompt against the length of the history."""
    rows = sorted(chart.data["rows"], key=lambda row: row["messages"])
    lengths = sorted({row["messages"] for row in rows})
    for each, figure, unit in ((chart, "cpu_ms", "CPU in ms"), (beside, "tokens", "tokens")):
        lines: dict[str, list[float]] = {}
        for row in rows:
            lines.setdefault(row["who"], []).append(row[figure])
        each.lines(lengths, lines, named=each is beside)
        each.logarithmic(lengths[::2])
        each.axes.set_yscale("log")
        each.axes.yaxis.set_major_formatter("{x:,.0f}")
        each.axes.minorticks_off()
        each.title("", "messages in the session", unit)
    beside.axes.set_ylim(top=30 * max(row["tokens"] for row in rows))  # room for the names
    budget = chart.data["budget"]
    title = f"One prompt as the history grows, budget {budget:,}"
    chart.title(title, "messages in the session", "CPU in ms")


def prefix(chart: Chart) -> None:
    """Draw how much of each prompt a cache has seen, against the budget."""
    data = chart.data
    lines = {NAMES[way]: values for way, values in data["unchanged_percent"].items()}
    chart.lines(data["budgets"], lines)
    chart.logarithmic(data["budgets"])
    chart.axes.set_ylim(0, 100)
    title = f"Prompt prefix that is the same as before, conversations of {data['turns']} turns"
    chart.title(title, "budget in tokens", "% of all prompt tokens")


class Fault(NamedTuple):
    """A fault that a proof causes, and the figures of the proof that count it."""

    what: str
    counted: Sequence[str]


FAULTS = {
    "P1": Fault("a process killed while it writes", ["kills"]),
    "P2": Fault("power lost at any moment", ["crashes"]),
    "P5": Fault(
        "a write sent again after its caller gave up",
        ["given up and tried again", "processes killed"],
    ),
    "P6": Fault("a process killed inside a turn", ["kills"]),
    "P11": Fault("bytes changed in the file", ["values: flips", "anywhere: flips"]),
    "P13": Fault("invalid or hostile input", ["cases", "fuzzed"]),
    "P14": Fault("a server that fails, hangs or loses answers", ["outages"]),
    "P16": Fault("a file opened by 28 processes at once", ["rounds"]),
    "P18": Fault("a process killed while it summarizes", ["kills"]),
}


def faults(chart: Chart) -> None:
    """Draw how often the proofs caused each fault; the title says whether a promise was broken."""
    proofs = chart.data["proofs"]
    names = [f"{row['name']}: {FAULTS[row['name']].what}" for row in proofs]
    counts = [sum(row["figures"][each] for each in FAULTS[row["name"]].counted) for row in proofs]
    bars = chart.axes.barh(names, counts, color=chart.palette.lines[0], height=0.6)
    labels = [f"{count:,} times" for count in counts]
    chart.axes.bar_label(bars, labels, padding=4, color=chart.palette.text, fontsize=9)
    chart.axes.set_xscale("log")
    chart.axes.set_xlim(1, 10 * max(counts))
    chart.axes.minorticks_off()
    chart.axes.xaxis.set_major_formatter("{x:,.0f}")
    chart.axes.tick_params(axis="y", labelsize=9)
    chart.axes.grid(visible=False, axis="y")
    chart.axes.invert_yaxis()
    broken = sum(not row["held"] for row in proofs)
    outcome = f"{broken} promises were broken" if broken else "no promise was broken"
    chart.title("", "how often (each step is ten times as many)", "")
    chart.axes.figure.suptitle(
        f"Faults caused on purpose: {outcome}",
        x=0.01,
        ha="left",
        color=chart.palette.text,
        fontsize=12,
    )


CHARTS: Mapping[str, Callable[..., None]] = {
    "locomo": lambda chart: evidence(chart, "LoCoMo"),
    "beam": lambda chart: evidence(chart, "BEAM-100K"),
    "cost": cost,
    "prefix": prefix,
    "faults": faults,
}


PANELS = {"cost": 2}
"""Charts of several panels."""


def _panel(axes: Axes, palette: Palette) -> Axes:
    """Give axes the colors of the page."""
    for side in ("left", "bottom"):
        axes.spines[side].set_color(palette.grid)
    axes.tick_params(colors=palette.text)
    axes.xaxis.label.set_color(palette.text)
    axes.yaxis.label.set_color(palette.text)
    axes.grid(color=palette.grid, linewidth=0.6, alpha=0.7)
    axes.set_axisbelow(True)
    return axes


def drawn(name: str, palette: Palette) -> str:
    """Return a chart as an SVG."""
    data = json.loads((DATA / f"{name}.json").read_text(encoding="utf-8"))
    with mpl.rc_context(FIXED):
        figure = Figure(figsize=SIZE, layout="constrained")
        (row,) = figure.subplots(1, PANELS.get(name, 1), squeeze=False)
        panels = [_panel(axes, palette) for axes in row]
        CHARTS[name](*(Chart(data, axes, palette) for axes in panels))
        source = f"{data['date']} · commit {data['commit']} · {data['machine']}"
        figure.supxlabel(source, x=0.99, ha="right", fontsize=7, color=palette.text)
        file = io.StringIO()
        figure.savefig(
            file, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
    lines = [line.rstrip() for line in file.getvalue().splitlines()]
    return "\n".join(lines) + "\n"


def charts() -> dict[str, str]:
    """Return every chart by the name of its file."""
    return {
        f"{name}-{kind}.svg": drawn(name, palette)
        for name in CHARTS
        for kind, palette in PALETTES.items()
    }


def main() -> None:
    """Write the charts, and say where they are."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, chart in charts().items():
        (folder / name).write_text(chart, encoding="utf-8")
        print(folder / name)


if __name__ == "__main__":
    main()
