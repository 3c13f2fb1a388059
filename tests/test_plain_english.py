"""The check for plain English: what it finds, what it ignores, and how exceptions are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from scripts import plain_english

if TYPE_CHECKING:
    from pathlib import Path

FOUND = [
    ("is no", "'chat.db' is no address of a store"),
    ("is no", "These are no messages."),
    ("is none", "fact 3 of the document is none"),
    ("is there", "Return None if the key is not there."),
    ("is there", "what is there is kept"),
    ("stands", "The prompt stands at the top."),
    ("stands", "It stood\n    below."),
    ("tell", "It tells of what happened."),
    ("tell", "A person was told."),
    ("behind", "Messages behind it are kept."),
    ("anew", "Count anew."),
    ("anew", "Start afresh."),
    ("meanwhile", "Another process wrote meanwhile."),
    ("beforehand", "Nobody knows beforehand."),
    ("whoever", "Whoever holds the lease writes."),
    ("What was", "What was said is kept."),
    ("What was", "Read it. What is hidden stays hidden."),
    ("go on", "Reading goes on."),
    ("so many", "Wait so many seconds."),
    ("by itself", "It closes by itself."),
    ("British spelling", "The colour of a line."),
    ("British spelling", "Undefined behaviour."),
    ("British spelling", "We serialise it."),
    ("shelf", "It lies on a shelf."),
    ("fence", "A fence around quoted text."),
    ("errand", "A child runs an errand."),
    ("sitting", "Messages of one sitting."),
    ("courier", "The courier delivers."),
    ("spool", "The spool is full."),
    ("exchange", "An exchange of two messages."),
    ("fold", "Fold old messages."),
]

PLAIN = [
    "There is no session with this id.",
    "It is no longer needed, and no larger than before.",
    "Is there a message?",
    "TTL stands for time to live.",
    "Run it behind a reverse proxy.",
    "What happens next? What is kept? Read on.",
    "Nothing is cancelled here; a dialogue.",
    "understand, standard, storytelling",
    "A code fence, case-folded.",
]


def names(file: str, source: str) -> list[str]:
    return [each.pattern for each in plain_english.find(file, source)]


@pytest.mark.parametrize(("pattern", "text"), FOUND)
def test_a_phrase_is_found_in_comments_docstrings_strings_and_prose(
    pattern: str, text: str
) -> None:
    comment = "\n".join(f"# {line.strip()}" for line in text.splitlines())
    assert names("src/a.py", f"x = 1\n{comment}\n") == [pattern]
    assert names("src/a.py", f'def f():\n    """{text}"""\n') == [pattern]
    assert names("src/a.py", f"raise ValueError({text!r})\n") == [pattern]
    assert names("docs/a.md", f"# Title\n\n{text}\n") == [pattern]
    assert names("src/a.sql", "".join(f"-- {line}\n" for line in text.splitlines())) == [pattern]


@pytest.mark.parametrize("pattern", plain_english.PATTERNS, ids=lambda pattern: pattern.name)
def test_every_pattern_has_an_example(pattern: plain_english.Pattern) -> None:
    assert pattern.name in {name for name, _ in FOUND}


@pytest.mark.parametrize("text", PLAIN)
def test_plain_text_passes(text: str) -> None:
    assert names("src/a.py", f'"""{text}"""\n') == []
    assert names("docs/a.md", f"{text}\n") == []


def test_code_is_ignored() -> None:
    assert names("src/a.py", "def tell(told, behind):\n    return told.stands(anew=behind)\n") == []
    assert names("src/a.py", 'x = {"told": 1, "behind": "stands"}\n') == []
    assert names("src/a.py", '"""Call `tell` or ``x.stands()`` here."""\n') == []
    assert names("src/a.py", 'f"it has {told.behind} of {tell(1)} parts"\n') == []
    assert names("docs/a.md", "Text.\n\n```python\ntell(1)  # told\n```\n\nMore `told`.\n") == []
    assert names("docs/a.md", "See [this](https://example.com/tell/behind).\n") == []
    assert names("src/a.lua", "local told = behind\n") == []


def test_a_phrase_may_be_wrapped() -> None:
    found = plain_english.find("src/a.py", 'x = 1\nraise E("the key is"\n    " not there")\n')
    assert [(each.line, each.phrase) for each in found] == [(2, "is not there")]
    found = plain_english.find("src/a.py", '"""First.\n\nOne goes\non.\n"""\n')
    assert [(each.line, each.phrase) for each in found] == [(3, "goes on")]
    found = plain_english.find("src/a.py", "# one goes\n# on\n\n# by\n\n# itself\n")
    assert [(each.line, each.phrase) for each in found] == [(1, "goes on")]


def test_what_is_found_names_the_line_and_plain_words() -> None:
    (found,) = plain_english.find("docs/a.md", "One.\n\nIt goes on.\n")
    assert (found.line, found.phrase) == (3, "goes on")
    assert "continue" in found.suggestion


def test_the_allow_list_excuses_one_phrase_and_must_match() -> None:
    entry = plain_english.Allowed("docs/a.md", "tell", "tell Alice", "a quotation")
    found = plain_english.find("docs/a.md", "Please tell Alice.\n\n" + "word " * 20 + "Tell Bob.\n")
    left, unused = plain_english.sift(found, [entry])
    assert [each.phrase for each in left] == ["Tell"]
    assert unused == []
    assert plain_english.sift([], [entry]) == ([], [entry])


def test_a_file_is_reported_with_its_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plain_english, "ROOT", tmp_path)
    file = tmp_path / "a.md"
    file.write_text("One.\n\nIt goes on.\n", encoding="utf-8")
    assert plain_english.main([str(file)]) == 1
    assert "a.md:3: 'goes on' -> " in capsys.readouterr().out
    assert plain_english.main(["--count", str(file)]) == 0
    file.write_text("It continues.\n", encoding="utf-8")
    assert plain_english.main([str(file)]) == 0
