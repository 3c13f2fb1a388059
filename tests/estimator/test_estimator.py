"""The built-in token estimator keeps its promise on text that it was not tuned on."""

import math
from pathlib import Path

import pytest
import tiktoken
from hypothesis import example, given
from hypothesis import strategies as st

from keepthread.tokens.estimator import VOCABULARIES, estimate, pieces, price_of
from tests.estimator import corpus

anything = st.text(st.characters(codec=None, categories=None))
blanks = st.text(st.sampled_from(" \t\r\n.aA1\u00a0\u0130\u65e5\u0e01"), max_size=90)
names = st.sampled_from(VOCABULARIES)


@pytest.fixture
def encodings(vocabularies: Path) -> dict[str, tiktoken.Encoding]:
    return {name: tiktoken.get_encoding(name) for name in VOCABULARIES}


def judge(kind: str, messages: list[str], encoding: tiktoken.Encoding) -> None:
    """Print a row of the table, and hold the estimates of a kind against the contract."""
    errors: list[float] = []
    long, short = [0.0], [0.0]
    for message in messages:
        tokens = len(encoding.encode_ordinary(message))
        if tokens >= 20:
            errors.append((estimate(message, encoding.name) - tokens) / tokens)
            (long if tokens >= 100 else short).append(errors[-1])
    mean = sum(errors) / len(errors)
    print(
        f"{kind:8} {encoding.name:12} {len(errors):5} messages   mean {mean:+6.1%}"
        f"   worst of 100 and more {min(long[1:]):+6.1%} ({len(long) - 1})"
        f"   worst of 20 to 100 {min(short[1:]):+6.1%} ({len(short) - 1})"
    )
    assert len(errors) >= 200
    assert min(long) >= -0.05
    assert min(short) >= -0.15
    assert mean <= 0.25


def test_no_held_out_message_is_counted_much_too_low_nor_its_kind_much_too_high(
    encodings: dict[str, tiktoken.Encoding],
) -> None:
    for kind, messages in corpus.messages().items():
        for encoding in encodings.values():
            judge(kind, messages, encoding)


def test_long_conversations_are_counted_as_well(
    encodings: dict[str, tiktoken.Encoding], test_data: Path
) -> None:
    chats = corpus.locomo(test_data / "data" / "locomo" / "locomo10.json")
    for encoding in encodings.values():
        judge("chat", chats, encoding)


@given(anything, names)
def test_any_text_has_between_no_token_and_one_token_a_byte(text: str, vocabulary: str) -> None:
    assert 0 <= estimate(text, vocabulary) <= len(text.encode("utf-8", "surrogatepass"))


@given(anything.filter(bool), names)
def test_only_the_empty_text_has_no_tokens(text: str, vocabulary: str) -> None:
    assert estimate("", vocabulary) == 0
    assert estimate(text, vocabulary) > 0


@given(anything | blanks, names)
@example("a  \nb", "o200k_base")
@example(f"a{' ' * 70}\n", "o200k_base")
def test_word_by_word_a_text_costs_what_it_does_piece_by_piece(text: str, vocabulary: str) -> None:
    cost = math.ceil(sum(map(price_of[vocabulary], pieces(text))))
    size = len(text.encode("utf-8", "surrogatepass"))
    assert estimate(text, vocabulary) == min(size, cost)


def test_an_unknown_vocabulary_is_refused_with_the_names_of_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'p50k_base'; known are o200k_base, cl100k_base"):
        estimate("hello", "p50k_base")
