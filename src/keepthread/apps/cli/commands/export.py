"""Commands that write whole stores: export, backup."""

import sys
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from keepthread.apps.cli.commands.maintenance import behind
from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.report_types import counted, size_of
from keepthread.apps.cli.sanitize import sanitize
from keepthread.apps.cli.stores import place_of
from keepthread.errors import InvalidInput, SessionGone
from keepthread.interchange.export import Exported, name_of
from keepthread.interchange.export import export as export_lines
from keepthread.interchange.files import JSONL, MARKDOWN
from keepthread.interchange.transcripts import id_in_a_name, transcript_name, write_transcript
from keepthread.protocols import Progress, Store
from keepthread.stores.front import every_session
from keepthread.stores.private_files import private_file
from keepthread.types import SessionInfo


async def export(
    call: Call,
    sessions: Annotated[
        list[str] | None,
        typer.Argument(metavar="SESSION", help="Ids of sessions; all if none is given."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write to a file, which appears when complete; - is stdout.",
        ),
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Only this owner's sessions (for named sessions the default is memory.owner).",
        ),
    ] = None,
    form: Annotated[
        str | None,
        typer.Option(
            "--format", metavar="NAME", help="jsonl (lossless) or markdown (default: jsonl)."
        ),
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Write one Markdown file per session into this folder."
        ),
    ] = None,
) -> int:
    """Export sessions as lossless JSON Lines or as readable Markdown.

    The export is written to stdout unless a file or folder is given. Damaged messages are marked
    as such in it and reported; the exit status is then 1.
    """
    if form not in (None, JSONL, MARKDOWN):
        raise InvalidInput(f"--format must be {JSONL} or {MARKDOWN}, not {form!r}")
    if str(output) == "-":  # as other programs name stdout
        output = None
    if to and (output or form == JSONL):
        raise InvalidInput("--to writes Markdown files into a folder: leave out -o and --format")
    async with call.memory() as memory:
        named = [(await call.session(memory, name, owner)).info for name in sessions or ()]
        owner = named[0].owner if named else owner
        if to or form == MARKDOWN:
            chosen = list({each.key: each for each in named}.values())
            chosen = chosen or [each async for each in _talks(memory.store, owner)]
            return await _transcripts(call, memory.store, chosen, to, output)
        with writing(output) as write, _progress(call, output) as progress:
            done = await export_lines(
                memory.store, write, sessions=sessions or (), owner=owner, progress=progress
            )
    _report(call, done, output)
    return 1 if done.damaged else 0


async def _transcripts(
    call: Call, store: Store, chosen: Sequence[SessionInfo], to: Path | None, output: Path | None
) -> int:
    """Write each session as Markdown into a folder, or one to a file or stdout."""
    if to is None and len(chosen) != 1:
        raise InvalidInput(
            f"{counted(len(chosen), 'session')} match: name one of them, or give --to FOLDER"
        )
    done = Exported(damaged=[])
    taken: set[str] = set()
    total = sum(session.messages for session in chosen)
    with _progress(call, to or output) as progress:
        for session in chosen:
            if session.state == "damaged":
                id = (await name_of(store, session)).id
                done.damaged.append(f"the record of session {id!r}, so it is left out")
                continue
            report = behind(done.messages, total, progress)
            try:
                with writing(_file(to, session, taken) if to else output) as write:
                    one = await write_transcript(store, session, write, progress=report)
            except SessionGone:
                if to is None:  # it is the one that was asked for
                    raise
                done.deleted += 1
                continue
            done.sessions += 1
            done.messages += one.messages
            done.damaged += one.damaged
    _report(call, done, to or output)
    return 1 if done.damaged else 0


def _progress(call: Call, where: Path | None) -> AbstractContextManager[Progress | None]:
    """Return a bar, unless what is written is on the screen itself."""
    if where is None and sys.stdout.isatty():
        return nullcontext(None)
    return call.progress("Exporting", "messages")


async def _talks(store: Store, owner: str | None) -> AsyncIterator[SessionInfo]:
    """Yield all sessions that people talked in, of an owner if one is given."""
    async for session in every_session(store):
        if session.ready and session.kind != "delegate" and owner in (None, session.owner):
            yield session


def _file(folder: Path, session: SessionInfo, taken: set[str]) -> Path:
    """Return a new file for a session; one whose name is taken is in a folder of its owner."""
    name = transcript_name(session)
    if name in taken:  # two owners have a session of this id
        folder /= id_in_a_name(session.owner)
    taken.add(name)
    folder.mkdir(parents=True, exist_ok=True)
    return folder / name


def _report(call: Call, done: Exported, where: Path | None) -> None:
    for what in done.damaged:
        call.warn(f"damaged: {what}")
    if done.deleted:
        call.warn(
            f"{counted(done.deleted, 'session was', 'sessions were')} deleted while the export ran,"
            " and left out"
        )
    if call.json and where:
        call.write(asdict(done))
    records = f", {counted(done.records, 'record')}" if done.records else ""
    call.say(
        f"Exported {counted(done.sessions, 'session')},"
        f" {counted(done.messages, 'message')}{records}" + (f" to {where}" if where else "")
    )


@contextmanager
def writing(output: Path | None) -> Generator[Callable[[bytes], object]]:
    """Give what writes a line: to a file that appears once it is whole, or to stdout."""
    if output is None:
        yield _show if sys.stdout.isatty() else sys.stdout.buffer.write
        sys.stdout.flush()
        return
    with private_file(output) as write:  # conversations are their owner's alone
        yield write


def _show(line: bytes) -> None:
    typer.echo(sanitize(line.decode(), lines=True), nl=False)


async def backup(
    call: Call,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The copy; it must not exist yet.")],
) -> None:
    """Copy the whole store, every tenant in it, while it stays in use."""
    async with call.file() as store:
        with call.progress("Copying", "pages") as progress:
            await store.backup(file, progress=progress)
    size = file.stat().st_size
    if call.json:
        call.write({"file": str(file), "bytes": size})
    call.say(f"Copied {place_of(call.url)} to {file}, {size_of(size)}")
