"""Memory's share of the pipeline: every line of it that touches memory, listed on one page."""

import ast
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import keepthread.orchestrator

FOLDER = Path(keepthread.orchestrator.__file__).parent
PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "pipeline.md"
NAMES = {"Memory", "Session", "Turn", "session", "turn", "child", "context"}
"""Memory itself, and whatever holds something of it."""


def share(source: str) -> list[str]:
    """Return the lines of code that name memory; a statement on several lines, with all of them."""
    lines = source.splitlines(keepends=True)
    tokens = tokenize.generate_tokens(iter(lines).__next__)
    named = {
        token.start[0]
        for token in tokens
        if token.type == tokenize.NAME
        and token.string in NAMES
        # The path of an import may go through `keepthread.context`; what is imported counts.
        and not re.match(rf"from [\w.]*\.{token.string}\b", token.line)
    }
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            whole = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            named |= set(whole) if named & set(whole) else set()
    return [lines[number - 1].strip() for number in sorted(named)]


def shares() -> Iterator[tuple[str, list[str]]]:
    # An agent and `Orchestrator` are no stages: they put parts together for programs.
    modules = [path for path in FOLDER.glob("*.py") if path.name != "agent.py"]
    for path in sorted([*modules, *FOLDER.glob("prompts/*.py")]):
        if found := share(path.read_text()):
            yield path.relative_to(FOLDER).as_posix(), found


def test_memory_takes_under_45_lines_of_the_pipeline() -> None:
    assert sum(len(lines) for _, lines in shares()) < 45


def test_the_page_lists_every_one_of_them() -> None:
    listed = re.findall(
        r"^```text\n# (\S+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert {name: text.splitlines() for name, text in listed} == dict(shares())


def test_the_page_says_how_many_there_are() -> None:
    count = sum(len(lines) for _, lines in shares())
    assert f"**{count} lines**" in PAGE.read_text()


def test_a_statement_counts_with_all_its_lines() -> None:
    source = '"""A turn."""\n\nx = f(\n    turn,\n    1,\n)\nif turn:\n    y = 1  # of a turn\n'
    assert share(source) == ["x = f(", "turn,", "1,", ")", "if turn:"]
