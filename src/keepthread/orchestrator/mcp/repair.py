"""Repair a server's messages before the SDK parses them.

The SDK refuses a whole list for one bad entry, and obeys the schemas of results, whose patterns can
take forever. So only the parts of a list that are used are passed on, and bad entries are left out.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol, cast

_WORDS: Final = ("name", "title", "description")


class Listener(Protocol):
    """Is notified about a server's messages."""

    def heard(self) -> None:
        """Note that it sent something."""
        ...

    def ended(self) -> None:
        """Note that it sends nothing more."""
        ...

    def left_out(self, tool: str, why: str) -> None:
        """Note an invalid tool."""
        ...

    def refused(self, status: int) -> None:
        """Note an HTTP status that refuses the request."""
        ...


class RepairedStream:
    """The stream of a server's messages, repaired."""

    def __init__(self, stream: Any, listener: Listener) -> None:
        """Wrap the SDK's own stream."""
        self._stream = stream
        self._listener = listener

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> "RepairedStream":
        return self

    async def __anext__(self) -> Any:
        try:
            item = await self._stream.__anext__()
        except BaseException:
            self._listener.ended()
            raise
        self._listener.heard()
        result = getattr(getattr(item, "message", None), "result", None)
        found = cast("dict[str, Any]", result)
        if type(result) is dict and type(found.get("tools")) is list:
            found["tools"] = mended(found["tools"], self._listener.left_out)
        return item

    async def __aenter__(self) -> "RepairedStream":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._stream.__aexit__(*error)


def mended(tools: list[Any], wrong: Callable[[str, str], object]) -> list[Any]:
    """Return the valid tools, each with only the fields that are used."""
    found: list[Any] = []
    for given in tools:
        tool = cast("dict[str, Any]", given if isinstance(given, dict) else {})
        kept: dict[str, Any] = {key: tool[key] for key in _WORDS if type(tool.get(key)) is str}
        schema = cast("dict[str, Any]", tool.get("inputSchema"))
        problem = _problem(schema)
        if "name" not in kept or problem:
            wrong(kept.get("name", ""), problem or "it has no name")
            continue
        found.append({**kept, "inputSchema": {"type": "object", **schema}})
        hints = cast("dict[str, Any]", tool.get("annotations"))
        if type(hints) is dict and hints.get("readOnlyHint") is True:
            found[-1]["annotations"] = {"readOnlyHint": True}
    return found


def _problem(schema: Any) -> str:
    """Return what is wrong with a tool's schema; empty if it is valid."""
    if type(schema) is not dict:
        return "it has no schema"
    found = cast("dict[str, Any]", schema)
    if found.get("type", "object") != "object":
        return "its schema does not describe an object"
    if type(found.get("properties", {})) is not dict:
        return "the properties in its schema are not an object"
    required = found.get("required", [])
    if type(required) is not list or any(type(each) is not str for each in cast("Any", required)):
        return "`required` in its schema is not a list of names"
    return ""
