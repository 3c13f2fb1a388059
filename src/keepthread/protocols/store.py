"""The protocols of a store: the log, the records, and the search in them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol, Self, TypeAlias

from keepthread.types import (
    JSON,
    Cleaning,
    Durability,
    Embedding,
    Found,
    Gathered,
    Message,
    MessageFilter,
    Part,
    Placed,
    Record,
    Scope,
    SessionInfo,
    SessionKey,
    Sitting,
    Span,
    Unread,
    Verification,
)

Progress: TypeAlias = Callable[[int, int], None]
"""Called now and then, in another thread, with how much is done and how much there is in all."""


class TokenCounter(Protocol):
    """Counts what a message costs; the name is stored beside every count."""

    @property
    def name(self) -> str:
        """Name the way of counting, so that counts of another can be told apart."""
        ...

    def count(self, message: Message) -> int:
        """Return the tokens a message takes on any wire, its frame included."""
        ...


class Store(Protocol):
    """A log and a shelf, behind a wall: one tenant's messages in order, and records beside them.

    Every method answers or raises one of `keepthread.errors`; an outage is never an empty history.
    A session's methods take its key; the key of a deleted session raises `SessionGone`.
    Everything acknowledged survives what `durability` names.
    """

    @property
    def durability(self) -> Durability:
        """Name what an acknowledged write survives."""
        ...

    def tenant(self, name: str) -> Self:
        """Return this store behind another wall; both share one engine, closed with the first."""
        ...

    async def close(self) -> None:
        """Finish what was begun and let go of everything; closing twice is fine."""
        ...

    # --- sessions ---

    async def put_session(
        self, session: SessionInfo, *, seen: SessionInfo | None = None
    ) -> SessionInfo:
        """Create a session that has no key yet, or update one that has.

        An update replaces title, tags, system prompt, meta and `ready`, nothing else. A taken id
        raises `SessionExists`. Times that a new session brings are kept, and changes to one that
        is not ready are no activity. With `seen`, the session as the caller read it, only the
        fields that differ from it are written; if one of them was changed by somebody else since,
        or a message was erased since, `Stale` is raised and nothing is written.
        """
        ...

    async def get_session(self, id: str) -> SessionInfo | None:
        """Return the session of that id, ready or not, or None."""
        ...

    async def describe(self, session: SessionKey) -> SessionInfo:
        """Return what is known of a session now."""
        ...

    async def list_sessions(
        self, *, owner: str | None = None, limit: int = 10
    ) -> list[SessionInfo]:
        """Return ready sessions, latest activity first, without delegates.

        May lag behind an append by a second.
        """
        ...

    async def scan_sessions(
        self, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """Return every session behind a key, or from the first, in the order they were made.

        Those that are not ready and delegates are among them. The key may be of a deleted one.
        """
        ...

    async def delete_session(
        self, session: SessionKey, *, unready: bool = False, idle_since: float | None = None
    ) -> None:
        """Remove a session, its messages and its shelf.

        With `unready`, only one that is not ready; with `idle_since`, only one without activity
        at or after that time. Another raises `Stale`, decided in the transaction that deletes.
        """
        ...

    # --- the log ---

    async def append(
        self,
        session: SessionKey,
        messages: Sequence[Message],
        *,
        expect: int | None = None,
        turn: int | None = None,
    ) -> list[Message]:
        """Store messages at the end of the log, all or none, and return them as stored.

        A message without an id gets one. An id seen before in this session is not stored twice:
        the stored message is returned, a tombstone if it was erased; another body under it raises
        `Conflict`. New messages are stored only if `expect`, when given, is the last position of
        the log; else `Stale` is raised. Each user message opens the next turn, and what
        follows belongs to the latest; `turn` puts all of them into an earlier one instead. A
        log counts up to 2**53 - 1 tokens; messages beyond that raise `InvalidInput`.
        """
        ...

    async def load(self, session: SessionKey, messages: Sequence[Message]) -> int:
        """Copy messages that a store gave out to the end of the log, position by position.

        Positions, turns, counts and times are kept, tombstones and damage as well; what is
        there already is passed over. Returns the last position. A gap raises `Stale`, another
        message at a position `Conflict`.
        """
        ...

    async def tail(
        self,
        session: SessionKey,
        *,
        tokens: int | None = None,
        limit: int | None = None,
        before: int | None = None,
        after: int = 0,
        least: int = 0,
    ) -> list[Message]:
        """Return the newest messages that fit, oldest first, between two positions if given.

        Reads about what it returns, however long the log. Tombstones and damaged messages are
        among them and cost no tokens. `least` messages are returned whatever they cost.
        """
        ...

    async def gather(
        self,
        session: SessionKey,
        *,
        tokens: int,
        least: int = 0,
        kinds: Sequence[str] = (),
        follow: Sequence[str] = (),
    ) -> Gathered:
        """Return at one moment what a context is made of: prompt, tail, records of these kinds.

        `follow` names more kinds, whose records come with the messages of this session that they
        are made of; such records must be made of few.
        A session whose record is damaged raises `Damaged`: its system prompt is not known.
        """
        ...

    async def read(
        self, session: SessionKey, *, after: int = 0, upto: int | None = None, limit: int = 100
    ) -> list[Message]:
        """Return messages behind a position, oldest first."""
        ...

    async def find(
        self, session: SessionKey, *, ids: Iterable[str] = (), seqs: Iterable[int] = ()
    ) -> list[Message]:
        """Return the messages of these ids and positions that there are, oldest first."""
        ...

    async def erase(self, session: SessionKey, seqs: Iterable[int]) -> int:
        """Replace messages by tombstones, for ever, and return the session's new epoch.

        The session's records that are made of them are dropped at the same moment. Nothing new to
        erase leaves the epoch as it is; an unknown position raises `MessageNotFound` and erases
        nothing.
        """
        ...

    async def recount(
        self, session: SessionKey, counter: TokenCounter, *, progress: Progress | None = None
    ) -> int:
        """Count what another counter counted, set the running totals right, all or none.

        Returns how many messages were counted. Tombstones and damaged messages cost nothing.
        """
        ...

    # --- the shelf ---

    async def put(
        self,
        scope: Scope,
        kind: str,
        key: str,
        value: JSON,
        *,
        made_of: Sequence[Span] = (),
        version: int | None = None,
        epochs: Mapping[SessionKey, int] | None = None,
    ) -> int:
        """Put a record on a shelf and return its new version, which no other put ever had.

        `version` is the one the caller saw (0: none); `epochs` the epochs of the sessions the
        value was made from. If either moved, `Stale` is raised and nothing is put.
        """
        ...

    async def get(self, scope: Scope, kind: str, key: str) -> Record | None:
        """Return one record, or None."""
        ...

    async def scan(
        self,
        scope: Scope,
        kind: str | None = None,
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        """Return a shelf's records, by kind and key; of one kind, or all.

        Of one kind: those whose key is behind `after` and before `before`, by the code points of
        their characters; with a limit the last ones, reading no more than it returns.
        """
        ...

    async def owners(self) -> list[str]:
        """Return the owners who have a record on their shelf, by name."""
        ...

    async def drop(self, scope: Scope, kind: str, key: str, *, version: int | None = None) -> bool:
        """Take a record off its shelf; tell whether it was there. `version` as in `put`."""
        ...

    # --- integrity ---

    async def verify(self, *, progress: Progress | None = None) -> Verification:
        """Check everything of this tenant, and the file as far as there is one."""
        ...

    async def clean(
        self,
        *,
        sessions: Sequence[SessionKey] = (),
        rewrite: bool = False,
        probes: Sequence[bytes] = (),
    ) -> Cleaning:
        """Let go of the bytes of what was erased in these sessions, as far as the engine can.

        `rewrite` also does what takes long and locks others out. The engine's files are searched
        for the probes where they can be read. What may be left, where and until when, is said.
        """
        ...

    # --- what only some engines can do ---

    async def finder(self) -> "Searchable | None":
        """Return what finds words in it, or None if the engine cannot."""
        ...


class Searchable(Protocol):
    """A store that knows where words stand; what that is worth is not its business.

    An index is a view of the log: it remembers how far it has read each session (`view` names it),
    is read on by whoever asks, and loses what `erase` and `delete_session` take, at that moment.
    Delegates and sessions that are not ready are in no index. `owner=None` is every owner.
    """

    async def unread(
        self, view: str, *, owner: str | None = None, session: SessionKey | None = None
    ) -> list[Unread]:
        """Return the sessions that a view has not read to the end; never read ones are at 0."""
        ...

    async def index(
        self,
        view: str,
        read: Unread,
        upto: int,
        parts: Sequence[Part],
        sittings: Sequence[Sitting],
    ) -> None:
        """Add what stands behind `read.upto` up to a position, and remember that it was read.

        `sittings` are those that began or grew, as they are now. If the view was read on by
        another, or something was erased in the session since, `Stale` is raised and nothing added.
        """
        ...

    async def places(
        self,
        view: str,
        words: Sequence[str],
        *,
        owner: str | None = None,
        session: SessionKey | None = None,
        only: MessageFilter | None = None,
        most: int = 5000,
    ) -> Found:
        """Return where these words stand, up to `most` places of each, the last ones.

        `only` confines it to some messages: the last places among those are returned.
        """
        ...

    async def parts(self, view: str, places: Sequence[int]) -> list[Part]:
        """Return what the index has of these places, without their words, as far as it has any."""
        ...

    async def fetch(
        self, places: Sequence[int], *, kinds: Sequence[str] = ()
    ) -> tuple[list[Placed], list[Record]]:
        """Return the messages at places, each once, and their sessions' records of some kinds.

        What was erased or deleted meanwhile is not among them.
        """
        ...

    async def put_vectors(
        self, view: str, read: Unread, upto: int, vectors: Mapping[int, Embedding]
    ) -> None:
        """Keep vectors by place, and remember that the view was read to a position; as `index`."""
        ...

    async def vectors(self, view: str, places: Sequence[int]) -> dict[int, Embedding]:
        """Return the vectors that are kept for these places."""
        ...

    async def nearest(
        self,
        view: str,
        to: Embedding,
        *,
        owner: str | None = None,
        session: SessionKey | None = None,
        only: MessageFilter | None = None,
        limit: int = 300,
    ) -> list[int]:
        """Return the places whose single vectors are nearest, nearest first; may miss a few.

        `only` confines it to some messages: the nearest among those are returned.
        """
        ...

    async def drop_view(self, view: str) -> None:
        """Forget a view of this tenant: what it holds and how far it has read."""
        ...
