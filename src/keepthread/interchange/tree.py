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


def leaves_of(parents: Mapping[str, str | None]) -> list[str]:
    """Return the nodes that no other follows."""
    inner = set(parents.values())
    return [node for node in parents if node not in inner]


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
