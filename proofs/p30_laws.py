"""P30: whatever is done to a session, a context shows exactly what the laws say.

Hypothesis invents sequences of what programs do: messages, notes, system messages, tools, rewinds,
clears, forks, erasures, pins, compaction, turns that stay open, and counters that change. A small
model is told the same. Contexts of several views are then compared with what the model says is
shown, word for word; a budget of which something is left out is used to 60 % at least; and a fork
shows what a session shows that was written afresh with the same visible messages. The shortest
sequence that breaks a law is reported.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, TypeAlias

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded
from hypothesis import strategies as st

from proofs import Outcome, Progress, Proof
from proofs.playing import Play

Random = random.Random

LEAST_STEPS: Final = 4
MOST_STEPS: Final = 24
MOST_AT_FIRST: Final = 90
"""Messages that a session begins with."""
PER_BATCH: Final = 500

Doing: TypeAlias = Callable[[Play, Random], Awaitable[None]]
PLAN: Final[Mapping[Doing, int]] = {
    Play.append: 6,
    Play.note: 4,
    Play.order: 2,
    Play.call: 3,
    Play.result: 3,
    Play.ask: 3,
    Play.answer: 2,
    Play.rewind: 2,
    Play.clear: 1,
    Play.erase: 2,
    Play.pin: 2,
    Play.compact: 1,
    Play.change_counter: 1,
    Play.fork: 1,
    Play.look: 6,
}
DOINGS: Final = {doing.__name__: doing for doing in PLAN}

Steps: TypeAlias = list[tuple[str, int]]
"""What to do, and the seed of how it is done."""
STEPS: Final = st.lists(
    st.tuples(
        st.sampled_from([doing.__name__ for doing, weight in PLAN.items() for _ in range(weight)]),
        st.integers(0, 2**16),
    ),
    min_size=LEAST_STEPS,
    max_size=MOST_STEPS,
)


async def play(size: int, steps: Steps, tally: Counter[str], least_used: list[float]) -> None:
    """Do what a sequence says, to a session that begins with some messages, and to its model."""
    game = await Play.begin(tally, least_used)
    await game.append(Random(size), size)
    for name, number in [*steps, ("look", 0)]:
        tally[f"steps: {name}"] += 1
        await DOINGS[name](game, Random(number))


def attempt(size: int, number: int, tally: Counter[str], least_used: list[float]) -> list[str]:
    """Try sequences; return the shortest that breaks a law."""
    with asyncio.Runner() as runner:

        @seeded(number)
        @settings(
            max_examples=size,
            deadline=None,
            database=None,
            derandomize=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=[HealthCheck.too_slow],
        )
        @given(st.integers(0, MOST_AT_FIRST), STEPS)
        def laws(size: int, steps: Steps) -> None:
            tally["sequences"] += 1
            runner.run(play(size, steps, tally, least_used))

        try:
            laws()
        except Exception as error:  # noqa: BLE001 - an error that is not ours breaks a law too
            return ["\n".join((repr(error), *getattr(error, "__notes__", ())))]
    return []


def run(size: int, seed: int, progress: Progress) -> Outcome:
    """Try so many sequences."""
    rng = Random(seed)
    tally: Counter[str] = Counter()
    least_used: list[float] = []
    broken: list[str] = []
    done = 0
    while done < size and not broken:
        some = min(PER_BATCH, size - done)
        broken = attempt(some, rng.getrandbits(64), tally, least_used)
        done += some
        least_used[:] = [min(least_used)] if least_used else []
        progress(done, size)
    figures = {
        **dict(sorted(tally.items())),
        "least used of a full budget": f"{100 * min(least_used, default=1.0):.0f} %",
        "laws that do not hold": len(broken),
    }
    return Outcome(figures=figures, broken=tuple(broken))


PROOF: Final = Proof(
    name="P30",
    promise="a context shows what the laws say, and a full budget is used",
    unit="sequences",
    small=75,
    closing=20_000,
    long=500_000,
    run=run,
)
