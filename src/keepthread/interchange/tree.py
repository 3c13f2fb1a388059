"""The ways through a conversation that is a tree, because what was edited away is kept."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from keepthread.errors import InvalidInput


class Way(NamedTuple):
    """One way through a tree, from a root to a leaf."""

    nodes: Sequence[str]
    origin: int = 0
    """The number of the way it parts from."""
    shared: int = 0
    """How many nodes at its beginning are of that way."""


def ways_of(parents: Mapping[str, str | None], current: str) -> Iterator[Way]:
    """Yield the way that ends at a node, then every other, each behind the one it parts from.

    Other ways follow the first child, so that they stay what they are when the tree grows.
    """
    main = Way(_up(parents, current))
    yield main
    children: dict[str | None, list[str]] = {}
    for node, parent in parents.items():
        children.setdefault(parent if parent in parents else None, []).append(node)
    ways = [main]
    for number, way in enumerate(ways):
        for index in range(way.shared if number else -1, len(way.nodes)):
            node = way.nodes[index] if index >= 0 else None
            onward = way.nodes[index + 1] if index + 1 < len(way.nodes) else None
            for child in children.get(node, ()):
                if child != onward:
                    nodes = (*way.nodes[: index + 1], *_down(children, child))
                    ways.append(other := Way(nodes, number, index + 1))
                    yield other


def leaves_of(parents: Mapping[str, str | None], below: str | None = None) -> list[str]:
    """Return the nodes that no other follows; with `below`, those that follow it or are it."""
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


def mended(parents: Mapping[str, str | None]) -> tuple[dict[str, str | None], int]:
    """Let nodes whose parent is missing follow the node before them; return how many did so.

    The parent that the first root names is the name of the root: its other children are roots too.
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
            if top != node:  # otherwise the node before it follows it
                result[node], tops[node] = before, top
                number += 1
        before = node
    return result, number


def _tops(parents: Mapping[str, str | None]) -> dict[str, str]:
    """Return the root above each node; of nodes in a circle, one of them."""
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
            raise InvalidInput("its messages follow each other in a circle")
        nodes[node] = None
        node = parents[node]
    return list(reversed(nodes))


def _down(children: Mapping[str | None, Sequence[str]], node: str) -> Iterator[str]:
    while True:
        yield node
        if not (below := children.get(node)):
            return
        node = below[0]
