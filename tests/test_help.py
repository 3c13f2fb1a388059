"""`keepthread help`: the guides in the terminal."""

import json
import tomllib
from pathlib import Path

from tests.preloaded import KEEPTHREAD
from tests.terminal import Terminal
from tests.test_cli import keepthread

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
NOT_SHIPPED = {"assets", "contributing", "decisions"}
"""For those who work on keepthread itself, or not text."""


def test_the_list_has_every_guide_and_a_page_is_drawn_without_its_markup(tmp_path: Path) -> None:
    listed = [json.loads(line) for line in keepthread("help", "--json").stdout.splitlines()]
    pages = {
        page.relative_to(DOCS).with_suffix("").as_posix().removesuffix("/index")
        for page in DOCS.rglob("*.md")
        if page.relative_to(DOCS).parts[0] not in {*NOT_SHIPPED, "index.md"}
    }
    assert {each["topic"] for each in listed} == pages
    assert all(each["title"] and each["about"] for each in listed)
    shown = keepthread("help", "forget").stdout
    assert shown.split(maxsplit=1)[0] == "Forget"
    assert max(map(len, shown.splitlines())) <= 100
    assert "](" not in shown
    assert "(keepthread help " in shown
    with Terminal([KEEPTHREAD, "help"], cwd=tmp_path, env={"PAGER": "head -n 3"}) as terminal:
        assert terminal.exit_code(60) == 0
        assert "Get started" in terminal.transcript
        assert "Reference" not in terminal.transcript, "it is longer than the screen"


def test_a_short_topic_means_the_guide_and_a_path_means_the_other_page() -> None:
    def title(topic: str) -> str:
        return json.loads(keepthread("help", topic, "--json").stdout)["topic"]

    assert title("forget") == title("how-to/forget.md") == "how-to/forget"
    assert title("why/summaries") == "why/summaries"


def test_an_unknown_topic_names_near_ones() -> None:
    result = keepthread("help", "forgett")
    assert result.returncode == 2
    assert result.stderr.startswith("error: there is no page 'forgett'; there is forget")
    assert result.stderr.endswith("; `keepthread help` lists all\n")
    assert "embeddings" in keepthread("help", "by meaning").stderr


def test_the_wheel_ships_every_guide() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    shipped = settings["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    folders = {path.name for path in DOCS.iterdir() if path.is_dir()} - NOT_SHIPPED
    assert shipped == {f"docs/{name}": f"keepthread/manual/{name}" for name in folders}
