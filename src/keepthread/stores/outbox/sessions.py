"""Sessions that the outbox can open while the store is away: a bounded number, latest last."""

import threading
from collections.abc import Iterable
from typing import Final

from keepthread.types import SessionInfo, SessionKey

MAX_SESSIONS: Final = 10_000
"""How many sessions are remembered, in the process and in the file."""


class KnownSessions:
    """Sessions by id and by key; threads may share it."""

    def __init__(self, sessions: Iterable[SessionInfo], limit: int = MAX_SESSIONS) -> None:
        """Start with the sessions in the file; each is written again when it is next seen."""
        self._limit = limit
        self._lock = threading.Lock()
        self._by_id: dict[str, SessionInfo] = {}
        self._ids: dict[SessionKey, str] = {}
        self._written: set[SessionKey] = set()
        for session in sessions:
            self.add(session)

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, id: str) -> SessionInfo | None:
        """Return what is known of a session."""
        return self._by_id.get(id)

    def id_of(self, key: SessionKey) -> str | None:
        """Return the id of the session with this key."""
        return self._ids.get(key)

    def is_written(self, key: SessionKey) -> bool:
        """Return whether this process has written the session to the file."""
        return key in self._written

    def add(self, session: SessionInfo) -> None:
        """Add a session, or replace the one with its id; the oldest one above the limit goes."""
        with self._lock:
            self._discard(session.id)
            self._by_id[session.id] = session
            self._ids[session.key] = session.id
            while len(self._by_id) > self._limit:
                self._discard(next(iter(self._by_id)))

    def note_written(self, key: SessionKey) -> None:
        """Note that a session is in the file."""
        with self._lock:
            if key in self._ids:
                self._written.add(key)

    def discard(self, id: str) -> bool:
        """Remove a session; return whether it was known."""
        with self._lock:
            return self._discard(id)

    def _discard(self, id: str) -> bool:
        session = self._by_id.pop(id, None)
        if session is None:
            return False
        self._ids.pop(session.key, None)
        self._written.discard(session.key)
        return True
