"""Shared by the readers of other programs' conversations: from a tree to sessions, and its JSON.

Any value may be missing, null or of the wrong type: it is then treated as missing.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import islice
from typing import Any, Final, NamedTuple, cast

from keepthread.errors import InvalidInput
from keepthread.interchange.conversations import ImportedConversation, session_id
from keepthread.interchange.files import MAX_ITEM
from keepthread.stores.codec import dumps
from keepthread.types import ForkPoint, Message


class TreePath(NamedTuple):
    """One path through a tree, from a root to a leaf."""

    nodes: Sequence[str]
    origin: int = 0
    """The number of the path that it branches off from."""
    shared: int = 0
    """How many nodes at its beginning it shares with that path."""


def paths_of(parents: Mapping[str, str | None], current: str) -> Iterator[TreePath]:
    """Yield the path that ends at a node, then every other, each after the one it branches from.

    Other paths follow the first child, so that they stay the same when the tree grows.
    """
    main = TreePath(_up(parents, current))
    yield main
    children: dict[str | None, list[str]] = {}
    for node, parent in parents.items():
        children.setdefault(parent if parent in parents else None, []).append(node)
    paths = [main]
    for number, path in enumerate(paths):
        for index in range(path.shared if number else -1, len(path.nodes)):
            node = path.nodes[index] if index >= 0 else None
            onward = path.nodes[index + 1] if index + 1 < len(path.nodes) else None
            for child in children.get(node, ()):
                if child != onward:
                    nodes = (*path.nodes[: index + 1], *_down(children, child))
                    paths.append(other := TreePath(nodes, number, index + 1))
                    yield other


def _leaves_of(parents: Mapping[str, str | None], below: str | None = None) -> list[str]:
    """Return the nodes without children; with `below`, only those at or below that node."""
    inner = set(parents.values())
    leaves = [node for node in parents if node not in inner]
    if below is None:
        return leaves
    if below not in inner:
        return [below]
    children: dict[str | None, list[str]] = {}
    for node, parent in parents.items():
        children.setdefault(parent, []).append(node)
    found, waiting = {below}, [below]
    while waiting:
        new = [child for child in children.get(waiting.pop(), ()) if child not in found]
        found.update(new)
        waiting += new
    return [leaf for leaf in leaves if leaf in found]


def newest_leaf(
    parents: Mapping[str, str | None], current: str, written_at: Callable[[str], float]
) -> str:
    """Return the leaf that was written last, below the current node if it exists.

    Of two leaves of the same time it is the later in the file.
    """
    leaves = _leaves_of(parents, current if current in parents else None)
    if not leaves:
        raise InvalidInput("its messages form a cycle")
    times = [written_at(leaf) for leaf in leaves]
    return max(zip(times, range(len(leaves)), leaves, strict=True))[2]


def mended(parents: Mapping[str, str | None]) -> tuple[dict[str, str | None], int]:
    """Attach nodes whose parent is missing to the node before them; return how many there were.

    The parent that the first root names is the name of the root: its other children are roots, too.
    """
    named = [parent for parent in parents.values() if parent not in parents]
    root = None if None in named else next(iter(named), None)
    result = dict(parents)
    tops = _tops(parents)
    number, before = 0, None
    for node, parent in parents.items():
        if parent is not None and parent not in parents and parent != root and before is not None:
            top = before
            while (next_top := tops[top]) != top:
                top = next_top
            if top != node:  # otherwise the node before it is below it
                result[node], tops[node] = before, top
                number += 1
        before = node
    return result, number


def _tops(parents: Mapping[str, str | None]) -> dict[str, str]:
    """Return the root above each node; for nodes in a circle, one of them."""
    tops: dict[str, str] = {}
    for start in parents:
        path: dict[str, None] = {}
        node = start
        while node not in tops and node not in path:
            path[node] = None
            parent = parents[node]
            if parent is None or parent not in parents:
                break
            node = parent
        top = tops.get(node, node)
        tops |= dict.fromkeys(path, top)
        tops[top] = top
    return tops


def _up(parents: Mapping[str, str | None], leaf: str) -> list[str]:
    nodes: dict[str, None] = {}
    node: str | None = leaf
    while node is not None and node in parents:
        if node in nodes:
            raise InvalidInput("its messages form a cycle")
        nodes[node] = None
        node = parents[node]
    return list(reversed(nodes))


def _down(children: Mapping[str | None, Sequence[str]], node: str) -> Iterator[str]:
    while True:
        yield node
        if not (below := children.get(node)):
            return
        node = below[0]


MOST_BRANCHES: Final = 100
"""Forks that one conversation may become at most."""
_MOST_ATTACHED: Final = 100


class PathMessages(NamedTuple):
    """The messages along one path through a conversation."""

    messages: Sequence[Message]
    hidden: Collection[str] = ()
    """The nodes without a message to show."""
    shortened: int = 0


class ParsedSessions(NamedTuple):
    """The sessions that one conversation becomes: itself, then its forks."""

    conversations: Sequence[ImportedConversation] = ()
    hidden: int = 0
    shortened: int = 0
    notes: Sequence[str] = ()
    left_out: int = 0
    repeated: int = 0
    rejoined: int = 0


class ParsedConversation(NamedTuple):
    """A parsed conversation: its id, its metadata and its paths."""

    program: str
    id: str
    about: ImportedConversation
    paths: Iterator[TreePath]
    say: Callable[[Sequence[str]], PathMessages]
    nodes: Collection[str]
    """All nodes that have a message."""


def read_paths(parsed: ParsedConversation, *, branches: bool) -> ParsedSessions:
    """Return the first path as a session and, with `branches`, the others as forks."""
    path = next(parsed.paths)
    first = parsed.say(path.nodes)
    seen, hidden = set(path.nodes), set(first.hidden)
    paths = [parsed.about._replace(messages=first.messages)]
    for path in islice(parsed.paths, MOST_BRANCHES if branches and first.messages else 0):
        said = parsed.say(path.nodes)
        paths.append(_fork(parsed, path, said.messages, paths[path.origin]))
        seen.update(path.nodes)
        hidden.update(said.hidden)
    more = branches and next(parsed.paths, None) is not None
    notes = [f"it has more than {MOST_BRANCHES} branches; the rest is left out"] if more else []
    found = {conversation.id: conversation for conversation in paths if conversation.messages}
    left_out = sum(node not in seen for node in parsed.nodes)
    return ParsedSessions(list(found.values()), len(hidden), first.shortened, notes, left_out)


def _fork(
    parsed: ParsedConversation,
    path: TreePath,
    messages: Sequence[Message],
    origin: ImportedConversation,
) -> ImportedConversation:
    """Return a path as a fork of another, or that other itself if the path adds nothing."""
    shared = 0
    for one, other in zip(origin.messages, messages, strict=False):
        if one != other:
            break
        shared += 1
    if shared == len(messages):
        return origin
    return parsed.about._replace(
        id=session_id(parsed.program, parsed.id, path.nodes[path.shared]),
        messages=messages,
        forked_from=ForkPoint(session=origin.id, seq=shared),
        updated_at=0.0,  # the time of its last message
    )


# --- reading JSON ---


def mapped(value: Any, key: str) -> Mapping[str, Any]:
    """Return the object under a key; empty if there is none."""
    found = cast(dict[str, Any], value).get(key) if isinstance(value, dict) else None
    return cast(dict[str, Any], found) if isinstance(found, dict) else {}


def listed(value: Any, key: str) -> Sequence[Any]:
    """Return the list under a key; empty if there is none."""
    found = cast(dict[str, Any], value).get(key) if isinstance(value, dict) else None
    return cast(list[Any], found) if isinstance(found, list) else []


def text_in(value: Any, key: str) -> str:
    """Return the text under a key; empty if there is none."""
    found = cast(dict[str, Any], value).get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else ""


def dicts(values: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the objects of a list."""
    for value in values:
        if isinstance(value, dict):
            yield cast(dict[str, Any], value)


def paragraphs(*parts: str) -> str:
    """Join texts, without empty ones."""
    return "\n\n".join(part for part in parts if part)


def attached(names: Sequence[str]) -> str:
    """Return the names of attachments as text: their contents are not in the file."""
    return "\n".join(f"[attached: {name}]" for name in names[:_MOST_ATTACHED])


def id_by_content(value: Mapping[str, Any]) -> str:
    """Return an id for an object without one: the same for the same content."""
    return sha256(dumps(value, "the conversation", limit=2 * MAX_ITEM)).hexdigest()
