"""Answers in Markdown: where their blocks begin, and how each is drawn. Loads rich."""

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, ClassVar, Final

from markdown_it import MarkdownIt
from markdown_it.token import Token
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement
from rich.syntax import Syntax
from rich.text import Text
from rich.theme import Theme

THEME: Final = Theme(
    {
        "markdown.h1": "bold underline",
        "markdown.h2": "bold",
        "markdown.h3": "bold",
        "markdown.h4": "bold",
        "markdown.code": "cyan",
        "markdown.code_block": "cyan",
        "markdown.block_quote": "italic",
        "markdown.hr": "dim",
        "markdown.item.bullet": "cyan",
        "markdown.item.number": "cyan",
        "markdown.link": "underline",
        "markdown.link_url": "dim",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)
_CODE: Final = "ansi_dark"


def _parser() -> MarkdownIt:
    # Text that looks like HTML stays text: else "the <div> tag" would lose a word.
    return MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])


_WHOLE: Final = _parser()
_BLOCKS: Final = _parser()
_BLOCKS.core.ruler.disable(["inline"])


def blocks_of(text: str) -> list[str]:
    """Return a text in blocks; all but the last are complete and do not change any more.

    Only whole lines decide. A list, a table, or a code fence until it is closed is one block.
    """
    lines = text.split("\n")
    whole = "\n".join(lines[:-1])
    begins = [t.map[0] for t in _BLOCKS.parse(whole) if t.level == 0 and t.nesting >= 0 and t.map]
    edges = [0, *begins[1:], len(lines)]
    parts = ["\n".join(lines[at:to]) for at, to in pairwise(edges)]
    return [f"{part}\n" for part in parts[:-1]] + parts[-1:]


class Blocks(Markdown):
    """Markdown: tags are text, addresses are shown, and line breaks count as models mean them."""

    elements: ClassVar[dict[str, type[MarkdownElement]]]

    def __init__(self, text: str, *, breaks: bool = True) -> None:
        """Read a text that is harmless; without `breaks`, its paragraphs are filled."""
        super().__init__("", code_theme=_CODE, hyperlinks=False)
        tokens = _WHOLE.parse(text)
        self.parsed = _with_breaks(tokens) if breaks else tokens


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar[dict[str, JustifyMethod]] = {}


class _Code(CodeBlock):
    """Code without a frame, so that it can be copied."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        if self.lexer_name == "text" or Syntax("", self.lexer_name).lexer is None:
            yield Text(code, self.style, overflow="fold")
        else:
            yield Syntax(code, self.lexer_name, theme=self.theme, word_wrap=True)


Blocks.elements = {
    **Markdown.elements,
    "heading_open": _Heading,
    "fence": _Code,
    "code_block": _Code,
}


def _with_breaks(tokens: Iterable[Token]) -> Any:
    made = list(tokens)
    for token in made:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
    return made
