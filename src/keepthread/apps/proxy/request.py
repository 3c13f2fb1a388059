"""Reading a client's request, and adding texts to it without changing its other bytes."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias, cast

from keepthread.apps.proxy.documents import divide, own_words
from keepthread.apps.proxy.errors import ProxyError
from keepthread.apps.proxy.identity import SESSION_HEADER, identify, is_off
from keepthread.apps.proxy.json_text import (
    JsonValue,
    TooManyValues,
    check_values,
    document,
    elements,
    escaped_text,
    members,
)
from keepthread.apps.proxy.quoted import ends_examples, is_preset, letters, without_notes
from keepthread.apps.proxy.types import Mode, ReadRequest, TextPlace, UserTurn, WireName
from keepthread.context.chat_templates import sendable
from keepthread.context.wires.anthropic import from_anthropic
from keepthread.context.wires.openai_chat import from_openai_chat
from keepthread.context.wires.openai_responses import from_openai_responses
from keepthread.errors import InvalidInput
from keepthread.types import Message

Item: TypeAlias = dict[str, Any]

_HISTORY: Final = {"openai-chat": "messages", "openai-responses": "input", "anthropic": "messages"}
_SYSTEM: Final = {"openai-responses": "instructions", "anthropic": "system"}
_READERS: Final[Mapping[WireName, Callable[..., list[Message]]]] = {
    "openai-chat": from_openai_chat,
    "openai-responses": from_openai_responses,
    "anthropic": from_anthropic,
}
_OPERATOR: Final = ("system", "developer")
_TEXTS: Final = ("text", "input_text", "output_text", "refusal")
_RESULT: Final = "tool_result"
MAX_ITEMS: Final = 5_000
"""The most items of a history, parts of them, and messages that they become."""
MAX_VALUES: Final = 2_000_000
"""The most values in the JSON of a request; reading takes about 100 bytes of memory for each."""
_KEPT_BY_PROVIDER: Final = ("previous_response_id", "conversation")


class _History(NamedTuple):
    """The items of a history that are part of the conversation."""

    items: Sequence[Item]
    turns: Sequence[UserTurn]
    ends_with_user: bool


def read_request(
    wire: WireName,
    body: bytes,
    headers: Mapping[str, str],
    *,
    provider: str = "",
    addition_key: bytes = b"",
) -> ReadRequest | None:
    """Return what a request says; None if it cannot be read: then it is relayed as it is.

    A history with too many items raises `ProxyError`: reading it would delay everyone. `headers`
    have lower-case names. `provider` is the host that the request goes to. Additions that were
    signed with `addition_key` are not part of the conversation.
    """
    try:
        text = body.decode()
        check_values(text, MAX_VALUES)
        fields = document(text)
        given = fields[_HISTORY[wire]]
        items = _items(wire, text, given)
        _check_parts(items)
    except (ValueError, LookupError, RecursionError):
        return None
    except TooManyValues:
        raise _TOO_MANY from None
    found = _conversation(wire, text, items, addition_key)
    messages, unread = _messages(wire, found.items, provider)
    if len(messages) > MAX_ITEMS:
        raise _TOO_MANY
    values = {name: value.value for name, value in fields.items()}
    leading = _leading(items)
    newest = found.turns[-1].text if found.ends_with_user else ""
    system = [
        text
        for content in (values.get(_SYSTEM.get(wire, "")), *(i.value for i in items[:leading]))
        for text in _texts(content)
    ]
    return ReadRequest(
        wire=wire,
        text=text,
        model=values["model"] if isinstance(values.get("model"), str) else "",
        messages=messages,
        turns=found.turns,
        ends_with_user=found.ends_with_user,
        items=(given.start, given.end),
        leading=leading,
        identity=identify(headers, values, newest=newest, system=system),
        mode=_mode(
            wire,
            values,
            headers,
            is_one_turn=found.ends_with_user
            and not unread
            and len(found.items) == len(messages) == 1
            and found.items == _plain_items(items[leading:]),
        ),
        streams=values.get("stream") is True,
        unread=unread,
    )


def splice(request: ReadRequest, additions: Mapping[str, str], history: str | None = None) -> bytes:
    """Return the body of a request with texts added to turns, by the digests of the turns.

    `history` is a JSON array that replaces the history after its system prompt; it has what is to
    be added already. All other bytes stay as the client wrote them.
    """
    if history is not None:
        return _with_history(request, history).encode()
    parts: list[str] = []
    done = 0
    for turn in request.turns:
        if turn.place and (added := additions.get(turn.digest)):
            text = escaped_text(sendable(added))
            parts += [request.text[done : turn.place.at], turn.place.before, text, turn.place.after]
            done = turn.place.at
    return "".join([*parts, request.text[done:]]).encode()


def _with_history(request: ReadRequest, history: str) -> str:
    start, end = request.items
    if request.leading:
        kept = elements(request.text, start)[: request.leading]
        rest = history.strip()[1:].lstrip()
        separator = "" if rest == "]" else ","
        return request.text[: kept[-1].end] + separator + rest + request.text[end:]
    return request.text[:start] + history + request.text[end:]


_TOO_MANY: Final = ProxyError(
    413,
    "too_many_items",
    f"the history has more than {MAX_ITEMS:,} messages or parts; send less of it, or turn the"
    " memory off for this request with the header `Keepthread-Mode: off`.",
)


# --- the history ---


def _items(wire: WireName, text: str, given: JsonValue) -> list[JsonValue]:
    """Return the items of a history; raise `ValueError` if it is not one."""
    if isinstance(given.value, str) and wire == "openai-responses":
        return [given]
    items = elements(text, given.start, MAX_ITEMS)
    if not all(isinstance(item.value, dict) for item in items):
        raise ValueError("an item of the history is not an object")
    return items


def _check_parts(items: Sequence[JsonValue]) -> None:
    """Raise `TooManyValues` if the items of a history have too many parts and calls."""
    objects = [cast("Item", item.value) for item in items if not isinstance(item.value, str)]
    lists = [item.get(name) for item in objects for name in ("content", "tool_calls")]
    if sum(len(cast("list[object]", x)) for x in lists if isinstance(x, list)) > MAX_ITEMS:
        raise TooManyValues


def _leading(items: Sequence[JsonValue]) -> int:
    """Return how many items at the beginning are a system prompt."""
    others = (
        at
        for at, item in enumerate(items)
        if isinstance(item.value, str) or _role(item.value) not in _OPERATOR
    )
    return next(others, len(items))


def _plain_items(items: Sequence[JsonValue]) -> list[Item]:
    return [
        {"role": "user", "content": item.value} if isinstance(item.value, str) else item.value
        for item in items
    ]


def _role(item: Item) -> str:
    return str(item.get("role") or item.get("type"))


def _conversation(
    wire: WireName, text: str, given: Sequence[JsonValue], addition_key: bytes
) -> _History:
    """Return the conversation that a history holds: no system prompts, and no notes of clients."""
    items: list[Item] = []
    turns: list[UserTurn] = []
    chain = sha256()
    ends_with_user = is_after_note = False
    for value in given:
        item = cast("Item", value.value)
        if isinstance(value.value, str):
            item = {"role": "user", "content": value.value}
        if _role(item) in _OPERATOR:
            continue
        if _role(item) == "user":
            if ends_examples("".join(_texts(item))):
                items, turns, chain, is_after_note = [], [], sha256(), True
                continue
            content = _own_content(item.get("content"), addition_key)
            if content is None:
                is_after_note = True
                continue
            item = {**item, "content": content}
        elif is_after_note and is_preset("".join(_texts(item))):
            continue
        is_after_note = False
        items.append(item)
        said = _own_words(item)
        for role, text_letters, calls in _likeness(item, said):
            chain.update(json.dumps([role, calls, len(text_letters)]).encode() + text_letters)
        ends_with_user = _is_question(item, said)
        if ends_with_user:
            turns.append(UserTurn(chain.hexdigest()[:32], said, _place(wire, text, value)))
    return _History(items, turns, ends_with_user)


def _own_words(item: Item) -> str:
    """Return the user's own words in an item of the user; of any other, all its text."""
    text = "\n".join(filter(None, _texts(item)))
    return own_words(divide(text)) if _role(item) == "user" else text


def _own_content(content: object, addition_key: bytes) -> object | None:
    """Return a content without notes and additions; None if nothing is left."""
    if isinstance(content, str):
        return without_notes(content, addition_key) or (None if content else content)
    if not isinstance(content, list):
        return content
    parts = [own for part in cast("list[object]", content) for own in _own_part(part, addition_key)]
    return parts if parts or not content else None


def _own_part(part: object, addition_key: bytes) -> list[object]:
    if not isinstance(part, dict):
        return [part]
    item = cast("Item", part)
    said = item.get("text")
    own = without_notes(said, addition_key) if isinstance(said, str) else said
    if own == said:
        return [item]
    return [{**item, "text": own}] if own else []


def _parts(content: object) -> list[Item]:
    parts = cast("list[object]", content) if isinstance(content, list) else []
    return [cast("Item", part) for part in parts if isinstance(part, dict)]


def _texts(given: object) -> list[str]:
    """Return the texts of an item, or of a content."""
    content = cast("Item", given).get("content") if isinstance(given, dict) else given
    if isinstance(content, str):
        return [content]
    texts = [
        part.get("text") or part.get("refusal")
        for part in _parts(content)
        if part.get("type") in _TEXTS
    ]
    return [text for text in texts if isinstance(text, str)]


def _likeness(item: Item, said: str) -> list[tuple[str, bytes, list[str]]]:
    """Return the comparison key of a history: roles, texts, and ids of calls.

    Results of tools are known by their calls, since clients shorten them. Reasoning and documents
    beside a question do not count, since clients drop them.
    """
    parts = _parts(item.get("content"))
    results = [str(part.get("tool_use_id")) for part in parts if part.get("type") == _RESULT]
    calls = [str(call.get("id")) for call in _parts(item.get("tool_calls"))]
    calls += [str(part.get("id")) for part in parts if part.get("type") == "tool_use"]
    calls += [str(item[name]) for name in ("call_id", "tool_call_id") if item.get(name)]
    is_result = "tool_call_id" in item or "output" in item
    text = b"" if is_result else letters(said)
    found: list[tuple[str, bytes, list[str]]] = [(_RESULT, b"", [id]) for id in results]
    if text or calls or (_role(item) == "user" and not results):
        found.append((_role(item), text, calls))
    return found


def _is_question(item: Item, said: str) -> bool:
    """Return whether an item contains user input: words of their own, or an attachment."""
    if _role(item) != "user":
        return False
    others = (part for part in _parts(item.get("content")) if part.get("type") not in _TEXTS)
    return bool(said.strip()) or any(part.get("type") != _RESULT for part in others)


def _place(wire: WireName, text: str, item: JsonValue) -> TextPlace | None:
    """Return where a text can be added at the end of a user's turn."""
    content = item
    if isinstance(item.value, dict):
        content = members(text, item.start)[0]["content"]
    if isinstance(content.value, str):
        return TextPlace(content.end - 1, r"\n\n", "")
    parts = _parts(content.value)
    if not parts or parts[-1].get("type") == _RESULT:
        return None
    kind = "input_text" if wire == "openai-responses" else "text"
    return TextPlace(content.end - 1, f',{{"type":"{kind}","text":"', '"}')


# --- what is recorded ---


def _messages(wire: WireName, items: Sequence[Item], provider: str) -> tuple[list[Message], int]:
    """Return the messages of a history, and how many items or parts no message can hold."""
    try:
        return _divided(wire, items, provider), 0
    except (InvalidInput, RecursionError):
        kept, unread = _readable(_READERS[wire], items)
    try:
        return _divided(wire, kept, provider), unread
    except (InvalidInput, RecursionError):
        return [], len(items)


def _divided(wire: WireName, items: Sequence[Item], provider: str) -> list[Message]:
    """Return the messages of items; documents in the user's role are messages of their own."""
    read = _READERS[wire]
    if wire != "anthropic":
        messages = read(items, provider=provider)
        return [each for message in messages for each in _pieces([message])]
    # Of this API, an item may become several messages; a document may be in several of its parts.
    return [each for item in items for each in _pieces(read([item], provider=provider))]


def _pieces(messages: Sequence[Message]) -> list[Message]:
    """Return the messages of one item with each document as a message of its origin."""
    said = [message for message in messages if message.role == "user"]
    pieces = divide("\n".join(message.content for message in said if message.content))
    if all(piece.origin == "user" for piece in pieces):
        return [*messages]
    parts = [
        Message(role="user", content=piece.text, author=said[0].author)
        if piece.origin == "user"
        else Message(role="user", content=piece.text, origin=piece.origin)
        for piece in pieces
    ]
    attached = tuple(each for message in said for each in message.attachments)
    # They are beside the user's words, which are usually the last.
    place = max(range(len(parts)), key=lambda n: (pieces[n].origin == "user", n))
    parts[place] = replace(parts[place], attachments=attached)
    at = messages.index(said[0])
    others = [message for message in messages if message.role != "user"]
    return [*others[:at], *parts, *others[at:]]


def _readable(read: Callable[..., list[Message]], items: Sequence[Item]) -> tuple[list[Item], int]:
    """Return the items that can be read, without the parts that cannot, and how many were left."""
    kept: list[Item] = []
    unread = 0
    for item in items:
        if _can_read(read, item):
            kept.append(item)
            continue
        parts = _parts(item.get("content"))
        good = [p for p in map(_plainer, parts) if _can_read(read, {**item, "content": [p]})]
        unread += max(1, len(parts) - len(good))
        if good:
            kept.append({**item, "content": good})
    return kept, unread


def _plainer(part: Item) -> Item:
    """Return a result of a tool with its texts alone."""
    if part.get("type") != _RESULT:
        return part
    return {**part, "content": [p for p in _parts(part.get("content")) if p.get("type") == "text"]}


def _can_read(read: Callable[..., list[Message]], item: Item) -> bool:
    try:
        read([item])
    except (InvalidInput, RecursionError):
        return False
    return True


def _mode(
    wire: WireName,
    fields: Mapping[str, Any],
    headers: Mapping[str, str],
    *,
    is_one_turn: bool,
) -> Mode:
    """Return the mode; `is_one_turn` says that the history is one turn, all of which is read."""
    if is_off(headers):
        return "off"
    if wire == "openai-responses" and any(fields.get(name) for name in _KEPT_BY_PROVIDER):
        return "aside"
    # A history that is replaced must not lose what the client sent.
    return "thread" if is_one_turn and headers.get(SESSION_HEADER) else "alongside"
