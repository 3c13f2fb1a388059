"""A conversation of ChatGPT's export: a tree of messages, of which one path is the current one.

A node has a message, a parent and children; an edit or a new answer adds another child. A tool call
is an assistant's message to a recipient other than `all`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from keepthread.context.ids import derived_call_id, derived_id, result_ids
from keepthread.interchange.conversations import (
    ImportedConversation,
    fitted,
    session_id,
    short,
    source_of,
    time_of,
)
from keepthread.interchange.files import CHATGPT
from keepthread.interchange.foreign import (
    ParsedConversation,
    ParsedSessions,
    PathMessages,
    attached,
    dicts,
    id_by_content,
    listed,
    mapped,
    mended,
    newest_leaf,
    paragraphs,
    paths_of,
    read_paths,
    text_in,
)
from keepthread.types import Message, Role, ToolCall

_ROLES: Final[Mapping[str, Role]] = {
    "system": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
}
_UNSEEN: Final = ("thoughts", "reasoning_recap", "user_editable_context", "model_editable_context")
_TO_ALL: Final = ("", "all", "assistant", "user")
_MEDIA: Final = {
    "image_asset_pointer": "an image",
    "audio_asset_pointer": "a recording",
    "video_container_asset_pointer": "a video",
    "real_time_user_audio_video_asset_pointer": "a recording",
}


def read_chatgpt(value: Mapping[str, Any], *, branches: bool = False) -> ParsedSessions:
    """Return the current path through a conversation, and with `branches` every other as a fork."""
    given = mapped(value, "mapping")
    nodes = {id: node for id in given if (node := mapped(given, id))}
    if not nodes:
        return ParsedSessions()
    id = text_in(value, "conversation_id") or text_in(value, "id") or id_by_content(value)
    parents, rejoined = mended(
        {key: text_in(node, "parent") or None for key, node in nodes.items()}
    )
    current = newest_leaf(
        parents,
        text_in(value, "current_node"),
        lambda node: time_of(mapped(nodes[node], "message").get("create_time")),
    )
    model = short(value.get("default_model_slug"))
    about = ImportedConversation(
        id=session_id(CHATGPT, id),
        messages=(),
        title=short(value.get("title")),
        created_at=time_of(value.get("create_time")),
        updated_at=time_of(value.get("update_time")),
        meta={"imported_from": CHATGPT} | ({"model": model} if model else {}),
    )

    def say(path: Sequence[str]) -> PathMessages:
        speech = _ChatGPTPath(id)
        for node in path:
            speech.add(node, nodes[node])
        return PathMessages(speech.messages, speech.hidden, speech.shortened)

    given_nodes = [key for key, node in nodes.items() if node.get("message") is not None]
    parsed = ParsedConversation(CHATGPT, id, about, paths_of(parents, current), say, given_nodes)
    reading = read_paths(parsed, branches=branches)
    unreadable = sum(bool(node) and key not in nodes for key, node in given.items())
    return reading._replace(rejoined=rejoined, left_out=reading.left_out + unreadable)


class _ChatGPTPath:
    """The messages along one path."""

    def __init__(self, conversation: str) -> None:
        self.conversation = conversation
        self.source = source_of(CHATGPT, conversation)
        self.messages: list[Message] = []
        self.hidden: list[str] = []
        self.shortened = 0
        self.call: Message | None = None  # the latest call, while its results are read

    def add(self, node: str, value: Mapping[str, Any]) -> None:
        """Add the message of a node; a root has none."""
        if value.get("message") is None:
            return
        message = self._message(node, mapped(value, "message"))
        if message is None:
            self.hidden.append(node)
            return
        if message.role == "tool" and self.call:
            message = self._result(self.call, message)
        content = fitted(message.content)
        self.shortened += content != message.content
        message = replace(message, content=content)
        if message.role != "tool":
            self.call = message if message.tool_calls else None
        self.messages.append(message)

    def _message(self, node: str, given: Mapping[str, Any]) -> Message | None:
        author, metadata = mapped(given, "author"), mapped(given, "metadata")
        content = mapped(given, "content")
        role = _ROLES.get(text_in(author, "role"))
        recipient = text_in(given, "recipient")
        calls = role == "assistant" and recipient not in _TO_ALL
        if (
            role is None
            or text_in(content, "content_type") in _UNSEEN
            or metadata.get("is_visually_hidden_from_conversation") is True
            or (text_in(given, "channel") == "analysis" and not calls)
        ):
            return None
        text = paragraphs(_text(content), attached(_names(content, metadata)))
        if not (text.strip() or calls):
            return None
        message = Message(
            role=role,
            content="" if calls else text,
            id=derived_id(CHATGPT, self.conversation, node),
            name=short(author.get("name")) or None if role == "tool" else None,
            origin="import",
            source=self.source,
            created_at=time_of(given.get("create_time")),
        )
        if not calls:
            return message
        id = derived_call_id(CHATGPT, self.conversation, node)
        call = ToolCall(id=id, name=short(recipient), arguments=fitted(text))
        return replace(message, tool_calls=(call,))

    def _result(self, call: Message, message: Message) -> Message:
        """Return a message as the result of a call, or added to the result before it."""
        last = self.messages[-1]
        if last is call:
            (id,) = result_ids(call)
            return replace(message, id=id, tool_call_id=call.tool_calls[0].id)
        self.messages.pop()
        return replace(last, content=paragraphs(last.content, message.content))


def _text(content: Mapping[str, Any]) -> str:
    """Return the text of a content of any type."""
    parts = [
        part if isinstance(part, str) else text_in(part, "text")
        for part in listed(content, "parts")
    ]
    own = text_in(content, "text") or text_in(content, "result")
    if text_in(content, "content_type") == "tether_quote":
        own = paragraphs(short(content.get("title")), own)
    return paragraphs(*parts, own)


def _names(content: Mapping[str, Any], metadata: Mapping[str, Any]) -> list[str]:
    """Return the names of a message's attachments, where they have one."""
    found: dict[str, str] = {}
    for part in dicts(listed(content, "parts")):
        if kind := _MEDIA.get(text_in(part, "content_type")):
            id = short(part.get("asset_pointer")).rpartition("//")[2]
            found[id or str(len(found))] = kind
    for given in dicts(listed(metadata, "attachments")):
        id, name = short(given.get("id")), short(given.get("name"))
        found[id or str(len(found))] = name or "a file"
    return list(found.values())
