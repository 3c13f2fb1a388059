"""Counting the tokens of a message, which is done once, before it is stored."""

from collections.abc import Sequence
from itertools import islice

from bench import Row, Run
from bench.corpus import messages
from bench.counters import counters
from bench.measure import Work, cpu_in_turn
from bench.speed.rows import microseconds, named
from keepthread.protocols import TokenCounter

GROUP = "token counting, CPU of a message"


def measure(run: Run, size: int) -> Sequence[Row]:
    """Measure each counter there is."""
    some = messages(size, 100)

    def work_of(counter: TokenCounter) -> Work:
        return lambda count: [counter.count(message) for message in islice(some, count)]

    run.progress(f"token counting, {size} bytes")
    work = {name: work_of(counter) for name, counter in counters().items()}
    rounds = [
        cpu_in_turn(work, slices=4 if run.quick else 12, count=len(some)) for _ in range(run.rounds)
    ]
    return [
        microseconds(GROUP, named(f"counting by {name}", size), [r[name] for r in rounds])
        for name in work
    ]
