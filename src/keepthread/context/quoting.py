"""Quoting: untrusted text between random delimiters, to contain prompt injection.

The text can neither close the quotation nor pass for another speaker.
"""

import re
from dataclasses import replace
from typing import Final

from keepthread.context.chat_templates import escaped, read, reading, sendable
from keepthread.context.rendering import attachment_note, author_name, label, named_origin
from keepthread.context.trust import LOWEST_ORIGIN, is_note, trust_in
from keepthread.protocols import TokenCounter
from keepthread.types import Message

CUT: Final = "…"
_AS_DIGITS: Final = str.maketrans("li|oszgq", "11105299")
"""Characters that look like digits; none of them is a hexadecimal digit itself."""
_QUOTE, _DELIMITER = (word.translate(_AS_DIGITS) for word in ("quote", "delimiter"))
_WORDS: Final = rf"[^\n(\[{{]{{0,200}}?\b{_QUOTE}d?\W{{1,4}}{_DELIMITER}\b"
_DELIMITER_LINE: Final = (
    rf"\[(?={_WORDS}[^\S\n]*[^\s\],])"
    rf"|[({{](?={_WORDS}[^\w\n,;)}}]{{0,5}}(?:\.\.\.|[0-9a-f]{{4}}|{_DELIMITER}))"
)
"""The start of a delimiter line, as `read` returns it with digits for letters that look like them.

Only we write those. Code may have the words, too: `(quote, delimiter)` has no number after them,
and `[quote, delimiter]` has nothing.
"""


def sanitize(text: str, delimiter: str = "") -> str:
    """Return a text without the delimiter, and without marks that a chat template would obey.

    The first character of such a mark is replaced by one that looks like it: `‹|im_start|>`.
    """
    text = sendable(text)  # dropped characters could split a mark
    return escaped(_without(text, delimiter) if delimiter else text)


# --- the delimiter, also in look-alike letters ---


def _without(text: str, delimiter: str) -> str:
    """Return a text without the delimiter, and without lines that look like delimiter lines.

    A model may have revealed the delimiter, and it may read `０ａ`, or the Cyrillic `а`, as
    `0a`.
    """
    text, delimiter = text.replace(delimiter, CUT), read(delimiter).translate(_AS_DIGITS)
    seen = read(text).translate(_AS_DIGITS)
    if delimiter and delimiter in re.sub(r"[\W_]+", "", seen):
        text = _cut(text, delimiter)
        seen = read(text).translate(_AS_DIGITS)
    if _DELIMITER not in seen or not (found := list(re.finditer(_DELIMITER_LINE, seen))):
        return text
    places = [place for _, place in reading(text)]
    starts = {places[each.start()] for each in found}
    return "".join("‹" if place in starts else sign for place, sign in enumerate(text))


def _cut(text: str, delimiter: str) -> str:
    """Return a text without the delimiter, also where it is written in look-alike letters."""
    signs = list(reading(text))
    seen = "".join(each for each, _ in signs).translate(_AS_DIGITS)
    parts: list[str] = []
    end = 0
    at = seen.find(delimiter)
    while at >= 0:
        parts += [text[end : signs[at][1]], CUT]
        end = signs[at + len(delimiter) - 1][1] + 1
        at = seen.find(delimiter, at + len(delimiter))
    return "".join([*parts, text[end:]])


def speaker(message: Message) -> str:
    """Return the speaker's label: `User`, `User bob`, `User (web) bob`, `User bob (42)`.

    A name is one word, or one with a number in parentheses, and comes last: it can pose as no role
    and as no origin, and a line that is cut for its length keeps both.
    """
    if is_note(message):
        return f"Note {label(message.name)}" if message.name else "Note"
    origin = named_origin(message)
    is_tool = message.role == "tool"
    name = label(message.name or "") if is_tool else author_name(message.author or "")
    parts = [message.role.capitalize(), f"({origin})" if origin else "", name]
    return " ".join(filter(None, parts))


def flat(text: str) -> str:
    """Return a text in one line."""
    return " ".join(text.splitlines())


def is_order(message: Message) -> bool:
    """Return whether a message of the system role comes from the operator."""
    return message.role == "system" and message.origin in ("operator", None)


def quotation(message: Message) -> str:
    """Return a message as quoted text, each line marked."""
    lines = [f"> {line}" for line in sanitize(message.content).splitlines()] or [">"]
    calls = [
        f"> (called {label(c.name)} with {sanitize(flat(c.arguments))})" for c in message.tool_calls
    ]
    attached = [f"> {attachment_note(a)}" for a in message.attachments]
    return "\n".join([f"{speaker(message)} said:", *lines, *calls, *attached])


def in_short(text: str) -> str:
    """Return a model's digest of an answer as a quotation, because it is not verbatim."""
    return "\n".join(["In short:", *(f"> {line}" for line in sanitize(text).splitlines())])


def as_quotation(message: Message) -> Message:
    """Return a message of the user role that quotes another."""
    return replace(
        message,
        role="user",
        content=quotation(message),
        tool_calls=(),
        tool_call_id=None,
        name=None,
        author=None,
        origin="user",  # the quotation itself is our own text
        meta={**message.meta, LOWEST_ORIGIN: trust_in(message)},
        native=None,
        attachments=(),
    )


def quoted(message: Message, counter: TokenCounter) -> Message:
    """Return a message of the user role that quotes another, with its tokens counted."""
    quote = as_quotation(message)
    return replace(quote, tokens=counter.count(quote))


def delimited(text: str, delimiter: str, title: str) -> str:
    """Return a text as a quotation, each line marked, between two delimiter lines.

    `delimiter` is random letters and digits that the text cannot know.
    """
    lines = [f"> {line}" for line in sanitize(text, delimiter).splitlines()] or [">"]
    head = f"[{flat(sanitize(title, delimiter))}, quoted, delimiter {delimiter}]"
    return "\n".join([head, *lines, f"[end of quote, delimiter {delimiter}]"])
