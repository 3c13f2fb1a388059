"""Vectors in SQLite: each function is one job on a connection."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from heapq import nlargest
from itertools import chain
from json import dumps
from struct import pack, unpack
from typing import Any, Final

from keepthread.errors import Unavailable
from keepthread.recall.positions import span
from keepthread.stores.records import role_bits
from keepthread.stores.sqlite import watermarks
from keepthread.stores.sqlite.log import check_session
from keepthread.stores.sqlite.schema import SQL
from keepthread.stores.sqlite.watermarks import IndexScope
from keepthread.types import Embedding, MessageFilter, Unread

_AT_ONCE: Final = 10_000


def put(
    db: sqlite3.Connection,
    tenant: str,
    view: str,
    read: Unread,
    sid: int,
    until: int,
    vectors: Mapping[int, Embedding],
) -> None:
    """Store the vectors of parts."""
    number = watermarks.number_of(db, view) or watermarks.new_view(db, view, of_words=False)
    watermarks.read_on(db, tenant, number, sid, read, until)
    rows = [
        (place, number, each.dimensions, pack(f"<{len(each.ids)}I", *each.ids), each.vectors)
        for place, each in vectors.items()
    ]
    db.executemany(SQL["insert_vector"], rows)


def get(
    db: sqlite3.Connection, tenant: str, view: str, places: Iterable[int]
) -> dict[int, Embedding]:
    """Return the vectors of parts, by the places as given."""
    number = watermarks.number_of(db, view)
    rows = db.execute(SQL["vectors_at"], (dumps(sorted(set(places))), tenant, number))
    return {
        place: Embedding(data, dimensions, unpack(f"<{len(tokens) // 4}I", tokens))
        for place, dimensions, tokens, data in rows
    }


def nearest(
    db: sqlite3.Connection,
    scope: IndexScope,
    view: str,
    to: Embedding,
    only: MessageFilter | None,
    limit: int,
) -> list[int]:
    """Return the places of the nearest vectors; compares every vector in the scope."""
    if scope.sid is not None:
        check_session(db, scope.tenant, scope.sid)
    cursor = _single(db, scope, (watermarks.number_of(db, view), to.dimensions, *_condition(only)))
    pages = iter(lambda: cursor.fetchmany(_AT_ONCE), [])
    best = nlargest(limit, chain.from_iterable(_compared(page, to) for page in pages))
    return [place for _, place in best]


def _condition(only: MessageFilter | None) -> tuple[bool, float, float, int]:
    """Return whether every message matches, and the times and roles otherwise."""
    return (True, 0.0, 0.0, 0) if only is None else (False, *only[:2], role_bits(only))


def _single(db: sqlite3.Connection, scope: IndexScope, which: tuple[float, ...]) -> sqlite3.Cursor:
    tenant, owner, sid = scope
    if sid is not None:
        return db.execute(SQL["single_vectors_of_session"], (sid, tenant, owner, *which))
    if owner is None:
        return db.execute(SQL["single_vectors_of_tenant"], (tenant, *which))
    return db.execute(SQL["single_vectors_of_owner"], (tenant, owner, *which))


def _compared(rows: Sequence[tuple[int, bytes]], to: Embedding) -> Iterator[tuple[int, int]]:
    """Yield the similarity and place of each vector."""
    try:
        import numpy as np  # noqa: PLC0415 - an extra
    except ImportError:
        raise Unavailable(
            "comparing vectors needs numpy: pip install 'keepthread[embed]'"
        ) from None
    data = np.frombuffer(b"".join([data for _, data in rows]), np.int8)
    asked = np.frombuffer(to.vectors, np.int8).astype(np.float32)
    products: Any = data.reshape(len(rows), -1).astype(np.float32) @ asked
    return zip(products.tolist(), (place for place, _ in rows), strict=True)


def forget(db: sqlite3.Connection, sid: int, seqs: Sequence[int] | None) -> None:
    """Remove the vectors of some positions of a session, or all."""
    spans = [span(sid)] if seqs is None else [span(sid, seq, seq) for seq in seqs]
    db.executemany(SQL["delete_vectors"], spans)


def drop(db: sqlite3.Connection, tenant: str, view: int) -> None:
    """Delete the vectors of one index of a tenant."""
    db.execute(SQL["drop_vectors"], (view, tenant))
    db.execute(SQL["drop_watermarks_of_tenant"], (view, tenant))
    if db.execute(SQL["drop_unused_view"], (view, view)).rowcount > 0:
        db.execute(SQL["drop_unread"], (view,))
    else:
        db.execute(SQL["note_tenant_unread"], (view, tenant))
