"""A conversation of Claude's export: a list of messages made of blocks, newer ones with parents.

The tool calls and results inside one message become messages of their own, in order.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from keepthread.context.ids import derived_call_id, derived_id
from keepthread.interchange.conversations import (
    ImportedConversation,
    OpenCalls,
    fitted,
    session_id,
    short,
    source_of,
    time_of,
)
from keepthread.interchange.files import CLAUDE
from keepthread.interchange.foreign import (
    ParsedConversation,
    ParsedSessions,
    PathMessages,
    attached,
    dicts,
    id_by_content,
    listed,
    mended,
    newest_leaf,
    paragraphs,
    paths_of,
    read_paths,
    text_in,
)
from keepthread.types import Message, Role, ToolCall

_ROLES: Final[Mapping[str, Role]] = {
    "human": "user",
    "user": "user",
    "assistant": "assistant",
    "system": "system",
}
_PARENT: Final = "parent_message_uuid"
_ROOT: Final = "00000000-0000-4000-8000-000000000000"
"""The parent of the first message."""


def read_claude(value: Mapping[str, Any], *, branches: bool = False) -> ParsedSessions:
    """Return the newest path through a conversation, and with `branches` every other as a fork."""
    listing = listed(value, "chat_messages")
    nodes, repeated = _nodes(dicts(listing))
    unreadable = sum(bool(each) and not isinstance(each, dict) for each in listing)
    if not nodes:
        return ParsedSessions(left_out=unreadable)
    id = text_in(value, "uuid") or id_by_content(value)
    parents, rejoined = mended(_parents(nodes))
    current = newest_leaf(
        parents,
        text_in(value, "current_leaf_message_uuid"),
        lambda node: _time(nodes[node], "created_at"),
    )
    model = short(value.get("model"))
    about = ImportedConversation(
        id=session_id(CLAUDE, id),
        messages=(),
        title=short(value.get("name")),
        created_at=_time(value, "created_at"),
        updated_at=_time(value, "updated_at"),
        meta={"imported_from": CLAUDE} | ({"model": model} if model else {}),
    )

    def say(path: Sequence[str]) -> PathMessages:
        speech = _ClaudePath(id)
        for node in path:
            speech.add(node, nodes[node])
        return PathMessages(speech.messages, speech.hidden, speech.shortened)

    parsed = ParsedConversation(CLAUDE, id, about, paths_of(parents, current), say, nodes)
    reading = read_paths(parsed, branches=branches)
    left_out = reading.left_out + unreadable
    return reading._replace(rejoined=rejoined, repeated=repeated, left_out=left_out)


def _nodes(given: Iterable[Mapping[str, Any]]) -> tuple[dict[str, Mapping[str, Any]], int]:
    """Return messages by name, and how many were exact repetitions.

    Two different messages with one uuid are both kept: the second gets a number.
    """
    nodes: dict[str, Mapping[str, Any]] = {}
    same: dict[str, list[Mapping[str, Any]]] = {}
    repeated = 0
    for number, each in enumerate(given):
        uuid = text_in(each, "uuid") or f"#{number}"
        before = same.setdefault(uuid, [])
        if each in before:
            repeated += 1
            continue
        before.append(each)
        name = uuid if len(before) == 1 else f"{uuid}#{len(before)}"
        while name in nodes:
            name += "#"
        nodes[name] = each
    return nodes, repeated


def _parents(nodes: Mapping[str, Mapping[str, Any]]) -> dict[str, str | None]:
    """Return the parent of each message; in older exports that is the message before it."""
    if not any(text_in(each, _PARENT) for each in nodes.values()):
        return dict(zip(nodes, [None, *nodes], strict=False))
    names: dict[str, str] = {}  # the newest message of a uuid so far
    parents: dict[str, str | None] = {}
    for name, each in nodes.items():
        parent = text_in(each, _PARENT)
        parents[name] = names.get(parent, parent) if parent not in ("", _ROOT) else None
        names[text_in(each, "uuid")] = name
    return parents


def _time(value: Mapping[str, Any], key: str) -> float:
    """Return the seconds since 1970 of a time as `2026-03-29T07:06:34.084721Z`, 0 for none."""
    try:
        moment = datetime.fromisoformat(text_in(value, key))
        return time_of(moment.timestamp()) if moment.tzinfo else 0.0
    except (ValueError, OverflowError):
        return 0.0


class _ClaudePath:
    """The messages along one path."""

    def __init__(self, conversation: str) -> None:
        self.conversation = conversation
        self.source = source_of(CLAUDE, conversation)
        self.messages: list[Message] = []
        self.hidden: list[str] = []
        self.shortened = 0
        self.waiting = OpenCalls()

    def add(self, node: str, value: Mapping[str, Any]) -> None:
        """Add a message, which may become several."""
        role = _ROLES.get(text_in(value, "sender"))
        before = len(self.messages)
        if role:
            self._blocks(_PartialMessage(node, role, _time(value, "created_at")), value)
        if len(self.messages) == before:
            self.hidden.append(node)

    def _blocks(self, partial: "_PartialMessage", value: Mapping[str, Any]) -> None:
        blocks = list(dicts(listed(value, "content")))
        if not any(text_in(block, "text") for block in blocks):
            partial.texts.append(text_in(value, "text"))
        for block in blocks:
            kind = text_in(block, "type")
            if kind == "tool_result":
                self._say(partial)
                self._result(partial, block)
            elif kind == "tool_use" and partial.role == "assistant":
                partial.calls.append(self._call(partial, block))
            else:  # thinking blocks have no text of their own
                if partial.calls:
                    self._say(partial)
                partial.texts.append(text_in(block, "text"))
        partial.texts += _extracted(value)
        partial.texts.append(attached(_names(value)))
        self._say(partial)

    def _say(self, partial: "_PartialMessage") -> None:
        """Add the collected text as a message, if there is any."""
        text = paragraphs(*(text for text in partial.texts if text.strip()))
        if text or partial.calls:
            message = self._message(partial, partial.role, text)
            message = replace(message, tool_calls=tuple(partial.calls))
            self.waiting.called(message)
            self.messages.append(message)
        partial.texts, partial.calls = [], []

    def _call(self, partial: "_PartialMessage", block: Mapping[str, Any]) -> ToolCall:
        number = str(len(partial.calls))
        again = derived_call_id(
            CLAUDE, self.conversation, partial.node, str(partial.pieces), number
        )
        arguments = json.dumps(block.get("input"), ensure_ascii=False)
        id, name = short(block.get("id")) or again, short(block.get("name"))
        return ToolCall(id=id, name=name, arguments=fitted(arguments))

    def _result(self, partial: "_PartialMessage", block: Mapping[str, Any]) -> None:
        content = block.get("content")
        parts = [content] if isinstance(content, str) else listed(block, "content")
        texts = [part if isinstance(part, str) else text_in(part, "text") for part in parts]
        call = short(block.get("tool_use_id")) or None
        message = self._message(partial, "tool", paragraphs(*texts))
        id = self.waiting.answered(call) or message.id
        name = short(block.get("name")) or None
        self.messages.append(replace(message, id=id, tool_call_id=call, name=name))

    def _message(self, partial: "_PartialMessage", role: Role, text: str) -> Message:
        content = fitted(text)
        self.shortened += content != text
        partial.pieces += 1
        return Message(
            role=role,
            content=content,
            id=derived_id(CLAUDE, self.conversation, partial.node, str(partial.pieces)),
            origin="import",
            source=self.source,
            created_at=partial.at,
        )


class _PartialMessage:
    """A message under construction."""

    def __init__(self, node: str, role: Role, at: float) -> None:
        self.node = node
        self.role: Role = role
        self.at = at
        self.texts: list[str] = []
        self.calls: list[ToolCall] = []
        self.pieces = 0


def _extracted(value: Mapping[str, Any]) -> list[str]:
    """Return the attached texts: a long paste becomes an attachment without a name."""
    found: list[str] = []
    for each in dicts(listed(value, "attachments")):
        name, text = short(each.get("file_name")), text_in(each, "extracted_content")
        found.append(f"[{name}]\n{text}" if name and text else text)
    return found


def _names(value: Mapping[str, Any]) -> list[str]:
    """Return the names of a message's attachments that are not texts."""
    files = [*dicts(listed(value, "files")), *dicts(listed(value, "files_v2"))]
    bare = [a for a in dicts(listed(value, "attachments")) if not text_in(a, "extracted_content")]
    names = [short(each.get("file_name")) for each in (*bare, *files)]
    return list(dict.fromkeys(name for name in names if name))
