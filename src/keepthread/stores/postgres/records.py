"""Records in PostgreSQL: each function is one call of one SQL function."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple

from keepthread.errors import Damaged, SessionGone
from keepthread.protocols import MadeRecords, Updates
from keepthread.stores.backend import Put
from keepthread.stores.changes import change_of_record
from keepthread.stores.links import digest_of, node_of
from keepthread.stores.postgres import sessions
from keepthread.stores.postgres.engine import PgEngine
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.records import (
    ALL_KEYS,
    Keys,
    check_epoch,
    check_version,
    decode_record,
    sid_of,
)
from keepthread.types import Record, Scope, SessionKey, Span

_LONGEST_NAME: Final = 255  # bytes of an owner's name that an index holds as it is


class PgScope(NamedTuple):
    """The owner of records, as the table has it."""

    tenant: int
    sid: int
    whose: bytes


def scope_of(tenant: int, sid: int, owner: str) -> PgScope:
    """Return a scope as the table has it: a session, an owner, or neither for the tenant."""
    name = owner.encode()
    short = len(name) <= _LONGEST_NAME
    return PgScope(tenant, sid, name if short else b"\0" + sha256(name).digest())


async def put(
    engine: PgEngine, where: PgScope, scope: Scope, record: Put, epochs: Mapping[int, int]
) -> int:
    """Store a record, unless it or its sources changed since the caller read them."""
    kind, key, value, made_of, given, version, _, named = record
    names = [name.encode() for name in (scope.owner, kind, key)]
    spans: tuple[list[int] | None, ...] = (None, None)
    own = [s for s in given if s.session == scope.session and s.first <= s.last]
    if made_of is not None:
        spans = ([span.first for span in own], [span.last for span in own])
    place = (place_of(scope, kind, key), *_sources(scope, given))
    values = (*where, *names, value, made_of, *spans, _node(own), *place, version)
    if named:
        await engine.call(SQL["name_sessions"], (where.tenant, where.sid, encoded(named)))
    seen = (list(epochs), list(epochs.values()))
    # With a version, a retry would fail because of the first attempt.
    change = change_of_record(scope, kind)
    ((outcome, number),) = await engine.call(
        SQL["put"], (*values, *seen, change), again=version is None
    )
    if outcome == "gone":
        raise SessionGone("the session was deleted")
    if outcome == "version":
        check_version(number, version)
    if outcome == "epoch":
        check_epoch(number, next(e for e in epochs.values() if e != number))
    return number


def place_of(scope: Scope, kind: str, key: str) -> bytes:
    """Return a short name of a record within its session, or within the tenant."""
    return bytes.fromhex(digest_of(scope.owner, kind, key))


def encoded(names: Sequence[str]) -> list[bytes]:
    """Return names as the tables have them."""
    return [name.encode() for name in names]


def _node(own: Sequence[Span]) -> int | None:
    """Return the node around the spans of a record's own session."""
    if not own:
        return None
    first, last = min(span.first for span in own), max(span.last for span in own)
    return node_of(own[0]._replace(first=first, last=last))


def _sources(scope: Scope, spans: Sequence[Span]) -> tuple[list[int] | None, list[int] | None]:
    """Return the other sessions that a record is made of, and the nodes of its spans there."""
    found: dict[tuple[int, int], None] = {}
    for span in spans:
        node = node_of(span)
        if node is not None and span.session != scope.session and _is_key(span.session):
            found[sid_of(span.session), node] = None
    return ([sid for sid, _ in found], [node for _, node in found]) if found else (None, None)


def _is_key(session: SessionKey) -> bool:
    try:
        return sid_of(session) > 0
    except SessionGone:  # the key of another store
        return False


async def get(engine: PgEngine, where: PgScope, kind: str, key: str) -> Record | None:
    """Return one record."""
    rows = await engine.call(SQL["get"], (*where, kind.encode(), key.encode()))
    if not rows:
        await _check_owner(engine, where)
        return None
    return _decode(where.sid, rows[0])


async def scan(engine: PgEngine, where: PgScope, kind: str | None, keys: Keys) -> list[Record]:
    """Return the records of a scope."""
    name = None if kind is None else kind.encode()
    if kind is None or keys is ALL_KEYS:
        left_out = keys.without.encode() or None
        rows = await engine.call(SQL["scan"], (*where, name, left_out, None, None))
    else:
        bounds = (keys.after.encode(), keys.before.encode(), keys.limit)
        rows = (await engine.call(SQL["scan"], (*where, name, *bounds)))[::-1]
    if not rows:
        await _check_owner(engine, where)
    return [_decode(where.sid, row) for row in rows if row[0]]


async def updates(engine: PgEngine, where: PgScope, kind: str, since: int) -> Updates:
    """Return the records of an owner or of the tenant that changed after a number."""
    values = (where.tenant, where.whose, kind.encode(), since)
    first, *rows = await engine.call(SQL["updates"], values)
    dropped = [row[3].decode() for row in rows if not row[0]]
    found = [_decode(0, row) for row in rows if row[0]]
    return Updates(first[0], first[6], found, dropped)


async def made_of(
    engine: PgEngine, tenant: int, sid: int, nodes: Sequence[int] | None
) -> MadeRecords:
    """Return the records at some nodes of a session, or at all."""
    wanted = None if nodes is None else list(nodes)
    rows = await engine.call(SQL["made_of"], (tenant, sid, wanted))
    found = {row[1]: row for row in rows}.values()
    damaged = {_scope(row[0], row[2]) for row in found if not row[-1]}
    return MadeRecords([_decode(row[0], row[1:]) for row in found if row[-1]], list(damaged))


async def owners(engine: PgEngine, tenant: int) -> list[str]:
    """Return the owners who have a record."""
    return [owner.decode() for (owner,) in await engine.call(SQL["owners"], (tenant,))]


async def blob_owners(engine: PgEngine, tenant: int) -> list[str]:
    """Return the owners who have blobs."""
    return [owner.decode() for (owner,) in await engine.call(SQL["blob_owners"], (tenant,))]


async def drop(
    engine: PgEngine, where: PgScope, scope: Scope, kind: str, key: str, version: int | None
) -> bool:
    """Delete a record."""
    change = change_of_record(scope, kind)
    place = place_of(scope, kind, key)
    values = (*where, kind.encode(), key.encode(), place, version, change)
    ((outcome, number),) = await engine.call(SQL["drop"], values, again=False)
    if outcome == "gone":
        raise SessionGone("the session was deleted")
    if outcome == "version":
        check_version(number, version)
    return number > 0


def record(
    sid: int,
    owner: bytes,
    kind: bytes,
    key: bytes,
    value: bytes,
    version: int,
    made_of: bytes | None,
) -> Record:
    """Return a sound record."""
    scope = _scope(sid, owner)
    return decode_record(scope, kind.decode(), key.decode(), value, version, made_of)


def _scope(sid: int, owner: bytes) -> Scope:
    key = SessionKey(str(sid)) if sid else SessionKey("")
    return Scope(session=key, owner=owner.decode("utf-8", "replace"))


def damaged(kind: bytes, key: bytes) -> Damaged:
    """Return the error for a damaged record."""
    name = b"/".join((kind, key)).decode("utf-8", "replace")
    return Damaged(f"the record {name} is damaged; drop it, or run `verify`")


async def _check_owner(engine: PgEngine, where: PgScope) -> None:
    if where.sid:
        await sessions.by_sid(engine, where.tenant, where.sid)


def _decode(sid: int, row: tuple[Any, ...]) -> Record:
    version, owner, kind, key, value, made_of, intact = row
    if not intact:
        raise damaged(kind, key)
    return record(sid, owner, kind, key, value, version, made_of)
