"""`python -m bench.growth.page FILE…` fills the table of docs/why/scale.md from `bench growth`.

The files are what `--json` printed. Later ones replace the rows of earlier ones, so that parts of a
run can be made again.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

PAGE = Path(__file__).parents[2] / "docs" / "why" / "scale.md"
BEGIN, END = "<!-- growth: begin -->\n", "<!-- growth: end -->\n"
CHOSEN = (
    ("append", "messages of a session"),
    ("newest messages", "messages of a session"),
    ("context by window", "messages of a session"),
    ("context by hybrid", "messages of a session"),
    ("turn with hybrid", "messages of an owner"),
    ("search an owner", "messages of an owner"),
    ("list sessions of an owner", "sessions"),
    ("search the tenant", "owners"),
    ("forget a message", "owners"),
    ("export a session", "sessions"),
    ("prune", "sessions"),
    ("context by window", "facts"),
    ("remember a fact", "facts"),
    ("context by window", "pins"),
    ("context by window", "notes"),
    ("context by window", "cached tool results"),
    ("context by window", "hidden ranges"),
    ("context by summarized", "compactions"),
    ("fork at a position", "pins"),
)
"""The rows of the page: an operation, and what grows."""
STORES = ("sqlite", "postgres", "redis")

Row: TypeAlias = Mapping[str, Any]


def table(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the table: CPU of both sides at the smallest and the largest size, and the calls."""
    found = {
        (row["operation"], row["dimension"], row["store"]): row
        for run in runs
        for row in run["rows"]
    }
    lines = [
        "| operation | as these grow | SQLite | PostgreSQL | Redis |",
        "|---|---|---|---|---|",
    ]
    for operation, dimension in CHOSEN:
        rows = [found.get((operation, dimension, store)) for store in STORES]
        if any(rows):
            sizes = next(row["sizes"] for row in rows if row)
            grown = f"{dimension}, {sizes[0]:,} → {sizes[-1]:,}"
            lines.append(f"| {operation} | {grown} | {' | '.join(map(_cell, rows))} |")
    last = runs[-1]
    where = (
        f"CPU of program and server in ms, and the calls of the store. {last['machine']}, Python"
    )
    return "\n".join([*lines, "", f"{where} {last['python']}, {last['date']}.", ""])


def _cell(row: Row | None) -> str:
    if row is None:
        return "—"
    cpu = [a + b for a, b in zip(row["client_ms"], row["server_ms"], strict=True)]
    calls = f"{row['calls'][0]:g} → {row['calls'][-1]:g} calls"
    if row["calls"][0] == row["calls"][-1]:
        calls = f"{row['calls'][0]:g} calls"
    return f"{cpu[0]:.3g} → {cpu[-1]:.3g}, {calls}"


def filled(page: str, runs: Sequence[Mapping[str, Any]]) -> str:
    """Return the page with a new table between its two marks."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError("the page has no place for the table")
    return f"{before}{BEGIN}\n{table(runs)}\n{END}{after}"


if __name__ == "__main__":
    given = [json.loads(Path(name).read_text()) for name in sys.argv[1:]]
    PAGE.write_text(filled(PAGE.read_text(), given))
