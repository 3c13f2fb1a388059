"""The same tail from a very long session and from a short one, each in a file of its own."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import Bar, Row, Run
from bench.corpus import messages, tokens_of
from bench.measure import cpu_in_turn
from bench.ours import Awaited, Inside
from bench.speed.rows import named, times
from bench.speed.tail import TOKENS

GROUP = "tail of 4,096 tokens from a long session, CPU"
_SHORT, _LONG, _QUICK = 100, 1_000_000, 50_000
_MOST = 64  # messages in the tail, so that a hundred fill it at either size
_BAR = Bar(1.15)


def measure(run: Run, size: int) -> Sequence[Row]:
    """Fill both files, then read from them by turns."""
    long = _QUICK if run.quick else _LONG
    rounds: list[dict[str, float]] = []
    with TemporaryDirectory(dir=run.memory) as folder:
        _fill(run, Path(folder) / "short", size, _SHORT)
        _fill(run, Path(folder) / "long", size, long)
        with (
            closing(Awaited(Path(folder) / "short")) as short_store,
            closing(Awaited(Path(folder) / "long")) as long_store,
        ):
            assert short_store.tail_length(TOKENS) == long_store.tail_length(TOKENS) < _SHORT
            work = {
                "short": partial(short_store.tail, tokens=TOKENS),
                "long": partial(long_store.tail, tokens=TOKENS),
            }
            slices, each = (4, 20) if run.quick else (20, 60)
            cpu_in_turn(work, slices=1, count=each)
            for number in range(run.rounds):
                run.progress(f"long session, {size} bytes: round {number + 1} of {run.rounds}")
                rounds.append(cpu_in_turn(work, slices=slices, count=each))
    name = named(f"tail of {long:,} messages", size)
    return [times(GROUP, name, rounds, "long", "short", unit=f"× tail of {_SHORT}", bar=_BAR)]


def _fill(run: Run, path: Path, size: int, number: int) -> None:
    some = messages(size, _SHORT, tokens=max(tokens_of(size), TOKENS // _MOST))
    coming = islice(chain.from_iterable(repeat(some)), number)
    step = max(1, number // 50)
    with closing(Inside(path)) as inside:
        for done in range(0, number, step):
            run.progress(f"long session, {size} bytes: {done:,} of {number:,} messages stored")
            inside.fill(islice(coming, step))
