"""The command that brings conversations in: exports of ours and of others, and transcripts."""

import shlex
import sys
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from io import BufferedReader, BytesIO
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final, NamedTuple, cast

import typer

from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.report_types import counted
from keepthread.apps.cli.stores import place_of
from keepthread.apps.cli.wiring import current_counter
from keepthread.errors import InvalidInput, WrongFormat
from keepthread.interchange.agents import import_agents, session_files
from keepthread.interchange.chats import check_chats, import_chats
from keepthread.interchange.conversations import Arrived
from keepthread.interchange.files import (
    AGENTS,
    CHATS,
    FORMATS,
    HAROMBE,
    JSONL,
    MARKDOWN,
    format_of,
)
from keepthread.interchange.harombe import check_harombe, import_harombe
from keepthread.interchange.import_ import Imported, import_lines
from keepthread.interchange.jsonl import check_header, decode_line, lines_of
from keepthread.interchange.markdown import read_markdown
from keepthread.interchange.transcripts import LAST, MAX_TRANSCRIPT, import_transcript, seed
from keepthread.models.tokens import Estimator
from keepthread.protocols import Progress, Store, TokenCounter

_SHOWN: Final = 20


class ImportOptions(NamedTuple):
    """How to import a file."""

    form: str
    size: int
    prefix: str
    owner: str | None
    """Whose conversations they are, if the command names it."""
    branches: bool
    default_owner: str = "default"
    """Whose they are otherwise, if the file does not say it either."""


class Arrival(NamedTuple):
    """A file that was looked into: what reads it into a store, and what its progress counts."""

    read: Callable[[Store, TokenCounter, Progress | None], Awaitable[Imported | Arrived]]
    unit: str = "bytes"
    owner: str = ""
    """Whose the conversations will be; empty if the file names several owners itself."""


async def bring(call: Call, file: BinaryIO, wanted: ImportOptions) -> int:
    """Read a file into the store, report the result, and return the exit status."""
    return await _take_in(call, look_into(file, wanted), wanted)


async def _take_in(call: Call, arrival: Arrival, wanted: ImportOptions) -> int:
    counter = Estimator() if wanted.form == JSONL else current_counter(call)
    async with call.memory(create=True, counter=counter) as memory:
        with call.progress("Importing", arrival.unit) as progress:
            done = await arrival.read(memory.store, counter, progress)
    warnings, lines = summary_lines(done, place_of(call.url), more="--json names them")
    lines += _next_steps(arrival.owner, call.owner, new=done.sessions > done.known)
    if call.json:
        call.write(_plain(done) | ({"owner": arrival.owner} if arrival.owner else {}))
        warnings = warnings if isinstance(done, Imported) else []  # they are in what was written
    for warning in warnings:
        call.warn(warning)
    for line in lines:
        call.say(line)
    return 1 if isinstance(done, Arrived) and done.refused else 0


def _next_steps(owner: str, chats: str, *, new: bool) -> list[str]:
    """Return whose the conversations are, and what can be done with them; `chats` is the chat's."""
    if not new:
        return []
    named = f" --owner {shlex.quote(owner)}" if owner and owner != chats else ""
    other = f"KEEPTHREAD_MEMORY_OWNER={shlex.quote(owner)} " if named else ""
    lists = f"`keepthread sessions{named}` lists them"
    first = [f"Their owner is {owner}"] if owner else []
    return [*first, f"Next: {lists}, `{other}keepthread chat -r ID` continues one"]


def look_into(file: BinaryIO, wanted: ImportOptions) -> Arrival:
    """Return the reader of a file; an unreadable file is an error, and no store is created."""
    if wanted.form == JSONL:
        return _lines(file, wanted)
    if wanted.form == MARKDOWN:
        return _transcript(file, wanted)
    if wanted.form == HAROMBE:
        return _database(file, wanted)
    if wanted.form in AGENTS:
        return _agents([file], wanted)
    return _chats(file, wanted)


def summary_lines(
    done: Imported | Arrived, place: str, *, more: str = ""
) -> tuple[list[str], list[str]]:
    """Return what to look at, and what came of an import, each on a line."""
    return (
        _import_lines(done, place)
        if isinstance(done, Imported)
        else _transcript_lines(done, place, more)
    )


# --- our own exports ---


def _lines(file: BinaryIO, wanted: ImportOptions) -> Arrival:
    if wanted.owner is not None or wanted.branches:
        raise InvalidInput(
            "a keepthread export contains the owners and all branches: leave out --owner and "
            "--branches"
        )
    lines = lines_of(file)
    first = next(lines, b"{}")
    try:
        header = decode_line(first)
    except InvalidInput as error:
        raise WrongFormat(
            "the file is neither an export of keepthread, ChatGPT or Claude nor a transcript"
            f" (line 1: {error})"
        ) from None
    check_header(header)

    async def read(store: Store, _: TokenCounter, progress: Progress | None) -> Imported:
        return await import_lines(
            store, chain([first], lines), prefix=wanted.prefix, size=wanted.size, progress=progress
        )

    return Arrival(read)


_SAME: Final = (
    "session existed already and is the same",
    "sessions existed already and are the same",
)


def _nothing_new(known: int, place: str) -> str:
    """Return what to say of an import that brought nothing."""
    were = counted(known, "session already existed", "sessions already existed")
    return f"Nothing new: {were} in {place} and {'is' if known == 1 else 'are'} identical"


def _import_lines(done: Imported, place: str) -> tuple[list[str], list[str]]:
    counts = {"session": done.sessions, "message": done.messages, "record": done.records}
    what = ", ".join(counted(count, one) for one, count in counts.items())
    lines = [f"Imported {what} into {place}"]
    if done.known and done.known >= done.sessions:
        lines = [_nothing_new(done.known, place)]
    elif done.known:
        lines.append(counted(done.known, *_SAME))
    warnings: list[str] = []
    if done.kept:
        warnings.append(
            f"{counted(done.kept, 'record')} already existed with a different value, which was kept"
        )
    if done.damaged:
        damaged = ("session or message was", "sessions or messages were")
        warnings.append(f"{counted(done.damaged, *damaged)} damaged at the source")
    return warnings, lines


# --- conversations of others, and transcripts ---


def _transcript(file: BinaryIO, wanted: ImportOptions) -> Arrival:
    if wanted.branches:
        raise InvalidInput("a transcript has no branches: leave out --branches")
    held = BytesIO(file.read(MAX_TRANSCRIPT + 1))
    owner = wanted.owner or read_markdown(held.getvalue()).owner or wanted.default_owner

    async def read(store: Store, counter: TokenCounter, progress: Progress | None) -> Arrived:
        return await import_transcript(
            store,
            held,
            counter=counter,
            owner=owner,
            prefix=wanted.prefix,
            progress=progress,
        )

    return Arrival(read, "messages", owner)


def _database(file: BinaryIO, wanted: ImportOptions) -> Arrival:
    if wanted.branches:
        raise InvalidInput("a memory.db has no branches: leave out --branches")
    path = Path(file.name) if isinstance(file.name, str) else None  # pyright: ignore[reportUnnecessaryIsInstance] - a pipe has a number
    if path is None or not path.is_file():
        raise InvalidInput("a database cannot be read from stdin: name its file")
    check_harombe(path)
    return _arrival(import_harombe, path, wanted, "messages")


def _agents(files: Iterable[BinaryIO], wanted: ImportOptions) -> Arrival:
    if wanted.branches:
        raise InvalidInput("a session of a coding agent has no branches: leave out --branches")
    return _arrival(import_agents, files, wanted, size=wanted.size)


def _each_opened(paths: Sequence[Path]) -> Generator[BinaryIO]:
    for path in paths:
        with path.open("rb") as file:
            yield file


def _chats(file: BinaryIO, wanted: ImportOptions) -> Arrival:
    if file.seekable():
        check_chats(file)
    program = None if wanted.form == CHATS else wanted.form
    return _arrival(
        import_chats, file, wanted, branches=wanted.branches, program=program, size=wanted.size
    )


def _arrival(
    importing: Callable[..., Awaitable[Arrived]],
    source: object,
    wanted: ImportOptions,
    unit: str = "bytes",
    **more: object,
) -> Arrival:
    """Return the import of another program's conversations, which belong to one owner."""
    owner = wanted.owner or wanted.default_owner

    async def read(store: Store, counter: TokenCounter, progress: Progress | None) -> Arrived:
        return await importing(
            store,
            source,
            counter=counter,
            owner=owner,
            prefix=wanted.prefix,
            progress=progress,
            **more,
        )

    return Arrival(read, unit, owner)


def _transcript_lines(done: Arrived, place: str, more: str) -> tuple[list[str], list[str]]:
    warnings = [f"{where}: {what}" for where, what in done.problems[:_SHOWN]]
    if (left := len(done.problems) - _SHOWN) > 0:
        warnings.append("; ".join(filter(None, [f"{left:,} more", more])))
    forks = f" ({done.forks:,} of them forks)" if done.forks else ""
    talk, message = ("conversation was", "conversations were"), ("message was", "messages were")
    counts = (
        (done.known, _SAME, ""),
        (done.grown, ("session", "sessions"), "already existed and got new messages"),
        (done.empty, talk, "empty"),
        (done.hidden, message, "left out: hidden in the original program"),
        (done.shortened, message, "truncated: too long"),
        (done.left_out, message, "left out: on other branches, or not readable"),
        (done.repeated, message, "duplicated in the file, imported once"),
        (
            done.rejoined,
            message,
            "attached to the previous one: the file lacks the messages in between",
        ),
        (done.refused, talk, "skipped; all others were imported"),
    )
    sessions, messages = counted(done.sessions, "session"), counted(done.messages, "message")
    lines = [f"Imported {sessions}{forks}, {messages} into {place}"]
    if done.known and done.known == done.sessions:
        lines = [_nothing_new(done.known, place)]
        counts = counts[1:]
    return warnings, lines + [
        f"{counted(count, *words)} {what}".rstrip() for count, words, what in counts if count
    ]


def _plain(done: Imported | Arrived) -> dict[str, Any]:
    if isinstance(done, Imported):
        return asdict(done)
    return asdict(done) | {"problems": [each._asdict() for each in done.problems]}


async def seed_session(
    call: Call, folder: Path, session: str, *, owner: str | None, last: int | None
) -> int:
    """Begin a session with a transcript of a folder, and return whether it was begun."""
    counter = current_counter(call)
    async with call.memory(create=True, counter=counter) as memory:
        count = await seed(
            memory.store,
            session,
            folder,
            last=LAST if last is None else last,
            owner=call.owner if owner is None else owner,
            counter=counter,
        )
    if call.json:
        call.write({"session": session, "messages": count})
    elif count:
        call.say(f"Seeded session {session} with {counted(count, 'message')}")
    else:
        call.say(f"Session {session} has messages already, or {folder} has no transcript of it")
    return 0


_STDIN: Final = "-"


async def import_file(
    call: Call,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to import; `-` is stdin.")],
    prefix: Annotated[
        str,
        typer.Option("--as", metavar="PREFIX", help="Prefix for every id, in case one is taken."),
    ] = "",
    owner: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The owner (default: memory.owner, as in a chat)."),
    ] = None,
    branches: Annotated[
        bool, typer.Option("--branches", help="Keep edited and repeated questions as forks.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help=f"The format (default: detected): {', '.join(FORMATS)}.",
        ),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            metavar="SESSION", help="For a folder: seed this session from its newest transcript."
        ),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="For a folder: the last N messages (default: 20)."),
    ] = None,
) -> int:
    """Read conversations into the store.

    An export of ours, of ChatGPT or of Claude, an archive of theirs, a transcript, the memory.db of
    harombe, or a session file of Claude Code or Codex, or a folder of them: the format is known by
    the content. The store is created if it does not exist. An interrupted import resumes when it is
    run again.
    """
    if form not in (None, *FORMATS):
        raise InvalidInput(f"--format must be one of {', '.join(FORMATS)}, not {form!r}")
    if file.is_dir() and session is not None:
        return await seed_session(call, file, session, owner=owner, last=last)
    if file.is_dir() and (found := session_files(file)):
        size = sum(each.stat().st_size for each in found)
        options = ImportOptions(form or AGENTS[0], size, prefix, owner, branches, call.owner)
        return await _take_in(call, _agents(_each_opened(found), options), options)
    if file.is_dir():
        raise InvalidInput(
            f"{file} is a folder: name a file in it; --session SESSION makes one session of a"
            " folder of transcripts"
        )
    if session is not None:
        raise InvalidInput(
            "--session goes with a folder of transcripts; to import one file, leave it out"
        )
    with _opened(file) as (opened, size):
        found = form or format_of(opened.peek(1))
        options = ImportOptions(found, size, prefix, owner, branches, call.owner)
        return await bring(call, opened, options)


@contextmanager
def _opened(file: Path) -> Generator[tuple[BufferedReader, int]]:
    """Give a file that can be looked into, and its size if it is known."""
    if str(file) != _STDIN:
        with file.open("rb") as opened:
            yield opened, file.stat().st_size
        return
    yield cast(BufferedReader, sys.stdin.buffer), 0
