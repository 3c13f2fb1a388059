"""The feed of changes in PostgreSQL: reading it is one call of one SQL function.

A write adds its change in its own transaction. A reader stops before the oldest transaction that
is under way, so it never passes over a change that is committed late; `ddl/changes.sql` says more.
"""

from typing import Any, Final, cast

from keepthread.errors import Damaged
from keepthread.stores.backend import Feed, FeedPage
from keepthread.stores.changes import ADDED, ERASED, FeedHolder, change_of, expired_cursor
from keepthread.stores.codec import unpack_id
from keepthread.stores.cursors import check_position
from keepthread.stores.postgres.engine import PgEngine
from keepthread.stores.postgres.log import id_from_bytes
from keepthread.stores.postgres.schema import SQL
from keepthread.types import Change, SessionKey

_OF_MESSAGES: Final = (ADDED, ERASED)


async def read(engine: PgEngine, tenant: int, wanted: Feed) -> FeedPage:
    """Return the changes after a position: the server's history, a place in it, and a number."""
    owner = None if wanted.owner is None else wanted.owner.encode()
    history, place, number = "", None, 0
    if wanted.after is not None:
        check_position(wanted.after, (str, int, int))
        history, place, number = cast(tuple[str, int, int], tuple(wanted.after))
    values = (tenant, owner, None if place is None else str(place), number, wanted.limit)
    first, *rows = await engine.call(SQL["changes"], values)
    now: str = first[0]
    if wanted.after is not None and (first[1] or (history and history != now)):
        raise expired_cursor()
    at = (int(rows[-1][0]), rows[-1][1]) if rows else (place or 0, number)
    found = [_decode(*row[2:]) for row in rows[: wanted.limit]]
    return FeedPage(found, [now if rows or history else "", *at])


async def holder(engine: PgEngine) -> FeedHolder | None:
    """Return the oldest transaction that readers wait for, in any database of the server."""
    rows = await engine.call(SQL["feed_holder"])
    return FeedHolder(*rows[0]) if rows else None


def _decode(
    at: float, sid: int, kind: int, owner: bytes, session: bytes, ids: list[bytes]
) -> Change:
    try:
        names = [_id(kind, id) for id in ids]
        key = SessionKey(str(sid) if sid else "")
        return change_of(kind, at, owner.decode(), session.decode(), key, names)
    except (UnicodeDecodeError, IndexError):
        raise Damaged("a change in the feed is damaged; continue from the present") from None


def _id(kind: int, id: Any) -> str:
    return unpack_id(id_from_bytes(id)) if kind in _OF_MESSAGES else id.decode()
