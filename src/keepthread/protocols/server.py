"""The tables of a server: API keys, secrets, requests that may be retried, and the audit log.

They belong to the store, not to a tenant. A program that uses the store without a server never
reads them.
"""

from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

LEASE: Final = 60.0
"""Seconds after which a request without an answer may be done by another worker."""
KEPT: Final = 24 * 3600.0
"""Seconds for which the answer to a request is kept."""


class ApiKey(NamedTuple):
    """A client's API key; the key itself is not stored."""

    id: str
    digest: bytes
    """The SHA-256 of the key's secret."""
    tenant: str
    owner: str | None
    """The only owner that the key may act for; None means any owner of the tenant."""
    scopes: frozenset[str]
    name: str
    created_at: float
    expires_at: float | None = None
    revoked_at: float | None = None
    """From when on the key is refused; it may be in the future, for a key that was replaced."""

    def is_valid(self, at: float) -> bool:
        """Return whether the key is accepted at a time: neither expired nor revoked by then."""
        return all(end is None or at < end for end in (self.expires_at, self.revoked_at))


class RequestId(NamedTuple):
    """Names a request that its client may send again: by the client and by the client's own key."""

    tenant: str
    caller: str
    """The id of the API key, or another name of the client that no other client has."""
    key: str
    """The request's `Idempotency-Key`; only its digest is stored."""


class KeptAnswer(NamedTuple):
    """The answer to a request, for a client that sends the request again."""

    status: int
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | None = b""
    """None if it is not kept: it is too large, or the tenant forgot something since it began."""


RequestState: TypeAlias = Literal["new", "in_flight", "mismatch", "done"]


class Begun(NamedTuple):
    """The state of a request when it arrives.

    "new": nothing, so do it and call `end_request`. "in_flight": another worker is doing it.
    "mismatch": another request has the same id. "done": send `answer`, and do not do it again.
    """

    state: RequestState
    token: bytes = b""
    """Of a new request: proves to `end_request` that this worker does it."""
    answer: KeptAnswer | None = None


class AuditEntry(NamedTuple):
    """An action of a client: who did what to which ids, and when; never what a message says."""

    at: float
    caller: str
    """The id of the API key, or another name of the client."""
    tenant: str
    owner: str | None
    action: str
    targets: tuple[str, ...] = ()
    number: int = 0
    """Its place in the log, from the store; later entries have higher numbers."""


class ServerTables(Protocol):
    """The tables of a server in a store, for all tenants; workers and machines share them."""

    # --- API keys ---

    async def add_key(self, key: ApiKey) -> None:
        """Store a key; an id that is taken raises `InvalidInput`."""
        ...

    async def get_key(self, id: str) -> ApiKey | None:
        """Return a key by its id, or None; a damaged one raises `Damaged`."""
        ...

    async def list_keys(
        self, *, tenant: str | None = None, after: str | None = None, limit: int = 100
    ) -> list[ApiKey]:
        """Return keys after an id, sorted by id: those of a tenant, or all."""
        ...

    async def revoke_key(self, id: str, at: float) -> bool:
        """Refuse a key from a time on; return False if it is unknown or ends earlier already."""
        ...

    # --- secrets ---

    async def secret(self, name: str) -> bytes:
        """Return 32 random bytes: made once, and the same for every worker."""
        ...

    # --- requests that may be retried ---

    async def begin_request(self, request: RequestId, digest: bytes, at: float) -> Begun:
        """Claim a request, or return what is known of it; `digest` identifies its content.

        Of several workers that begin a request, one gets "new". If that worker neither ends nor
        abandons it within `LEASE` seconds, the next one to begin it gets "new". After `KEPT`
        seconds a request is unknown.
        """
        ...

    async def renew_request(self, request: RequestId, token: bytes, at: float) -> bool:
        """Begin the `LEASE` of a request in flight again; return False if it is not this worker's.

        For work that takes long: nobody else begins it in the meantime.
        """
        ...

    async def end_request(self, request: RequestId, token: bytes, answer: KeptAnswer) -> bool:
        """Store the answer; return False if the worker with this token lost the request.

        An answer that is stored stays. If the tenant forgot something while the request was in
        flight, its body is left out: it may repeat what was forgotten.
        """
        ...

    async def abandon_request(self, request: RequestId, token: bytes) -> bool:
        """Let the next worker do the request; return False if this worker lost it."""
        ...

    async def purge_requests(self, before: float) -> int:
        """Delete requests that began before a time; return their number."""
        ...

    # --- the audit log ---

    async def audit(self, entry: AuditEntry) -> int:
        """Append an entry and return its number; entries are never changed."""
        ...

    async def list_audit(
        self, *, tenant: str | None = None, after: int = 0, limit: int = 100
    ) -> list[AuditEntry]:
        """Return entries after a number, oldest first: those of a tenant, or all."""
        ...

    async def prune_audit(self, before: float, *, limit: int = 1000) -> int:
        """Delete up to `limit` of the oldest entries, if they are from before a time.

        Return their number. The newest entry always stays, so that numbers are never used again.
        """
        ...
