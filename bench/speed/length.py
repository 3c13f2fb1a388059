"""The same tail and context from a very long session and from a short one, in a file each."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import Bar, Row, Run
from bench.corpus import messages, tokens_of
from bench.measure import Work, cpu_in_turn
from bench.ours import Awaited, Inside
from bench.speed.rows import named, times
from bench.speed.tail import TOKENS
from bench.surface import Awaiting, OnTheSpot

GROUP = "4,096 tokens from a long session, CPU"
_SHORT, _LONG, _QUICK = 100, 1_000_000, 2_000
_MOST = 64  # messages in the tail, so that a hundred fill it at either size
_BAR = Bar(1.15)


def measure(run: Run, size: int) -> Sequence[Row]:
    """Fill both files, then read from them by turns."""
    long = _QUICK if run.quick else _LONG
    rounds: list[dict[str, float]] = []
    with TemporaryDirectory(dir=run.memory) as folder, ExitStack() as stack:
        short_path, long_path = Path(folder) / "short", Path(folder) / "long"
        shown = _fill(run, short_path, size, _SHORT)
        _fill(run, long_path, size, long, shown)
        work: dict[str, Work] = {}
        for name, path in (("short", short_path), ("long", long_path)):
            store = stack.enter_context(closing(Awaited(path)))
            session = stack.enter_context(closing(Awaiting(path, size)))
            assert store.tail_length(TOKENS) < _SHORT
            work[f"{name} tail"] = partial(store.tail, tokens=TOKENS)
            work[f"{name} context"] = partial(session.context, budget=TOKENS)
        slices, each = (4, 20) if run.quick else (20, 60)
        cpu_in_turn(work, slices=1, count=each)
        for number in range(run.rounds):
            run.progress(f"long session, {size} bytes: round {number + 1} of {run.rounds}")
            rounds.append(cpu_in_turn(work, slices=slices, count=each))
    return [
        times(
            GROUP,
            named(f"{what} of {long:,} messages", size),
            rounds,
            f"long {what}",
            f"short {what}",
            unit=f"× {what} of {_SHORT}",
            bar=_BAR,
        )
        for what in ("tail", "context")
    ]


def _fill(run: Run, path: Path, size: int, number: int, shown: int = 0) -> int:
    """Fill a file and return how many messages its context shows.

    If that many are to be shown, add turns until they are: where a window stands between two steps
    depends on the length of the log, and contexts are to be compared that are alike.
    """
    some = messages(size, _SHORT, tokens=max(tokens_of(size), TOKENS // _MOST))
    coming = chain.from_iterable(repeat(some))
    step = max(1, number // 50)
    with closing(Inside(path)) as inside:
        for done in range(0, number, step):
            run.progress(f"long session, {size} bytes: {done:,} of {number:,} messages stored")
            inside.fill(islice(coming, step))
        session = OnTheSpot(inside, size)
        while (found := len(session.chosen(TOKENS).messages)) != shown and shown:
            inside.fill(islice(coming, 2))
        return found
