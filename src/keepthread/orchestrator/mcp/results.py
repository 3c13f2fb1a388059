"""Convert a tool's result to a text that fits into a conversation."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from keepthread.context.rendering import label

if TYPE_CHECKING:
    from mcp import types

MOST_BYTES: Final = 256 << 10
_MOST_ERROR: Final = 2000
_MOST_LINK: Final = 500
_NOTHING: Final = "(no content)"


def text_of(result: "types.CallToolResult") -> str:
    """Return a result as text: its texts, a note for each picture or file, and other data."""
    parts = [_part(each) for each in result.content]
    texts = [each.text for each in result.content if each.type == "text"]
    given = result.structured_content
    if given is not None and not _is_said(given, texts):
        parts.append(_json(given))
    return cut("\n".join(parts) or _NOTHING)


def cut(text: str, most: int = MOST_BYTES) -> str:
    """Return a text of about `most` bytes at most; of a longer one, head and tail."""
    if len(text) <= most // 4:
        return text
    data = text.encode("utf-8", "surrogatepass")
    if len(data) <= most:
        return text
    head = data[: most // 2].decode("utf-8", "ignore")
    tail = data[len(data) - most // 2 :].decode("utf-8", "ignore")
    return f"{head}\n[… of {size(len(data))}, the middle was not kept …]\n{tail}"


def reason(text: str) -> str:
    """Return a server's error text, shortened."""
    return cut(text.strip(), _MOST_ERROR) or "it gave no reason"


def size(count: int) -> str:
    """Return a number of bytes for people."""
    kilo, mega = 1000, 1_000_000
    if count < kilo:
        return f"{count} bytes"
    return f"{count / kilo:.0f} kB" if count < mega else f"{count / mega:.1f} MB"


def _part(part: "types.ContentBlock") -> str:
    if part.type == "text":
        return part.text
    if part.type == "resource_link":
        return f"[link: {' '.join(part.uri.split())[:_MOST_LINK]}]"
    if part.type != "resource":
        return _note(part.mime_type, part.data)
    inner = part.resource
    text: str | None = getattr(inner, "text", None)
    return text if text is not None else _note(inner.mime_type, getattr(inner, "blob", ""))


def _note(media_type: str | None, base64: str) -> str:
    """Return a note in place of bytes."""
    count = len(base64.rstrip("=")) * 3 // 4
    return f"[{label(media_type or '') or 'bytes'}, {size(count)}]"


def _is_said(given: Any, texts: Sequence[str]) -> bool:
    """Return whether the texts already hold the data; servers should send it both ways."""
    if sum(map(len, texts)) > MOST_BYTES:
        return True
    if isinstance(given, dict) and given.keys() == {"result"}:  # SDKs wrap other values like this
        given = cast(dict[str, Any], given)["result"]
    forms: list[Any] = [list(texts), values := [_value(text) for text in texts]]
    if len(texts) == 1:
        forms += [texts[0], values[0]]
    return given in forms


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
