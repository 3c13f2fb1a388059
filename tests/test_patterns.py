"""No text makes a regular expression of the package take much longer than its length asks for."""

import re
from pathlib import Path
from typing import Final

import pytest

from keepthread.context.importance import CUES
from keepthread.interchange import files, markdown
from keepthread.models.tokens import estimator
from keepthread.recall import stemming
from tests.patterns import Clock, Place, Use, patterns

LOCAL: Final[dict[Place, list[dict[str, object]]]] = {
    ("apps/mcp/toml_edit.py", "f'\\\\s*\\\\[\\\\s*{names}\\\\s*(?:\\\\.[^\\\\]]*)?\\\\]'"): [
        {"names": r"""["']?mcp_servers["']?\s*\.\s*["']?keepthread["']?"""}
    ],
    ("context/importance.py", "cue.pattern"): [{"cue": cue} for cue in CUES],
    ("interchange/markdown.py", "unwritable"): [
        {"unwritable": markdown._UNWRITABLE},
        {"unwritable": markdown._NOT_IN_A_LINE},
    ],
    (
        "interchange/transcripts.py",
        "f'{NAME}.*-{re.escape(id_in_a_name(session))}-(\\\\d{{8}}-\\\\d{{6}})\\\\.md'",
    ): [{"session": "s-1"}],
    ("models/tokens/estimator.py", "_pattern(name)"): [
        {"name": name} for name in estimator.VOCABULARIES
    ],
    ("recall/stemming.py", "f\"(?:{'|'.join(longest)})$\""): [
        {"longest": [*stemming._SECOND, *stemming._THIRD]},
        {"longest": stemming._FOURTH.split()},
    ],
    ("recall/stemming.py", "self._pattern"): [],  # what LazyPattern is called with is reached
    ("interchange/files.py", "pattern"): [
        {"pattern": each} for each in vars(files).values() if isinstance(each, bytes)
    ],
}
"""Local names in patterns that a function builds: all values, or one like those of users."""


def test_a_text_that_is_twice_as_long_takes_each_pattern_about_twice_the_time() -> None:
    uses, unreachable = patterns(LOCAL)
    assert unreachable == [], "give the local names of a pattern that a function builds in LOCAL"
    assert sorted(set(LOCAL) - {use.place for use in uses} - {_NONE}) == [], "these are gone"
    clock = Clock()
    slow = {use.place: found for use in uses if (found := clock.slowest(use))}
    assert slow == {}, "rewrite these patterns: input from others can make them take minutes"


_NONE: Final = ("recall/stemming.py", "self._pattern")


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"\s*[-*] +(?:\[([ xX]?)\] +)?(.*?)\s*(?:<!-- ?([0-9a-f]{32}) ?-->)?\s*", "fullmatch"),
        (r"(?:, |\w+| INTEGER)*\)", "match"),
        (r"[?!]\W*$", "search"),
        (r"\[([^\]]+)\]", "sub"),
        (r"<!--.*?-->", "findall"),
        (r"\s+$", "search"),
        (r"(\d+)<=x", "sub"),
        (r"(?:a|ab)*(?:b|bc)*d", "search"),
        (r"(?:.*,)*x", "match"),
        (rb'"id".*:.*,', "search"),
    ],
)
def test_a_pattern_that_gets_slow_is_noticed(pattern: str | bytes, method: str) -> None:
    use = Use(("", ""), re.compile(pattern), frozenset({method}))
    assert Clock().slowest(use) is not None


@pytest.mark.parametrize(
    "source",
    [
        "import re\ndef f(x):\n    return re.compile(x)",
        "from re import compile\ncompile('a')",
        "import re as r\nr.compile('a')",
        "import re\ncompile = re.compile\n",
        "import re\nf(re)",
    ],
)
def test_a_pattern_that_cannot_be_reached_is_noticed(source: str, tmp_path: Path) -> None:
    (tmp_path / "__init__.py").write_text(source)
    assert patterns({}, tmp_path)[1]
