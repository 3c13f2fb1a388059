"""The reference says what the code says."""

import inspect
import re
from pathlib import Path

import pytest

from keepthread import errors
from scripts.reference import FILES, FOLDER, PAGES, main, renewed

DOCS = Path(__file__).parents[1] / "docs"


def test_the_catalogue_of_errors_is_the_tree_of_errors() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    listed = {row[1].strip(" `"): row[2].strip() for row in rows}
    found = {
        name: inspect.getdoc(kind)
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    assert listed == found


def test_every_error_has_a_code_of_its_own_and_says_whether_to_retry() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    listed = {row[3].strip(" `"): (row[1].strip(" `"), row[4].strip() == "yes") for row in rows}
    kinds = [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, errors.KeepthreadError)
    ]
    assert listed == {kind.code: (kind.__name__, kind.retryable) for kind in kinds}
    assert len(listed) == len(kinds)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", kind.code) for kind in kinds)
    assert (errors.Busy.code, errors.Busy.retryable) == ("busy", True)
    assert issubclass(errors.SessionNotFound, errors.NotFound)
    assert issubclass(errors.MessageNotFound, errors.NotFound)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_says_of_commands_options_and_settings_what_the_program_says(name: str) -> None:
    page = (FOLDER / name).read_text()
    assert page == renewed(name, page), "run scripts/reference"


def test_what_is_stale_is_told_and_renewed_around_what_is_written_by_hand(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pages = {name: (FOLDER / name).read_text() for name in (*PAGES, *FILES)}
    (tmp_path / "api").mkdir()
    for name, page in pages.items():
        (tmp_path / name).write_text(page)
    assert main(["--check"], tmp_path) == 0
    stale = pages["command.md"].replace("Days without activity.", "Weeks at rest.")
    stale = stale.replace("# The command", "# By hand")
    (tmp_path / "command.md").write_text(stale)
    assert main(["--check"], tmp_path) == 1
    assert capsys.readouterr().err == "command.md is stale: run scripts/reference\n"
    assert (tmp_path / "command.md").read_text() == stale
    assert main([], tmp_path) == 0
    by_hand = pages["command.md"].replace("# The command", "# By hand")
    assert (tmp_path / "command.md").read_text() == by_hand


def test_a_command_without_its_place_in_the_page_is_named() -> None:
    page = (FOLDER / "command.md").read_text()
    pruned = re.sub(r"<!-- (begin|end): keepthread prune -->\n", "", page)
    with pytest.raises(SystemExit, match=r"^command\.md: .* differ in keepthread prune; write"):
        renewed("command.md", pruned)
