"""API keys of the HTTP server: create, check, replace and revoke them.

A key is `kt_<id>_<secret>`. The secret has 256 random bits, so its SHA-256 is enough to store: it
cannot be guessed, and the store does not hold it. Each change is written to the audit log.
"""

import asyncio
import hmac
import re
import secrets
from collections.abc import Collection
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final, Literal, NamedTuple, Protocol, TypeAlias

from keepthread.errors import InvalidInput, NotFound
from keepthread.protocols.server import ApiKey, AuditEntry, ServerTables
from keepthread.stores.validation import check_id, show

SCOPES: Final = ("read", "write", "forget", "admin", "proxy", "mcp")
"""The rights that a key may have."""

_LETTERS: Final = "0123456789abcdefghjkmnpqrstvwxyz"
"""The letters of ids, in the order of their codes: ids sort by the time they were made."""
_TIME: Final = 6
_CHANCE: Final = 6
_STEP: Final = 4  # seconds; six letters then last for 136 years
_BYTES: Final = 32
_PREFIX: Final = "kt_"
_FORM: Final = re.compile(rf"{_PREFIX}([{_LETTERS}]{{{_TIME + _CHANCE}}})_([A-Za-z0-9_-]{{43}})")
_NOBODY: Final = bytes(32)

Refusal: TypeAlias = Literal["malformed", "unknown", "expired", "revoked"]
"""Why a key is rejected; for logs only: clients do not learn the reason."""


@dataclass(frozen=True, kw_only=True)
class NewKey:
    """A key that was just made. Its text is shown once; only `key` is stored."""

    key: ApiKey
    text: str = field(repr=False)


class CheckedKey(NamedTuple):
    """The key that a client presented, or why it is refused."""

    key: ApiKey | None
    refusal: Refusal | None = None


class KeyRights(NamedTuple):
    """The rights of a new key, and a name for it."""

    tenant: str
    scopes: frozenset[str]
    name: str
    owner: str | None = None
    """The only owner it may act for; None means any owner of the tenant."""
    expires_at: float | None = None


def make_key(rights: KeyRights, *, at: float) -> NewKey:
    """Return a new key that is not stored yet."""
    if not rights.scopes:
        raise InvalidInput(f"a key needs a scope; there are {', '.join(SCOPES)}")
    if unknown := sorted(rights.scopes - {*SCOPES}):
        raise InvalidInput(f"{show(unknown[0])} is not a scope; there are {', '.join(SCOPES)}")
    if rights.expires_at is not None and rights.expires_at <= at:
        raise InvalidInput("the key would already be expired")
    id, secret = _new_id(at), secrets.token_urlsafe(_BYTES)
    key = ApiKey(
        id=id,
        digest=_digest(secret),
        tenant=check_id(rights.tenant, "tenant"),
        owner=None if rights.owner is None else check_id(rights.owner, "owner"),
        scopes=rights.scopes,
        name=check_id(rights.name, "name"),
        created_at=at,
        expires_at=rights.expires_at,
    )
    return NewKey(key=key, text=f"{_PREFIX}{id}_{secret}")


def id_in(text: str) -> str:
    """Return the id of a key that is given whole, as it is where it was published; else the text.

    So no message repeats the secret.
    """
    form = _FORM.fullmatch(text)
    if form is None and text.startswith(_PREFIX):
        raise InvalidInput("this is not a whole key; give its id, the 12 characters after kt_")
    return form[1] if form else text


def holds_key(text: str) -> bool:
    """Return whether a text has anything that is shaped like a key."""
    return _FORM.search(text) is not None


class KeyReads(Protocol):
    """Reads keys, as `ServerTables` do."""

    async def get_key(self, id: str) -> ApiKey | None:
        """Return a key as it is stored now, or None."""
        ...


class SharedKeyReads:
    """Reads keys for requests; concurrent requests with the same key share one read.

    A read that began before a request arrived is not used for it. So a revoked key is refused
    immediately, although a busy server reads it less often than it receives it.
    """

    def __init__(self, tables: KeyReads) -> None:
        """Read from the tables of a server."""
        self._tables = tables
        self._running: dict[str, asyncio.Task[ApiKey | None]] = {}
        self._coming: dict[str, asyncio.Task[ApiKey | None]] = {}

    async def get_key(self, id: str) -> ApiKey | None:
        """Return a key as it is stored now, or None."""
        coming = self._coming.get(id)
        if coming is None:
            coming = asyncio.create_task(self._read(id, self._running.get(id)))
            coming.add_done_callback(_retrieve)
            self._coming[id] = coming
        return await asyncio.shield(coming)

    async def _read(self, id: str, before: "asyncio.Task[ApiKey | None] | None") -> ApiKey | None:
        if before is not None:
            await asyncio.wait([before])
        # Requests from here on wait for the next read.
        self._running[id] = task = self._coming.pop(id)
        try:
            return await self._tables.get_key(id)
        finally:
            if self._running[id] is task:
                del self._running[id]


def _retrieve(task: "asyncio.Task[ApiKey | None]") -> None:
    """Consume the error of a read whose requests were cancelled; asyncio would log it."""
    if not task.cancelled():
        task.exception()


async def check_key(tables: KeyReads, text: str, *, at: float) -> CheckedKey:
    """Return the key that a client presents, if it is valid now.

    An unknown id takes the same steps as a wrong secret.
    """
    form = _FORM.fullmatch(text)
    if form is None:
        return CheckedKey(None, "malformed")
    id, secret = form.groups()
    key = await tables.get_key(id)
    is_same = hmac.compare_digest(_digest(secret), key.digest if key else _NOBODY)
    if key is None or not is_same:
        return CheckedKey(None, "unknown")
    if key.is_valid(at):
        return CheckedKey(key)
    is_revoked = key.revoked_at is not None and at >= key.revoked_at
    return CheckedKey(None, "revoked" if is_revoked else "expired")


# --- changes, with their entries in the audit log ---


async def create_key(tables: ServerTables, rights: KeyRights, *, by: str, at: float) -> NewKey:
    """Make a key and store it; `by` names who asks, for the audit log."""
    new = make_key(rights, at=at)
    await _note(tables, new.key, "keys.create", [new.key.id], by, at)
    await tables.add_key(new.key)
    return new


async def rotate_key(
    tables: ServerTables, tenant: str, id: str, *, by: str, at: float, grace: float = 0.0
) -> NewKey:
    """Replace a key of a tenant by one with the same rights; the old one holds for `grace` seconds.

    A key that expires is replaced by one that lives as long, from now on.
    """
    old = await find_key(tables, tenant, id)
    if not old.is_valid(at):
        raise InvalidInput(f"the key {id} is expired or revoked; create a new one")
    life = None if old.expires_at is None else old.expires_at - old.created_at
    end = None if life is None else at + life
    new = make_key(KeyRights(tenant, old.scopes, old.name, old.owner, end), at=at)
    await _note(tables, new.key, "keys.rotate", [id, new.key.id], by, at)
    await tables.add_key(new.key)
    await tables.revoke_key(id, at + grace)
    return new


async def revoke_key(tables: ServerTables, tenant: str, id: str, *, by: str, at: float) -> bool:
    """Revoke a tenant's key; return False if it was already revoked."""
    key = await find_key(tables, tenant, id)
    done = await tables.revoke_key(id, at)
    if done:
        await _note(tables, key, "keys.revoke", [id], by, at)
    return done


async def find_key(tables: ServerTables, tenant: str, id: str) -> ApiKey:
    """Return a tenant's key; another tenant's key is treated like one that does not exist.

    Only the tenant's keys are read, starting just before the id, so response times do not reveal
    whether another tenant has such a key.
    """
    after = check_id(id, "a key's id")[:-1]
    while found := await tables.list_keys(tenant=tenant, after=after or None, limit=1):
        after = found[0].id
        if after >= id:
            break
    if not found or after != id:
        raise NotFound(f"there is no key {id!r}")
    return found[0]


async def _note(
    tables: ServerTables, key: ApiKey, action: str, ids: Collection[str], by: str, at: float
) -> None:
    await tables.audit(AuditEntry(at, by, key.tenant, key.owner, action, tuple(ids)))


def _digest(secret: str) -> bytes:
    return sha256(secret.encode()).digest()


def _new_id(at: float) -> str:
    moment = int(at) // _STEP
    letters = [_LETTERS[moment >> 5 * place & 31] for place in reversed(range(_TIME))]
    letters += [secrets.choice(_LETTERS) for _ in range(_CHANCE)]
    return "".join(letters)
