"""What a context is made of, read at one moment by one script."""

from collections.abc import Sequence
from typing import NamedTuple

from keepthread.stores.redis.heads import sound_head
from keepthread.stores.redis.reading import newest_first, tail
from keepthread.stores.redis.rows import message_at
from keepthread.stores.redis.scripts import LUA
from keepthread.stores.redis.shelf import Shelf
from keepthread.stores.redis.state import alive, undamaged
from keepthread.types import Gathered


class Wish(NamedTuple):
    """What is to be gathered."""

    tokens: int
    least: int
    kinds: Sequence[str]
    follow: Sequence[str]


async def gather(shelf: Shelf, wish: Wish) -> Gathered:
    """Return prompt, tail and records of a session."""
    place, link = shelf.place, shelf.link
    numbers = (wish.tokens, wish.least, place.key, len(wish.kinds))
    args = (place.life, place.mark, *numbers, *wish.kinds, *wish.follow)
    while True:
        record, data, *parts = alive(await link.run(LUA["gather"], place.keys, args))
        info = undamaged(place, record).info
        head = await sound_head(link, place, data)
        if head is None:
            continue
        rows, plain, followed, sources = parts
        kept = [one for found in (*plain, *followed) for one in shelf.unpack_all(found)]
        if not await shelf.settled(kept):
            continue
        messages = newest_first(place, head[0].seq, rows)[::-1]
        if any(m.state == "damaged" for m in messages):  # there may be room for more
            messages = await tail(link, place, wish.tokens, None, head[0].seq + 1, 0, wish.least)
        pairs = zip(sources[::2], sources[1::2], strict=True)
        found = {seq: message_at(place, seq, row) for seq, row in pairs}
        return Gathered(
            system_prompt=info.system_prompt,
            fence=info.fence,
            messages=messages,
            records=[one.record for _, one in kept],
            sources=[found[seq] for seq in sorted(found)],
        )
