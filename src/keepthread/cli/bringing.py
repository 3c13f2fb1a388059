"""What becomes of a file that is to be imported, by its format."""

from dataclasses import asdict
from io import BytesIO
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final, NamedTuple

from keepthread.cli.call import Call
from keepthread.cli.counting import current_counter
from keepthread.cli.stores import place_of
from keepthread.errors import InvalidInput
from keepthread.interchange.chats import check_chats, import_chats
from keepthread.interchange.conversations import Arrived
from keepthread.interchange.formats import CHATS, JSONL, MARKDOWN
from keepthread.interchange.importing import Imported, import_lines
from keepthread.interchange.jsonl import check_header, decode_line, lines_of
from keepthread.interchange.markdown import read_markdown
from keepthread.interchange.seeding import LAST, MAX_TRANSCRIPT, import_transcript, seed

_SHOWN: Final = 20


class Wanted(NamedTuple):
    """What is to become of a file."""

    form: str
    size: int
    prefix: str
    owner: str | None
    branches: bool


async def bring(call: Call, file: BinaryIO, wanted: Wanted) -> int:
    """Read a file into the store, tell what came of it, and return the exit status."""
    if wanted.form == JSONL:
        return await _lines(call, file, wanted)
    if wanted.branches and wanted.form == MARKDOWN:
        raise InvalidInput("a transcript has no branches: leave out --branches")
    return await _conversations(call, file, wanted)


# --- our own exports ---


async def _lines(call: Call, file: BinaryIO, wanted: Wanted) -> int:
    if wanted.owner is not None or wanted.branches:
        raise InvalidInput(
            "an export of keepthread's says itself whose sessions it holds, and holds them all:"
            " leave out --owner and --branches"
        )
    lines = lines_of(file)
    first = next(lines, b"{}")
    check_header(decode_line(first))  # nothing is made for a file that is none
    async with call.memory(create=True) as memory:
        with call.progress("Importing", "bytes") as progress:
            done = await import_lines(
                memory.store,
                chain([first], lines),
                prefix=wanted.prefix,
                size=wanted.size,
                progress=progress,
            )
    _tell_lines(call, done)
    return 0


def _tell_lines(call: Call, done: Imported) -> None:
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


# --- conversations of others, and transcripts ---


async def _conversations(call: Call, file: BinaryIO, wanted: Wanted) -> int:
    if wanted.form == MARKDOWN:
        file = BytesIO(file.read(MAX_TRANSCRIPT + 1))
        read_markdown(file.getvalue())  # nothing is made for a file that is none
    elif file.seekable():
        check_chats(file)
    counter = current_counter(call)
    async with call.memory(create=True, counter=counter) as memory:
        with call.progress("Importing", "bytes") as progress:
            if wanted.form == MARKDOWN:
                done = await import_transcript(
                    memory.store, file, counter=counter, owner=wanted.owner, prefix=wanted.prefix
                )
            else:
                done = await import_chats(
                    memory.store,
                    file,
                    counter=counter,
                    owner=wanted.owner or "default",
                    prefix=wanted.prefix,
                    branches=wanted.branches,
                    program=None if wanted.form == CHATS else wanted.form,
                    size=wanted.size,
                    progress=progress,
                )
    _tell(call, done)
    return 1 if done.refused else 0


def _tell(call: Call, done: Arrived) -> None:
    if call.json:
        call.write(asdict(done) | {"problems": [each._asdict() for each in done.problems]})
        return
    for where, what in done.problems[:_SHOWN]:
        call.warn(f"{where}: {what}")
    if (more := len(done.problems) - _SHOWN) > 0:
        call.warn(f"{more:,} more; --json names them")
    forks = f" ({done.forks:,} of them forks)" if done.forks else ""
    call.say(
        f"Imported {done.sessions:,} sessions{forks}, {done.messages:,} messages"
        f" into {place_of(call.url)}"
    )
    for count, what in (
        (done.known, "sessions were there already and are the same"),
        (done.grown, "sessions were there already and got what came since"),
        (done.empty, "conversations were empty"),
        (done.hidden, "messages that people were not shown either were left out"),
        (done.shortened, "messages were too long and lost their end"),
        (done.refused, "conversations were passed over; all others are there"),
    ):
        if count:
            call.say(f"{count:,} {what}")


async def seed_session(
    call: Call, folder: Path, session: str, *, owner: str | None, last: int | None
) -> int:
    """Begin a session with a transcript of a folder, and tell whether it was begun."""
    counter = current_counter(call)
    async with call.memory(create=True, counter=counter) as memory:
        count = await seed(
            memory.store,
            session,
            folder,
            last=LAST if last is None else last,
            owner=owner,
            counter=counter,
        )
    if call.json:
        call.write({"session": session, "messages": count})
    elif count:
        call.say(f"Seeded session {session} with {count:,} messages")
    else:
        call.say(f"Session {session} has messages already, or {folder} has no transcript of it")
    return 0
