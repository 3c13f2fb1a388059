"""Where things are: the keys of a session, of a shelf and of a tenant's index.

Names become part of a key only as hashes, so that no name can reach another's keys. What is
between braces decides the slot: all keys of a session share it, and one script may touch them.
"""

import struct
from functools import lru_cache
from hashlib import sha256
from typing import Final, NamedTuple

from keepthread.errors import SessionGone
from keepthread.types import Scope, SessionKey

_PARTS: Final = ("session", "messages", "ids", "records", "order")
_TAG: Final = 32
_LONGEST_NUMBER: Final = 16

pack_mark = struct.Struct("<q").pack


class Place(NamedTuple):
    """One session, or one shelf, as the scripts take it."""

    key: SessionKey
    life: str
    number: int
    """What seals are bound to, so that a value that strays into another place is noticed."""
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
    def order(self) -> str:
        """Name the sorted set of its records' names."""
        return self.keys[4]


class Index(NamedTuple):
    """The keys that tell of all sessions of a tenant."""

    last: str
    sessions: str
    active: str
    owners: str
    ends: str
    """When sessions with a time to live may end, each with the tag of its owner."""

    def active_of(self, owner: str) -> str:
        """Name the sorted set of one owner's sessions."""
        return f"{self.active}:{owner_tag(owner)}"


def owner_tag(owner: str) -> str:
    """Return what stands for an owner in the index."""
    return _tag(owner)


def tag_of(id: str) -> str:
    """Return what stands for a session's id in its key."""
    return _tag("session", id)


@lru_cache(maxsize=10_000)
def session_place(tenant: str, key: SessionKey) -> Place:
    """Return the place of a session, or say that this is no session's key."""
    number, dash, tag = key.partition("-") if type(key) is str else ("", "", "")
    if not dash or not _is_number(number) or len(tag) != _TAG or not tag.isalnum():
        raise SessionGone("that is no session's key here")
    return _place(key, number, session_tag(tenant, tag), tenant, key)


def session_tag(tenant: str, tag: str) -> str:
    """Return the hash tag of a tenant's session: with another tenant, the same key is elsewhere."""
    return _tag("session", tenant, tag)


def session_name(tenant: str, id: str) -> str:
    """Return the key of the hash that a session of this id has, if there is one."""
    return _keys(session_tag(tenant, tag_of(id)))[0]


@lru_cache(maxsize=1000)
def shelf_place(tenant: str, owner: str) -> Place:
    """Return the place of an owner's shelf, or of the tenant's own."""
    parts = ("owner", tenant, owner) if owner else ("tenant", tenant)
    return _place(SessionKey(""), "", _tag(*parts), *parts)


def scope_place(tenant: str, scope: Scope) -> Place:
    """Return the place of any shelf."""
    if scope.session:
        return session_place(tenant, scope.session)
    return shelf_place(tenant, scope.owner)


@lru_cache(maxsize=1000)
def index_of(tenant: str) -> Index:
    """Return the keys of a tenant's index."""
    base = f"keepthread:{{{_tag('index', tenant)}}}"
    return Index(*(f"{base}:{part}" for part in Index._fields))


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
