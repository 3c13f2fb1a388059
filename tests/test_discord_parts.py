"""Long answers in parts, by law: each fits, nothing is lost, and no character or fence is torn."""

import re

import regex
from hypothesis import example, given
from hypothesis import strategies as st

from keepthread.apps.discord.split import LIMIT, parts

LETTERS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="`"), max_size=12)
CLUSTERS = st.sampled_from(["👨‍👩‍👧‍👦", "🇩🇪", "e\u0301", "한", "각", "क्षि", "👍🏽", "🏴󠁧󠁢󠁥󠁮󠁧󠁿", "\r\n"])
SPACES = st.sampled_from([" ", "\n", "\n\n", "    "])
RUNS = st.sampled_from([3, 4, 15, 16, 17, 40, 500, 5000]) | st.integers(3, 130)
FENCES = st.builds(
    lambda run, around, info: f"{around}{'`' * run}{info}{around}",
    RUNS,
    st.sampled_from(["\n", "", " "]),
    st.sampled_from(["", "python", "c99", "abcdefghijklmnopqrst", "v" * 21]),
)
PROSE = st.lists(LETTERS | CLUSTERS | SPACES).map("".join)
MARKDOWN = st.lists(LETTERS | CLUSTERS | SPACES | FENCES).map("".join)
LIMITS = st.integers(60, 120)


def units(text: str) -> int:
    return len(text.encode("utf-16-le")) // 2


def solid(text: str) -> str:
    """Return a text without its blanks, which a cut may take."""
    return "".join(text.split())


@given(MARKDOWN, LIMITS)
@example("```python\n" + "x" * 400, 60)
@example("`" * 58 + "\n" + "code\n" * 80 + "`" * 58, 60)
@example("`" * 16 + "abcdefghijklmnopqrst\n" + "y" * 400, 60)
@example("a" * 57 + "\n```python\ncode\n```", 60)
def test_each_part_fits_and_is_whole_by_itself(text: str, limit: int) -> None:
    for part in parts(text, limit):
        assert units(part) <= limit
        assert part.strip()
        assert len(re.findall("`{3,}", part)) % 2 == 0


@given(PROSE, LIMITS)
def test_nothing_of_a_text_is_lost_or_doubled(text: str, limit: int) -> None:
    assert solid("".join(parts(text, limit))) == solid(text)


@given(MARKDOWN, LIMITS)
def test_nothing_is_added_but_fences(text: str, limit: int) -> None:
    def words(text: str) -> str:
        text, before = solid(text).replace("`", ""), ""
        while text != before:  # a name of a language may be cut, and another stand in the cut
            text, before = re.sub("python|c99|abcdefghijklmnopqrst", "", text), text
        return text

    assert words("\n".join(parts(text, limit))) == words(text)


@given(st.lists(CLUSTERS | LETTERS, min_size=40).map("".join), LIMITS)
def test_no_character_is_torn(text: str, limit: int) -> None:
    cuts, at = set(), 0
    for part in parts(text, limit):
        at = text.index(part, at) + len(part)
        cuts.add(at)
    borders = {found.end() for found in regex.finditer(r"\X", text)}
    clusters = [found[0] for found in regex.finditer(r"\X", text)]
    if all(units(cluster) < limit // 2 for cluster in clusters):
        assert cuts <= borders


def test_cuts_are_between_paragraphs_then_lines_then_words() -> None:
    paragraphs = f"{'a ' * 30}\n\n{'b ' * 20}\n{'c ' * 10}"
    assert [part.split()[0] for part in parts(paragraphs, 100)] == ["a", "b"]
    assert [part[0] for part in parts(f"{'a' * 50}\n{'b' * 40}\n{'c' * 40}", 100)] == ["a", "c"]
    assert parts("one two " * 4, 60) == [("one two " * 4).strip()]
    assert parts("word " * 30, 62) == ["word " * 11 + "word"] * 2 + ["word " * 5 + "word"]
    assert parts("  one\n\n  two", 60) == ["  one\n\n  two"]


def test_code_is_closed_at_a_cut_and_opened_again_behind_it() -> None:
    code = "\n".join(f"line {number}" for number in range(12))
    first, *others = parts(f"Look:\n```python\n{code}\n```\nDone.", 70)
    assert first.startswith("Look:\n```python\nline 0")
    assert first.endswith("\n```")
    assert all(part.startswith("```python\nline") for part in others)
    assert others[-1].endswith("line 11\n```\nDone.")
    assert parts("   \n ") == []
    assert parts("x" * LIMIT) == ["x" * LIMIT]


def test_a_fence_of_thousands_of_backticks_makes_no_part_too_long() -> None:
    for run in (1_995, 1_998, 2_000, 5_000):
        fence, code = "`" * run, "code\n" * 800
        found = parts(f"Here:\n{fence}\n{code}{fence}\nThe answer is 42.")
        assert max(map(units, found)) <= LIMIT
        assert found[0].startswith("Here:\n")
        assert found[-1].endswith("The answer is 42.")
        assert sum(part.count("code") for part in found) == 800
