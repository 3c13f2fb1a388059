"""What growth costs a store on a server: more sessions, and one session that is very long."""

from collections.abc import Callable, Sequence
from functools import partial

from bench import Bar, Row, Run
from bench.rates import TASKS, Work, rate, rounds_of, slower
from bench.tasks import Tasks

_FLAT = Bar(1.3)


async def measure(
    run: Run, small: Tasks, large: Tasks, pids: Callable[[], Sequence[int]]
) -> list[Row]:
    """Measure both by turns, then the long session beside a short one."""
    few, many = small.messages, large.messages
    group = f"growth from {few:,} to {many:,} messages, {TASKS} connections"
    work: dict[str, Work] = {
        "few append": small.append,
        "many append": large.append,
        "few context": small.context,
        "many context": large.context,
    }
    rounds = await rounds_of(run, "growth", work, 320, pids)
    rows: list[Row] = []
    for what in ("append", "context"):
        name, unit = f"{what}s among {many:,} messages", f"× among {few:,}"
        rows.append(rate(group, f"{name}, rate", rounds, f"many {what}"))
        rows.append(slower(group, name, rounds, f"many {what}", f"few {what}", unit, _FLAT))
    return rows + await _long(run, large, pids)


async def _long(run: Run, tasks: Tasks, pids: Callable[[], Sequence[int]]) -> list[Row]:
    group = f"one session of {tasks.long:,} messages, one connection"
    work: dict[str, Work] = {}
    for which in ("short", "long"):
        work[f"{which} append"] = partial(tasks.append_alone, which=which)
        work[f"{which} context"] = partial(tasks.context_alone, which=which)
    rounds = await rounds_of(run, "a long session", work, 48, pids)
    rows: list[Row] = []
    for what in ("append", "context"):
        name, kinds = f"{what} in a session of {tasks.long:,}", (f"long {what}", f"short {what}")
        rows.append(slower(group, name, rounds, *kinds, "× in a short one", _FLAT))
    return rows
