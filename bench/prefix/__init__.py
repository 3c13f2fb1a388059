"""How much of each prompt was there before: the share that stands in an unchanged prefix.

Every model call of a conversation is rendered for OpenAI's chat completions and compared, byte for
byte, with the call before it. Providers charge less for such a prefix, and are faster with it.
"""

from itertools import chain

from bench import Benchmark, Report, Run
from bench.counters import ABSENT, EXACT, best, counters
from bench.prefix import alone, company
from bench.talks import KINDS, TURNS

_PARTS = (alone, company)
_QUICK_TURNS = 45


def measure(run: Run) -> Report:
    """Hold the conversations by themselves, then in company."""
    turns = _QUICK_TURNS if run.quick else TURNS
    counter = best()
    rows = list(chain.from_iterable(part.measure(run, turns, counter) for part in _PARTS))
    tools = ", ".join(f"{kind.tools:.0%}" for kind in KINDS)
    setting = [
        f"Conversations of {turns} turns, tools in {tools} of them. Tokens by {counter.name}.",
        "A prompt's share is what it begins with as the one before it did, byte for byte.",
        *company.SETTING,
    ]
    notes = [] if EXACT in counters() else [f"{ABSENT}, so tokens are estimated."]
    return Report(setting=setting, rows=rows, notes=notes)


BENCHMARK = Benchmark(
    name="prefix",
    about="how much of each prompt a provider's cache can have seen before",
    measure=measure,
)
