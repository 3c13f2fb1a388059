"""Every public name has an entry in the API reference, with an example that runs alone."""

import ast
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import keepthread
from scripts.api_reference import FILES, PAGES, Example, example_of, examples, names_of
from tests.test_docs import BLOCK, run, set_servers

PACKAGE = Path(keepthread.__file__).parent
FOLDER = Path(__file__).parents[1] / "docs" / "reference"
INTERNAL = {"keepthread.stores.redis.engine"}
"""Modules whose `__all__` is for the package itself."""
LISTED = {name for page in PAGES.values() for name in names_of(page)}


def modules() -> list[str]:
    """Return every module of the package that says what is public."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        names = [ast.unparse(each.targets[0]) for each in assignments(path)]
        if "__all__" in names:
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            found.append(".".join(parts).removesuffix(".__init__"))
    return sorted(set(found) - INTERNAL)


def assignments(path: Path) -> list[ast.Assign]:
    body = ast.parse(path.read_text("utf-8")).body
    return [each for each in body if isinstance(each, ast.Assign)]


@pytest.mark.parametrize("module", modules())
def test_every_public_name_has_an_entry(module: str) -> None:
    things = {id(getattr(import_module(known), name)) for known, name in LISTED}
    for name in import_module(module).__all__:
        thing = getattr(import_module(module), name)
        assert (module, name) in LISTED or id(thing) in things, f"{module}.{name}"


def test_an_entry_has_an_example_that_uses_the_name() -> None:
    for module, name in LISTED:
        code = example_of(module, name).text
        assert re.search(rf"^from {re.escape(module)} import [^`]*?\b{name}\b", code, re.MULTILINE)
    for each in examples():
        assert all((each.module, name) in LISTED for name in each.names), each.names


def test_the_pages_say_what_the_code_says() -> None:
    for name, write in FILES.items():
        assert (FOLDER / name).read_text("utf-8") == write(), "run scripts/reference"


@pytest.mark.parametrize("example", examples(), ids=lambda each: f"{each.module}-{each.names[0]}")
def test_an_example_runs_alone_and_prints_what_the_page_says(
    example: Example,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    vocabularies: Path,
    request: pytest.FixtureRequest,
) -> None:
    monkeypatch.chdir(tmp_path)
    set_servers(example.text, monkeypatch, request)
    (kind, code), (shown, printed) = BLOCK.findall(example.text)
    assert (kind, shown) == ("python", "text")
    names: dict[str, Any] = {"__name__": "__main__"}
    assert run(code, names, tmp_path / example.names[0]).strip() == printed.strip()
