"""A session from a transcript: the whole of it, or the last messages of the newest of a folder.

What is read is data only: its ids follow from its content, and its text has the origin `import`.
"""

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

from keepthread.checks import check_count, check_id
from keepthread.derived import derived_id
from keepthread.errors import InvalidInput, KeepthreadError, SessionExists, SessionNotFound, Stale
from keepthread.interchange.conversations import Arrivals, Arrived, Conversation, Waiting
from keepthread.interchange.markdown import Transcript, read_markdown
from keepthread.interchange.transcripts import NAME, id_in_a_name
from keepthread.protocols import Progress, Store, TokenCounter
from keepthread.tokens import Estimator
from keepthread.types import Message, SessionInfo

MAX_TRANSCRIPT: Final = 64 << 20
"""Bytes of a transcript; longer ones are not read."""
LAST: Final = 20
"""How many messages a session is seeded with."""


async def import_transcript(
    store: Store,
    file: BinaryIO,
    *,
    counter: TokenCounter | None = None,
    owner: str | None = None,
    prefix: str = "",
    progress: Progress | None = None,
) -> Arrived:
    """Make a session of a transcript; without an owner it is of the one whom the file names."""
    transcript, messages = await asyncio.to_thread(_read, file)
    arrivals = Arrivals(
        store, counter or Estimator(), owner=owner or transcript.owner or "default", prefix=prefix
    )
    given = Conversation(
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
    owner: str | None = None,
    counter: TokenCounter | None = None,
) -> int:
    """Begin a session with the last messages of its newest transcript in a folder.

    A session that has messages already is left as it is. Returns how many messages it was given.
    """
    check_id(session, "a session id")
    check_count(last, "last")
    stored = await store.get_session(session)
    if stored and owner not in (None, stored.owner):
        raise SessionNotFound(f"there is no session {session!r}")
    if stored and (stored.messages or not stored.ready):
        return 0
    found = await asyncio.to_thread(_newest, folder, session)
    if found is None:
        return 0
    transcript, messages = found
    if stored is None:
        info = SessionInfo(id=session, owner=owner or "default", title=transcript.title)
        try:
            stored = await store.put_session(info)
        except SessionExists:  # another made it meanwhile
            return await seed(store, session, folder, last=last, owner=owner, counter=counter)
    by = counter or Estimator()
    chosen = messages[max(0, len(messages) - last) :]
    counted = [replace(m, tokens=by.count(m), counter=by.name) for m in chosen]
    try:
        await store.append(stored.key, counted, expect=0)
    except Stale:  # somebody spoke first
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
    """Tell whether a file is a transcript of just this session: names may look alike."""
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
    waiting = Waiting()
    messages: list[Message] = []
    for number, given in enumerate(transcript.messages):
        id = waiting.answered(given.tool_call_id) if given.role == "tool" else None
        id = id or derived_id("transcript", digest, str(number))
        message = replace(given, id=id, origin="import", source=source)
        waiting.called(message)
        messages.append(message)
    return transcript, messages
