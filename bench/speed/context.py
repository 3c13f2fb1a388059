"""A context of 4,096 tokens with its `why`, against a bare read of what it is chosen from.

The bare side reads the session's row and the messages' rows, with all their columns, as tuples.
"""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import Bar, Row, Run
from bench.bare import BareReader
from bench.corpus import messages, tokens_of
from bench.measure import Work, cpu_in_turn
from bench.ours import Inside
from bench.speed.rows import microseconds, named, times
from bench.speed.tail import TOKENS, Steps
from bench.surface import Awaiting, OnTheSpot
from keepthread import Context

GROUP = "context of 4,096 tokens with its why, CPU"
RENDERING = "rendering that context, CPU"
_MESSAGES = 1000
_BAR = Bar(5)
_FORMS = {
    "text": lambda context: context.text,
    "OpenAI Chat": Context.to_openai_chat,
    "OpenAI Responses": Context.to_openai_responses,
    "Anthropic": Context.to_anthropic,
}


def measure(run: Run, size: int) -> Sequence[Row]:
    """Measure rounds on one file; reading changes nothing in it."""
    rounds: list[dict[str, float]] = []
    with TemporaryDirectory(dir=run.memory) as folder, ExitStack() as stack:
        inside = stack.enter_context(closing(Inside(Path(folder) / "ours")))
        spot = _filled(inside, size)
        awaiting = stack.enter_context(closing(Awaiting(Path(folder) / "ours", size)))
        read, shown = len(spot.gathered(TOKENS).messages), len(spot.chosen(TOKENS).messages)
        steps = _Steps(inside, spot, read)
        bare = BareReader(Path(folder) / "ours", steps.sid, read)
        stack.enter_context(closing(bare))
        work: dict[str, Work] = {
            "bare": bare.read_with_session,
            "query": steps.query,
            "check": steps.check,
            "gathered": partial(spot.gather, budget=TOKENS),
            "chosen": partial(spot.context, budget=TOKENS),
            "awaited": partial(awaiting.context, budget=TOKENS),
            **{form: _rendering(spot.chosen(TOKENS), form) for form in _FORMS},
        }
        slices, each = (4, 20) if run.quick else (10, 60)
        cpu_in_turn(work, slices=1, count=each)
        for number in range(run.rounds):
            run.progress(f"context, {size} bytes: round {number + 1} of {run.rounds}")
            rounds.append(cpu_in_turn(work, slices=slices, count=each))
    parts = {
        "query": [r["query"] for r in rounds],
        "check": [r["check"] for r in rounds],
        "decode": [r["gathered"] - r["query"] - r["check"] for r in rounds],
        "choose": [r["chosen"] - r["gathered"] for r in rounds],
        "hop to the thread and back": [r["awaited"] - r["chosen"] for r in rounds],
    }
    return [
        microseconds(
            GROUP,
            named(f"bare read of a session and {read} messages", size),
            [r["bare"] for r in rounds],
        ),
        times(
            GROUP,
            named("await session.context and its why", size),
            rounds,
            "awaited",
            "bare",
            unit="× bare read",
            bar=_BAR,
        ),
        *(microseconds(GROUP, named(f"context, {part}", size), s) for part, s in parts.items()),
        *(
            microseconds(
                RENDERING,
                named(f"rendering {shown} messages, {form}", size),
                [r[form] for r in rounds],
            )
            for form in _FORMS
        ),
    ]


def _filled(inside: Inside, size: int) -> OnTheSpot:
    """Fill a session, up to a turn before its window moves on: its context is as full as can be."""
    some = iter(messages(size, 2 * _MESSAGES))
    inside.fill(islice(some, _MESSAGES))
    session = OnTheSpot(inside, size)
    most = 0
    while (tokens := session.chosen(TOKENS).tokens) >= most:
        most = tokens
        inside.fill(islice(some, 2))
    while session.chosen(TOKENS).tokens < most - 3 * tokens_of(size):
        inside.fill(islice(some, 2))
    return session


def _rendering(context: Context, form: str) -> Work:
    render, selection = _FORMS[form], context.selection

    def work(count: int) -> None:
        for _ in range(count):
            render(Context(selection))  # a new one, for a text is kept once it is there

    return work


class _Steps(Steps):
    """Two steps of gathering by themselves, on the connection that reads."""

    def __init__(self, inside: Inside, spot: OnTheSpot, length: int) -> None:
        super().__init__(inside, length)
        self._length = length
        self._statements: list[str] = []
        self._db.set_trace_callback(self._statements.append)
        spot.gathered(TOKENS)
        self._db.set_trace_callback(None)

    def query(self, count: int) -> None:
        """Run every statement of a gathering, and step through as many rows as it does."""
        for _ in range(count):
            for statement in self._statements:
                cursor = self._db.execute(statement)
                for _ in islice(cursor, self._length + 1):
                    pass
                cursor.close()
