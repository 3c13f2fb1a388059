"""Import the conversations of a harombe `memory.db`: resumable, and idempotent.

It is a SQLite file with the tables `sessions` and `messages`. Each session becomes a session of
ours. A later import of the same file adds the messages written since.
"""

import asyncio
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

from keepthread.context.ids import derived_call_id, derived_id
from keepthread.errors import InvalidInput, WrongFormat
from keepthread.interchange.conversations import (
    Arrivals,
    Arrived,
    ImportedConversation,
    OpenCalls,
    fitted,
    session_id,
    short,
    source_of,
    time_of,
)
from keepthread.interchange.files import HAROMBE, MAX_ITEM
from keepthread.interchange.foreign import dicts, listed, mapped, text_in
from keepthread.models.tokens import Estimator
from keepthread.protocols import Progress, Store, TokenCounter
from keepthread.stores.sqlite.schema import STORE
from keepthread.stores.validation import check_id
from keepthread.types import JSON, Message, Role, ToolCall

_TABLES: Final = {
    "sessions": ("id", "created_at", "updated_at", "metadata", "system_prompt"),
    "messages": (
        "id",
        "session_id",
        "role",
        "content",
        "tool_calls",
        "tool_call_id",
        "name",
        "created_at",
    ),
}
_ROLES: Final[Mapping[str, Role]] = {
    "user": "user",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
}


async def import_harombe(
    store: Store,
    path: Path,
    *,
    counter: TokenCounter | None = None,
    owner: str = "default",
    prefix: str = "",
    progress: Progress | None = None,
) -> Arrived:
    """Import a `memory.db` into a store; the file is only read.

    System prompts, titles, tags and metadata of the sessions are kept. The returned report names
    what could not be imported.
    """
    check_id(owner, "owner")
    arrivals = Arrivals(store, counter or Estimator(), owner=owner, prefix=prefix)
    with closing(await asyncio.to_thread(_HarombeFile, path)) as file:
        total = await asyncio.to_thread(file.count)
        read = 0
        for id in await asyncio.to_thread(file.ids):
            reading = await asyncio.to_thread(file.read, id)
            done, where = arrivals.done, f"session {reading.conversation.id}"
            done.hidden += reading.hidden
            done.shortened += reading.shortened
            done.left_out += reading.left_out
            for note in reading.notes:
                done.note(where, note)
            if reading.conversation.messages:
                await arrivals.take(reading.conversation)
            else:
                done.empty += 1
            read += reading.rows
            if progress:
                progress(read, max(total, read))
    arrivals.done.left_out += max(0, total - read)  # messages of sessions that were deleted
    return arrivals.done


def check_harombe(path: Path) -> None:
    """Refuse a file that is not a `memory.db`, before the actual reading."""
    _HarombeFile(path).close()


class _HarombeSession(NamedTuple):
    """A session of the file as a conversation, and a report on its messages."""

    conversation: ImportedConversation
    rows: int
    hidden: int
    shortened: int
    left_out: int
    notes: Sequence[str]


class _HarombeFile:
    """A `memory.db` that is open for reading; it may come from somebody else."""

    def __init__(self, path: Path) -> None:
        uri = f"{path.absolute().as_uri()}?mode=ro"
        try:
            self._db = sqlite3.connect(uri, uri=True, check_same_thread=False)
        except sqlite3.Error as error:
            raise _unreadable(error) from None
        try:
            self._db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_ITEM)
            self._db.text_factory = _decoded
            for pragma in ("trusted_schema = OFF", "query_only = ON", "cell_size_check = ON"):
                self._db.execute(f"PRAGMA {pragma}").fetchall()
            self._check()
        except BaseException as error:
            self._db.close()
            if isinstance(error, sqlite3.Error):
                raise _unreadable(error) from None
            raise

    def close(self) -> None:
        self._db.close()

    def count(self) -> int:
        """Return the number of messages in the file."""
        return next(self._rows("SELECT count(*) FROM messages"))[0]

    def ids(self) -> list[object]:
        """Return the ids of the sessions, oldest first."""
        return [id for (id,) in self._rows("SELECT id FROM sessions ORDER BY created_at, id")]

    def read(self, id: object) -> _HarombeSession:
        """Return a session with its messages."""
        row = next(self._rows(f"SELECT {_columns('sessions')} FROM sessions WHERE id IS ?", id))  # noqa: S608 - constants
        _, created_at, updated_at, metadata, system_prompt = row
        name, rows = _text(id), 0
        path = _HarombePath(name)
        # In the order of their numbers: times may be equal.
        query = f"SELECT {_columns('messages')} FROM messages WHERE session_id = ? ORDER BY id"  # noqa: S608 - constants
        for message in self._rows(query, id):
            path.add(dict(zip(_TABLES["messages"], message, strict=True)))
            rows += 1
        value, fault = _parsed(metadata)
        meta = mapped({"": value}, "")
        if metadata and (fault or not isinstance(value, dict)):
            path.notes.append("its metadata is not a JSON object and is kept as text")
            meta = {"metadata": _text(metadata)}
        conversation = ImportedConversation(
            id=session_id(HAROMBE, name),
            messages=path.messages,
            title=short(meta.get("title")),
            tags=[tag for each in listed(meta, "tags") if (tag := short(each))],
            system_prompt=fitted(_text(system_prompt)) or None,
            created_at=_time(created_at),
            updated_at=_time(updated_at),
            meta={**cast(Mapping[str, JSON], meta), "imported_from": HAROMBE},
        )
        numbers = path.hidden, path.shortened, path.left_out
        return _HarombeSession(conversation, rows, *numbers, path.notes)

    def _rows(self, query: str, *values: object) -> Iterator[Sequence[Any]]:
        try:
            yield from self._db.execute(query, values)
        except sqlite3.Error as error:
            raise _unreadable(error) from None

    def _check(self) -> None:
        """Refuse other files: a view or a virtual table could run what its author wrote."""
        if self._db.execute("PRAGMA application_id").fetchone()[0] == STORE.application_id:
            raise WrongFormat(
                "the file is a keepthread store, not an export;"
                " `keepthread copy sqlite:///FILE TARGET` copies its sessions"
            )
        query = "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0"
        tables = {_text(name) for (name,) in self._db.execute(query)}
        for table, columns in _TABLES.items():
            # The last column of the pragma is 0 for a column that is stored, not computed.
            found = self._db.execute(f"PRAGMA table_xinfo({table})") if table in tables else ()
            missing = {*columns} - {_text(row[1]) for row in found if row[6] == 0}
            if missing:
                named = ", ".join(sorted(missing))
                raise WrongFormat(
                    f"the file is not a memory.db of harombe: its table {table!r} is missing, or"
                    f" has no {named}"
                )


class _HarombePath:
    """The messages of one session."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.source = source_of(HAROMBE, session)
        self.messages: list[Message] = []
        self.notes: list[str] = []
        self.hidden = self.shortened = self.left_out = 0
        self.waiting = OpenCalls()

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a message; an empty one was not shown to anyone."""
        role = _ROLES.get(_text(row["role"]))
        if role is None:
            self.left_out += 1
            return
        text, number = _text(row["content"]), _text(row["id"])
        calls = self._calls(number, row["tool_calls"]) if role == "assistant" else ()
        if not text and not calls and role != "tool":
            self.hidden += 1
            return
        content = fitted(text)
        self.shortened += content != text
        called = short(row["tool_call_id"]) or None if role == "tool" else None
        message = Message(
            role=role,
            content=content,
            id=self.waiting.answered(called) or derived_id(HAROMBE, self.session, number),
            origin="import",
            source=self.source,
            tool_calls=tuple(calls),
            tool_call_id=called,
            name=short(row["name"]) or None if role == "tool" else None,
            created_at=_time(row["created_at"]),
        )
        self.waiting.called(message)
        self.messages.append(message)

    def _calls(self, number: str, value: object) -> Sequence[ToolCall]:
        """Return the calls of a message, which have the shape of harombe's or of OpenAI's."""
        given, fault = _parsed(value)
        if fault or not isinstance(given or [], list):
            self.notes.append(f"message {number}: its tool calls are not a JSON list")
            return ()
        return [self._call(number, at, each) for at, each in enumerate(dicts(given or ()))]

    def _call(self, number: str, at: int, value: Mapping[str, Any]) -> ToolCall:
        function = mapped(value, "function") or value
        arguments = function.get("arguments")
        if not isinstance(arguments, str):
            arguments = json.dumps(arguments or {}, ensure_ascii=False)
        id = short(value.get("id")) or derived_call_id(HAROMBE, self.session, number, str(at))
        return ToolCall(id=id, name=text_in(function, "name"), arguments=fitted(arguments))


def _parsed(value: object) -> tuple[Any, bool]:
    """Return a value from its JSON, and whether it is not JSON; of an empty cell, None."""
    if value is None or value == "":
        return None, False
    try:
        return json.loads(_text(value), parse_constant=_nothing), False
    except (ValueError, RecursionError):
        return None, True


def _nothing(_: str) -> None:
    """Read NaN and the like, which JSON does not have, as null."""


def _columns(table: str) -> str:
    return ", ".join(_TABLES[table])


def _text(value: object) -> str:
    """Return a cell as text; SQLite keeps any type in any column."""
    if isinstance(value, bytes):
        return _decoded(value)
    return "" if value is None else str(value)


def _decoded(value: bytes) -> str:
    return value.decode("utf-8", "replace")


def _time(value: object) -> float:
    """Return seconds since 1970, 0 for none; a text without a time zone is in UTC."""
    if not isinstance(value, str):
        return time_of(value)
    try:
        moment = datetime.fromisoformat(value)
        return time_of((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        return 0.0


def _unreadable(error: sqlite3.Error) -> InvalidInput:
    return InvalidInput(
        f"the database cannot be read: {error}. Close the program that uses it, or copy it first"
    )
