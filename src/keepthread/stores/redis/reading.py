"""Reading a log in Redis: each function is one script, at one moment."""

from collections.abc import Sequence

from keepthread.codec import pack_id
from keepthread.errors import Damaged
from keepthread.stores.redis.heads import sound_head
from keepthread.stores.redis.link import Link
from keepthread.stores.redis.places import Place
from keepthread.stores.redis.rows import id_field, message_at, whole
from keepthread.stores.redis.scripts import LUA
from keepthread.stores.redis.state import alive
from keepthread.types import Message


async def tail(
    link: Link,
    place: Place,
    tokens: int | None,
    limit: int | None,
    before: int | None,
    after: int,
    least: int,
) -> list[Message]:
    """Return the newest messages that fit, oldest first."""
    found: list[Message] = []
    last = None if before is None else before - 1
    while True:
        left = None if tokens is None else tokens - sum(m.tokens for m in found)
        room = None if limit is None else limit - len(found)
        bounds = (_or_empty(last), after, _or_empty(left), _or_empty(room))
        args = (place.life, place.mark, *bounds, max(0, least - len(found)))
        data, rows = alive(await link.run(LUA["tail"], place.keys, args))
        head = await sound_head(link, place, data)
        if head is None:
            continue
        end = head[0].seq if last is None else min(head[0].seq, last)
        newest = newest_first(place, end, rows)
        found += newest
        # A damaged message costs nothing, which the script could not know: there may be room yet.
        if tokens is None or all(m.state != "damaged" for m in newest):
            return found[::-1]
        last = end - len(newest)


def newest_first(place: Place, end: int, rows: Sequence[bytes]) -> list[Message]:
    """Return the messages of rows that go back from a position."""
    return [message_at(place, end - n, row) for n, row in enumerate(rows)]


async def read(link: Link, place: Place, after: int, upto: int) -> list[Message]:
    """Return messages behind a position, oldest first."""
    while True:
        args = (place.life, place.mark, after + 1, upto)
        data, rows = alive(await link.run(LUA["read"], place.keys, args))
        if await sound_head(link, place, data):
            return [message_at(place, after + n, row) for n, row in enumerate(rows, 1)]


async def find(link: Link, place: Place, ids: Sequence[str], seqs: Sequence[int]) -> list[Message]:
    """Return the messages of these ids and positions."""
    fields = [id_field(pack_id(id)) for id in ids]
    args = (place.life, place.mark, len(ids), *fields, *seqs)
    _, places, rows = alive(await link.run(LUA["look"], place.keys, args))
    at = [whole(seq) for seq in places] + list(seqs)
    found = {seq: message_at(place, seq, row) for seq, row in zip(at, rows, strict=True) if row}
    for id, seq in zip(ids, at, strict=False):
        if seq in found and found[seq].state != "damaged" and found[seq].id != id:
            raise Damaged("the positions of ids are not what was written; run `verify`")
    return [found[seq] for seq in sorted(found)]


def _or_empty(value: int | None) -> int | str:
    return "" if value is None else value
