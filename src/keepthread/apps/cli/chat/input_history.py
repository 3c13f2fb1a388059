"""Input history for the arrow keys and Ctrl-R: read from the log, stored in no other file."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

from prompt_toolkit.history import History

from keepthread.apps.cli.chat.attachments import typed_part
from keepthread.apps.cli.chat.commands import is_command
from keepthread.apps.cli.chat.persistence import AWAY, Persistence
from keepthread.errors import SessionGone, SessionNotFound

_SESSIONS: Final = 20
_MESSAGES: Final = 400
"""Messages of each session that are read."""
_MOST: Final = 500


class InputHistory(History):
    """The owner's latest messages, newest first, and the commands of this run."""

    def __init__(self, persistence: Persistence, opened: Callable[[], Awaitable[bool]]) -> None:
        """Take the memory to read from; `opened` waits until it is open."""
        super().__init__()
        self._keeping = persistence
        self._opened = opened
        self._reading: asyncio.Task[None] | None = None

    def read(self) -> None:
        """Read the log again, in the background: forgotten messages must not come back."""
        self._reading = asyncio.create_task(self._read(self._reading))

    async def load(self) -> AsyncGenerator[str, None]:
        """Yield earlier inputs, newest first."""
        if self._reading:
            await asyncio.wait([self._reading])  # the prompt must not cancel it
        for text in tuple(self._loaded_strings):
            yield text

    async def _read(self, before: asyncio.Task[None] | None) -> None:
        if before:
            await asyncio.wait([before])
        if not await self._opened():
            return
        known = len(self._loaded_strings)
        with suppress(*AWAY):
            logged = await self._logged()
            since = len(self._loaded_strings) - known  # inputs since reading began
            for at, text in enumerate(self._loaded_strings):
                if at < since or is_command(text):
                    logged.insert(at, text)
            self._loaded_strings = list(dict.fromkeys(logged))

    async def _logged(self) -> list[str]:
        memory = self._keeping.memory
        found: list[tuple[float, int, str]] = []
        for info in await memory.list_sessions(limit=_SESSIONS):
            with suppress(SessionNotFound, SessionGone):  # deleted in the meantime
                session = await memory.get_session(info.id)
                after = max(0, session.info.messages - _MESSAGES)
                said = await session.messages(after=after, limit=_MESSAGES)
                found += [
                    (m.created_at, m.seq, typed_part(m.content))
                    for m in said
                    if m.role == m.origin == "user" and m.state == "live"
                ]
        texts = (text for _, _, text in sorted(found, reverse=True)[:_MOST])
        return list(dict.fromkeys(texts))

    def load_history_strings(self) -> Iterable[str]:
        """Return nothing: it is read asynchronously."""
        return ()

    def store_string(self, string: str) -> None:
        """Store nothing: the log keeps it."""
