"""The pages of the site: their links, their sources, and what is made from others."""

import re
import tomllib
from pathlib import Path

import pytest

from scripts import diagrams, pages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
DEFINED = re.compile(r"^\[([^\]]+)\]: (\S+)$", re.MULTILINE)
BLOCK = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
TABS = ["Get started", "Guides", "Concepts", "Reference", "Contributing"]
COLORS = {"only-light", "only-dark"}
"""What the theme reads behind a picture's name."""


def links(page: Path) -> list[str]:
    """Return the links of a page to other files of this project."""
    found = LINK.findall(re.sub(r"`[^`\n]+`", "`code`", BLOCK.sub("", page.read_text())))
    return [link for link in found if not re.match(r"[a-z]+:|#", link)]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub or the site makes them."""
    titles = re.findall(r"^#+ (.+)$", BLOCK.sub("", page.read_text()), re.MULTILINE)
    plain = [re.sub(r"[^\w\s-]", "", title.lower()).strip() for title in titles]
    return {re.sub(gap, "-", title) for title in plain for gap in (r"\s", r"[-\s]+")}


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve()
        assert target.exists(), link
        assert not anchor or anchor in (COLORS if target.suffix == ".svg" else anchors(target)), (
            link
        )


def test_every_page_links_on() -> None:
    def leads_on(page: Path) -> bool:
        return any((page.parent / link.partition("#")[0]).suffix == ".md" for link in links(page))

    assert [page.name for page in PAGES if not leads_on(page)] == []


def test_the_menu_has_five_tabs_and_hides_the_list_of_decisions() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text())["project"]["nav"]
    assert [name for tab in nav for name in tab] == TABS
    (contributing,) = nav[-1].values()
    shown = [page for page in contributing if isinstance(page, str) or "Decisions" not in page]
    assert len(shown) < 10


def test_pages_that_are_made_from_others_are_up_to_date() -> None:
    for path, text in pages.pages().items():
        assert path.read_text() == text, f"{path.name}: run scripts/pages"


def test_the_site_for_models_lists_every_page() -> None:
    listed = set(re.findall(r"\]\(([^)]+)\)", (DOCS / "llms.txt").read_text()))
    for page in PAGES:
        path = page.relative_to(DOCS).as_posix()
        address = re.sub(r"(index)?\.md$", lambda found: "" if found[1] else "/", path) or "./"
        assert address in listed


def test_the_diagrams_are_what_the_script_draws() -> None:
    drawn = diagrams.diagrams()
    assert {path.stem for path in diagrams.FOLDER.glob("*.svg")} == drawn.keys()
    for name, picture in drawn.items():
        assert (diagrams.FOLDER / f"{name}.svg").read_text() == picture, "run scripts/diagrams"


def test_the_badges_say_what_the_package_declares() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    shown = {
        name: (diagrams.FOLDER / f"badge-{name}.svg").read_text()
        for name in re.findall(r"badge-(\w+)\.svg", (ROOT / "README.md").read_text())
    }
    assert shown.keys() == {"license", "python", "dependencies"}
    assert f">{project['license']}<" in shown["license"]
    assert project["requires-python"] == ">=3.11"
    assert ">3.11 to 3.14<" in shown["python"]
    assert project["dependencies"] == []
    assert ">none<" in shown["dependencies"]


def test_the_animation_shows_a_kill_and_what_follows_in_ten_seconds() -> None:
    text = (DOCS / "assets" / "animation" / "chat.svg").read_text().replace("&#160;", " ")
    assert set(re.findall(r" (\d+)s step-end infinite", text)) == {"10"}
    assert "prefers-reduced-motion" in text
    places = [text.index(words) for words in (">$ keepthread chat<", "Killed", "chat -c", "/why")]
    assert places == sorted(places)


def test_every_cell_of_the_comparison_has_a_source() -> None:
    page = DOCS / "why" / "comparison.md"
    text = page.read_text()
    assert re.search(r"checked on\s+\d{4}-\d\d-\d\d", text)
    sources = dict(DEFINED.findall(text))
    used = set(re.findall(r"\]\[([^\]]+)\]", text))
    assert used == sources.keys()
    projects = {
        "keepthread",
        "mem0",
        "Letta",
        "Zep, Graphiti",
        "LangGraph",
        "OpenAI Agents Sessions",
        "Agno",
    }
    parts = re.findall(r"^## (.+?)\n\n\*(.+?)\n(?=## )", text, re.MULTILINE | re.DOTALL)
    assert len(parts) == 7
    for _, part in parts:
        rows = [
            row.strip("| ").split(" | ") for row in re.findall(r"^\| \w.*\|$", part, re.MULTILINE)
        ]
        cells = {row[0]: row for row in rows if row[0] != "project"}
        assert cells.keys() == projects
        assert all("](" in row[-1] or "][" in row[-1] for row in cells.values())
