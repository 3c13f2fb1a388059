"""P7: all backends behave alike: whatever is done to them, they answer as the store in memory does.

Hypothesis invents sequences of operations and tells each of RAM, SQLite, PostgreSQL and Redis; all
answers, and all refusals with their words, must be the same. A difference is reported with the
shortest sequence that Hypothesis found to show it.
"""

import random
import tempfile
from collections import Counter
from pathlib import Path
from typing import Final

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from proofs import Outcome, Progress, Proof
from proofs.machine import Stores, staged
from proofs.places import Place, file_url, new_place

EXAMPLES: Final = 25
STEPS: Final = 40


def run(size: int, seed: int, progress: Progress) -> Outcome:
    rng = random.Random(seed)
    used: Counter[str] = Counter()
    sequences = 0
    broken: list[str] = []
    with new_place("postgres") as postgres, new_place("redis") as redis:
        while used.total() < size and not broken:
            most = min(EXAMPLES, max(1, (size - used.total()) // STEPS))
            broken += compare((postgres, redis), most, rng.getrandbits(64), used)
            sequences += most
            progress(min(used.total(), size), size)
    figures = {
        "stores": "RAM, SQLite, PostgreSQL, Redis",
        "steps": used.total(),
        "sequences": sequences,
        **{f"steps: {rule}": times for rule, times in used.most_common()},
        "differences": len(broken),
    }
    return Outcome(figures=figures, broken=tuple(broken))


def compare(places: tuple[Place, ...], examples: int, number: int, used: Counter[str]) -> list[str]:
    """Try so many sequences on stores that are empty; return what they differ in."""
    for place in places:
        place.empty()
    with tempfile.TemporaryDirectory() as folder:
        file = file_url(Path(folder) / "alike.db")
        with staged("ram://", file, *(place.url for place in places)) as stage:
            try:
                run_state_machine_as_test(
                    seed(number)(lambda: Stores(stage)),  # pyright: ignore[reportArgumentType]
                    settings=settings(
                        max_examples=examples,
                        stateful_step_count=STEPS,
                        deadline=None,
                        database=None,
                        derandomize=False,
                        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
                    ),
                )
            except Exception as error:  # noqa: BLE001 - an error that is not ours is a difference too
                return ["\n".join((repr(error), *getattr(error, "__notes__", ())))]
            finally:
                used.update(stage.used)
    return []


PROOF: Final = Proof(
    name="P7",
    promise="all backends behave alike",
    unit="steps on four stores",
    small=400,
    closing=10_000,
    long=1_000_000,
    run=run,
)
