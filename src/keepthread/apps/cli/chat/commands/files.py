"""Commands that export a session to a file, and import conversations from one."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.commands.common import parse_path, place
from keepthread.apps.cli.commands.export import writing
from keepthread.apps.cli.report_types import counted
from keepthread.apps.cli.sanitize import sanitize
from keepthread.errors import InvalidInput
from keepthread.interchange.export import export as export_lines
from keepthread.interchange.files import JSONL, format_of
from keepthread.interchange.transcripts import transcript_name, write_transcript

_LINES: Final = ".jsonl"


async def export(chat: Chat, rest: str) -> None:
    """Write this session to a file, as Markdown, or lossless as .jsonl.

    The name's end decides; without a name, a Markdown file is made here.
    """
    chat.here()
    session = await chat.session()
    info = await session.refresh()
    file = parse_path(rest or ".")
    with _named(file):
        file = file / transcript_name(info) if file.is_dir() else file
        there = file.exists()
    asked = f"{sanitize(str(file))} already exists. Overwrite it?"
    if there and not await chat.person.agrees(asked):
        chat.person.say("Nothing was written")
        return
    store = chat.talk.persistence.store
    with (
        _named(file),
        writing(file) as write,
        chat.call.progress("Exporting", "messages") as progress,
    ):
        if file.suffix == _LINES:
            done = await export_lines(
                store, write, sessions=[info.id], owner=info.owner, progress=progress
            )
        else:
            done = await write_transcript(store, info, write, progress=progress)
    for what in done.damaged:
        chat.person.say(f"Damaged: {sanitize(what)}")
    chat.person.say(f"Wrote {counted(done.messages, 'message')} to {sanitize(str(file))}")


async def import_file(chat: Chat, rest: str) -> None:
    """Bring in conversations from a file: ours, ChatGPT's, Claude's, harombe's.

    Its format is known by its content; an archive of theirs or a transcript is taken as well.
    """
    # Loaded on use, so that not every chat waits for it.
    from keepthread.apps.cli.commands.import_ import ImportOptions, look_into, summary_lines  # noqa: PLC0415

    chat.at_home()
    file = parse_path(rest)
    persistence = chat.talk.persistence
    with _named(file), file.open("rb") as opened:
        form = format_of(opened.peek(1))
        owner = None if form == JSONL else persistence.owner
        arrival = look_into(opened, ImportOptions(form, file.stat().st_size, "", owner, False))
        with chat.call.progress("Importing", arrival.unit) as progress:
            done = await arrival.read(persistence.store, persistence.counter, progress)
    for line in (line for lines in summary_lines(done, place(chat)) for line in lines):
        chat.person.say(sanitize(line))
    chat.person.say("/sessions lists them")


@contextmanager
def _named(file: Path) -> Generator[None]:
    """Say of a file that cannot be used which it is, and why."""
    try:
        yield
    except OSError as error:
        raise InvalidInput(f"{file}: {error.strerror or error}; name another file") from error
