"""How much of a proxy's requests a provider's prompt cache has, by where memory is added.

A client sends its whole history with every call. The proxy adds a recalled text for each question.
Simulators of the caches of both providers count the tokens that are not charged in full.
"""

from collections.abc import Iterator
from functools import partial

from bench import Bar, Benchmark, Report, Row, Run
from bench.cache.caches import AnthropicCache, Cache, OpenAICache
from bench.cache.clients import AnthropicClient, OpenAIClient
from bench.cache.places import PLACES
from bench.counters import ABSENT, EXACT, best, counters
from bench.talks import KINDS, TURNS, Kind
from keepthread import Message

RECALLED = 250
"""Tokens that are added for each question, about: every question gets some."""
_QUICK_TURNS = 40
_SEED = 1
_BESIDE = Bar(3)
"""Points of cached share that memory may cost."""
_NONE, _OURS = "no memory", "keepthread's place"
_PROVIDERS = {
    "OpenAI": (OpenAIClient, OpenAICache),
    "Anthropic": (AnthropicClient, AnthropicCache),
    "Anthropic, two marks": (partial(AnthropicClient, marks=2), AnthropicCache),
}


def measure(run: Run) -> Report:
    """Hold the conversations with each provider, and each place."""
    turns = _QUICK_TURNS if run.quick else TURNS
    rows = [
        row
        for provider in _PROVIDERS
        for kind in KINDS
        for row in _rows(run, provider, kind, turns)
    ]
    setting = [
        f"Conversations of {turns} turns. Tokens by {best().name}.",
        f"About {RECALLED} tokens are added for each question.",
        "OpenAI: the longest prefix of an earlier call, from 1,024 tokens on, in steps of 128.",
        (
            "Anthropic: prefixes that end at a breakpoint, from 1,024 tokens on; a hit is up to 20"
            " blocks before one. The client marks its system prompt and its last block, or also"
            " the last block of the user's side before."
        ),
        "Nothing expires. Cached tokens cost a tenth; others cost a quarter more with Anthropic.",
    ]
    notes = [] if EXACT in counters() else [f"{ABSENT}, so tokens are estimated."]
    return Report(setting=setting, rows=rows, notes=notes)


def _rows(run: Run, provider: str, kind: Kind, turns: int) -> Iterator[Row]:
    group = f"{provider}, {kind}"
    found: dict[str, Cache] = {}
    for name in PLACES:
        run.progress(f"{group}: {name}")
        found[name] = cached(provider, kind, name, turns)
    for name, cache in found.items():
        unit = "% of the tokens"
        yield _row(group, f"cached, {name}, {kind}, {provider}", cache.share, unit)
    lost = found[_NONE].share - found[_OURS].share
    yield _row(group, f"lost by {_OURS}, {kind}, {provider}", lost, "points", _BESIDE)
    for name, cache in found.items():
        price = cache.price / found[_NONE].price
        yield _row(group, f"price, {name}, {kind}, {provider}", price, "times no memory")


def _row(group: str, name: str, value: float, unit: str, bar: Bar | None = None) -> Row:
    return Row(group=group, name=name, value=value, unit=unit, bar=bar, counted=True)


def cached(provider: str, kind: Kind, place: str, turns: int) -> Cache:
    """Return the cache of a provider after a conversation."""
    client_of, cache_of = _PROVIDERS[provider]
    client, cache = client_of(kind, _SEED, turns), cache_of(_tokens)
    put = PLACES[place](client.wire)
    for call in client.calls():
        cache.ask(put(call))
    return cache


def _tokens(text: str) -> int:
    return best().count(Message(role="user", content=text))


BENCHMARK = Benchmark(
    name="cache",
    about="how much of a proxy's requests a provider's prompt cache has seen before",
    measure=measure,
)
