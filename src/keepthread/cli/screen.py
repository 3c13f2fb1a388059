"""What people see: tables, transcripts, bars. The only module that loads rich."""

import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Final

from rich.console import Console
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from keepthread.cli.doctor import Finding
from keepthread.cli.harmless import harmless
from keepthread.context.why import Why
from keepthread.protocols import Progress as Tell
from keepthread.types import Choice, Message, SessionInfo, Verification

_NARROW: Final = ("latest", "positions")
_ROLES: Final = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}
_SECTIONS: Final = {
    "system": "magenta",
    "pins": "yellow",
    "window": "green",
    "newest": "cyan",
    "frame": "blue",
}
_TIED: Final = "\u00a0"
_OTHERS: Final = ("red", "bright_magenta", "bright_blue", "bright_green")
_WIDEST_BAR: Final = 76
_WIDTH_OF_A_FILE: Final = 1000  # nothing is wrapped for programs that read lines


class Screen:
    """Draws on the terminal; everything stored comes through `harmless` first."""

    def __init__(self) -> None:
        """Find out what the terminal can do."""
        self._out = Console(highlight=False, markup=False, emoji=False)
        if not self._out.is_terminal:
            self._out.width = _WIDTH_OF_A_FILE

    # --- sessions ---

    def sessions(self, found: Sequence[SessionInfo]) -> None:
        """List sessions as a table."""
        if not found:
            self._line("There are no sessions", "dim")
            return
        table = _table("session", "title", "owner", ">messages", ">tokens", "latest")
        for s in found:
            damaged = s.state == "damaged"
            title = Text("record damaged", "red") if damaged else _text(s.title)
            counts = (Text(f"{s.messages:,}"), Text(f"{s.tokens:,}"))
            table.add_row(_text(s.id, "bold"), title, _text(s.owner), *counts, _when(s.updated_at))
        self._out.print(table)

    # --- one transcript ---

    def transcript(self, session: SessionInfo, messages: Sequence[Message]) -> None:
        """Show messages, each under a line that says whose it is; text cannot forge such a line."""
        head = Text.assemble((harmless(session.id), "bold"), f" · {harmless(session.owner)}")
        head.append(f" · {session.messages:,} messages · {session.tokens:,} tokens", "dim")
        if session.title:
            head.append(f" · {harmless(session.title)}")
        self._out.print(head, soft_wrap=True)
        width = len(f"{messages[-1].seq:,}") if messages else 1
        for message in messages:
            self._out.print()
            self._message(message, width)
        if messages and (left := session.messages - messages[-1].seq) > 0:
            self._line(f"\n{left:,} more: --after {messages[-1].seq}", "dim")

    def _message(self, message: Message, width: int) -> None:
        head = Text.assemble((f"{message.seq:>{width},}  ", "dim"))
        head.append(message.role, f"bold {_ROLES[message.role]}")
        for name in (message.name, message.author):
            head.append(f" {harmless(name)}" if name else "", "bold")
        if message.state != "live":
            head.append(f"  {message.state}", "bold red" if message.state == "damaged" else "red")
        elif message.origin not in (message.role, "operator"):
            head.append(f"  from {harmless(message.source or str(message.origin))}", "yellow")
        if message.created_at:
            head.append("  ").append(_when(message.created_at))
        head.append(f"  {message.tokens:,} tokens" if message.tokens else "", "dim")
        self._out.print(head, soft_wrap=True)
        for part in _body(message):
            self._out.print(Padding(part, (0, 0, 0, width + 2), expand=False))

    # --- why ---

    def why(self, session: str, view: str, why: Why) -> None:
        """Draw the budget as a bar, then name what is in and what is out."""
        share = f" ({why.tokens / why.budget:.0%})" if why.budget else ""
        head = Text.assemble((harmless(session), "bold"), (f" · {harmless(view)} · ", "dim"))
        head.append(f"{why.tokens:,} of {why.budget:,} tokens{share}")
        self._out.print(head, soft_wrap=True)
        self._out.print()
        self._budget(why)
        for title, choices in (("in", why.shown), ("out", why.left_out)):
            if choices:
                self._out.print()
                self._choices(title, choices)

    def _budget(self, why: Why) -> None:
        colours = _colours(why.sections)
        legend = Text()
        cells = Text()
        width = min(_WIDEST_BAR, self._out.width - 2)
        used = 0
        for section, tokens in why.sections.items():
            used += tokens
            end = round(width * min(used, why.budget) / why.budget) if why.budget else 0
            end = min(width, max(end, len(cells) + bool(tokens)))  # the smallest is seen as well
            mark = "█" if self._coloured else section[:1].upper()
            cells.append(mark * (end - len(cells)), colours[section])
            legend.append(f"{'■' if self._coloured else mark}{_TIED}", colours[section])
            legend.append(f"{harmless(section)}{_TIED}{tokens:,}   ")
        cells.append(("░" if self._coloured else "·") * (width - len(cells)), "dim")
        legend.append(f"{'░' if self._coloured else '·'}{_TIED}", "dim")
        legend.append(f"spare{_TIED}{max(0, why.budget - why.tokens):,}")
        self._out.print(cells)
        self._out.print(legend)

    def _choices(self, title: str, choices: Sequence[Choice]) -> None:
        table = _table(title, ">tokens", "positions", ">messages", "why")
        colours = _colours([choice.section for choice in choices])
        for c in choices:
            where = "" if not c.first else f"{c.first:,}"
            if c.last != c.first:
                where += f"-{c.last:,}"
            section = Text(harmless(c.section), colours.get(c.section, "")) if c.section else Text()
            count = f"{c.messages:,}" if c.first else ""
            table.add_row(section, f"{c.tokens:,}", where, count, _text(c.reason))
        self._out.print(table)

    # --- checks ---

    def verification(self, found: Verification) -> None:
        """Say what was checked, and name every damage."""
        seen = (
            f"{found.sessions:,} sessions, {found.messages:,} messages, {found.records:,} records"
        )
        if found.sound:
            self._out.print(Text.assemble(("sound", "bold green"), f"  {seen}"))
            return
        count = len(found.damages)
        self._out.print(Text.assemble((f"{count:,} damaged", "bold red"), f"  of {seen}"))
        table = _table("session", ">position", "what")
        for damage in found.damages:
            where = f"{damage.seq:,}" if damage.seq else ""
            table.add_row(_text(damage.session, "bold"), where, _text(damage.what))
        self._out.print(table)
        self._line("Restore these from a backup or an export; all else is sound", "dim")

    def findings(self, findings: Sequence[Finding]) -> None:
        """List what the doctor found."""
        table = _table("", "", "", header=False)
        for finding in findings:
            mark = Text("ok", "green") if finding.ok else Text("warning", "bold yellow")
            said = _text(finding.found)
            if finding.advice:
                said.append(f"\n{harmless(finding.advice)}", "yellow")
            table.add_row(mark, _text(finding.what, "bold"), said)
        self._out.print(table)

    # --- progress ---

    @contextmanager
    def progress(self, label: str, unit: str) -> Generator[Tell]:
        """Draw a bar on stderr while something long goes on; it is gone afterwards."""
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.completed:,.0f} of {task.total:,.0f} {task.fields[unit]}"),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr, highlight=False),
            transient=True,
        )
        with bar:
            task = bar.add_task(label, total=1, unit=unit)
            yield lambda done, total: bar.update(task, completed=done, total=max(1, total))

    # --- inside ---

    @property
    def _coloured(self) -> bool:
        return self._out.is_terminal and not self._out.no_color

    def _line(self, text: str, style: str) -> None:
        self._out.print(Text(text, style))


def _body(message: Message) -> list[Text]:
    """Return what a message says, calls and attachments included."""
    parts = [Text(harmless(message.content, lines=True))] if message.content else []
    for call in message.tool_calls:
        called = f"→ {harmless(call.name)} {harmless(call.arguments)}"
        parts.append(Text(called, "yellow"))
    for attachment in message.attachments:
        name = f"{attachment.media_type} {attachment.name} {attachment.uri}"
        parts.append(Text(f"+ {harmless(name)}", "blue"))
    return parts


def _table(*columns: str, header: bool = True) -> Table:
    table = Table(box=None, pad_edge=False, show_header=header, header_style="dim", padding=(0, 1))
    for name in columns:
        right = name.startswith(">")
        table.add_column(
            name.removeprefix(">"),
            justify="right" if right else "left",
            no_wrap=right or name in _NARROW,
            overflow="fold",
        )
    return table


def _colours(sections: Sequence[str] | dict[str, int]) -> dict[str, str]:
    """Return a colour for each section, also for those of other strategies."""
    others = [name for name in sections if name not in _SECTIONS]
    return {**_SECTIONS, **{n: _OTHERS[i % len(_OTHERS)] for i, n in enumerate(others)}}


def _text(text: str, style: str = "") -> Text:
    return Text(harmless(text), style)


def _when(seconds: float) -> Text:
    try:
        moment = datetime.fromtimestamp(seconds, tz=UTC).astimezone()
    except (OverflowError, OSError, ValueError):
        return Text("?", "dim")
    return Text(f"{moment:%Y-%m-%d %H:%M}", "dim")
