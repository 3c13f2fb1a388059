"""The data types of the outbox."""

import threading
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from keepthread.types import Message, SessionInfo, SessionKey


class Batch(NamedTuple):
    """The messages of one append, which are stored together."""

    number: int
    """Its number in the outbox, never reused; 0 until it has one."""
    key: SessionKey
    session: str
    """The session's id, for display."""
    turn: int | None
    opened_by: str | None
    """The user message whose turn they belong to, if that was queued before them."""
    messages: Sequence[Message]


class Waiting(NamedTuple):
    """The queued messages of a session."""

    session: str
    messages: int
    bytes: int


class Dropped(NamedTuple):
    """A message that was not delivered because its session, or its text, had been deleted."""

    session: str
    id: str
    reason: str
    at: float


class Settled(NamedTuple):
    """The outcome of a batch: delivered except for dropped messages, or rejected for a reason."""

    batch: Batch
    dropped: Sequence[Dropped] = ()
    reason: str | None = None


class SetAside(NamedTuple):
    """Messages that the store rejected, kept until they are reviewed."""

    session: str
    reason: str
    messages: Sequence[Message]


class Survey(NamedTuple):
    """The state of an outbox file."""

    target: str
    tenant: str
    owner: str
    """The process that has it open; empty if none does."""
    waiting: Sequence[Waiting]
    dropped: Sequence[Dropped]
    set_aside: Sequence[SetAside]

    @property
    def messages(self) -> int:
        """Return the number of queued messages."""
        return sum(each.messages for each in self.waiting)


MAX_SESSIONS: Final = 10_000
"""The number of sessions kept in the process and in the file."""


class KnownSessions:
    """Sessions that can be opened while the store is unavailable, latest last; thread-safe."""

    def __init__(self, sessions: Iterable[SessionInfo], limit: int = MAX_SESSIONS) -> None:
        """Start with the sessions in the file; each is written again when it is next seen."""
        self._limit = limit
        self._lock = threading.Lock()
        self._sessions: dict[tuple[str, str], SessionInfo] = {}
        """By owner and id."""
        self._by_key: dict[SessionKey, SessionInfo] = {}
        self._written: set[SessionKey] = set()
        for session in sessions:
            self.add(session)

    def __len__(self) -> int:
        return len(self._sessions)

    def get(self, owner: str, id: str) -> SessionInfo | None:
        """Return a known session."""
        return self._sessions.get((owner, id))

    def by_key(self, key: SessionKey) -> SessionInfo | None:
        """Return the known session with this key."""
        return self._by_key.get(key)

    def is_written(self, key: SessionKey) -> bool:
        """Return whether this process has written the session to the file."""
        return key in self._written

    def add(self, session: SessionInfo) -> None:
        """Add a session, or replace the one with its id; the oldest one above the limit goes."""
        with self._lock:
            self._discard(session.owner, session.id)
            self._sessions[session.owner, session.id] = session
            self._by_key[session.key] = session
            while len(self._sessions) > self._limit:
                self._discard(*next(iter(self._sessions)))

    def note_written(self, key: SessionKey) -> None:
        """Record that a session is in the file."""
        with self._lock:
            if key in self._by_key:
                self._written.add(key)

    def discard(self, owner: str, id: str) -> bool:
        """Remove a session; return whether it was known."""
        with self._lock:
            return self._discard(owner, id)

    def _discard(self, owner: str, id: str) -> bool:
        session = self._sessions.pop((owner, id), None)
        if session is None:
            return False
        self._by_key.pop(session.key, None)
        self._written.discard(session.key)
        return True
