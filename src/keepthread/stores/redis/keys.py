"""The Redis keys of sessions, of records and of a tenant's index.

Names become part of a key only as hashes, so that no name can produce another's keys. The part
between braces decides the slot: all keys of a session share it, so one script can use them.
"""

import struct
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple

from keepthread.errors import SessionGone
from keepthread.types import Scope, SessionKey

_PARTS: Final = ("session", "messages", "ids", "records", "order", "recent")
_TAG: Final = 32
_SESSION: Final = "session"
_LONGEST_NUMBER: Final = 16

pack_mark = struct.Struct("<q").pack


class Place(NamedTuple):
    """The keys of one session, or of other records, as the scripts take them."""

    key: SessionKey
    life: str
    number: int
    """Part of every checksum, so that a value copied to another key is noticed."""
    mark: bytes
    """The number's bytes."""
    keys: tuple[str, ...]

    @property
    def session(self) -> str:
        """Name the hash of the session itself."""
        return self.keys[0]

    @property
    def messages(self) -> str:
        """Name the hash of its messages by position."""
        return self.keys[1]

    @property
    def ids(self) -> str:
        """Name the hash of positions by message id."""
        return self.keys[2]

    @property
    def records(self) -> str:
        """Name the hash of its records."""
        return self.keys[3]

    @property
    def changes(self) -> str:
        """Name the stream of its changes, which outlives it."""
        return f"{self.keys[0].rpartition(':')[0]}:changes"

    @property
    def order(self) -> str:
        """Name the sorted set of its records' names."""
        return self.keys[4]


class Index(NamedTuple):
    """The keys of a tenant's index of sessions."""

    last: str
    sessions: str
    active: str
    owners: str
    ends: str
    """When sessions with a time to live may expire, each with the tag of its owner."""

    feed: str
    """Where something changed, by periods; each owner has one as well."""
    feed_state: str
    """Which periods were read, and which were deleted."""
    blob_owners: str
    """The owners who have blobs."""
    unlisted: str
    """The sessions that are not listed, by activity that may be older than their latest."""
    links: str
    """Entries that lead from a session to what may have been made of it; see `changes.enter`."""

    def active_of(self, owner: str) -> str:
        """Name the sorted set of one owner's sessions."""
        return f"{self.active}:{owner_tag(owner)}"

    def sessions_of(self, owner: str) -> str:
        """Name the sorted set of all sessions of one owner."""
        return f"{self.sessions}:{owner_tag(owner)}"

    def feed_of(self, owner: str) -> str:
        """Name the feed of one owner."""
        return f"{self.feed}:{owner_tag(owner)}"


class TableKeys(NamedTuple):
    """The keys of the tables of a server; requests are elsewhere."""

    keys: str
    order: str
    """The ids of keys; each tenant has one as well."""
    secrets: str
    last: str
    """The last number of the audit log."""
    audit: str
    """The audit log; each tenant has one as well."""
    requesting: str
    """The tenants that have requests, or had."""


class RequestKeys(NamedTuple):
    """The keys of a tenant's requests to a server."""

    requests: str
    began: str
    bodies: str
    """The bodies of answers, apart: they go when the tenant forgets something."""
    open: str
    """Requests in flight whose answers may have bodies: the tenant has forgotten nothing since."""


def place_in_index(scope: Scope, kind: str = "", key: str = "") -> str:
    """Return where a record is, as entries of the index name it; without a kind, a session."""
    whose = scope.session or (f"owner:{scope.owner}" if scope.owner else "tenant")
    return f"{whose}\0{kind}\0{key}"


def place_from_index(place: bytes) -> tuple[Scope, str, str]:
    """Return what `place_in_index` named."""
    whose, kind, key = place.decode().split("\0")
    if whose.startswith("owner:"):
        return Scope(owner=whose.removeprefix("owner:")), kind, key
    return Scope(session=SessionKey("" if whose == "tenant" else whose)), kind, key


def owner_tag(owner: str) -> str:
    """Return the tag of an owner in the index."""
    return _tag(owner)


def tag_of(owner: str, id: str) -> str:
    """Return the tag of an owner's session id in its key."""
    return _tag("session", owner, id)


@lru_cache(maxsize=10_000)
def session_place(tenant: str, key: SessionKey) -> Place:
    """Return the keys of a session, or raise `SessionGone`."""
    number, dash, tag = key.partition("-") if type(key) is str else ("", "", "")
    if not dash or not _is_number(number) or len(tag) != _TAG or not tag.isalnum():
        raise SessionGone("this is not a session key of this store")
    return _place(key, number, session_tag(tenant, tag), tenant, key)


def session_tag(tenant: str, tag: str) -> str:
    """Return the hash tag of a tenant's session; it differs between tenants."""
    return _tag("session", tenant, tag)


def session_name(tenant: str, owner: str, id: str) -> str:
    """Return the key of the hash of an owner's session, whether or not it exists."""
    return _keys(session_tag(tenant, tag_of(owner, id)))[0]


@lru_cache(maxsize=1000)
def records_place(tenant: str, owner: str) -> Place:
    """Return the keys of the records of an owner or of the tenant."""
    tag, parts = _records_tag(tenant, owner)
    return _place(SessionKey(""), "", tag, *parts)


def _records_tag(tenant: str, owner: str) -> tuple[str, tuple[str, ...]]:
    parts = ("owner", tenant, owner) if owner else ("tenant", tenant)
    return _tag(*parts), parts


def changed_place(tenant: str, name: str) -> str:
    """Return the stream of changes of a place that the feed names; see `place_name`."""
    kind, _, rest = name.partition(":")
    tag = session_tag(tenant, rest) if kind == _SESSION else _records_tag(tenant, rest)[0]
    return f"keepthread:{{{tag}}}:changes"


def place_name(place: Place, owner: str) -> str:
    """Return the name of a place in the feed: of a session's id, or of an owner's records."""
    return f"{_SESSION}:{place.key.partition('-')[2]}" if place.key else f"owner:{owner}"


def scope_place(tenant: str, scope: Scope) -> Place:
    """Return the keys of the records of any scope."""
    if scope.session:
        return session_place(tenant, scope.session)
    return records_place(tenant, scope.owner)


@lru_cache(maxsize=1000)
def index_of(tenant: str) -> Index:
    """Return the keys of a tenant's index."""
    base = f"keepthread:{{{_tag('index', tenant)}}}"
    return Index(*(f"{base}:{part}" for part in Index._fields))


@lru_cache(maxsize=1000)
def requests_of(tenant: str) -> RequestKeys:
    """Return the keys of a tenant's requests."""
    base = f"keepthread:{{{_tag('requests', tenant)}}}"
    return RequestKeys(*(f"{base}:{part}" for part in RequestKeys._fields))


def _place(key: SessionKey, life: str, tag: str, *parts: str) -> Place:
    number = int.from_bytes(_hash(*parts)[:8]) >> 1
    return Place(key, life, number, pack_mark(number), _keys(tag))


def _keys(tag: str) -> tuple[str, ...]:
    return tuple(f"keepthread:{{{tag}}}:{part}" for part in _PARTS)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER


def _tag(*parts: str) -> str:
    return _hash(*parts).hex()[:_TAG]


def _hash(*parts: str) -> bytes:
    data = (part.encode("utf-8", "surrogatepass") for part in parts)
    return sha256(b"".join(b"%d:%b" % (len(d), d) for d in data)).digest()


TENANTS: Final = f"keepthread:{{{_tag('tenants')}}}:tenants"
"""The key of the sorted set of tenants."""

SERVER: Final = TableKeys(
    *(f"keepthread:{{{_tag('server')}}}:{part}" for part in TableKeys._fields)
)
"""The keys of the tables of a server."""
