"""Vectors in PostgreSQL; the nearest are found with pgvector, or by comparing all."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import nlargest
from operator import mul
from struct import pack, unpack
from typing import Any, Final

from keepthread.errors import InvalidInput, Unavailable
from keepthread.stores.postgres.engine import PgEngine
from keepthread.stores.postgres.schema import SQL
from keepthread.stores.postgres.words import at_of, place_of
from keepthread.stores.records import role_bits
from keepthread.types import Embedding, MessageFilter

_PAGE: Final = 5000
_LOOK_EVERY: Final = 1000
_FIRST: Final = -1 << 63


def columns(vectors: Mapping[int, Embedding]) -> tuple[list[Any], ...]:
    """Return vectors as the columns of a statement."""
    for each in vectors.values():
        if len(each.vectors) != each.dimensions * max(1, len(each.ids)):
            raise InvalidInput(
                f"{len(each.vectors)} bytes are not {each.dimensions} for each vector"
            )
    return (
        [at_of(place) for place in vectors],
        [each.dimensions for each in vectors.values()],
        [pack(f"<{len(each.ids)}I", *each.ids) for each in vectors.values()],
        [each.vectors for each in vectors.values()],
    )


def embedding(dimensions: int, ids: bytes, data: bytes) -> Embedding:
    """Return a vector from its row."""
    return Embedding(data, dimensions, unpack(f"<{len(ids) // 4}I", ids))


async def see_to_index(
    engine: PgEngine, tenant: int, view: bytes, vectors: Mapping[int, Embedding]
) -> None:
    """From time to time, create an index of vectors once there are many."""
    single = [each.dimensions for each in vectors.values() if not each.ids]
    before = engine.vectors_put
    engine.vectors_put += len(single)
    if single and (not before or before // _LOOK_EVERY != engine.vectors_put // _LOOK_EVERY):
        for dimensions in set(single):
            with suppress(
                Unavailable
            ):  # the table is locked or the role lacks permission: compare all vectors
                await engine.call(SQL["index_nearest"], (tenant, view, dimensions))


async def nearest(
    engine: PgEngine,
    tenant: int,
    view: bytes,
    scope: tuple[bytes | None, int | None],
    to: Embedding,
    only: MessageFilter | None,
    limit: int,
) -> list[int]:
    """Return the places of the nearest vectors; with a filter, all vectors are compared."""
    if len(to.vectors) != to.dimensions:
        raise InvalidInput("a nearest-neighbor search needs one vector, not one per token")
    asked = (tenant, view, *scope, to.dimensions)
    if only is None:
        found = await engine.call(SQL["nearest"], (*asked, to.vectors, limit))
        if found != [(None, None)]:
            return [place_of(*row) for row in found]
    statement, condition = SQL["points_behind"], tuple[float, ...]()
    if only is not None:
        statement, condition = SQL["points_within"], (only.since, only.until, role_bits(only))
    best: list[tuple[float, int]] = []
    last = (_FIRST, 0, 0)
    while rows := await engine.call(statement, (*asked, *last, _PAGE, *condition)):
        best = nlargest(limit, (*best, *_compared(rows, to)))
        last = rows[-1][:3]
    return [place for _, place in best]


def _compared(rows: Sequence[tuple[Any, ...]], to: Embedding) -> Iterator[tuple[float, int]]:
    """Yield the similarity and place of each vector."""
    places = [place_of(sid, at) for _, sid, at, _ in rows]
    data = [data for *_, data in rows]
    try:
        import numpy as np  # noqa: PLC0415 - an extra
    except ImportError:
        asked = memoryview(to.vectors).cast("b")
        products = [sum(map(mul, memoryview(each).cast("b"), asked)) for each in data]
    else:
        matrix = np.frombuffer(b"".join(data), np.int8).reshape(len(rows), -1)
        products = (matrix.astype(np.float32) @ np.frombuffer(to.vectors, np.int8)).tolist()
    return zip(products, places, strict=True)
