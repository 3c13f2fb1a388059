"""Every example in README and docs runs, and prints what the page says it prints."""

import ast
import asyncio
import contextlib
import inspect
import io
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```(python|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def postgres_url(request: pytest.FixtureRequest) -> str:
    return request.getfixturevalue("postgres").empty()


def redis_url(request: pytest.FixtureRequest) -> str:
    server = request.getfixturevalue("redis_server")
    server.ask("FLUSHALL")
    return server.url


def model_folder(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("test_data") / "models" / "all-MiniLM-L6-v2-int8")


SERVERS = {"DATABASE_URL": postgres_url, "REDIS_URL": redis_url, "MODEL_FOLDER": model_folder}
"""What a page reads from its environment: a real, empty server, or a real model."""


def blocks(page: Path) -> list[tuple[str, str]]:
    return BLOCK.findall(page.read_text())


def run(source: str, names: dict[str, Any], where: Path) -> str:
    """Run a block, which may await at its top level, and return what it printed."""
    printed = io.StringIO()
    code = compile(source, str(where), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    with contextlib.redirect_stdout(printed):
        result = eval(code, names)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    return printed.getvalue()


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if any(kind == "python" for kind, _ in blocks(p))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_examples_of_a_page_run(
    page: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    vocabularies: Path,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, url_of in SERVERS.items():
        if name in page.read_text():
            monkeypatch.setenv(name, url_of(request))
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    for kind, source in blocks(page):
        if kind == "python":
            printed = run(source, names, page)
        elif printed:
            assert printed.strip() == source.strip()
            printed = ""


def test_the_readme_is_about_500_words() -> None:
    words = len((ROOT / "README.md").read_text().split())
    assert 350 <= words <= 600, words
