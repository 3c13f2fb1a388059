"""Records in PostgreSQL: each function is one call of one SQL function."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

from keepthread.errors import Damaged, SessionGone
from keepthread.stores.backend import Put
from keepthread.stores.changes import change_of_record
from keepthread.stores.postgres import sessions
from keepthread.stores.postgres.engine import PgEngine
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.records import ALL_KEYS, Keys, check_epoch, check_version, decode_record
from keepthread.types import Record, Scope, SessionKey

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
    kind, key, value, made_of, given, version, _ = record
    names = [name.encode() for name in (scope.owner, kind, key)]
    spans: tuple[list[int] | None, ...] = (None, None)
    if made_of is not None:
        own = [s for s in given if s.session == scope.session and s.first <= s.last]
        spans = ([span.first for span in own], [span.last for span in own])
    values = (*where, *names, value, made_of, *spans, version)
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


async def owners(engine: PgEngine, tenant: int) -> list[str]:
    """Return the owners who have a record."""
    return [owner.decode() for (owner,) in await engine.call(SQL["owners"], (tenant,))]


async def drop(
    engine: PgEngine, where: PgScope, scope: Scope, kind: str, key: str, version: int | None
) -> bool:
    """Delete a record."""
    change = change_of_record(scope, kind)
    values = (*where, kind.encode(), key.encode(), version, change)
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
    scope = Scope(session=SessionKey(str(sid)) if sid else SessionKey(""), owner=owner.decode())
    return decode_record(scope, kind.decode(), key.decode(), value, version, made_of)


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
