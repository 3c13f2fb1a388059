"""Appending to a log in Redis: one script, which numbers what is new.

The script stores all or nothing, and answers with what it found; what speaks against storing is
judged here, so that every backend refuses the same for the same reason.
"""

from collections.abc import Mapping, Sequence

from keepthread.checks import show
from keepthread.codec import PackedId
from keepthread.errors import Conflict, Damaged, Stale
from keepthread.stores.drafts import (
    Draft,
    Head,
    as_stored,
    check_exchange,
    check_total,
    head_after,
    next_row,
    same_body,
)
from keepthread.stores.redis.heads import sound_head
from keepthread.stores.redis.link import Link
from keepthread.stores.redis.places import Place
from keepthread.stores.redis.rows import id_field, message_at, pack_rest, whole
from keepthread.stores.redis.scripts import LUA
from keepthread.stores.redis.state import alive, pack_active
from keepthread.types import Message


async def append(
    link: Link,
    place: Place,
    drafts: Sequence[Draft],
    expect: int | None,
    exchange: int | None,
    now: float,
    *,
    with_record: bool,
) -> tuple[list[Message], bytes]:
    """Store what is new at the end, answer what is known; return the session's record if wanted."""
    known: dict[PackedId, Message] = {}
    while True:
        fresh = [d for d in drafts if d.packed not in known]
        first = {d.packed: d for d in reversed(fresh)}
        new = [d for d in fresh if first[d.packed] is d]
        agree = all(d.body.digest == first[d.packed].body.digest for d in fresh)
        args = (
            place.life,
            place.mark,
            "" if expect is None else expect,
            "" if exchange is None else _count(exchange),
            int(agree),
            pack_active(place, now),
            int(with_record),
            *(part for d in new for part in (id_field(d.packed), pack_rest(d))),
        )
        data, stored, record, *found = alive(await link.run(LUA["append"], place.keys, args))
        head = await sound_head(link, place, data)
        if head is None:
            continue
        if stored:
            return _answers(place, drafts, known, head[0], exchange), record
        known |= _known(place, new, found)
        _judge(drafts, known, head[0], expect, exchange)
        if all(d.packed in known for d in drafts):
            return [known[d.packed] for d in drafts], b""


def _count(exchange: object) -> int:
    """Return an exchange as a script takes it; what is none is refused behind it."""
    return exchange if type(exchange) is int else 0


def _known(place: Place, new: Sequence[Draft], found: Sequence[bytes]) -> dict[PackedId, Message]:
    """Return the messages that are stored under drafts' ids."""
    by_field = {id_field(d.packed): d for d in new}
    known: dict[PackedId, Message] = {}
    for field, seq, row in zip(found[::3], found[1::3], found[2::3], strict=True):
        draft = by_field[field]
        message = message_at(place, whole(seq), row)
        if message.state != "damaged" and message.id != draft.id:
            raise Damaged("the positions of ids are not what was written; run `verify`")
        known[draft.packed] = message
    return known


def _judge(
    drafts: Sequence[Draft],
    known: Mapping[PackedId, Message],
    head: Head,
    expect: int | None,
    exchange: int | None,
) -> None:
    """Refuse what must not be stored, for the first reason there is."""
    check_exchange(exchange, head)
    total = head.total
    new: dict[PackedId, Draft] = {}
    for one in drafts:
        if message := known.get(one.packed):
            same_body(one, message)
        elif one.packed not in new:
            if expect is not None and expect != head.seq:
                raise Stale(f"the log ends at {head.seq}, not at {expect}")
            total += one.tokens
            check_total(total)
            new[one.packed] = one
        elif new[one.packed].body.digest != one.body.digest:
            raise Conflict(f"message id {show(one.id)} is given twice, with two bodies")


def _answers(
    place: Place,
    drafts: Sequence[Draft],
    known: Mapping[PackedId, Message],
    head: Head,
    exchange: int | None,
) -> list[Message]:
    """Return what is stored now; the script numbered the new ones as is done here."""
    messages = dict(known)
    for one in drafts:
        if one.packed not in messages:
            row = next_row(place.number, head, one, exchange)
            head = head_after(row)
            messages[one.packed] = as_stored(one, row)
    return [messages[one.packed] for one in drafts]
