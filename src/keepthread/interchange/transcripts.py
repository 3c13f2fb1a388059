"""Transcripts: a session as a Markdown file that people can read.

A file is named `session-memory-<topic>-<session>-<time>.md`.
"""

import asyncio
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

from keepthread.context.ids import derived_id
from keepthread.errors import InvalidInput, KeepthreadError, SessionExists, Stale
from keepthread.interchange.conversations import Arrivals, Arrived, ImportedConversation, OpenCalls
from keepthread.interchange.export import Exported
from keepthread.interchange.markdown import (
    LATEST,
    Transcript,
    header_of,
    markdown_of,
    read_markdown,
)
from keepthread.models.tokens import Estimator
from keepthread.protocols import Progress, Store, TokenCounter
from keepthread.stores.private_files import private_file
from keepthread.stores.validation import check_count, check_id
from keepthread.types import Message, SessionInfo

_PAGE: Final = 200
_LONGEST_TOPIC: Final = 40
_LONGEST_ID: Final = 80
NAME: Final = "session-memory-"


def transcript_name(session: SessionInfo) -> str:
    """Return the file name for a session: its topic, its id, and its latest activity."""
    words = re.findall(r"[a-z0-9]+", session.title.lower()[: 4 * _LONGEST_TOPIC])
    topic = "-".join(words)[:_LONGEST_TOPIC].strip("-") or "conversation"
    moment = datetime.fromtimestamp(min(session.updated_at, LATEST - 1), tz=UTC)
    return f"{NAME}{topic}-{id_in_a_name(session.id)}-{moment:%Y%m%d-%H%M%S}.md"


def id_in_a_name(id: str) -> str:
    """Return an id that every file system accepts; a changed id gets a suffix that is unique."""
    if len(id) <= _LONGEST_ID and re.fullmatch(r"[a-z0-9_]+", id):
        return id
    plain = re.sub(r"[^a-z0-9_-]", "_", id.lower())[:_LONGEST_ID]
    digest = sha256(id.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{plain}.{digest[:12]}"


async def write_transcript(
    store: Store,
    session: SessionInfo,
    write: Callable[[bytes], object],
    *,
    progress: Progress | None = None,
) -> Exported:
    """Write a session as Markdown; the returned report names what is damaged."""
    done = Exported(sessions=1, damaged=[])
    write(header_of(session).encode())
    while page := await store.read(
        session.key, after=done.messages, until=session.messages, limit=_PAGE
    ):
        for message in page:
            write(markdown_of(message).encode())
            if message.state == "damaged":
                done.damaged.append(f"message {message.seq} of session {session.id!r}")
        done.messages = page[-1].seq
        if progress:
            progress(done.messages, max(session.messages, done.messages))
    return done


async def save_transcript(store: Store, session: SessionInfo, folder: Path) -> Path:
    """Write a session as it is now into a new file in a folder.

    `session` only says which one, so `session.info` will do. The file appears once it is complete.
    """
    current = await store.describe(session.key)
    path = folder / transcript_name(current)
    with private_file(path) as write:
        await write_transcript(store, current, write)
    return path


MAX_TRANSCRIPT: Final = 64 << 20
"""Bytes of a transcript at most; longer ones are not read."""
LAST: Final = 20
"""Messages that a session is seeded with."""


async def import_transcript(
    store: Store,
    file: BinaryIO,
    *,
    counter: TokenCounter | None = None,
    owner: str | None = None,
    prefix: str = "",
    progress: Progress | None = None,
) -> Arrived:
    """Import a transcript as a session; the default owner is the one that the file names."""
    transcript, messages = await asyncio.to_thread(_read, file)
    arrivals = Arrivals(
        store, counter or Estimator(), owner=owner or transcript.owner or "default", prefix=prefix
    )
    given = ImportedConversation(
        id=transcript.session,
        messages=messages,
        title=transcript.title,
        created_at=transcript.begun,
        meta={"imported_from": "transcript"},
    )
    await arrivals.take(given, progress=progress)
    return arrivals.done


async def seed(
    store: Store,
    session: str,
    folder: Path,
    *,
    last: int = LAST,
    owner: str = "default",
    counter: TokenCounter | None = None,
) -> int:
    """Begin a session with the last messages of its newest transcript in a folder.

    A session that already has messages is left as it is. Returns how many messages were added.
    """
    check_id(session, "a session id")
    check_count(last, "last")
    stored = await store.get_session(session, check_id(owner, "owner"))
    if stored and (stored.messages or not stored.ready):
        return 0
    found = await asyncio.to_thread(_newest, folder, session)
    if found is None:
        return 0
    transcript, messages = found
    if stored is None:
        info = SessionInfo(id=session, owner=owner, title=transcript.title)
        try:
            stored = await store.put_session(info)
        except SessionExists:  # another caller made it in the meantime
            return await seed(store, session, folder, last=last, owner=owner, counter=counter)
    by = counter or Estimator()
    chosen = messages[max(0, len(messages) - last) :]
    counted = [replace(m, tokens=by.count(m), counter=by.name) for m in chosen]
    try:
        await store.append(stored.key, counted, expect=0)
    except Stale:  # another message was stored first
        return 0
    return len(counted)


def newest_transcript(folder: Path, session: str) -> Path | None:
    """Return the newest transcript of a session in a folder, by the time in its name."""
    name = re.compile(rf"{NAME}.*-{re.escape(id_in_a_name(session))}-(\d{{8}}-\d{{6}})\.md")
    found = [(m[1], path) for path in folder.iterdir() if (m := name.fullmatch(path.name))]
    for _, path in sorted(found, reverse=True):
        if path.is_file() and _is_of(path, session):
            return path
    return None


def _newest(folder: Path, session: str) -> tuple[Transcript, Sequence[Message]] | None:
    path = newest_transcript(folder, session)
    if path is None:
        return None
    with path.open("rb") as file:
        return _read(file)


def _is_of(path: Path, session: str) -> bool:
    """Return whether a file is a transcript of exactly this session: names may look alike."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16).partition(b"\n## ")[0]
            return read_markdown(head).session == session
    except KeepthreadError:
        return False


def _read(file: BinaryIO) -> tuple[Transcript, Sequence[Message]]:
    """Return a transcript and its messages as they are stored."""
    data = file.read(MAX_TRANSCRIPT + 1)
    if len(data) > MAX_TRANSCRIPT:
        raise InvalidInput(f"the transcript has more than {MAX_TRANSCRIPT} bytes")
    transcript = read_markdown(data)
    digest = sha256(data).hexdigest()
    source = f"import:{digest[:32]}"
    waiting = OpenCalls()
    messages: list[Message] = []
    for number, given in enumerate(transcript.messages):
        id = waiting.answered(given.tool_call_id) if given.role == "tool" else None
        id = id or derived_id("transcript", digest, str(number))
        message = replace(given, id=id, origin="import", source=source)
        waiting.called(message)
        messages.append(message)
    return transcript, messages
