"""Where to look for what was made of a message: the entries of an index that every backend keeps.

An erasure must find all records that were made of a message, in any scope, and all sessions that
may repeat it, without reading the rest of the tenant. So every write that names another session, or
positions of one, adds an entry. An entry only says where to look. It may be out of date, and
readers check what they find there.

A span of positions is entered at one node of a binary tree: the smallest block of 1, 2, 4, 8 …
aligned positions that contains it. The spans that may contain a position are then at the 54 nodes
above it, however many other spans there are.
"""

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, cast

from keepthread.context.sources import RECALLED_FROM
from keepthread.stores.kinds import WHY
from keepthread.stores.rows import PreparedMessage
from keepthread.stores.validation import MAX_COUNT, MAX_ID
from keepthread.types import JSON, SessionInfo, Span

_LEVELS: Final = MAX_COUNT.bit_length() + 1
_STRIDE: Final = 64
_MOST_NODES: Final = 2000
"""Beyond this, reading all entries of a session costs less than asking for each node."""


def node_of(span: Span) -> int | None:
    """Return the node of a span; None if it contains no position."""
    if span.first > span.last:
        return None
    level = (span.first ^ span.last).bit_length()
    return (span.first >> level) * _STRIDE + level


def nodes_above(seqs: Iterable[int]) -> list[int] | None:
    """Return the nodes of all spans that may contain one of these positions; None means any."""
    nodes: set[int] = set()
    for seq in seqs:
        nodes.update((seq >> level) * _STRIDE + level for level in range(_LEVELS))
        if len(nodes) > _MOST_NODES:
            return None
    return sorted(nodes)


def names_in_messages(drafts: Iterable[PreparedMessage]) -> list[str]:
    """Return the ids of the sessions that answers say they were written from."""
    names: dict[str, None] = {}
    for draft in drafts:
        recalled = draft.message.meta.get(RECALLED_FROM) if draft.message.meta else None
        if isinstance(recalled, Mapping):
            names.update(dict.fromkeys(cast(Mapping[str, Any], recalled)))
    return _ids(names)


def names_in_record(kind: str, value: JSON) -> list[str]:
    """Return the ids of the sessions that an explanation names."""
    if kind != WHY or not isinstance(value, Mapping):
        return []
    choices = _mappings(value.get("choices"))
    references = value.get("references")
    messages = references.get("messages") if isinstance(references, Mapping) else None
    chunks = [chunk for each in _mappings(messages) for chunk in _list(each.get("chunks"))]
    named = [choice.get("session") for choice in choices]
    named += [chunk[0] for chunk in chunks if isinstance(chunk, list | tuple) and chunk]
    return _ids(named)


def names_in_session(session: SessionInfo) -> list[str]:
    """Return the ids of the sessions that one was forked or delegated from."""
    fork = session.forked_from
    return [id for id in (session.parent, fork.session if fork else None) if id]


def digest_of(*parts: str) -> str:
    """Return a name for an entry that holds none of its parts."""
    data = b"".join(b"%d:%b" % (len(p), p) for p in (part.encode() for part in parts))
    return sha256(data).hexdigest()[:32]


def _ids(names: Iterable[object]) -> list[str]:
    """Return the names that a session may have; a program may have written others."""
    found = (name for name in names if isinstance(name, str) and name.isprintable())
    return [name for name in dict.fromkeys(found) if 0 < len(name) <= MAX_ID]


def _list(value: object) -> Sequence[Any]:
    return cast(Sequence[Any], value) if isinstance(value, list | tuple) else ()


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [cast(Mapping[str, Any], each) for each in _list(value) if isinstance(each, Mapping)]
