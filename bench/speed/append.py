"""One append after another, CPU against a bare INSERT.

Inside the store: its draft, its transaction, its log, its commit. Without the hop: the method as
well, driven without event loop and thread. Awaited: all of it. By a session, awaited or
blocking (`sync`): with all that surrounds counting its tokens, and a counter that answers at once.
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import Bar, Row, Run
from bench.bare import Bare, rows
from bench.corpus import messages
from bench.measure import Work, cpu_in_turn
from bench.ours import Awaited, Inside
from bench.peer import INSTALLED, NAME, Peer
from bench.speed.rows import microseconds, named, times
from bench.surface import Awaiting, Blocking

GROUP = "append, CPU"
WARM, QUICK_WARM = 600, 60  # appends until SQLite's log has wrapped, and no longer grows
_INSIDE, _AWAITED, _SESSION, _SYNC = Bar(3), Bar(7), Bar(8), Bar(12)


def measure(run: Run, size: int) -> Sequence[Row]:
    """Measure rounds, each with new files."""
    rounds: list[dict[str, float]] = []
    for number in range(run.rounds):
        run.progress(f"append, {size} bytes: round {number + 1} of {run.rounds}")
        with TemporaryDirectory(dir=run.memory) as folder:
            slices, warm = (2, QUICK_WARM) if run.quick else (12, WARM)
            rounds.append(_round(Path(folder), size, slices=slices, warm=warm))
    found = [
        microseconds(GROUP, named("bare INSERT and commit", size), [r["bare"] for r in rounds]),
        times(GROUP, named("append inside the store", size), rounds, "inside", "bare", bar=_INSIDE),
        times(GROUP, named("store.append without the hop", size), rounds, "method", "bare"),
        times(GROUP, named("await store.append", size), rounds, "awaited", "bare", bar=_AWAITED),
        times(GROUP, named("await session.append", size), rounds, "session", "bare", bar=_SESSION),
        times(GROUP, named("sync session.append", size), rounds, "sync", "bare", bar=_SYNC),
    ]
    if INSTALLED:
        found.append(times(GROUP, named(f"{NAME}.add_items", size), rounds, "peer", "bare"))
    return found


def _round(folder: Path, size: int, *, slices: int, warm: int) -> dict[str, float]:
    count = 200
    number = warm + slices * count
    some = messages(size, number)
    with ExitStack() as stack:
        bare = stack.enter_context(closing(Bare(folder / "bare", rows(size, number))))
        inside = stack.enter_context(closing(Inside(folder / "inside")))
        method = stack.enter_context(closing(Inside(folder / "method")))
        awaited = stack.enter_context(closing(Awaited(folder / "awaited", some)))
        session = stack.enter_context(closing(Awaiting(folder / "session", size, some)))
        blocking = stack.enter_context(closing(Blocking(folder / "sync", size, some)))
        one, other = iter(some), iter(some)
        work: dict[str, Work] = {
            "bare": bare.append,
            "inside": lambda count: inside.append(islice(one, count)),
            "method": lambda count: method.append_by_method(islice(other, count)),
            "awaited": awaited.append_in_turn,
            "session": session.append,
            "sync": blocking.append,
        }
        if INSTALLED:
            work["peer"] = stack.enter_context(closing(Peer(folder / "peer", some))).append
        for each in work.values():
            each(warm)
        return cpu_in_turn(work, slices=slices, count=count)
