"""The simulated prompt caches follow the providers' rules, and memory keeps what they have."""

from typing import Any

import pytest

from bench.cache import cached
from bench.cache.caches import AnthropicCache, OpenAICache
from bench.cache.places import PLACES
from bench.talks import KINDS

TURNS = 40


def chat(*texts: str) -> dict[str, Any]:
    return {"tools": [], "messages": [{"role": "user", "content": text} for text in texts]}


def blocks(*texts: str, marks: tuple[int, ...] = (-1,)) -> dict[str, Any]:
    content: list[dict[str, Any]] = [{"type": "text", "text": text} for text in texts]
    for mark in marks:
        content[mark]["cache_control"] = {"type": "ephemeral"}
    return {"tools": [], "system": [], "messages": [{"role": "user", "content": content}]}


def test_openai_caches_from_1024_tokens_on_in_steps_of_128() -> None:
    for size, hit in ((900, 0), (1000, 1024), (1100, 1152), (1200, 1152)):
        cache = OpenAICache(len)
        same = "x" * size  # the marks of JSON beside it are 65 more
        cache.ask(chat(same, "a"))
        assert cache.cached == 0
        cache.ask(chat(same, "b"))
        assert cache.cached == hit


def test_openai_caches_a_part_of_a_message() -> None:
    cache = OpenAICache(len)
    cache.ask(chat("x" * 2000 + "a"))
    cache.ask(chat("x" * 2000 + "b"))
    assert cache.cached == 1920  # and the marks of JSON before it


def test_anthropic_finds_what_ends_at_a_breakpoint() -> None:
    cache = AnthropicCache(len)
    cache.ask(blocks("x" * 2000, "a"))
    cache.ask(blocks("x" * 2000, "b"))
    assert cache.cached == 0  # the prefix without the last block was never written
    cache.ask(blocks("x" * 2000, "b", "c"))
    assert cache.cached > 2000
    short = AnthropicCache(len)
    for _ in range(2):
        short.ask(blocks("x" * 900))
    assert short.cached == 0


@pytest.mark.parametrize(("added", "is_found"), [(20, True), (21, False)])
def test_anthropic_looks_back_for_20_blocks(added: int, is_found: bool) -> None:
    cache = AnthropicCache(len)
    cache.ask(blocks("x" * 2000))
    cache.ask(blocks("x" * 2000, *(["y"] * added)))
    assert (cache.cached > 0) is is_found


def test_prices() -> None:
    cache = OpenAICache(len)
    cache.asked, cache.cached = 1000, 500
    assert cache.price == 550
    assert cache.share == 50


@pytest.mark.parametrize("provider", ["OpenAI", "Anthropic", "Anthropic, two marks"])
def test_memory_keeps_what_a_cache_has(provider: str) -> None:
    shares = {name: cached(provider, KINDS[0], name, TURNS).share for name in PLACES}
    assert shares["no memory"] - shares["keepthread's place"] <= 3
    assert shares["the newest turn, removed later"] < shares["keepthread's place"]
    assert shares["the system prompt"] < shares["keepthread's place"] - 30
