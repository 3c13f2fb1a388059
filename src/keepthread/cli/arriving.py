"""The command that brings conversations in: exports of ours and of others, and transcripts."""

import sys
from collections.abc import Generator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Annotated, Final, cast

import typer

from keepthread.cli.bringing import Wanted, bring, seed_session
from keepthread.cli.call import Call
from keepthread.errors import InvalidInput
from keepthread.interchange.formats import FORMATS, format_of

_STDIN: Final = "-"


async def import_file(
    call: Call,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="What to import; `-` is stdin.")],
    prefix: Annotated[
        str,
        typer.Option("--as", metavar="PREFIX", help="Put this before every id, if one is taken."),
    ] = "",
    owner: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose they are; else default."),
    ] = None,
    branches: Annotated[
        bool, typer.Option("--branches", help="Keep what was edited away or asked anew, as forks.")
    ] = False,
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="NAME", help=f"The format: {', '.join(FORMATS)}."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(metavar="SESSION", help="Of a folder: seed this from its newest transcript."),
    ] = None,
    last: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="Of a folder: so many messages, the last; 20."),
    ] = None,
) -> int:
    """Read conversations into the store.

    An export of ours, of ChatGPT or of Claude, an archive of theirs, or a transcript: the format is
    known by the content. The store is made if it is not there. An import that was broken off goes
    on where it was when it is run again.
    """
    if form not in (None, *FORMATS):
        raise InvalidInput(f"--format must be one of {', '.join(FORMATS)}, not {form!r}")
    if file.is_dir() and session is not None:
        return await seed_session(call, file, session, owner=owner, last=last)
    if file.is_dir() or session is not None:
        raise InvalidInput(
            "to seed a session, name a folder of transcripts and --session SESSION;"
            " to import one file, leave out --session"
        )
    with _opened(file) as (opened, size):
        found = form or format_of(opened.peek(1))
        return await bring(call, opened, Wanted(found, size, prefix, owner, branches))


@contextmanager
def _opened(file: Path) -> Generator[tuple[BufferedReader, int]]:
    """Give a file that can be looked into, and its size if it is known."""
    if str(file) != _STDIN:
        with file.open("rb") as opened:
            yield opened, file.stat().st_size
        return
    yield cast(BufferedReader, sys.stdin.buffer), 0
