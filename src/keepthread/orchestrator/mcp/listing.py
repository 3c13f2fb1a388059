"""Choose the usable tools from a server's list, which is untrusted."""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from keepthread.context.quoting import sanitize
from keepthread.context.rendering import label, wire_name
from keepthread.errors import InvalidInput
from keepthread.orchestrator.mcp.types import Rule, Server
from keepthread.stores.validation import plain
from keepthread.types import JSON, Tool

if TYPE_CHECKING:
    from mcp import types

MOST_TOOLS: Final = 100
_LONGEST_NAME: Final = 255
_LONGEST_STEM: Final = 58  # of the 64 characters that a name may have
_LONGEST_ABOUT: Final = 1000
_MOST_SCHEMA: Final = 64 << 10  # bytes
_TALK: Final = ("title", "description", "$comment")


class Offer(NamedTuple):
    """A tool of a server that may be used, under the server's name for it."""

    tool: Tool
    cache_turns: int
    side_effects: bool


def offers(
    server: Server, listed: Iterable["types.Tool"], wrong: Mapping[str, str]
) -> tuple[list[Offer], list[str]]:
    """Return the usable tools, and notes about the others.

    `wrong` says why tools that are not in the list were left out.
    """
    taken: dict[str, Offer] = {}
    notes = [
        f"{label(name) or 'a tool'} is left out: {why}"
        for name, why in wrong.items()
        if server.allow is None or name in server.allow
    ]
    more = 0
    for tool in listed:
        if server.allow is not None and tool.name not in server.allow:
            continue
        if tool.name in taken:
            notes.append(f"{label(tool.name)} is listed twice; the first one is used")
        elif len(taken) == MOST_TOOLS:
            more += 1
        else:
            try:
                taken[tool.name] = _offer(server, tool)
            except InvalidInput as error:
                notes.append(f"{label(tool.name)} is left out: {error}")
    if more:
        notes.append(
            f"{more} tools beyond the limit of {MOST_TOOLS} are left out; use `allow` to choose"
        )
    unknown = {*(server.allow or ()), *server.rules} - taken.keys() - wrong.keys()
    notes += [f"it has no tool {label(name)}" for name in sorted(unknown)]
    return list(taken.values()), [server.without_secrets(note) for note in notes[:MOST_TOOLS]]


def _offer(server: Server, tool: "types.Tool") -> Offer:
    if not 0 < len(tool.name) <= _LONGEST_NAME:
        raise InvalidInput(f"its name has {len(tool.name)} characters")
    rule = server.rules.get(tool.name, Rule())
    side_effects = rule.side_effects
    if side_effects is None:  # a server's own read-only hint is not trusted
        side_effects = not rule.cache_turns
    about = _shortened(tool.description or tool.title or "")
    return Offer(
        Tool(tool.name, about, _parameters(tool.input_schema)), rule.cache_turns, side_effects
    )


def _parameters(schema: Any) -> Mapping[str, JSON]:
    """Return a tool's schema, limited in size."""
    copy = cast("dict[str, Any]", plain(schema, "its schema", ordered=True))
    if len(json.dumps(copy)) > _MOST_SCHEMA:
        raise InvalidInput(f"its schema has more than {_MOST_SCHEMA >> 10} kB")
    return cast("Mapping[str, JSON]", _tamed({"properties": {}, **copy}))


def _tamed(value: Any) -> Any:
    """Return a schema whose texts are short, and without markup of chat templates."""
    if isinstance(value, list):
        return [_tamed(each) for each in cast("list[Any]", value)]
    if not isinstance(value, dict):
        return value
    return {
        key: _shortened(each) if key in _TALK and isinstance(each, str) else _tamed(each)
        for key, each in cast("dict[str, Any]", value).items()
    }


def _shortened(text: str) -> str:
    text = sanitize(text.strip())
    return text if len(text) <= _LONGEST_ABOUT else f"{text[:_LONGEST_ABOUT]}…"


def named(offered: Mapping[str, Sequence[str]], taken: Collection[str] = ()) -> list[list[str]]:
    """Return the names that models see for each server's tools: short where that is unique.

    Every name is valid for all providers, and none is in `taken`.
    """
    short = [wire_name(name) for names in offered.values() for name in names]
    clash = {name for name, times in Counter([*short, *set(taken)]).items() if times > 1}
    used = {*taken, *short}
    found: list[list[str]] = []
    for server, names in offered.items():
        found.append([])
        for name in names:
            own = wire_name(name)
            if own in clash:
                own = _free(wire_name(f"{server}__{name}"), used)
                used.add(own)
            found[-1].append(own)
    return found


def _free(name: str, used: Collection[str]) -> str:
    """Return a name, with a number after it if it is used."""
    numbered = (f"{name[:_LONGEST_STEM]}_{n}" for n in count(2))
    return name if name not in used else next(each for each in numbered if each not in used)
