"""Where a log ends: kept beside it, and found from its rows should that be damaged."""

from keepthread.codec import decode
from keepthread.stores.drafts import Head
from keepthread.stores.redis.link import Link
from keepthread.stores.redis.places import Place
from keepthread.stores.redis.rows import guard_of, pack_head, unpack_head, unpack_row
from keepthread.stores.redis.scripts import LUA
from keepthread.stores.redis.state import alive, read_state, unpack_record


async def sound_head(link: Link, place: Place, data: bytes) -> tuple[Head, int] | None:
    """Return where a log ends and its time to live; mend what is damaged, and return None."""
    head = unpack_head(place, data)
    if head is None:
        await _mend_head(link, place, data)
    return head


async def find_head(link: Link, place: Place) -> Head:
    """Find where a log ends from its rows: on the last sound one, with damaged ones behind it."""
    fields: list[bytes] = await link.ask("HKEYS", place.messages)
    seqs = sorted((int(field) for field in fields if field.isdigit()), reverse=True)
    last = seqs[0] if seqs else 0
    for seq in seqs:
        row = unpack_row(seq, await link.ask("HGET", place.messages, seq) or b"")
        if decode(place.number, row, guard_of).state != "damaged":
            return Head(last, row.exchanges, row.total)
    return Head(last)


async def _mend_head(link: Link, place: Place, damaged: bytes) -> None:
    """Put what the rows say in the place of a damaged head, so that the log goes on."""
    state = await read_state(link, place)
    described = unpack_record(place, state.record)
    head = await find_head(link, place)
    whole = pack_head(place, head, described.ttl if described else 0)
    alive(await link.run(LUA["mend"], place.keys, (place.life, place.mark, damaged, whole)))
