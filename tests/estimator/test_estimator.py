"""The built-in token estimator keeps its promise on text that it was not tuned on."""

import re
from pathlib import Path

import pytest
import tiktoken
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from keepthread.models.tokens.estimator import VOCABULARIES, estimate, vocabulary_of
from tests.estimator import corpus, kinds
from tests.seeds import examples

ROOT = Path(__file__).parents[2]
DECISION = ROOT / "docs/decisions/058-the-estimator-has-a-part-of-the-vocabulary.md"

anything = st.text(st.characters(codec=None, categories=None))
blanks = st.text(st.sampled_from(" \t\r\n.aA1\u00a0\u0130\u65e5\u0e01"), max_size=90)
names = st.sampled_from(VOCABULARIES)
MOST_TOO_HIGH = {"english": 0.15, "chat": 0.15}


@pytest.fixture(scope="session")
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
    assert min(long) >= -0.02
    assert min(short) >= -0.05
    assert mean <= MOST_TOO_HIGH.get(kind, 0.25)


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


def test_no_string_of_digits_is_counted_too_low(encodings: dict[str, tiktoken.Encoding]) -> None:
    for encoding in encodings.values():
        for length in range(1, 61):
            for digits in ("0" * length, ("1234567890" * 6)[:length], ("20261115" * 8)[:length]):
                tokens = len(encoding.encode_ordinary(digits))
                assert tokens <= estimate(digits, encoding.name) <= 1.25 * tokens + 1, digits


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
    part = vocabulary_of(vocabulary)
    assert estimate(text, vocabulary) == sum(map(part.price, part.pieces(text)))


@given(anything | blanks, names)
def test_no_character_of_a_text_is_left_out_of_its_pieces(text: str, vocabulary: str) -> None:
    assert "".join(vocabulary_of(vocabulary).pieces(text)) == text


@settings(max_examples=examples(60), deadline=None)
@example(" ".join(["ถ้าฝนตกอย่าลืมหยิบร่มมาด้วยนะ"] * 12), "o200k_base")
@given(kinds.mixtures, names)
def test_no_mixture_of_scripts_and_kinds_is_counted_too_low(
    encodings: dict[str, tiktoken.Encoding], text: str, vocabulary: str
) -> None:
    tokens = len(encodings[vocabulary].encode_ordinary(text))
    assume(tokens >= 100)
    assert estimate(text, vocabulary) >= 0.98 * tokens


def test_no_script_and_no_kind_is_counted_too_low_and_the_table_says_by_how_much_too_high(
    encodings: dict[str, tiktoken.Encoding],
) -> None:
    table = DECISION.read_text("utf-8")
    for name, sample in kinds.samples().items():
        errors: list[float] = []
        for encoding in encodings.values():
            tokens = len(encoding.encode_ordinary(sample))
            assert tokens >= 100, name
            errors.append(estimate(sample, encoding.name) / tokens - 1)
        assert min(errors) >= -0.02, name
        row = re.search(rf"(?m)^\| {re.escape(name)} \|(.*)\|$", table)
        assert row, name
        assert [cell.strip() for cell in row[1].split("|")][2:] == [
            f"{error * 100:+.0f}".replace("+0", "0").replace("-0", "0") for error in errors
        ], name


def test_an_unknown_vocabulary_is_refused_with_the_names_of_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'p50k_base'; known are o200k_base, cl100k_base"):
        estimate("hello", "p50k_base")
