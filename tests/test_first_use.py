"""First use, as newcomers have it: the wheel in an empty environment, the first example."""

import subprocess
from pathlib import Path

import pytest

from tests.newcomer import built_wheel, call, empty_environment
from tests.test_docs import ROOT, blocks


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the Python of an environment that holds the wheel and nothing else."""
    folder = tmp_path_factory.mktemp("newcomer")
    wheel = built_wheel(folder)
    programs = empty_environment(folder / "env")
    # No index: if the wheel asked for another package, this would fail.
    call(programs / "pip", "install", "--no-index", "--quiet", wheel, cwd=folder)
    return programs / "python"


def test_the_wheel_brings_nothing_else(newcomer: Path, tmp_path: Path) -> None:
    listed = call(newcomer.with_name("pip"), "list", "--format=freeze", cwd=tmp_path)
    assert {line.partition("==")[0] for line in listed.splitlines()} == {"keepthread"}


def test_the_first_example_of_the_site_prints_what_it_says(newcomer: Path, tmp_path: Path) -> None:
    (_, example), (_, printed) = blocks(ROOT / "docs" / "index.md")[:2]
    script = tmp_path / "example.py"
    script.write_text(example)
    assert call(newcomer, "-W", "error", script, cwd=tmp_path).strip() == printed.strip()
    assert (tmp_path / "chat.db").exists()


def test_the_command_says_what_it_needs(newcomer: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [newcomer.with_name("keepthread"), "--help"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert "keepthread[cli]" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_typo_in_the_address_is_explained(newcomer: Path, tmp_path: Path) -> None:
    code = "import keepthread; keepthread.Memory.open('sqlite:chat.db')"
    done = subprocess.run(
        [newcomer, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "use sqlite:///relative/path.db" in done.stderr
