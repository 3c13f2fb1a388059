"""The protocols of a store: the log, the records, and the search in them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, Self, TypeAlias

from keepthread.protocols.search import Searchable
from keepthread.protocols.server import ServerTables
from keepthread.types import (
    JSON,
    Change,
    Cleaning,
    Durability,
    Gathered,
    Message,
    Page,
    Record,
    Scope,
    SessionInfo,
    SessionKey,
    Span,
    Verification,
)

Progress: TypeAlias = Callable[[int, int], None]
"""Called from time to time, in another thread, with the number of finished and of all items."""


class Updates(NamedTuple):
    """Records of one kind that changed after a number, and the number of the last change."""

    number: int
    """Names this state: pass it as `since` to read what changes after it."""
    whole: bool
    """Whether `records` are all there are; otherwise they are those that changed."""
    records: Sequence[Record]
    dropped: Sequence[str] = ()
    """Keys of records that were dropped."""


class TokenCounter(Protocol):
    """Counts the tokens of messages; its name is stored with every count."""

    @property
    def name(self) -> str:
        """Return the counter's name, which distinguishes its counts from those of others."""
        ...

    def count(self, message: Message) -> int:
        """Return the tokens a message takes on any wire, including its overhead."""
        ...


class Relatives(NamedTuple):
    """The sessions of an owner that may repeat messages of another of the owner's sessions."""

    copies: Sequence[SessionInfo]
    """Those with the same first message: the same id and time, even if it is erased."""
    naming: Sequence[SessionInfo]
    """Those that name it, or did: as parent or fork point, in an answer or an explanation."""


class MadeRecords(NamedTuple):
    """Records that are made of some messages."""

    records: Sequence[Record]
    damaged: Sequence[Scope]
    """Scopes with a damaged record that may be made of them."""


class Store(Protocol):
    """One tenant's data: a log of messages for each session, and records beside the logs.

    A method returns only if it succeeded; otherwise it raises one of `keepthread.errors`. An
    outage never looks like an empty history. A session's methods take its key; the key of a
    deleted session raises `SessionGone`. Acknowledged writes survive what `durability` names.
    """

    @property
    def durability(self) -> Durability:
        """Return what acknowledged writes survive."""
        ...

    @property
    def max_blob(self) -> int:
        """Return the bytes of the largest blob that it stores."""
        ...

    def tenant(self, name: str) -> Self:
        """Return this store for another tenant; both share one engine, closed with the first."""
        ...

    async def close(self) -> None:
        """Finish pending work and release all resources; closing twice is fine."""
        ...

    # --- sessions ---

    async def put_session(
        self, session: SessionInfo, *, seen: SessionInfo | None = None, whole: bool = False
    ) -> SessionInfo:
        """Create a session that has no key yet, or update one that has.

        An update replaces title, tags, system prompt, meta, `ready` and `forgotten`, nothing else.
        A session that is forgotten is not ready. An id that the owner has already raises
        `SessionExists`. The times of a new session are kept if given, and changes to a session that
        is not ready do not count as activity. With `seen`, the session as the caller read it, only
        the fields that differ from it are written; if another writer has changed one of them
        since, or a message was erased since, `Stale` is raised and nothing is written. With
        `whole` that is so if any of the fields was changed.
        """
        ...

    async def get_session(self, id: str, owner: str = "default") -> SessionInfo | None:
        """Return an owner's session with that id, ready or not, or None.

        Sessions of different owners may have the same id.
        """
        ...

    async def describe(self, session: SessionKey) -> SessionInfo:
        """Return a session's current metadata."""
        ...

    async def list_sessions(
        self,
        *,
        owner: str | None = None,
        limit: int = 10,
        cursor: str | None = None,
        tag: str | None = None,
        title: str | None = None,
    ) -> Page[SessionInfo]:
        """Return ready sessions, latest activity first, without delegates.

        The order may ignore appends of the last second. `cursor` is the `next` of an earlier page
        with the same filters. `tag` is one of the tags; `title` is a part of the title, in any
        case. With them, a page may be short although there is a `next`, so that one call never
        reads a whole long list. Every session that exists throughout is returned: those that become
        active while the pages are read come again, or for the first time, at the end.
        """
        ...

    async def scan_sessions(
        self, *, owner: str | None = None, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """Return every session of an owner or of all, after a key, in the order of creation.

        Includes delegates and sessions that are not ready. The key may be of a deleted session.
        """
        ...

    async def idle_sessions(
        self, before: float, *, limit: int = 100, cursor: str | None = None
    ) -> Page[SessionInfo]:
        """Return the sessions of all kinds without activity since a time; reads no others.

        Sessions that are not listed come last. `cursor` is the `next` of an earlier page. A session
        may have become active since it was read: pass `idle_since` to `delete_session`.
        """
        ...

    async def relatives(self, session: SessionKey) -> Relatives:
        """Return the sessions of the same owner that may repeat messages of this one.

        Reads an index, not the owner's other sessions. A deleted session has none.
        """
        ...

    async def delete_session(
        self, session: SessionKey, *, unready: bool = False, idle_since: float | None = None
    ) -> None:
        """Remove a session, its messages and its records.

        With `unready`, only a session that is not ready; with `idle_since`, only one without
        activity at or after that time. Other sessions raise `Stale`; the transaction that deletes
        decides it.
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

        A message without an id gets one. An id that this session already has is not stored twice:
        the stored message is returned (a tombstone if it was erased), or `Conflict` is raised if
        the bodies differ. With `expect`, new messages are stored only if it is the last position
        of the log; otherwise `Stale` is raised. Each user message opens the next turn, and the
        messages after it belong to that turn; `turn` puts all of them into an earlier one instead.
        A log holds up to 2**53 - 1 tokens; messages beyond that raise `InvalidInput`. A forgotten
        session returns what it has under these ids; a message with another id raises `SessionGone`.
        """
        ...

    async def load(self, session: SessionKey, messages: Sequence[Message]) -> int:
        """Copy messages that were read from a store to the end of the log.

        Keeps positions, turns, counts, times, tombstones and damage; skips positions that are
        already stored. Returns the last position. A gap raises `Stale`; a different message at a
        stored position raises `Conflict`.
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
        min_messages: int = 0,
    ) -> list[Message]:
        """Return the newest messages that fit, oldest first, between two positions if given.

        Reads about as much as it returns, however long the log is. Tombstones and damaged
        messages are included and cost no tokens. At least `min_messages` are returned, whatever
        they cost.
        """
        ...

    async def gather(
        self,
        session: SessionKey,
        *,
        tokens: int,
        min_messages: int = 0,
        kinds: Sequence[str] = (),
        follow: Sequence[str] = (),
        follow_limit: int | None = None,
    ) -> Gathered:
        """Return the material of a context, read at one moment: prompt, tail, records by kind.

        `follow` names more kinds; the messages of this session that their records are made of are
        returned too, so such records should be made of few messages. With `follow_limit`, no more
        records of each followed kind are read than that, those that were put last; `more` names
        the kinds that have more. A kind that is named twice is read once. Raises `Damaged` if the
        session's metadata is damaged, because its system prompt is unknown then.
        """
        ...

    async def read(
        self, session: SessionKey, *, after: int = 0, until: int | None = None, limit: int = 100
    ) -> list[Message]:
        """Return the messages after a position, oldest first."""
        ...

    async def find(
        self, session: SessionKey, *, ids: Iterable[str] = (), seqs: Iterable[int] = ()
    ) -> list[Message]:
        """Return the existing messages with these ids or positions, oldest first."""
        ...

    async def erase(self, session: SessionKey, seqs: Iterable[int]) -> int:
        """Replace messages by tombstones, permanently, and return the session's new epoch.

        The session's records made of them are dropped in the same transaction. The epoch does not
        change if all of them are erased already. An unknown position raises `MessageNotFound`,
        and nothing is erased.
        """
        ...

    async def recount(
        self, session: SessionKey, counter: TokenCounter, *, progress: Progress | None = None
    ) -> int:
        """Count messages that another counter counted, and correct the running totals, atomically.

        Returns the number of messages counted. Tombstones and damaged messages cost nothing.
        """
        ...

    # --- records ---

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
        """Store a record and return its new version, which is unique among all puts.

        `version` is the one the caller read (0: no record); `epochs` are the epochs of the
        sessions that the value was made from. If either changed, `Stale` is raised and nothing is
        stored.
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
        without: str | None = None,
    ) -> list[Record]:
        """Return the records of a scope, ordered by kind and key; all kinds, or one.

        For one kind, `after` and `before` limit the keys (both exclusive, compared by code point);
        `limit` returns the last ones and reads no more than that. Of all kinds, `without` leaves
        one out, and does not read it.
        """
        ...

    async def updates(self, scope: Scope, kind: str, *, since: int = 0) -> Updates:
        """Return the records of an owner or of the tenant that changed after a number.

        For kinds whose changes the feed announces: facts and receipts. It reads one small row if
        nothing changed, and about as much as changed otherwise; after many changes, or for an
        unknown number, it returns all records. The number of the last change is written with it.
        """
        ...

    async def made_of(self, session: SessionKey, seqs: Iterable[int]) -> MadeRecords:
        """Return the records of any scope that are made of one of these messages of a session.

        Reads an index, not the other records. The session may have been deleted.
        """
        ...

    async def owners(self) -> list[str]:
        """Return the owners who have records, sorted by name."""
        ...

    async def blob_owners(self) -> list[str]:
        """Return the owners who store blobs that a message may refer to, sorted by name."""
        ...

    async def drop(self, scope: Scope, kind: str, key: str, *, version: int | None = None) -> bool:
        """Delete a record; return whether it existed. `version` as in `put`."""
        ...

    # --- changes ---

    async def changes(
        self, *, owner: str | None = None, after: str | None = None, limit: int = 100
    ) -> Page[Change]:
        """Return what was written after a cursor, or since the oldest change that is kept.

        Every change is returned at least once, those of one session in order. `next` is always
        the cursor to continue with; with `limit=0` and no cursor it is the present. Changes are
        kept for seven days; a cursor after which some were deleted raises `CursorExpired`.
        """
        ...

    # --- integrity ---

    async def verify(self, *, progress: Progress | None = None) -> Verification:
        """Check all data of this tenant, and the database file if there is one."""
        ...

    async def clean(
        self,
        *,
        sessions: Sequence[SessionKey] = (),
        rewrite: bool = False,
        probes: Sequence[bytes] = (),
    ) -> Cleaning:
        """Remove the bytes of erased messages of these sessions, as far as the engine can.

        `rewrite` includes steps that take long and lock out other users. The engine's files are
        searched for the probes where they are readable. The result says what may remain, where,
        and until when.
        """
        ...

    # --- tenants, for the operator of the store ---

    async def tenants(self, *, after: str | None = None, limit: int = 100) -> list[str]:
        """Return the names of tenants after a name, or from the first, sorted by code point.

        Every tenant with a session or a record is returned; one whose last is gone may be. On
        PostgreSQL, the login must be allowed to read the table of tenants.
        """
        ...

    async def drop_tenant(self, name: str, *, rewrite: bool = False) -> Cleaning:
        """Delete everything of another tenant, step by step, and its bytes as `clean` does.

        Its API keys go first, so nobody uses them in the meantime; the audit log stays.
        A missing tenant raises `NotFound`, and this store's own tenant `InvalidInput`. A call that
        was interrupted leaves the tenant in the list; the next call deletes the rest. Data that
        others write in the meantime may stay, as a new tenant of that name.
        """
        ...

    # --- search, which only some engines support ---

    async def finder(self) -> Searchable | None:
        """Return the search interface of this store, or None if the engine has none."""
        ...

    # --- the tables of a server, for all tenants ---

    def server_tables(self) -> ServerTables:
        """Return API keys, secrets, requests and the audit log; some stores raise `Unsupported`.

        On PostgreSQL, the login must be allowed to use them.
        """
        ...
