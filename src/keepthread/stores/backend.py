"""The protocol that each engine implements: the methods of `Store`, with checked arguments.

`front.Front` is the `Store` over it. It checks every argument, encodes messages and values, and
names the tenant; a backend only stores and reads. `Store` says what each method promises.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from keepthread.protocols import (
    MadeRecords,
    Progress,
    Relatives,
    Searchable,
    TokenCounter,
    Updates,
)
from keepthread.stores.records import Condition, Keys, Update
from keepthread.stores.rows import PreparedMessage
from keepthread.types import (
    JSON,
    Change,
    Cleaning,
    Durability,
    Gathered,
    Message,
    Record,
    Scope,
    SessionInfo,
    SessionKey,
    Span,
    Verification,
)


class Append(NamedTuple):
    """Messages for the end of a log."""

    drafts: Sequence[PreparedMessage]
    expect: int | None
    turn: int | None
    """The backend checks its range: only it knows the number of turns."""
    now: float
    """The time of this activity."""


class Tail(NamedTuple):
    """A request for the newest messages."""

    tokens: int | None
    limit: int | None
    before: int
    after: int
    min_messages: int


class Position(NamedTuple):
    """The place of a session in the list by activity; a later session of one time comes after."""

    at: float
    key: SessionKey


class Listing(NamedTuple):
    """A request for listed sessions: the latest before a position, or the earliest after one."""

    limit: int
    before: Position | None = None
    """Latest activity first; None means from the first."""
    after: Position | None = None
    """If given, earliest activity first."""
    unlisted: bool = False
    """Whether to return the sessions that are not listed instead: delegates and unready ones.

    Their positions may be of earlier activity.
    """


class Gather(NamedTuple):
    """A request for the material of a context."""

    tokens: int
    min_messages: int
    kinds: Sequence[str]
    follow: Sequence[str]
    follow_limit: int


class Feed(NamedTuple):
    """A request for changes: those of one owner, or of all."""

    owner: str | None
    after: Sequence[object] | None
    """The position to continue from; None means the oldest change that is kept.

    With a limit of 0, None means the present.
    """
    limit: int


class FeedPage(NamedTuple):
    """Changes in order, and the position after them, in the backend's own form."""

    changes: list[Change]
    position: Sequence[JSON]


class Put(NamedTuple):
    """A record to store, and the version and epochs that must not have changed."""

    kind: str
    key: str
    value: bytes
    made_of: bytes | None
    spans: Sequence[Span]
    """The same as `made_of`, before it was encoded."""
    version: int | None
    epochs: Mapping[SessionKey, int]
    names: Sequence[str] = ()
    """The ids of sessions of the same owner that the value names."""


class RequestRow(NamedTuple):
    """A known request, as stored in the server tables."""

    digest: bytes
    head: bytes | None
    """The answer without its body; None while the request is in flight."""
    body: bytes | None


class Claim(NamedTuple):
    """An attempt to execute a request that may be sent twice."""

    id: bytes
    tenant: str
    digest: bytes
    token: bytes
    at: float
    dead: float
    """One in flight since this time or longer has lost its worker."""
    old: float
    """One that began at this time or earlier counts as unknown."""


class TableBackend(Protocol):
    """The tables of a server in an engine; `tables.CheckedTables` encodes what they keep."""

    async def insert_key(self, id: str, tenant: str, data: bytes, /) -> bool:
        """Return False if the id is taken by other data."""
        ...

    async def get_key(self, id: str, /) -> bytes | None: ...
    async def list_keys(
        self, tenant: str | None, after: str, limit: int, /
    ) -> list[tuple[str, bytes]]: ...
    async def replace_key(self, id: str, old: bytes, new: bytes, /) -> bool:
        """Return False if the data is neither the old nor the new."""
        ...

    async def secret(self, name: str, new: bytes, /) -> bytes:
        """Return the secret, which is `new` if there was none."""
        ...

    async def begin(self, claim: Claim, /) -> RequestRow | None:
        """Return None if the claim now owns the request, else the known request.

        The same claim may arrive twice, if the engine lost the first answer.
        """
        ...

    async def renew(self, claim: Claim, /) -> bool:
        """Renew the claim of a request in flight; `id`, `tenant`, `token` and `at` count."""
        ...

    async def end(self, claim: Claim, head: bytes, body: bytes | None, /) -> bool:
        """Store an answer, unless there is one; only `id`, `tenant` and `token` of the claim count.

        The body is left out if bodies of the tenant were dropped since the claim.
        """
        ...

    async def abandon(self, claim: Claim, /) -> bool:
        """Delete a claim; only `id`, `tenant` and `token` count."""
        ...

    async def purge(self, before: float, /) -> int: ...
    async def append(self, tenant: str, data: bytes, /) -> int: ...
    async def entries(
        self, tenant: str | None, after: int, limit: int, /
    ) -> list[tuple[int, bytes]]: ...
    async def prune(self, until: int, tenants: Collection[str], /) -> int:
        """Delete entries up to a number, which are of these tenants; the newest is not one."""
        ...


class Backend(Protocol):
    """An engine. Everything is positional, so implementations choose their own names."""

    @property
    def durability(self) -> Durability: ...
    @property
    def max_blob(self) -> int: ...
    async def close(self) -> None: ...

    # --- sessions ---

    async def create_session(self, tenant: str, session: SessionInfo, /) -> SessionInfo: ...
    async def update_session(self, tenant: str, update: Update, /) -> SessionInfo: ...
    async def get_session(self, tenant: str, owner: str, id: str, /) -> SessionInfo | None: ...
    async def describe(self, tenant: str, session: SessionKey, /) -> SessionInfo: ...
    async def list_sessions(
        self, tenant: str, owner: str | None, wanted: Listing, /
    ) -> list[tuple[Position, SessionInfo]]: ...
    async def scan_sessions(
        self, tenant: str, owner: str | None, after: SessionKey | None, limit: int, /
    ) -> list[SessionInfo]: ...
    async def relatives(self, tenant: str, session: SessionKey, /) -> Relatives: ...
    async def delete_session(
        self, tenant: str, session: SessionKey, required: Condition, /
    ) -> None: ...

    # --- the log ---

    async def append(self, tenant: str, session: SessionKey, new: Append, /) -> list[Message]: ...
    async def load(
        self, tenant: str, session: SessionKey, drafts: Sequence[PreparedMessage], /
    ) -> int: ...
    async def tail(self, tenant: str, session: SessionKey, wanted: Tail, /) -> list[Message]: ...
    async def gather(self, tenant: str, session: SessionKey, wanted: Gather, /) -> Gathered: ...
    async def read(
        self, tenant: str, session: SessionKey, after: int, until: int, limit: int, /
    ) -> list[Message]: ...
    async def find(
        self, tenant: str, session: SessionKey, ids: Sequence[str], seqs: Sequence[int], /
    ) -> list[Message]: ...
    async def erase(self, tenant: str, session: SessionKey, seqs: Sequence[int], /) -> int:
        """Positions ascend, each once."""
        ...

    async def recount(
        self, tenant: str, session: SessionKey, counter: TokenCounter, progress: Progress | None, /
    ) -> int: ...

    # --- records ---

    async def put(self, tenant: str, scope: Scope, record: Put, /) -> int: ...
    async def get(self, tenant: str, scope: Scope, kind: str, key: str, /) -> Record | None: ...
    async def scan(
        self, tenant: str, scope: Scope, kind: str | None, keys: Keys, /
    ) -> list[Record]: ...
    async def updates(self, tenant: str, scope: Scope, kind: str, since: int, /) -> Updates: ...
    async def made_of(
        self, tenant: str, session: SessionKey, nodes: Sequence[int] | None, /
    ) -> MadeRecords:
        """Return the records at some nodes of a session, or at all; see `links`.

        Others may be among them: the front checks what each is made of.
        """
        ...

    async def owners(self, tenant: str, /) -> list[str]: ...
    async def blob_owners(self, tenant: str, /) -> list[str]:
        """Return the owners with records of the kinds `OF_REFERENCES`."""
        ...

    async def drop(
        self, tenant: str, scope: Scope, kind: str, key: str, version: int | None, /
    ) -> bool: ...

    # --- changes ---

    async def changes(self, tenant: str, wanted: Feed, /) -> FeedPage: ...

    # --- integrity ---

    async def verify(self, tenant: str, progress: Progress | None, /) -> Verification: ...
    async def clean(
        self,
        tenant: str,
        sessions: Sequence[SessionKey],
        rewrite: bool,
        probes: Sequence[bytes],
        /,
    ) -> Cleaning:
        """First delete the bodies of answers to the tenant's requests: they may repeat text."""
        ...

    async def finder(self, tenant: str, /) -> Searchable | None: ...

    # --- tenants ---

    async def tenants(self, after: str, limit: int, /) -> list[str]: ...
    async def drop_tenant(self, tenant: str, rewrite: bool, /) -> Cleaning | None:
        """Return None if the tenant does not exist; its API keys and requests go first."""
        ...

    # --- the tables of a server ---

    def tables(self) -> TableBackend: ...


_MOST_NOTED: Final = 10_000


class RecentActivity:
    """The time of each session's last recorded activity, at most once per second."""

    def __init__(self) -> None:
        """Start empty."""
        self._noted: dict[SessionKey, float] = {}

    def is_due(self, session: SessionKey, now: float) -> bool:
        """Return whether activity at this time must be recorded."""
        last = self._noted.get(session)
        return last is None or not 0 <= now - last < 1

    def note(self, session: SessionKey, now: float) -> None:
        """Remember that activity was recorded."""
        if len(self._noted) >= _MOST_NOTED:
            self._noted.clear()
        self._noted[session] = now
