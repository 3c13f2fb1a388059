"""The shelf in PostgreSQL: each function is one call there."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any, Final, NamedTuple

from keepthread.errors import Damaged, SessionGone
from keepthread.stores.backend import Put
from keepthread.stores.postgres import sessions
from keepthread.stores.postgres.engine import Engine
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.records import ALL_KEYS, Keys, check_epoch, check_version, decode_record
from keepthread.types import Record, Scope, SessionKey

_LONGEST_NAME: Final = 255  # bytes of an owner's name that an index holds as it is


class Shelf(NamedTuple):
    """Whose shelf it is, as the table has it."""

    tenant: int
    sid: int
    whose: bytes


def shelf_of(tenant: int, sid: int, owner: str) -> Shelf:
    """Return the shelf of a session, an owner, or the tenant when there is neither."""
    name = owner.encode()
    short = len(name) <= _LONGEST_NAME
    return Shelf(tenant, sid, name if short else b"\0" + sha256(name).digest())


async def put(
    engine: Engine, shelf: Shelf, scope: Scope, record: Put, epochs: Mapping[int, int]
) -> int:
    """Replace a record if it and its sources are as the caller saw them."""
    kind, key, value, made_of, given, version, _ = record
    names = [name.encode() for name in (scope.owner, kind, key)]
    spans: tuple[list[int] | None, ...] = (None, None)
    if made_of is not None:
        own = [s for s in given if s.session == scope.session and s.first <= s.last]
        spans = ([span.first for span in own], [span.last for span in own])
    values = (*shelf, *names, value, made_of, *spans, version)
    seen = (list(epochs), list(epochs.values()))
    # With a version, a second attempt would be refused because of the first.
    ((outcome, number),) = await engine.call(SQL["put"], (*values, *seen), again=version is None)
    if outcome == "gone":
        raise SessionGone("the session was deleted")
    if outcome == "version":
        check_version(number, version)
    if outcome == "epoch":
        check_epoch(number, next(e for e in epochs.values() if e != number))
    return number


async def get(engine: Engine, shelf: Shelf, kind: str, key: str) -> Record | None:
    """Return one record."""
    rows = await engine.call(SQL["get"], (*shelf, kind.encode(), key.encode()))
    if not rows:
        await _check_owner(engine, shelf)
        return None
    return _decode(shelf.sid, rows[0])


async def scan(engine: Engine, shelf: Shelf, kind: str | None, keys: Keys) -> list[Record]:
    """Return the records of a shelf."""
    name = None if kind is None else kind.encode()
    if keys is ALL_KEYS:
        rows = await engine.call(SQL["scan"], (*shelf, name, None, None, None))
    else:
        bounds = (keys.after.encode(), keys.before.encode(), keys.limit)
        rows = (await engine.call(SQL["scan"], (*shelf, name, *bounds)))[::-1]
    if not rows:
        await _check_owner(engine, shelf)
    return [_decode(shelf.sid, row) for row in rows]


async def owners(engine: Engine, tenant: int) -> list[str]:
    """Return the owners who have a record."""
    return [owner.decode() for (owner,) in await engine.call(SQL["owners"], (tenant,))]


async def drop(engine: Engine, shelf: Shelf, kind: str, key: str, version: int | None) -> bool:
    """Take a record away."""
    values = (*shelf, kind.encode(), key.encode(), version)
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
    """Return a record that is what was written."""
    scope = Scope(session=SessionKey(str(sid)) if sid else SessionKey(""), owner=owner.decode())
    return decode_record(scope, kind.decode(), key.decode(), value, version, made_of)


def damaged(kind: bytes, key: bytes) -> Damaged:
    """Say which record is not what was written."""
    name = b"/".join((kind, key)).decode("utf-8", "replace")
    return Damaged(f"the record {name} is damaged; drop it, or run `verify`")


async def _check_owner(engine: Engine, shelf: Shelf) -> None:
    if shelf.sid:
        await sessions.by_sid(engine, shelf.tenant, shelf.sid)


def _decode(sid: int, row: tuple[Any, ...]) -> Record:
    version, owner, kind, key, value, made_of, intact = row
    if not intact:
        raise damaged(kind, key)
    return record(sid, owner, kind, key, value, version, made_of)
