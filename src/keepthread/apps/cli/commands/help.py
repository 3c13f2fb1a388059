"""The command that shows the guides in the terminal; they are part of the package."""

import re
from collections.abc import Callable, Iterator, Mapping
from difflib import get_close_matches
from functools import cached_property
from os.path import normpath
from pathlib import Path
from typing import Annotated, Final

import typer

import keepthread
from keepthread.apps.cli.chat.blocks import THEME, Blocks
from keepthread.apps.cli.invocation import Call
from keepthread.errors import InvalidInput

_FOLDERS: Final[Mapping[str, str]] = {
    "start": "Get started",
    "how-to": "Guides",
    "why": "Concepts",
    "reference": "Reference",
}
"""Folders of the manual in the order of the list. A short name means the first that has it."""
_NOT_LISTED: Final = ("assets", "contributing", "decisions")
_NEAR: Final = 5
_INDEX: Final = "/index"
_FENCE: Final = re.compile(r"^ *(```|~~~)")
_IMAGE: Final = re.compile(r"!\[([^\[\]]*)\]\([^()]*\)")
_DARK: Final = re.compile(r"!\[[^\[\]]*\]\([^()]*#only-dark\)\n")
"""The second of two pictures that show the same."""
_LINK: Final = re.compile(r"\[([^\[\]]+)\]\(([^()\s]+)\)")
_COMMENT: Final = re.compile(r"<!--(?:(?!<!--|-->).)*-->\n?|\{[:#.][^{}\n]*\}", re.DOTALL)
_SENTENCE: Final = re.compile(r"(.+?[.:])(?:\s|$)", re.DOTALL)


def show_help(
    call: Call,
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="A page (default: list all pages).")
    ] = None,
) -> None:
    """Read the guides in the terminal.

    Without a topic, it lists the pages. The guides are installed with the program, so they need no
    network and belong to this version.
    """
    manual = Manual(_folder())
    if topic is None:
        _list(call, manual)
        return
    page = manual.find(topic)
    if call.json:
        call.write({"topic": page.name, "title": page.title, "text": page.text})
        return
    with call.paged() as screen:
        screen.draw(Blocks(manual.readable(page), breaks=False), THEME)


def _list(call: Call, manual: "Manual") -> None:
    if call.json:
        for page in manual.pages:
            call.write({"topic": page.name, "title": page.title, "about": page.about})
        return
    lines: list[str] = []
    for folder in manual.folders:
        title = _FOLDERS.get(folder, folder.capitalize())
        rows = [
            f"| `{manual.short(page)}` | {page.title} |"
            for page in manual.pages
            if page.folder == folder
        ]
        lines += [f"## {title}", "", "| topic | page |", "|---|---|", *rows, ""]
    lines.append("`keepthread help TOPIC` shows a page.")
    with call.paged() as screen:
        screen.draw(Blocks("\n".join(lines), breaks=False), THEME)


class ManualPage:
    """A page of the manual: `name` is its path without the suffix, of an index its folder's."""

    def __init__(self, path: Path, place: str) -> None:
        """Take a file and its place in the manual; it is read when it is needed."""
        self._path = path
        self.parent = place.rpartition("/")[0]
        self.name = place.removesuffix(_INDEX)
        self.folder = place.partition("/")[0]

    @cached_property
    def text(self) -> str:
        """Return the page as Markdown."""
        return self._path.read_text(encoding="utf-8")

    @cached_property
    def title(self) -> str:
        """Return the first heading."""
        heading = re.search(r"^# (.+)$", self.text, re.MULTILINE)
        return heading[1] if heading else self.name

    @cached_property
    def about(self) -> str:
        """Return the first sentence."""
        _, _, rest = self.text.partition(f"# {self.title}\n")
        found = _SENTENCE.match(_LINK.sub(r"\1", rest.strip()))
        return " ".join(found[1].split()) if found else ""


class Manual:
    """The pages in a folder."""

    def __init__(self, folder: Path) -> None:
        """Take the folder; the pages are read when they are needed."""
        self._folder = folder

    @cached_property
    def folders(self) -> list[str]:
        """Return the folders of pages, in the order of the list."""
        found = sorted(path.name for path in self._folder.iterdir() if path.is_dir())
        others = [name for name in found if name not in (*_FOLDERS, *_NOT_LISTED)]
        return [*(name for name in _FOLDERS if name in found), *others]

    @cached_property
    def pages(self) -> list[ManualPage]:
        """Return the pages, in the order of the list."""
        return [*self._pages()]

    def _pages(self) -> Iterator[ManualPage]:
        for name in self.folders:
            for path in sorted((self._folder / name).rglob("*.md")):
                yield ManualPage(path, path.relative_to(self._folder).with_suffix("").as_posix())

    @cached_property
    def _by_topic(self) -> dict[str, ManualPage]:
        found = {page.name: page for page in self.pages}
        for page in self.pages:
            found.setdefault(page.name.rpartition("/")[2], page)
        return found

    def short(self, page: ManualPage) -> str:
        """Return the shortest topic that means a page."""
        last = page.name.rpartition("/")[2]
        return last if self._by_topic[last] is page else page.name

    def find(self, topic: str) -> ManualPage:
        """Return the page of a topic, or name the nearest ones."""
        word = topic.strip().lower().removesuffix(".md")
        if word in self._by_topic:
            return self._by_topic[word]
        shorts = {self.short(page): page for page in self.pages}
        like = get_close_matches(word, shorts, cutoff=0.7)
        named = [name for name, page in shorts.items() if word and word in page.title.lower()]
        near = [*dict.fromkeys([*like, *named])][:_NEAR]
        hint = f"there is {', '.join(near)}; " if near else ""
        raise InvalidInput(f"there is no page {topic!r}; {hint}`keepthread help` lists all")

    def readable(self, page: ManualPage) -> str:
        """Return a page for a terminal: links name the command that shows their page."""
        lines: list[str] = []
        fenced = False
        for line in _COMMENT.sub("", _DARK.sub("", page.text)).split("\n"):
            fence = bool(_FENCE.match(line))
            fenced ^= fence
            plain = line if fenced or fence else _IMAGE.sub(r"(picture: \1)", line)
            lines.append(plain if fenced or fence else _LINK.sub(self._linked(page), plain))
        return "\n".join(lines)

    def _linked(self, page: ManualPage) -> Callable[[re.Match[str]], str]:
        def linked(found: re.Match[str]) -> str:
            text, target = found[1], found[2]
            if "://" in target:
                return found[0]
            path, _, _ = target.partition("#")
            if not path:
                return text
            place = normpath(f"{page.parent}/{path.removesuffix('.md')}").replace("\\", "/")
            known = self._by_topic.get(place.removesuffix(_INDEX))
            return f"{text} (`keepthread help {self.short(known)}`)" if known else text

        return linked


def _folder() -> Path:
    """Return where the manual is: in an installed package, or beside the source."""
    package = Path(keepthread.__file__).parent
    for folder in (package / "manual", package.parents[1] / "docs"):
        if (folder / "how-to").is_dir():
            return folder
    raise InvalidInput("this installation has no manual; install keepthread again")
