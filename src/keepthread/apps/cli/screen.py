"""Output for people: tables, transcripts, bars. The only module that loads rich."""

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from types import FrameType
from typing import TYPE_CHECKING, Final

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from keepthread.apps.cli.report_types import ContextReport, Finding, counted, size_of
from keepthread.apps.cli.sanitize import sanitize
from keepthread.context.diff import ChangedPart, Difference, Move
from keepthread.context.ranges import written
from keepthread.context.why import Why, letters_of
from keepthread.protocols import Progress as ReportProgress
from keepthread.types import Choice, Hidden, Message, SessionInfo, Verification

if TYPE_CHECKING:
    from keepthread.memory.search.search import Hit

_READABLE: Final = 100
_NARROW: Final = ("latest", "positions")
_STATES: Final = {"live": "bold", "quarantined": "yellow"}
_ROLES: Final = {"system": "magenta", "user": "cyan", "assistant": "green", "tool": "yellow"}
_SECTIONS: Final = {
    "system": "magenta",
    "pins": "yellow",
    "facts": "bright_cyan",
    "summary": "bright_blue",
    "important": "bright_yellow",
    "notes": "bright_magenta",
    "window": "green",
    "tools": "bright_red",
    "recalled": "bright_white",
    "newest": "cyan",
    "overhead": "blue",
}
_GAP: Final = "   "
_OTHERS: Final = ("red", "white", "bright_green")
_WIDEST_BAR: Final = 76
_WIDTH_OF_A_FILE: Final = 1000  # nothing is wrapped for programs that read lines


class Screen:
    """Draws on the terminal; everything stored comes through `sanitize` first."""

    def __init__(self, out: Console | None = None) -> None:
        """Find out what the terminal can do, or draw where one says."""
        self._out = out or Console(highlight=False, markup=False, emoji=False)
        if out is None and not self._out.is_terminal:
            self._out.width = _WIDTH_OF_A_FILE

    # --- a pager ---

    @contextmanager
    def paged(self) -> Generator[None]:
        """Show through the user's pager what the block draws, if it is longer than the screen."""
        if not (self._out.is_terminal and sys.stdin.isatty()):
            yield
            return
        with self._out.capture() as drawn:
            yield
        text = drawn.get()
        if text.count("\n") < self._out.height or not _page(text):
            sys.stdout.write(text)
            sys.stdout.flush()

    def draw(self, drawing: RenderableType, theme: Theme) -> None:
        """Draw a text with a theme of its own, in lines that are not too long to read."""
        with self._out.use_theme(theme):
            self._print(drawing, width=min(self._out.width, _READABLE))

    # --- sessions ---

    def sessions(self, found: Sequence[SessionInfo], *, current: str | None = None) -> None:
        """List sessions as a table; those of one owner, among them the current one, by numbers."""
        if not found:
            self._line("There are no sessions", "dim")
            return
        first, last = ("", "owner") if current is None else (">", "")
        names = (first, "session", "title", last, ">messages", ">tokens", "latest")
        table = _table(*filter(None, names))
        for number, s in enumerate(found, start=1):
            damaged = s.state == "damaged"
            title = Text("record damaged", "red") if damaged else _text(s.title)
            counts = (Text(f"{s.messages:,}"), Text(f"{s.tokens:,}"))
            named, owner = (_text(s.id, "bold"), title), _text(s.owner)
            if current is None:
                table.add_row(*named, owner, *counts, _when(s.updated_at))
                continue
            here = s.id == current
            mark = Text(f"{'→ ' if here else ''}{number}", "green" if here else "dim")
            table.add_row(mark, *named, *counts, _when(s.updated_at))
        self._print(table)

    # --- one transcript ---

    def transcript(
        self,
        session: SessionInfo,
        messages: Sequence[Message],
        *,
        hidden: Sequence[Hidden] = (),
        more: str = "--after",
    ) -> None:
        """Show messages, each under a line that says whose it is; text cannot forge such a line.

        `more` is the option that shows later messages.
        """
        head = Text.assemble((sanitize(session.id), "bold"), f" · {sanitize(session.owner)}")
        head.append(
            f" · {counted(session.messages, 'message')} · {counted(session.tokens, 'token')}", "dim"
        )
        if session.title:
            head.append(f" · {sanitize(session.title)}")
        self._out.print(head, soft_wrap=True)
        width = len(f"{messages[-1].seq:,}") if messages else 1
        for message in messages:
            self._out.print()
            reasons = [span.reason for span in hidden if span.first <= message.seq <= span.last]
            self._message(message, width, *reasons)
        if more and messages and (left := session.messages - messages[-1].seq) > 0:
            self._line(f"\n{left:,} more: {more} {messages[-1].seq}", "dim")

    def _message(self, message: Message, width: int, hidden: str = "") -> None:
        head = Text.assemble((f"{message.seq:>{width},}  ", "dim"))
        head.append(message.role, f"bold {_ROLES[message.role]}")
        for name in (message.name, message.author):
            head.append(f" {sanitize(name)}" if name else "", "bold")
        if message.state != "live":
            head.append(f"  {message.state}", "bold red" if message.state == "damaged" else "red")
        elif message.origin not in (message.role, "operator"):
            head.append(f"  from {sanitize(message.source or str(message.origin))}", "yellow")
        if message.meta.get("truncated") is True:
            head.append("  cut short", "yellow")
        if message.created_at:
            head.append("  ").append(_when(message.created_at))
        head.append(f"  {counted(message.tokens, 'token')}" if message.tokens else "", "dim")
        head.append(f"  {hidden}" if hidden else "", "yellow")
        self._out.print(head, soft_wrap=True)
        for part in _body(message):
            self._out.print(Padding(part, (0, 0, 0, width + 2), expand=False))

    # --- what was found ---

    def hits(self, hits: "Sequence[Hit]") -> None:
        """Show what was found, the best first, and what speaks for each."""
        if not hits:
            self._line("Nothing was found", "dim")
        owners = {hit.owner for hit in hits}
        for number, hit in enumerate(hits):
            message = hit.message
            head = Text.assemble((sanitize(hit.session), "bold"))
            head.append(f" · {sanitize(hit.owner)} ·" if len(owners) > 1 else "")
            head.append(f" {message.seq:,}  ", "dim")
            head.append(message.role, _ROLES[message.role])
            head.append(f" {sanitize(message.author)}" if message.author else "", "bold")
            head.append("  ").append(_when(message.created_at))
            self._out.print(head if not number else Text("\n").append(head), soft_wrap=True)
            self._out.print(Padding(_text(hit.snippet), (0, 0, 0, 2), expand=False))
            self._line(f"  {sanitize(hit.reason)}", "dim")

    def facts(self, facts: Iterable[tuple[str, str, str, str]]) -> None:
        """List facts on a line each: by its state, the key, what it says, and where from."""
        for state, key, text, details in facts:
            line = Text.assemble((key, "dim")).append("  ")
            line.append(sanitize(text), _STATES.get(state, "dim"))
            self._out.print(line.append(f"  {sanitize(details)}", "dim"), soft_wrap=True)

    # --- why ---

    def why(self, session: str, drawn: ContextReport) -> None:
        """Draw the budget as a bar, then name what is in and what is out."""
        why = drawn.why
        head = Text.assemble((sanitize(session), "bold"), " · ").append(_named(drawn))
        head.append("\n" if drawn.number else " · ").append(_used(drawn))
        self._out.print(head, soft_wrap=True)
        self._out.print()
        self._out.print(self._bar(why))
        self._out.print(self._legend(why))
        for title, choices in (("in", why.shown), ("out", why.left_out)):
            if choices:
                self._out.print()
                self._choices(title, choices)

    def context(self, session: str, drawn: ContextReport) -> None:
        """Draw the budget as a bar, and under it each section with its tokens and its share."""
        why = drawn.why
        head = Text.assemble((sanitize(session), "bold"), " · ").append(_named(drawn))
        self._out.print(head.append(f" · {_used(drawn)}"), soft_wrap=True)
        self._out.print()
        self._out.print(self._bar(why))
        self._out.print()
        table = _table("section", ">tokens", ">share")
        for name, tokens in why.sections.items():
            mark = self._mark(name, why.sections)
            table.add_row(mark, f"{tokens:,}", _share(tokens, why.budget))
        unused = max(0, why.budget - why.tokens)
        sign = Text.assemble(("░" if self._coloured else "·", "dim"), " unused")
        table.add_row(sign, f"{unused:,}", _share(unused, why.budget))
        self._print(table)

    def _bar(self, why: Why) -> Text:
        """Return the budget by section, what is unused at its end."""
        colours, letters = _colours(why.sections), letters_of(why.sections)
        width = min(_WIDEST_BAR, self._out.width - 2)
        cells = Text()
        for section, count in why.cells(width).items():
            cells.append(("█" if self._coloured else letters[section]) * count, colours[section])
        return cells.append(("░" if self._coloured else "·") * (width - len(cells)), "dim")

    def _legend(self, why: Why) -> Text:
        """Return the sections with their tokens; none is parted from its number by a line's end."""
        parts = [
            self._mark(name, why.sections).append(f" {n:,}") for name, n in why.sections.items()
        ]
        unused = f" unused {max(0, why.budget - why.tokens):,}"
        parts.append(Text.assemble(("░" if self._coloured else "·", "dim"), unused))
        lines = [parts[0]]
        for part in parts[1:]:
            if len(lines[-1]) + len(part) + len(_GAP) <= self._out.width:
                lines[-1].append(_GAP).append(part)
            else:
                lines.append(part)
        return Text("\n").join(lines)

    def _mark(self, section: str, sections: Iterable[str]) -> Text:
        """Return a section's name after the sign that the bar uses for it."""
        names = list(sections)
        sign = "■" if self._coloured else letters_of(names)[section]
        return Text.assemble((sign, _colours(names)[section]), f" {sanitize(section)}")

    def _choices(self, title: str, choices: Sequence[Choice]) -> None:
        table = _table(title, ">tokens", "positions", ">messages", "why")
        colours = _colours([choice.section for choice in choices])
        for c in choices:
            where = "" if not c.first else f"{c.first:,}"
            if c.last != c.first:
                where += f"-{c.last:,}"
            if c.session:
                where = f"{sanitize(c.session)} {where}"
            section = Text(sanitize(c.section), colours.get(c.section, "")) if c.section else Text()
            count = f"{c.messages:,}" if c.first else ""
            table.add_row(section, f"{c.tokens:,}", where, count, _text(c.reason))
        self._print(table)

    def difference(
        self, session: str, before: ContextReport, after: ContextReport, changes: Difference
    ) -> None:
        """Draw two contexts, then what changed from one to the other."""
        self._out.print(_text(session, "bold"), soft_wrap=True)
        for drawn in (before, after):
            self._out.print()
            head = Text("" if drawn.number else "next · ", "dim").append(_named(drawn))
            self._out.print(head.append(f" · {_used(drawn)}"), soft_wrap=True)
            self._out.print(self._bar(drawn.why))
        self._out.print()
        table = _table("section", ">before", ">after", ">change")
        names = [change.section for change in changes.sections]
        for change in changes.sections:
            gained = f"{change.gained:+,}" if change.gained else ""
            sizes = (f"{change.before:,}", f"{change.after:,}", gained)
            table.add_row(self._mark(change.section, names), *sizes)
        self._print(table)
        self._parts("added", changes.came, names)
        self._parts("removed", changes.went, names)
        self._parts("moved", changes.moved, names)
        if not (changes.came or changes.went or changes.moved):
            self._line("\nBoth show the same messages", "dim")

    def _parts(self, title: str, parts: Sequence[ChangedPart | Move], names: Sequence[str]) -> None:
        if not parts:
            return
        self._out.print()
        table = _table(title, ">messages", "at", "why")
        for part in parts:
            section, reason = (
                (part.section, part.reason)
                if isinstance(part, ChangedPart)
                else (part.after, f"{part.before} before")
            )
            name = Text(sanitize(section), _colours(names).get(section, ""))
            table.add_row(name, f"{part.messages:,}", written(part.ranges), _text(reason))
        self._print(table)

    # --- anything in rows ---

    def rows(self, rows: Iterable[Sequence[str]], *columns: str) -> None:
        """List rows of text, their first cells in bold; a column whose name has `>` is a number."""
        table = _table(*columns, header=any(name.strip(">") for name in columns))
        for first, *others in rows:
            table.add_row(_text(first, "bold"), *map(_text, others))
        self._print(table)

    # --- checks ---

    def verification(self, found: Verification) -> None:
        """Say what was checked, and name every damage."""
        counts = {"session": found.sessions, "message": found.messages, "record": found.records}
        seen = ", ".join(counted(count, one) for one, count in counts.items())
        if found.sound:
            self._out.print(Text.assemble(("sound", "bold green"), f"  {seen}"))
            return
        count = len(found.damages)
        self._out.print(Text.assemble((f"{count:,} damaged", "bold red"), f"  of {seen}"))
        table = _table("session", ">position", "what")
        for damage in found.damages:
            where = f"{damage.seq:,}" if damage.seq else ""
            table.add_row(_text(damage.session, "bold"), where, _text(damage.what))
        self._print(table)
        self._line("Restore these from a backup or an export; everything else is intact", "dim")

    def findings(self, findings: Sequence[Finding]) -> None:
        """List what the doctor found."""
        table = _table("", "", "", header=False)
        for finding in findings:
            mark = Text("ok", "green") if finding.ok else Text("warning", "bold yellow")
            said = _text(finding.found)
            if finding.advice:
                said.append(f"\n{sanitize(finding.advice)}", "yellow")
            table.add_row(mark, _text(finding.what, "bold"), said)
        self._print(table)

    # --- settings ---

    def settings(self, rows: Sequence[tuple[str, str, str]]) -> None:
        """List settings: each key, its value, and where that comes from."""
        table = _table("setting", "value", "from")
        for key, value, source in rows:
            own = source != "default"
            table.add_row(_text(key, "bold" if own else ""), _text(value), _text(source, "dim"))
        self._print(table)

    # --- progress ---

    @contextmanager
    def progress(self, label: str, unit: str, *, then: str = "") -> Generator[ReportProgress]:
        """Draw a progress bar on stderr during a long operation, and remove it afterwards.

        Until the total is known, the bar only shows activity. When the numbers begin again, the bar
        does so too, under the label `then` if there is one.
        """
        bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[shown]}"),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr, highlight=False),
            redirect_stdout=False,  # it may be carrying data
            transient=True,
        )
        with bar:
            task = bar.add_task(label, total=None, shown="")
            before, whole = 0, False

            def report(done: int, total: int) -> None:
                nonlocal before, whole
                if done < before or (then and whole):
                    bar.reset(task, description=then or label)
                before, whole = done, done >= total
                sizes = (size_of(done), size_of(total)) if unit == "bytes" else ()
                done_of, total_of = sizes or (f"{done:,}", f"{total:,} {unit}")
                shown = f"{done / max(1, total):>4.0%} {done_of} of {total_of}"
                bar.update(task, completed=done, total=max(1, total), shown=shown)

            yield report

    # --- inside ---

    @property
    def _coloured(self) -> bool:
        return self._out.is_terminal and not self._out.no_color

    def _line(self, text: str, style: str) -> None:
        self._out.print(Text(text, style))

    def _print(self, drawing: RenderableType, width: int | None = None) -> None:
        """Print what fills its lines, such as a table; in a pipe or a file none ends in blanks."""
        if self._out.is_terminal:
            self._out.print(drawing, width=width)
            return
        with self._out.capture() as drawn:
            self._out.print(drawing, width=width)
        lines = drawn.get().splitlines()
        self._out.out("\n".join(line.rstrip() for line in lines), highlight=False)


def _page(text: str) -> bool:
    """Let the user's pager show a text; return whether there is one."""
    command = os.environ.get("PAGER", "less")
    # A pager is left by its own keys: Ctrl-C is not for us while it runs.
    before = signal.signal(signal.SIGINT, _pass)
    try:
        words = shlex.split(command, posix=os.name == "posix")
        env = {"LESS": "FRX", **os.environ}  # as git has it: colors, and no more than is needed
        subprocess.run(words, input=text.encode(), env=env, check=False)  # noqa: S603 - their own
    except (OSError, ValueError, IndexError):
        return False
    finally:
        signal.signal(signal.SIGINT, before)
    return True


def _pass(_signal: int, _frame: FrameType | None) -> None:
    """Do nothing."""


def _body(message: Message) -> list[Text]:
    """Return what a message says, calls and attachments included."""
    parts = [Text(sanitize(message.content, lines=True))] if message.content else []
    for call in message.tool_calls:
        called = f"→ {sanitize(call.name)} {sanitize(call.arguments)}"
        parts.append(Text(called, "yellow"))
    for attachment in message.attachments:
        name = f"{attachment.media_type} {attachment.name} {attachment.uri}"
        parts.append(Text(f"+ {sanitize(name)}", "blue"))
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
    """Return a color for each section, also for those of other strategies."""
    others = [name for name in sections if name not in _SECTIONS]
    return {**_SECTIONS, **{n: _OTHERS[i % len(_OTHERS)] for i, n in enumerate(others)}}


def _named(drawn: ContextReport) -> Text:
    """Return which context it is: the next by a view, or one that was kept."""
    if drawn.number is None:
        return Text(sanitize(drawn.view), "dim")
    place = f" · turn {drawn.turn:,}" if drawn.turn else ""
    named = Text(f"kept {drawn.number:,} · {sanitize(drawn.view)}{place} · ", "dim")
    return named.append(_when(drawn.at))


def _share(tokens: int, budget: int) -> str:
    return f"{tokens / budget:.1%}" if budget else ""


def _used(drawn: ContextReport) -> str:
    share = f" ({drawn.tokens / drawn.budget:.0%})" if drawn.budget else ""
    question = f", and {drawn.question:,} of the question" if drawn.question else ""
    return f"{drawn.usage()}{share}{question}"


def _text(text: str, style: str = "") -> Text:
    return Text(sanitize(text), style)


def _when(seconds: float) -> Text:
    try:
        moment = datetime.fromtimestamp(seconds, tz=UTC).astimezone()
    except (OverflowError, OSError, ValueError):
        return Text("?", "dim")
    return Text(f"{moment:%Y-%m-%d %H:%M}", "dim")
