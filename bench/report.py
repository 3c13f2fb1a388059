"""A report as a table for people or as JSON for programs, and the status it ends with."""

import json

from bench import Bar, Benchmark, Report, Row, Run

_HEAD = ("", "value", "", "spread", "bar", "verdict")


def verdict(row: Row, run: Run) -> bool | None:
    """Tell whether a row's bar holds; None if it has none or the run is too short to judge."""
    return row.bar.holds(row.value) if row.bar and (run.judged or row.counted) else None


def status(report: Report, run: Run) -> int:
    """Return 1 if a bar does not hold."""
    return int(any(verdict(row, run) is False for row in report.rows))


def as_json(report: Report, run: Run) -> str:
    """Return the rows as a JSON list, or all figures where a report has more than rows.

    A spread is a pair, a bar a text such as `<= 3`.
    """
    if report.figures is not None:
        return json.dumps(report.figures, indent=2, ensure_ascii=False)
    rows = [
        {
            "name": row.name,
            "value": _significant(row.value),
            "unit": row.unit,
            "spread": row.spread and [_significant(each) for each in row.spread],
            "bar": row.bar and str(row.bar),
            "holds": verdict(row, run),
        }
        for row in report.rows
    ]
    return json.dumps(rows, indent=2, ensure_ascii=False)


def as_table(benchmark: Benchmark, report: Report, run: Run) -> str:
    """Return one table, grouped, the setting above it and what is to be known below."""
    cells = {row: _cells(row, run) for row in report.rows}
    widths = [max(map(len, column)) for column in zip(_HEAD, *cells.values(), strict=True)]
    lines = [f"{benchmark.name}: {benchmark.about}", *report.setting]
    group = None
    for row, line in cells.items():
        if row.group != group:
            group = row.group
            head = (group, *(_HEAD[1:] if row is report.rows[0] else _HEAD[:1] * 5))
            lines += ["", _line(head, widths)]
        lines.append(_line((f"  {line[0]}", *line[1:]), widths))
    notes = [*report.notes, *_summary(report, run)]
    return "\n".join([*lines, "", *notes])


def _cells(row: Row, run: Run) -> tuple[str, ...]:
    spread = "–".join(_short(each) for each in row.spread) if row.spread else ""
    holds = verdict(row, run)
    words = {True: "holds", False: "MISSED", None: "not judged" if row.bar else ""}
    return (row.name, _short(row.value), row.unit, spread, _sign(row.bar), words[holds])


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    name, value, unit, spread, bar, holds = cells
    return (
        f"{name:<{widths[0] + 2}}  {value:>{widths[1]}} {unit:<{widths[2]}}"
        f"  {spread:>{widths[3]}}  {bar:>{widths[4]}}  {holds}"
    ).rstrip()


def _summary(report: Report, run: Run) -> list[str]:
    bars = [found for row in report.rows if (found := verdict(row, run)) is not None]
    if not bars and not run.judged:
        return ["Nothing was judged: there are too few rounds, or they are too short."]
    missed = bars.count(False)
    return [f"{missed} of {len(bars)} bars missed." if missed else f"All {len(bars)} bars hold."]


def _sign(bar: Bar | None) -> str:
    return str(bar).replace("<=", "≤").replace(">=", "≥") if bar else ""


def _short(value: float) -> str:
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:#.3g}"


def _significant(value: float) -> float:
    return value if isinstance(value, int) else float(f"{value:.5g}")
