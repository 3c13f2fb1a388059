"""Import the exports of ChatGPT and Claude: resumable, and idempotent.

Both are an array of conversations. Each becomes a session. Messages that are already stored are
skipped, so an import that was interrupted resumes when it is run again, and a later export adds the
messages written since.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final, Protocol

from keepthread.context.ranges import counted
from keepthread.errors import InvalidInput, WrongFormat
from keepthread.interchange.chatgpt import read_chatgpt
from keepthread.interchange.claude import read_claude
from keepthread.interchange.conversations import Arrivals, Arrived, ImportedConversation
from keepthread.interchange.copy import run_concurrently
from keepthread.interchange.files import CHATGPT, CLAUDE, Item, items_of, parts_of
from keepthread.interchange.foreign import ParsedSessions, mapped
from keepthread.models.tokens import Estimator
from keepthread.protocols import Progress, Store, TokenCounter
from keepthread.stores.validation import check_id

PROGRAMS: Final = (CHATGPT, CLAUDE)

_CONCURRENCY: Final = 8  # conversations at a time: they share commits
_AT_ONCE: Final = 4 << 20  # bytes of conversations that are in memory at a time
_MOST_READ: Final = 500  # items before the event loop is served again
_LONGEST_PREFIX: Final = 100

MAX_USELESS: Final = 10_000
"""Items without a conversation at most; a file with more of them is not an export."""


class _ChatReader(Protocol):
    def __call__(self, value: Mapping[str, Any], *, branches: bool) -> ParsedSessions: ...


_READERS: Final[Mapping[str, _ChatReader]] = {
    CHATGPT: read_chatgpt,
    CLAUDE: read_claude,
}
_KNOWN_BY: Final = {"mapping": CHATGPT, "chat_messages": CLAUDE}


async def import_chats(
    store: Store,
    file: BinaryIO,
    *,
    counter: TokenCounter | None = None,
    owner: str = "default",
    prefix: str = "",
    branches: bool = False,
    program: str | None = None,
    size: int = 0,
    progress: Progress | None = None,
) -> Arrived:
    """Import the export of ChatGPT or Claude into a store: `conversations.json`, or its archive.

    With `branches`, messages that were edited and answers that were generated again become forks.
    `program` is `chatgpt` or `claude`; without it, it is recognized by the content of each
    conversation. `size` is the size of the file in bytes, for `progress`. The returned report names
    what could not be imported.
    """
    check_id(owner, "owner")
    if program not in (None, *PROGRAMS):
        raise InvalidInput(f"program must be one of {', '.join(PROGRAMS)}, not {program!r}")
    if prefix and len(check_id(prefix, "prefix")) > _LONGEST_PREFIX:
        raise InvalidInput(f"prefix must have at most {_LONGEST_PREFIX} characters")
    arrivals = Arrivals(store, counter or Estimator(), owner=owner, prefix=prefix)
    chats = _Chats(arrivals, branches=branches, program=program)
    before = 0
    for part in parts_of(file, size):
        items, end = items_of(part.file), 0
        while (read := await asyncio.to_thread(chats.read, items)) is not None:
            await chats.store()
            end = read
            if progress:
                progress(before + end, max(part.size, before + end))
        before += end
    chats.check_recognised()
    return arrivals.done


def check_chats(file: BinaryIO) -> None:
    """Refuse a file without a conversation of ChatGPT or Claude, before the actual reading."""
    for part in parts_of(file, 0):
        for item in items_of(part.file):
            if program_of(mapped({"": item.value}, "")):
                file.seek(0)
                return
            if item.number > MAX_USELESS:
                raise _none()
    raise _none()


class _Chats:
    """One import of conversations."""

    def __init__(self, arrivals: Arrivals, *, branches: bool, program: str | None) -> None:
        self.arrivals = arrivals
        self.done = arrivals.done
        self.branches = branches
        self.program = program
        self.held: list[ImportedConversation] = []
        self.held_bytes = 0
        self.recognised = False

    def read(self, items: Iterator[Item]) -> int | None:
        """Read enough conversations to store together; return the bytes up to their end."""
        end = None
        for number, item in enumerate(items, 1):
            end = item.end
            self.held_bytes += item.size
            if reading := self._read(item):
                self.held += reading.conversations
            enough = len(self.held) >= _CONCURRENCY or self.held_bytes >= _AT_ONCE
            if enough or number >= _MOST_READ:
                break
        return end

    async def store(self) -> None:
        held, self.held, self.held_bytes = self.held, [], 0
        await run_concurrently(held, self.arrivals.take, _CONCURRENCY)
        if self.done.refused + self.done.empty > MAX_USELESS:
            self.check_recognised()
            before = counted(self.done.sessions, "session was", "sessions were")
            raise InvalidInput(
                f"the import was stopped: more than {MAX_USELESS:,} items of the file contain no "
                f"conversation. {before} imported before that"
            )

    def check_recognised(self) -> None:
        if not self.recognised:
            raise _none()

    def _read(self, item: Item) -> ParsedSessions | None:
        """Return the conversation of an item; report what is wrong with it."""
        where = f"conversation {item.number}"
        if item.fault:
            self.done.refuse(where, item.fault)
            return None
        value = mapped({"": item.value}, "")
        program = self.program or program_of(value)
        if program is None or not value:
            self.done.refuse(where, "it is not a conversation of ChatGPT or Claude")
            return None
        self.recognised = True
        try:
            reading = _READERS[program](value, branches=self.branches)
        except InvalidInput as error:
            self.done.refuse(where, str(error))
            return None
        self.done.empty += not reading.conversations
        self.done.hidden += reading.hidden
        self.done.shortened += reading.shortened
        self.done.left_out += reading.left_out
        self.done.repeated += reading.repeated
        self.done.rejoined += reading.rejoined
        for note in reading.notes:
            self.done.note(where, note)
        return reading


def program_of(value: Mapping[str, Any]) -> str | None:
    """Return the program that wrote a conversation, recognized by its content."""
    return next((program for key, program in _KNOWN_BY.items() if key in value), None)


def _none() -> WrongFormat:
    return WrongFormat(
        "the file contains no conversation of ChatGPT or Claude; use the archive of an export, or "
        "its conversations.json"
    )
