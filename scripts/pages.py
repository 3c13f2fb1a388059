"""Write pages from other files: the cookbook from `examples/`, `llms.txt` from the menu.

scripts/pages [--check]
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]
DOCS: Final = ROOT / "docs"

TITLES: Final = {
    "plain_sdk": "A plain loop",
    "proxy_chat": "Only another base URL",
    "langgraph_chat": "LangGraph",
    "openai_agents_chat": "OpenAI Agents SDK",
    "agno_chat": "Agno",
    "fastapi_chat": "FastAPI",
    "discord_bot": "Discord",
    "sub_agent_team": "A team of sub-agents",
}

COOKBOOK: Final = """\
# Cookbook

Each recipe is one file in `examples/` that runs, and a test runs it. `OPENAI_API_KEY` is your key;
`OPENAI_BASE_URL` names another server that speaks the same, such as `http://localhost:11434/v1` for
Ollama, and `MODEL` another model.

| recipe | file |
|---|---|
"""
READ_ON: Final = """\
## Read on

[Tutorial](tutorial.md), [Add memory to your own pipeline](../how-to/pipeline.md),
[Ask a model](../how-to/models.md).
"""

SITE: Final = """\
# keepthread

> Durable conversation memory for LLM apps. Stores every message, builds a context that fits your
> token budget, and explains every choice. One SQLite file, zero dependencies, any provider.

Every page of the documentation, with its address relative to this file.
"""


def cookbook() -> str:
    """Return the cookbook: what each example is for, and its source."""
    listed = re.findall(
        r"^- \[(\w+)\.py\]\(\w+\.py\): (.+)$",
        (ROOT / "examples/README.md").read_text(),
        re.MULTILINE,
    )
    table, recipes = "", ""
    for name, what in listed:
        title = TITLES[name]
        table += f"| [{title}](#{title.lower().replace(' ', '-')}) | `examples/{name}.py` |\n"
        source = (ROOT / f"examples/{name}.py").read_text()
        recipes += f"## {title}\n\n{what[0].upper()}{what[1:]}\n\n```py\n{source}```\n\n"
    return f"{COOKBOOK}{table}\n{recipes}{READ_ON}"


def menu(entry: Any, title: str = "") -> Iterator[tuple[str, str]]:
    """Yield each page of the menu, after the section that it belongs to."""
    if isinstance(entry, str):
        yield title, entry
    elif isinstance(entry, list):
        for each in entry:
            yield from menu(each, title)
    else:
        for name, inner in entry.items():
            yield from menu(inner, name if isinstance(inner, list) else title)


def first_sentence(page: Path) -> tuple[str, str]:
    """Return the title of a page, and the first sentence of its first paragraph of prose."""
    text = page.read_text()
    title = re.search(r"^# (.+)$", text, re.MULTILINE)
    assert title is not None, page
    rest = re.sub(r"^```.*?^```$", "", text[title.end() :], flags=re.MULTILINE | re.DOTALL)
    prose = (part.strip() for part in re.split(r"\n\s*\n", rest))
    found = next((part for part in prose if part and part[0] not in "#|!<-"), "")
    found = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", " ".join(found.split()))
    sentence = re.match(r".*?\.(?= |$)", found)
    return title[1], (sentence[0] if sentence else found).replace("**", "")


def llms() -> str:
    """Return `llms.txt`: every page by its section, with a sentence of what it is."""
    settings = tomllib.loads((ROOT / "zensical.toml").read_text())
    lines, section = [SITE], ""
    for part, path in menu(settings["project"]["nav"]):
        if part != section:
            lines.append(f"\n## {part}\n")
            section = part
        title, what = first_sentence(DOCS / path)
        address = re.sub(r"(index)?\.md$", lambda found: "" if found[1] else "/", path)
        lines.append(f"- [{title}]({address or './'}): {what}")
    return "\n".join(lines) + "\n"


def pages() -> dict[Path, str]:
    """Return the content of each page that is made from others."""
    return {DOCS / "start/cookbook.md": cookbook(), DOCS / "llms.txt": llms()}


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them."""
    if "--check" in arguments:
        stale = [path for path, text in pages().items() if path.read_text() != text]
        for path in stale:
            print(f"{path.relative_to(ROOT)} is out of date: run scripts/pages")
        return 1 if stale else 0
    (DOCS / "start/cookbook.md").write_text(cookbook())  # llms.txt reads its first sentence
    (DOCS / "llms.txt").write_text(llms())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
