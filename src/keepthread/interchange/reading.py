"""What the readers of other programs' conversations share: from a tree to sessions, and its JSON.

Anything may be missing, null or of another type than it should be: then it is as if it were not
there.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from keepthread.codec import dumps
from keepthread.interchange.arrays import MAX_ITEM
from keepthread.interchange.conversations import Conversation, session_id
from keepthread.interchange.tree import Way
from keepthread.types import ForkPoint, Message

MOST_BRANCHES: Final = 100
"""How many forks one conversation may become."""
_MOST_ATTACHED: Final = 100


class Said(NamedTuple):
    """What was said along one way through a conversation."""

    messages: Sequence[Message]
    hidden: Collection[str] = ()
    """The nodes of which nothing is shown."""
    shortened: int = 0


class Reading(NamedTuple):
    """What one conversation becomes: the session it is, then its forks."""

    conversations: Sequence[Conversation] = ()
    hidden: int = 0
    shortened: int = 0
    notes: Sequence[str] = ()
    left_out: int = 0
    repeated: int = 0
    rejoined: int = 0


class Told(NamedTuple):
    """A conversation as its program tells it: which one it is, what is known of it, its ways."""

    program: str
    id: str
    about: Conversation
    ways: Iterator[Way]
    say: Callable[[Sequence[str]], Said]
    nodes: Collection[str]
    """All that have a message."""


def read_ways(told: Told, *, branches: bool) -> Reading:
    """Return the first way as a session and, if asked for, the others as forks."""
    way = next(told.ways)
    first = told.say(way.nodes)
    seen, hidden = set(way.nodes), set(first.hidden)
    ways = [told.about._replace(messages=first.messages)]
    for way in islice(told.ways, MOST_BRANCHES if branches and first.messages else 0):
        said = told.say(way.nodes)
        ways.append(_fork(told, way, said.messages, ways[way.origin]))
        seen.update(way.nodes)
        hidden.update(said.hidden)
    more = branches and next(told.ways, None) is not None
    notes = [f"it has more than {MOST_BRANCHES} branches; the rest is left out"] if more else []
    found = {conversation.id: conversation for conversation in ways if conversation.messages}
    left_out = sum(node not in seen for node in told.nodes)
    return Reading(list(found.values()), len(hidden), first.shortened, notes, left_out)


def _fork(told: Told, way: Way, messages: Sequence[Message], origin: Conversation) -> Conversation:
    """Return what parts from another way, or that one itself if nothing was said on it."""
    shared = 0
    for one, other in zip(origin.messages, messages, strict=False):
        if one != other:
            break
        shared += 1
    if shared == len(messages):
        return origin
    return told.about._replace(
        id=session_id(told.program, told.id, way.nodes[way.shared]),
        messages=messages,
        forked_from=ForkPoint(session=origin.id, seq=shared),
        updated_at=0.0,  # when its last message was written
    )


# --- looking into JSON ---


def mapped(value: Any, key: str) -> Mapping[str, Any]:
    """Return the object under a key, an empty one if there is none."""
    found = cast(dict[str, Any], value).get(key) if isinstance(value, dict) else None
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def listed(value: Any, key: str) -> Sequence[Any]:
    """Return the list under a key, an empty one if there is none."""
    found = cast(dict[str, Any], value).get(key) if isinstance(value, dict) else None
    return cast(list[Any], found) if isinstance(found, list) else []


def text_in(value: Any, key: str) -> str:
    """Return the text under a key, an empty one if there is none."""
    found = cast(dict[str, Any], value).get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def dicts(values: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a list."""
    for value in values:
        if isinstance(value, dict):
            yield cast(dict[str, Any], value)


def paragraphs(*parts: str) -> str:
    """Return texts as one, those left out that say nothing."""
    return "\n\n".join(part for part in parts if part)


def attached(names: Sequence[str]) -> str:
    """Return what went with a message, in words: the things themselves are not in the file."""
    return "\n".join(f"[attached: {name}]" for name in names[:_MOST_ATTACHED])


def id_by_content(value: Mapping[str, Any]) -> str:
    """Return an id for what has none: the same for the same content."""
    return sha256(dumps(value, "the conversation", limit=2 * MAX_ITEM)).hexdigest()
