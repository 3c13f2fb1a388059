"""Everyday recall: both halves of the data are well-formed, and the benchmark asks them."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.everyday.halves import DATA, HALVES, read_half, read_rows

LANGUAGES = ("en", "de", "es", "fr", "zh", "ar")
FIRST_PERSON = {
    "en": r"\b(?:i|me|my|mine|myself|we|us|our|ours)\b",
    "de": r"\b(?:ich|mich|mir|mein\w*|wir|uns|unser\w*)\b",
    "es": r"\b(?:yo|me|mí|mi|mis|míos|nos|nuestr\w*)\b",
    "fr": r"\b(?:je|me|moi|mon|ma|mes|nous|notre|nos)\b|\b[jm]['\u2019]",
    "zh": "[我咱]",
    "ar": r"\b(?:أنا|نحن|لي|عندي|لدي|علي|إلي)\b",
}


def rows_of(half: str, name: str) -> list[dict[str, Any]]:
    return read_rows(DATA / half / f"{name}.jsonl")


def in_first_person(question: dict[str, Any]) -> bool:
    return bool(re.search(FIRST_PERSON[question["lang"]], question["text"], re.IGNORECASE))


@pytest.mark.parametrize("half", HALVES)
def test_every_question_names_statements_of_its_language(half: str) -> None:
    statements = {each["id"]: each for each in rows_of(half, "statements")}
    for question in rows_of(half, "questions"):
        languages = {statements[answer]["lang"] for answer in question["answers"]}
        assert languages == {question["lang"]}, question


def test_ids_are_unique_in_both_halves() -> None:
    ids = Counter(
        each["id"]
        for half in HALVES
        for name in ("statements", "questions", "none")
        for each in rows_of(half, name)
    )
    assert not [id for id, times in ids.items() if times > 1]


def test_no_text_is_there_twice() -> None:
    for name in ("statements", "questions", "none"):
        texts = Counter(
            (each.get("lang"), each["text"].casefold())
            for half in HALVES
            for each in rows_of(half, name)
        )
        assert not [text for text, times in texts.items() if times > 1]


def test_the_second_half_is_as_large_as_it_says() -> None:
    statements = Counter(each["lang"] for each in rows_of("second", "statements"))
    questions = Counter(each["lang"] for each in rows_of("second", "questions"))
    kinds = Counter(each["kind"] for each in rows_of("second", "none"))
    assert statements == {"en": 150} | dict.fromkeys(LANGUAGES[1:], 20)
    assert questions == {"en": 300} | dict.fromkeys(LANGUAGES[1:], 40)
    assert kinds == dict.fromkeys(("pleasantry", "follow-up", "general", "code", "task"), 20)


def test_every_statement_of_the_second_half_is_asked_for() -> None:
    statements = {each["id"] for each in rows_of("second", "statements")}
    assert statements == {id for each in rows_of("second", "questions") for id in each["answers"]}


@pytest.mark.parametrize("language", LANGUAGES)
def test_at_least_half_of_the_second_half_are_requests_without_first_person(language: str) -> None:
    questions = [each for each in rows_of("second", "questions") if each["lang"] == language]
    requests = [each for each in questions if each["request"]]
    assert 2 * len(requests) >= len(questions)
    assert not [each["text"] for each in requests if in_first_person(each)]


def test_most_english_questions_share_no_word_with_their_answer() -> None:
    for half in HALVES:
        questions = [each for each in rows_of(half, "questions") if each["lang"] == "en"]
        assert sum(not each["shared"] for each in questions) >= 0.6 * len(questions)


def test_a_cut_half_asks_only_for_what_it_has() -> None:
    part = read_half("second")[0].first(10)
    ids = {each.id for each in part.statements}
    assert len(ids) == 10
    assert part.questions
    assert all(ids.issuperset(each.answers) for each in part.questions)


@pytest.mark.parametrize("half", HALVES)
def test_a_quick_run_asks_about_ten_statements(
    half: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--quick", "--json", "--half", half, "--dir", str(tmp_path)]
    assert main(["everyday", *options]) == 0
    rows = {row["name"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert (
        rows["English, found in 4,000 tokens"]
        >= rows["English, no word shared, found in 4,000 tokens"]
    )
    assert any(name.startswith("needs no memory, code") for name in rows)
