"""What a context is made of, in one call: the session, its newest messages, its shelf."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from keepthread.checks import MAX_COUNT
from keepthread.errors import Damaged, SessionGone
from keepthread.stores.gaps import without_gaps
from keepthread.stores.postgres import log, sessions, shelf
from keepthread.stores.postgres.engine import Engine
from keepthread.stores.postgres.rows import decode
from keepthread.stores.postgres.statements import SQL
from keepthread.types import Gathered, Message, Record

_GATHER: Final = SQL["gather"]
_MESSAGE, _RECORD, _SOURCE = 1, 2, 3  # parts of what it returns


async def gather(
    engine: Engine,
    tenant: int,
    sid: int,
    tokens: int,
    least: int,
    kinds: Sequence[str],
    follow: Sequence[str],
) -> Gathered:
    """Return a session's prompt, tail, records and what those are made of."""
    asked = (*kinds, *follow)
    values = (tenant, sid, tokens, least, _array(asked), _array(tuple(follow)))
    rows = await engine.call(_GATHER, values)
    messages: list[Message] = []
    records: dict[bytes, list[Record]] = {}
    sources: dict[int, Message] = {}
    session = None
    for row in rows:
        part = row[0]
        if part == _MESSAGE:
            messages.append(decode(sid, row[2:]))
        elif part == _RECORD:
            records.setdefault(row[8], []).append(_record(sid, row))
        elif part == _SOURCE:
            sources[row[2]] = decode(sid, row[2:])
        else:
            session = row
    if session is None:
        raise SessionGone("the session was deleted")
    if not session[1]:
        name = session[3].decode("utf-8", "replace")
        raise Damaged(f"the record of session {name!r} is damaged; run `verify`")
    prompt, fence = sessions.prompt_and_fence(session[5])
    messages.reverse()
    if any(message.state == "damaged" for message in messages):
        messages = await log.careful_tail(engine, tenant, sid, tokens, None, MAX_COUNT, 0, least)
    else:
        messages = without_gaps(messages, session[2] - 1)
    for found in records.values():
        found.sort(key=lambda record: record.key)  # text sorts by code point, as keys do
    chosen = [record for kind in asked for record in records.get(kind.encode(), ())]
    return Gathered(prompt, messages, chosen, [sources[seq] for seq in sorted(sources)], fence)


@lru_cache
def _array(kinds: tuple[str, ...]) -> str:
    """Return kinds as PostgreSQL writes an array, which costs less to pass than a list does."""
    inside = ",".join(rf'"\\x{kind.encode().hex()}"' for kind in kinds)
    return f"{{{inside}}}"


def _record(sid: int, row: tuple[Any, ...]) -> Record:
    _, intact, version, key, _, value, made_of, _, kind, *_ = row
    if not intact:
        raise shelf.damaged(kind, key)
    return shelf.record(sid, b"", kind, key, value, version, made_of)
