"""The cost of a message in tokens, for any function that measures text.

The sum over messages is never below what the text form or any wire carries: every text that may be
shown is measured, and frames stand for what wraps it.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from keepthread.context.chat_templates import marks
from keepthread.context.full_text import BLOB_URI
from keepthread.types import JSON, Attachment, Message, Origin, ToolCall

# Compiled when first used: importing keepthread must stay fast.
_IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_WEB: Final = r"https://[a-zA-Z0-9.-]+(?::[0-9]{1,5})?(?:[/?#][^\s\"<>\\]*)?"
_DATA: Final = r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/]+={0,2})"


def image(attachment: Attachment) -> tuple[str, str] | None:
    """Return the media type and URI of an image that providers take, else None."""
    if data := re.fullmatch(_DATA, attachment.uri):
        return (data[1], attachment.uri) if len(data[2]) % 4 == 0 else None
    if attachment.media_type in _IMAGES and re.fullmatch(_WEB, attachment.uri):
        return attachment.media_type, attachment.uri
    return None


MESSAGE_FRAME: Final = 6
"""Tokens for a message's role, label and separators."""
CALL_FRAME: Final = 8
"""Tokens for what wraps one tool call."""
AUTHOR_FRAME: Final = 2
"""Tokens for an author after the role."""
ATTACHMENT_COST: Final = 1600
"""Tokens for one image that a model is shown: about what a large one takes."""
NOTE_FRAME: Final = 5
"""Tokens for the line of an attachment that is only named, beside its text."""
ORIGIN_FRAME: Final = 5
"""Tokens for the origin in parentheses."""
QUOTE_FRAME: Final = 6
"""Tokens for what introduces a quotation."""
ID_COST: Final = 8
"""Tokens for the id that stands for one that a provider would refuse."""
MARK_COST: Final = 4
"""Tokens that one mark of a chat template may take more once it is escaped."""
MOST_DEPTH: Final = 64
"""How deep arguments may be nested before they are sent as text; parsers give up at 128."""

_BAD_IN_NAME: Final = r"[^a-zA-Z0-9_-]"  # compiled when first used
_BAD_IN_LABEL: Final = r"(?:[^\w.:/@+-]|[\u115f\u1160\u3164\uffa0])+"  # some letters are blank
_LONGEST_LABEL: Final = 64
_FOREIGN: Final = ("tool", "web", "import")
"""Origins outside the conversation."""

_OWN_ORIGINS: Final = {
    "system": ("operator",),
    "user": ("operator", "user"),
    "assistant": ("operator", "user", "assistant"),
    "tool": ("operator", "user", "assistant", "tool"),
}
"""The origins that a role does not have to name; any other is less trusted than the role."""

Measure: TypeAlias = Callable[[str], int]


def count_message(message: Message, measure: Measure) -> int:
    """Return the tokens of a message on any wire."""
    quoted = is_quoted(message)
    named = bool(quoted and message.role == "system" and message.name)
    # A note's key and text are one text on every wire, and an estimate of both may be more than
    # the sum of two.
    text = f"{label(message.name or '')}\n{message.content}" if named else message.content
    total = MESSAGE_FRAME + _count_text(text, measure, quoted=quoted)
    if message.name and not named:
        total += _name(message.name, measure)
    if named_origin(message):
        total += ORIGIN_FRAME
    if message.author:
        total += AUTHOR_FRAME + _lines(author_name(message.author), measure)
    if message.tool_call_id is not None:
        total += max(ID_COST, _lines(message.tool_call_id, measure))
    if quoted or message.role == "assistant":  # what a chat template would obey is escaped
        shown = (message.content, *(call.arguments for call in message.tool_calls))
        total += MARK_COST * sum(len(marks(text)) for text in shown)
    if quoted and message.role != "tool":
        total += QUOTE_FRAME + 3 * _breaks(message.content)
        if message.tool_calls:  # they are separate from the quotation
            total += MESSAGE_FRAME
    for call in message.tool_calls:
        total += _count_call(call, measure)
    if message.native:
        items = json.dumps(list(message.native.items), ensure_ascii=False, separators=(",", ":"))
        total += measure(items)
    return total + sum(_count_attachment(message, a, measure) for a in message.attachments)


def is_quoted(message: Message) -> bool:
    """Return whether a message is quoted: text of tools, the web and imports.

    In the system's role all are quoted but the operator.
    """
    if message.role == "system":
        return message.origin not in ("operator", None)
    return message.role == "tool" or message.origin in _FOREIGN


def is_shown(message: Message, attachment: Attachment) -> bool:
    """Return whether an attachment is an image that is sent with its message; else it is named.

    No wire takes images from an assistant, and what is quoted is shown as text alone.
    """
    role = message.role == "tool" or (message.role == "user" and not is_quoted(message))
    return role and image(attachment) is not None


def attachment_note(attachment: Attachment) -> str:
    """Return the text that names an attachment which a model is not shown."""
    return f"[attached: {label(attachment.name or attachment.media_type)}]"


def named_origin(message: Message) -> Origin | None:
    """Return the origin to name beside the role: one that the role alone would hide."""
    origin = message.origin
    return None if origin is None or origin in _OWN_ORIGINS[message.role] else origin


def indented(text: str, *, quoted: bool) -> str:
    """Return a text as the text form shows it: after a label, with later lines indented."""
    lines = text.splitlines()
    if not lines:
        return ""
    margin = " > " if quoted else "  "
    first = f"> {lines[0]}" if quoted else lines[0]
    return "\n".join([first, *(margin + line if line else line for line in lines[1:])])


def _count_text(text: str, measure: Measure, *, quoted: bool) -> int:
    """Measure a text as it is; where the text form indents it, that may be more."""
    breaks = _breaks(text)
    plain = measure(text) + breaks
    if not breaks or (breaks == 1 and not quoted and _is_plain_line(text)):
        return plain
    return max(plain, measure(indented(text, quoted=quoted)))


def _is_plain_line(text: str) -> bool:
    """Return whether a text with one break ends with it, after a word or one sign after a word.

    The text form drops that break, which leaves no more tokens than there were.
    """
    word, sign = text[-3:-2], text[-2:-1]
    return (
        text.endswith("\n")
        and f"{word}{sign}".isascii()
        and word.isalnum()
        and (sign.isalnum() or sign in ".,:;!?")
    )


def _count_call(call: ToolCall, measure: Measure) -> int:
    shown = {call.arguments, arguments_as_json(call.arguments)}
    return (
        CALL_FRAME
        + max(ID_COST, _lines(call.id, measure))
        + max(_lines(name, measure) for name in {call.name, wire_name(call.name), label(call.name)})
        + max(_lines(form, measure) for form in shown)
    )


def _count_attachment(message: Message, attachment: Attachment, measure: Measure) -> int:
    named = NOTE_FRAME + _lines(attachment_note(attachment), measure)
    shown = is_shown(message, attachment) or _is_stored_image(message, attachment)
    return max(ATTACHMENT_COST, named) if shown else named


def _is_stored_image(message: Message, attachment: Attachment) -> bool:
    """Return whether an attachment is an image in a blob, which a program may show the model."""
    stored = attachment.uri.startswith(BLOB_URI) and attachment.media_type in _IMAGES
    return stored and message.role == "user" and not is_quoted(message)


def wire_name(name: str) -> str:
    """Return the name of a tool as every provider takes it."""
    return re.sub(_BAD_IN_NAME, "_", name)[:64] or "tool"


def label(name: str) -> str:
    """Return a name as one word: it can say who or what something is, and give no order."""
    return re.sub(_BAD_IN_LABEL, "_", name)[:_LONGEST_LABEL]


def author_name(author: str) -> str:
    """Return the name of an author for models: one word, and a number if the name ends with one.

    `Ana Maria (8456)` is `Ana_Maria (8456)`: a number in parentheses can pose as no origin.
    """
    name, _, number = author.rpartition(" ")
    is_numbered = name and re.fullmatch(r"\([0-9]{1,20}\)", number)
    return f"{label(name)} {number}" if is_numbered else label(author)


def arguments_as_json(arguments: str) -> str:
    """Return arguments as the JSON object that some wires demand.

    If the model wrote anything else, or no JSON at all, the text is wrapped in an object.
    """
    try:
        value: JSON = json.loads(arguments)
        if isinstance(value, Mapping) and not _too_deep(value):
            return _dumps(value)
    except (ValueError, RecursionError):  # NaN, and numbers that overflow, among others
        pass
    return _dumps({"arguments": arguments})


def _dumps(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _too_deep(value: JSON, left: int = MOST_DEPTH) -> bool:
    if isinstance(value, str) or not isinstance(value, Mapping | Sequence):
        return False
    inner = value.values() if isinstance(value, Mapping) else value
    return not left or any(_too_deep(part, left - 1) for part in inner)


def _name(name: str, measure: Measure) -> int:
    """Measure a name, as it is or as a label."""
    return max(_lines(form, measure) for form in {name, label(name)})


def _lines(text: str, measure: Measure) -> int:
    """Measure a text, with one token more for each line break: the text form indents there."""
    return measure(text) + _breaks(text)


def _breaks(text: str) -> int:
    return len(f"{text}.".splitlines()) - 1
