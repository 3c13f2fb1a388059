"""Transcripts: a session as a Markdown file that people can read.

A file is named `session-memory-<topic>-<session>-<time>.md`.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Final

from keepthread.interchange.exporting import Exported
from keepthread.interchange.markdown import LATEST, header_of, markdown_of
from keepthread.private_files import private_file
from keepthread.protocols import Progress, Store
from keepthread.types import SessionInfo

_PAGE: Final = 200
_LONGEST_TOPIC: Final = 40
_LONGEST_ID: Final = 80
NAME: Final = "session-memory-"


def transcript_name(session: SessionInfo) -> str:
    """Return the name of a session's file: what it is about, its id, and its latest activity."""
    words = re.findall(r"[a-z0-9]+", session.title.lower()[: 4 * _LONGEST_TOPIC])
    topic = "-".join(words)[:_LONGEST_TOPIC].strip("-") or "conversation"
    moment = datetime.fromtimestamp(min(session.updated_at, LATEST - 1), tz=UTC)
    return f"{NAME}{topic}-{id_in_a_name(session.id)}-{moment:%Y%m%d-%H%M%S}.md"


def id_in_a_name(id: str) -> str:
    """Return an id as every file system takes it; one that had to change is told from its like."""
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
    """Write a session as Markdown; what is damaged is named in what is returned."""
    done = Exported(sessions=1, damaged=[])
    write(header_of(session).encode())
    while page := await store.read(
        session.key, after=done.messages, upto=session.messages, limit=_PAGE
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
    """Write a session as a file of its own into a folder; it appears there once it is whole."""
    path = folder / transcript_name(session)
    with private_file(path) as write:
        await write_transcript(store, session, write)
    return path
