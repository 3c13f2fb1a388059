"""Draw the diagrams of README and docs as SVG: one file for light and for dark pages.

A picture follows the color scheme of its reader. Its text is text, so it can be read and searched.
"""

import re
import tomllib
from html import escape
from pathlib import Path
from typing import Final

_ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = _ROOT / "docs" / "assets" / "diagrams"
PROJECT: Final = _ROOT / "pyproject.toml"

STYLE: Final = """
  text { font: 14px system-ui, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; fill: #1f2937 }
  .small { font-size: 12px; fill: #4b5563 }
  .title { font-weight: 600 }
  .code { font: 12px ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace }
  .page { fill: #ffffff }
  .plain { fill: #f3f4f6; stroke: #9ca3af }
  .ours { fill: #e0f2fe; stroke: #0369a1 }
  .data { fill: #dcfce7; stroke: #15803d }
  .warn { fill: #fef3c7; stroke: #b45309 }
  .quote { fill: #f3e8ff; stroke: #7e22ce }
  .frame { fill: none; stroke: #9ca3af; stroke-dasharray: 5 4 }
  .line { fill: none; stroke: #4b5563; stroke-width: 1.5 }
  .head { fill: #4b5563 }
  .crash { fill: none; stroke: #b91c1c; stroke-width: 2.5; stroke-linecap: round }
  @media (prefers-color-scheme: dark) {
    text { fill: #e5e7eb }
    .small { fill: #cbd5e1 }
    .page { fill: #1e2129 }
    .plain { fill: #2b303b; stroke: #94a3b8 }
    .ours { fill: #0c4a6e; stroke: #7dd3fc }
    .data { fill: #14532d; stroke: #86efac }
    .warn { fill: #713f12; stroke: #fcd34d }
    .quote { fill: #581c87; stroke: #d8b4fe }
    .frame { stroke: #94a3b8 }
    .line { stroke: #cbd5e1 }
    .head { fill: #cbd5e1 }
    .crash { stroke: #fca5a5 }
  }
"""


class Diagram:
    """A picture of boxes, arrows and text, by coordinates."""

    def __init__(self, title: str, width: int, height: int) -> None:
        """Begin a picture; the title is read out to those who cannot see it."""
        self._title, self._width, self._height = title, width, height
        self._parts: list[str] = []

    def box(
        self, x: int, y: int, width: int, height: int, *lines: str, kind: str = "plain"
    ) -> None:
        """Draw a box with centered lines: the first is its title, one in backticks is code."""
        self._parts.append(
            f'<rect class="{kind}" x="{x}" y="{y}" width="{width}" height="{height}" rx="6"/>'
        )
        top = y + height / 2 - (len(lines) - 1) * 9
        for number, line in enumerate(lines):
            style = "small" if number else "title"
            self.text(x + width / 2, top + number * 18 + 5, line, style=style, anchor="middle")

    def frame(self, x: int, y: int, width: int, height: int, label: str) -> None:
        """Draw a dashed frame with its name in the corner."""
        self._parts.append(
            f'<rect class="frame" x="{x}" y="{y}" width="{width}" height="{height}" rx="8"/>'
        )
        self.text(x + 10, y + 20, label, style="title")

    def text(
        self, x: float, y: float, line: str, *, style: str = "small", anchor: str = "start"
    ) -> None:
        """Write a line; one in backticks is code."""
        if line.startswith("`") and line.endswith("`"):
            line, style = line[1:-1], f"{style} code"
        place = f'x="{x:g}" y="{y:g}" text-anchor="{anchor}"'
        self._parts.append(f'<text class="{style}" {place}>{escape(line)}</text>')

    def arrow(
        self, *points: tuple[int, int], label: str = "", beside: tuple[int, int] = (0, 0)
    ) -> None:
        """Draw a line through the points, with a head at its end."""
        path = "M" + " L".join(f"{x},{y}" for x, y in points)
        (x0, y0), (x1, y1) = points[-2:]
        across, down = (x1 > x0) - (x1 < x0), (y1 > y0) - (y1 < y0)
        corners = [
            (x1, y1),
            (x1 - 9 * across + 5 * down, y1 - 9 * down + 5 * across),
            (x1 - 9 * across - 5 * down, y1 - 9 * down - 5 * across),
        ]
        self._parts.append(f'<path class="line" d="{path}"/>')
        self._parts.append(
            f'<path class="head" d="M{" L".join(f"{x},{y}" for x, y in corners)} Z"/>'
        )
        if label:
            self.text(*beside, label)

    def crash(self, x: int, y: int) -> None:
        """Mark a place where a process may be killed."""
        self._parts.append(
            f'<path class="crash" d="M{x - 6},{y - 6} l12,12 M{x + 6},{y - 6} l-12,12"/>'
        )

    def svg(self) -> str:
        """Return the picture."""
        size = f'width="{self._width}" height="{self._height}"'
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} '
            f'viewBox="0 0 {self._width} {self._height}" role="img">\n'
            f"<title>{escape(self._title)}</title>\n<style>{STYLE}</style>\n"
            f'<rect class="page" {size} rx="10"/>\n' + "\n".join(self._parts) + "\n</svg>\n"
        )


def architecture() -> Diagram:
    """Show what is between a program, a model and a store."""
    it = Diagram("Your program, keepthread, the store and the model", 820, 330)
    it.box(20, 100, 150, 130, "Your program", "a script, a web service,", "a bot, an agent")
    it.frame(220, 20, 380, 290, "keepthread: a library in your process")
    it.box(240, 55, 340, 50, "Turn", "stores the message first, the answer last", kind="ours")
    it.box(
        240,
        125,
        340,
        66,
        "Context",
        "truncates, summarizes, recalls, quotes",
        "fits the budget, explains why",
        kind="ours",
    )
    it.box(240, 211, 160, 80, "Facts, search", "what lasts beyond", "one conversation", kind="ours")
    it.box(420, 211, 160, 80, "Forget", "erases copies and", "what was derived", kind="ours")
    it.arrow((170, 140), (220, 140))
    it.arrow((220, 190), (170, 190))
    it.box(650, 20, 150, 76, "Model", "OpenAI, Anthropic,", "Ollama, vLLM, …")
    it.box(
        650,
        136,
        150,
        174,
        "Store",
        "one SQLite file,",
        "PostgreSQL or Redis",
        "",
        "the log of messages,",
        "and records beside it",
        kind="data",
    )
    it.arrow((600, 58), (650, 58))
    it.arrow((600, 223), (650, 223))
    return it


def log() -> Diagram:
    """Show a log and the records that are derived from it."""
    it = Diagram("A log of messages by position, and records derived from ranges of it", 820, 330)
    it.text(20, 34, "The log: messages by position. It only grows.", style="title")
    roles = (
        "user",
        "answer",
        "user",
        "call",
        "result",
        "answer",
        "user",
        "erased",
        "user",
        "answer",
    )
    for number, role in enumerate(roles):
        kind = "warn" if role == "erased" else "data"
        it.box(20 + number * 78, 50, 72, 54, str(number + 1), role, kind=kind)
    it.text(566, 124, "a tombstone: position, no text")
    it.text(
        20,
        166,
        "Records: derived from the log, and found by the positions they name.",
        style="title",
    )
    it.box(20, 184, 306, 54, "Summary", "of 1 to 4, made when the log ended at 6", kind="ours")
    it.box(332, 184, 150, 54, "Cached result", "of 4 and 5, for 3 turns", kind="ours")
    it.box(488, 184, 150, 54, "Pin", "keeps 3 in view", kind="ours")
    it.box(644, 184, 150, 54, "Note", "from the program", kind="ours")
    it.box(
        20,
        250,
        306,
        54,
        "Word index and vectors",
        "of 1 to 10: each remembers how far it has read",
        kind="ours",
    )
    it.box(
        332,
        250,
        306,
        54,
        "Fact of the owner",
        "from 1 and 3; one that replaces it names it",
        kind="ours",
    )
    it.box(644, 250, 150, 54, "Explanation", "positions, no text", kind="ours")
    return it


def context() -> Diagram:
    """Show the sections of a context, in the order of the prompt."""
    it = Diagram("The sections of a context in the order of the prompt", 820, 490)
    it.text(
        20,
        34,
        "A context of Hybrid, from the first token to the last",
        style="title",
    )
    rows = (
        ("system prompt", "what you wrote", "plain", 34),
        ("pins, facts", "messages you keep; what is known of the owner", "ours", 34),
        ("summary", "of the messages before the window, quoted", "quote", 34),
        ("important, notes", "decisions and preferences, word for word", "ours", 34),
        ("window", "the newest messages that fit, from a start that moves in steps", "data", 92),
        ("cached tool results", "results that are still valid", "warn", 34),
        ("recalled", "relevant messages of all conversations of the owner, quoted", "quote", 34),
        ("current turn", "the newest user message, and calls and results since", "data", 48),
    )
    top = 50
    edges: list[int] = []
    for name, what, kind, height in rows:
        it.box(20, top, 180, height, name, kind=kind)
        it.text(214, top + height / 2 + 5, what)
        edges.append(top)
        top += height + 6
    top -= 6
    it.text(620, 200, "Stays the same", style="title")
    it.text(620, 220, "between two steps, so that")
    it.text(620, 238, "a prompt cache serves it.")
    it.arrow((606, edges[0]), (606, edges[5] - 6))
    it.text(620, edges[5] + 50, "Changes each turn", style="title")
    it.arrow((606, edges[5]), (606, top))
    it.text(
        20,
        top + 34,
        "Each section has a share of the budget, and the sum never exceeds the budget.",
    )
    return it


def turn() -> Diagram:
    """Show the steps of a turn, and what a crash leaves at each."""
    it = Diagram(
        "The steps of a turn, and what is left if the process is killed after each", 820, 400
    )
    it.text(20, 34, "A turn", style="title")
    it.text(240, 34, "Killed here, the store has …", style="title")
    it.text(560, 34, "The next process …", style="title")
    steps = (
        (
            "`session.turn(text, id=…)`",
            "nothing, or the message",
            "sends it again under its id",
            "data",
        ),
        ("`turn.context(budget)`", "the user's message", "answers it: `resume_turn(id)`", "ours"),
        ("the model answers", "the user's message", "asks the model again", "plain"),
        ("`turn.tool(…)`", "a call without a result", "gets a context without that call", "data"),
        ("`turn.finish(answer)`", "the turn without its answer", "asks the model again", "data"),
        ("done", "everything", "gets the stored answer", "ours"),
    )
    for number, (step, left, then, kind) in enumerate(steps):
        y = 50 + number * 56
        it.box(20, y, 190, 38, step, kind=kind)
        if number < len(steps) - 1:
            it.arrow((115, y + 38), (115, y + 56))
        it.crash(226, y + 19)
        it.text(244, y + 24, left)
        it.text(560, y + 24, then.replace("`", ""))
    return it


def sight() -> Diagram:
    """Show what tenants, owners, sessions and stages see."""
    it = Diagram(
        "Tenants contain owners, owners have sessions and facts, stages see parts", 820, 400
    )
    it.frame(20, 20, 500, 250, "tenant acme")
    it.frame(40, 55, 220, 195, "owner ana")
    it.box(60, 90, 180, 40, "facts of ana", kind="quote")
    it.box(60, 140, 180, 40, "session trip", kind="data")
    it.box(60, 190, 180, 40, "session diary", kind="data")
    it.frame(280, 55, 220, 195, "owner bea")
    it.box(300, 90, 180, 40, "facts of bea", kind="quote")
    it.box(300, 140, 180, 40, "session trip", kind="data")
    it.text(300, 214, "The same id, another session.")
    it.frame(540, 20, 260, 250, "tenant initech")
    it.text(556, 70, "Shares nothing with acme:")
    it.text(556, 90, "no owner, no session,")
    it.text(556, 110, "no search result.")
    it.text(
        20,
        304,
        "Within one turn of ana, each stage sees less than the conversation:",
        style="title",
    )
    for number, (stage, sees) in enumerate(
        (
            ("router", "500 tokens, no tools"),
            ("planner", "1,000 tokens, no tools"),
            ("specialist", "its task and snippet"),
            ("answer", "the chat view, and results"),
        )
    ):
        it.box(20 + number * 197, 320, 188, 60, stage, sees, kind="ours")
    return it


def trust() -> Diagram:
    """Show how text of different origins enters a prompt."""
    it = Diagram("How text of different origins enters a prompt", 820, 300)
    rows = (
        ("operator", "your system prompt", "as instructions", "system role", "ours"),
        ("user and model", "their own words", "as they are", "window", "data"),
        (
            "tools, web, imports",
            "anybody's words",
            "each line begins with >",
            "quoted lines",
            "warn",
        ),
        (
            "derived text",
            "summaries, facts, recall",
            "between random delimiters",
            "quoted block",
            "quote",
        ),
    )
    for number, (origin, what, how, where, kind) in enumerate(rows):
        y = 20 + number * 68
        it.box(20, y, 190, 52, origin, what, kind=kind)
        it.arrow((210, y + 26), (450, y + 26), label=how, beside=(226, y + 18))
        it.box(450, y, 150, 52, where, kind=kind)
        it.arrow((600, y + 26), (660, y + 26))
    it.box(660, 20, 140, 256, "model")
    return it


def logo() -> str:
    """Return the logo: a thread that goes on through three messages."""
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" width="64" height="64" viewBox="0 0 64 64" '
        'role="img">\n'
        "<title>keepthread</title>\n"
        '<rect width="64" height="64" rx="14" fill="#0c4a6e"/>\n'
        '<path d="M14 12 C52 12 52 32 32 32 S12 52 50 52" fill="none" stroke="#7dd3fc" '
        'stroke-width="5" stroke-linecap="round"/>\n'
        '<circle cx="14" cy="12" r="5.5" fill="#ffffff"/>\n'
        '<circle cx="32" cy="32" r="5.5" fill="#ffffff"/>\n'
        '<circle cx="50" cy="52" r="5.5" fill="#fcd34d"/>\n</svg>\n'
    )


def badges() -> dict[str, str]:
    """Return the badges of README: what pyproject.toml says of the package."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    found = [re.fullmatch(r".* :: (3\.\d+)", each) for each in project["classifiers"]]
    versions = [each[1] for each in found if each]
    return {
        "badge-license": badge("license", project["license"]),
        "badge-python": badge("Python", f"{versions[0]} to {versions[-1]}"),
        "badge-dependencies": badge("dependencies", ", ".join(project["dependencies"]) or "none"),
    }


def badge(name: str, value: str) -> str:
    """Return a name and a value side by side, in two boxes."""
    left, right = 7 * len(name) + 14, 7 * len(value) + 14
    texts = "".join(
        f'<text x="{x + width / 2:g}" y="14" text-anchor="middle" fill="#ffffff" font-size="11" '
        f'font-family="Verdana, DejaVu Sans, sans-serif">{escape(text)}</text>'
        for x, width, text in ((0, left, name), (left, right, value))
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right}" height="20" role="img">'
        f"<title>{escape(f'{name}: {value}')}</title>"
        f'<rect width="{left}" height="20" fill="#374151"/>'
        f'<rect x="{left}" width="{right}" height="20" fill="#0369a1"/>{texts}</svg>\n'
    )


def diagrams() -> dict[str, str]:
    """Return every picture by the name of its file."""
    drawn = {
        "architecture": architecture(),
        "log": log(),
        "context": context(),
        "turn": turn(),
        "who-sees-what": sight(),
        "trust": trust(),
    }
    pictures = {name: picture.svg() for name, picture in drawn.items()}
    return {**pictures, "logo": logo(), **badges()}


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, picture in diagrams().items():
        (FOLDER / f"{name}.svg").write_text(picture, encoding="utf-8")
        print(FOLDER / f"{name}.svg")
