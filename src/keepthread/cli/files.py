"""Commands that move whole stores: export, import, backup."""

import os
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Annotated

import typer

from keepthread.cli.call import Call
from keepthread.cli.harmless import harmless
from keepthread.cli.stores import place_of
from keepthread.interchange.exporting import export as export_lines
from keepthread.interchange.importing import import_lines
from keepthread.interchange.jsonl import check_header, decode_line, lines_of


async def export(
    call: Call,
    sessions: Annotated[
        list[str] | None, typer.Argument(metavar="[SESSION]...", help="Ids; without any, all.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Write here, not to stdout."),
    ] = None,
) -> int:
    """Write sessions as JSON lines, lossless."""
    async with call.memory() as memory:
        for name in sessions or ():
            await call.session(memory, name)
        with _writing(output) as write, call.progress("Exporting", "messages") as progress:
            done = await export_lines(
                memory.store, write, sessions=sessions or (), progress=progress
            )
    for what in done.damaged:
        call.warn(f"damaged: {what}")
    if call.json and output:
        call.write(asdict(done))
    call.say(
        f"Exported {done.sessions:,} sessions, {done.messages:,} messages, {done.records:,} records"
        + (f" to {output}" if output else "")
    )
    return 1 if done.damaged else 0


@contextmanager
def _writing(output: Path | None) -> Generator[Callable[[bytes], object]]:
    """Give what writes a line: to a file that appears once it is whole, or to stdout."""
    if output is None:
        yield _show if sys.stdout.isatty() else sys.stdout.buffer.write
        sys.stdout.flush()
        return
    part = output.with_name(f"{output.name}.part")
    try:
        with part.open("wb") as file:
            part.chmod(0o600)  # conversations are their owner's alone
            yield file.write
            file.flush()
            os.fsync(file.fileno())
        part.replace(output)
    finally:
        with suppress(FileNotFoundError):
            part.unlink()


def _show(line: bytes) -> None:
    typer.echo(harmless(line.decode(), lines=True), nl=False)


async def import_file(
    call: Call,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An export; `-` is stdin.")],
    prefix: Annotated[
        str, typer.Option("--as", metavar="PREFIX", help="Put this before every session id.")
    ] = "",
) -> None:
    """Read an export into the store.

    The store is made if it is not there. An import that was broken off goes on where it was when
    it is run again.
    """
    with _reading(file) as (lines, size):
        async with call.memory(create=True) as memory:
            with call.progress("Importing", "bytes") as progress:
                done = await import_lines(
                    memory.store, lines, prefix=prefix, size=size, progress=progress
                )
    if call.json:
        call.write(asdict(done))
    call.say(
        f"Imported {done.sessions:,} sessions, {done.messages:,} messages, {done.records:,} records"
        f" into {place_of(call.url)}"
    )
    if done.known:
        call.say(f"{done.known:,} sessions were there already and are the same")
    if done.kept:
        call.warn(f"{done.kept:,} records were there with another value; those were kept")
    if done.damaged:
        call.warn(f"{done.damaged:,} sessions or messages were damaged where they came from")


@contextmanager
def _reading(file: Path) -> Generator[tuple[Iterator[bytes], int]]:
    """Give the lines of an export and its size; nothing is made for a file that is none."""
    with nullcontext(sys.stdin.buffer) if str(file) == "-" else file.open("rb") as opened:
        lines = lines_of(opened)
        first = next(lines, b"{}")
        check_header(decode_line(first))
        yield chain([first], lines), 0 if str(file) == "-" else file.stat().st_size


async def backup(
    call: Call,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The copy; it must not be there yet.")
    ],
) -> None:
    """Copy the whole store, every tenant in it, while it stays in use."""
    async with call.file() as store:
        with call.progress("Copying", "pages") as progress:
            await store.backup(file, progress=progress)
    size = file.stat().st_size
    if call.json:
        call.write({"file": str(file), "bytes": size})
    call.say(f"Copied {place_of(call.url)} to {file}, {size:,} bytes")
