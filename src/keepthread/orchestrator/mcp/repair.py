"""What a server says, mended before the SDK takes it.

The SDK refuses a whole list for one bad entry, and obeys schemas of results, whose patterns can
take for ever. So of a list no more is passed on than is used, and bad entries are left out.
"""

from collections.abc import Callable
from typing import Any, Final, Protocol, cast

_WORDS: Final = ("name", "title", "description")


class Listener(Protocol):
    """Is told what is heard of a server."""

    def heard(self) -> None:
        """Know that it said something."""
        ...

    def ended(self) -> None:
        """Know that it says no more."""
        ...

    def left_out(self, tool: str, why: str) -> None:
        """Know of a tool that is none."""
        ...

    def refused(self, status: int) -> None:
        """Know what it answered over HTTP in place of an answer."""
        ...


class Heard:
    """A stream of what a server says."""

    def __init__(self, stream: Any, listener: Listener) -> None:
        """Stand before the SDK's own stream."""
        self._stream = stream
        self._listener = listener

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> "Heard":
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

    async def __aenter__(self) -> "Heard":
        await self._stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        return await self._stream.__aexit__(*error)


def mended(tools: list[Any], wrong: Callable[[str, str], object]) -> list[Any]:
    """Return those tools that are some, each with nothing but what is used of it."""
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
    """Say what is wrong with what a tool takes, if anything is."""
    if type(schema) is not dict:
        return "it has no schema"
    found = cast("dict[str, Any]", schema)
    if found.get("type", "object") != "object":
        return "its schema is of no object"
    if type(found.get("properties", {})) is not dict:
        return "the properties in its schema are no object"
    required = found.get("required", [])
    if type(required) is not list or any(type(each) is not str for each in cast("Any", required)):
        return "what its schema requires is no list of names"
    return ""
