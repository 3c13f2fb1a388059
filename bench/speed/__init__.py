"""How fast the SQLite store is, and what stands on it, against the bare engine in each round."""

import os
import platform
import sqlite3
from itertools import chain

from bench import Benchmark, Report, Row, Run
from bench.corpus import SIZES
from bench.counters import ABSENT as NO_EXACT
from bench.counters import EXACT, counters
from bench.peer import ABSENT, INSTALLED
from bench.places import file_system, sync_time
from bench.speed import append, context, counting, length, size, tail, together

_PARTS = (append, counting, together, tail, context, length, size)


def measure(run: Run) -> Report:
    """Measure every part at both sizes of message."""
    rows: list[Row] = list(
        chain.from_iterable(part.measure(run, each) for part in _PARTS for each in SIZES)
    )
    groups = list(dict.fromkeys(row.group for row in rows))
    rows.sort(key=lambda row: groups.index(row.group))
    return Report(setting=_setting(run), rows=rows, notes=_notes(run))


def _setting(run: Run) -> list[str]:
    memory, disk = file_system(run.memory), file_system(run.disk)
    sync = sync_time(run.disk) * 1000
    return [
        (
            f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version},"
            f" {platform.system()} {platform.machine()}, {os.cpu_count()} CPUs;"
            f" CPU on {memory}, rates on {disk} (fdatasync {sync:.3g} ms at the end)"
        ),
        f"Medians of {run.rounds} interleaved rounds; the spread is the middle half of them.",
    ]


def _notes(run: Run) -> list[str]:
    notes = [] if INSTALLED else [ABSENT]
    if EXACT not in counters():
        notes.append(f"{NO_EXACT}, so the exact counter's rows are left out.")
    if file_system(run.memory) != "tmpfs":
        notes.append("There is no tmpfs with room for it: CPU was measured on the disk, too.")
    if file_system(run.disk) == "tmpfs":
        notes.append("The rates were measured on tmpfs; --dir takes a folder on a disk.")
    return notes


BENCHMARK = Benchmark(
    name="speed",
    about="what the SQLite store, sessions and contexts take for messages of 110 and 1,200 bytes",
    measure=measure,
)
