"""Counting the tokens of a message, which is done once, before it is stored."""

import os
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

from bench import Row, Run
from bench.corpus import messages
from bench.measure import Work, cpu_in_turn
from bench.speed.rows import microseconds, named
from keepthread.errors import Unavailable
from keepthread.protocols import TokenCounter
from keepthread.tokens import Estimator, Tiktoken

GROUP = "token counting, CPU of a message"
ABSENT = "tiktoken or its vocabulary is missing, so the exact counter's rows are left out."


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


@cache
def counters() -> Mapping[str, TokenCounter]:
    """Return the estimator, and the exact counter where its vocabulary is to be had."""
    data = os.environ.get("KEEPTHREAD_TEST_DATA")
    if data:
        os.environ.setdefault("TIKTOKEN_CACHE_DIR", str(Path(data) / "tiktoken"))
    try:
        return {"tiktoken": Tiktoken(), "the estimator": Estimator()}
    except Unavailable:
        return {"the estimator": Estimator()}
