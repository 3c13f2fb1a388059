"""Shared by the three wire formats: how a provider's items become messages again."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias, cast

from keepthread.errors import InvalidInput
from keepthread.types import Attachment, Message, Native, ToolCall, Wire

Item: TypeAlias = Mapping[str, Any]

_DATA_TYPE: Final = r"data:([^;,]+)"  # compiled when first used
_ENDINGS: Final = {"png": "image/png", "gif": "image/gif", "webp": "image/webp"}


def items_of(given: Iterable[Any], wire: Wire) -> list[Item]:
    """Return items as mappings; those of an SDK are converted. Raise `InvalidInput` for others."""
    if isinstance(given, Mapping):
        raise InvalidInput(f"{wire} messages must be a list; this is one of them, or a request")
    return [_mapping(item, f"{wire} item {number}") for number, item in enumerate(given)]


def _mapping(item: Any, name: str) -> Item:
    if hasattr(item, "model_dump"):  # of the provider's SDK
        item = item.model_dump(exclude_none=True)
    if not isinstance(item, Mapping):
        raise InvalidInput(f"{name} must be a mapping, not {type(item).__name__}")
    return cast("Item", item)


def has_only(item: Item, *fields: str) -> bool:
    """Return whether an item has these fields and no others."""
    return set(item) == set(fields)


def inner(item: Item, field: str) -> Item:
    """Return the mapping in a field of an item; raise `InvalidInput` if there is none."""
    return _mapping(item.get(field), f"{field!r} of {_kind(item)}")


def text_field(item: Item, field: str, default: str | None = None) -> str:
    """Return a text of an item; raise `InvalidInput` if it has none."""
    value = item.get(field)
    if value is None and default is not None:
        return default
    if not isinstance(value, str):
        raise InvalidInput(f"{_kind(item)} needs a text in {field!r}, not {value!r:.60}")
    return value


def parts_of(item: Item, field: str = "content") -> list[Item]:
    """Return the parts of an item's content; a text is one part of the type `text`."""
    content = item.get(field)
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, Sequence):
        raise InvalidInput(
            f"{_kind(item)} has neither text nor parts in {field!r}: {content!r:.60}"
        )
    parts = cast("Sequence[Any]", content)
    return [_mapping(part, f"a part of {_kind(item)}") for part in parts]


def unknown(item: Item) -> InvalidInput:
    """Return the error for an item that no message can hold."""
    return InvalidInput(f"{_kind(item)} cannot be stored as a message: {dict(item)!r:.120}")


def _kind(item: Item) -> str:
    return f"an item of {item.get('type') or item.get('role') or 'no type'!r}"


def picture(uri: str, media_type: str = "") -> Attachment:
    """Return an image; its type is what the URI says, or the ending of its name."""
    if data := re.match(_DATA_TYPE, uri):
        return Attachment(media_type=data[1], uri=uri)
    ending = uri.partition("?")[0].rpartition(".")[2].lower()
    return Attachment(media_type=media_type or _ENDINGS.get(ending, "image/jpeg"), uri=uri)


def joined(texts: Iterable[str]) -> str:
    """Return several texts as one."""
    return "\n".join(filter(None, texts))


def spoken(
    texts: Sequence[str], calls: Sequence[ToolCall] = (), native: Native | None = None
) -> list[Message]:
    """Return what an assistant said: one message for each text, the last with the calls."""
    if native is not None:
        return [
            Message(role="assistant", content=joined(texts), tool_calls=tuple(calls), native=native)
        ]
    *before, last = texts or [""]
    return [
        *(Message(role="assistant", content=text) for text in before),
        Message(role="assistant", content=last, tool_calls=tuple(calls)),
    ]


def compact(value: Any) -> str:
    """Return JSON as text, as models write it."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
