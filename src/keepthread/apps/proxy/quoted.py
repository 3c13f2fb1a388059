"""Texts in a user's turn that the user did not write: what the proxy adds, and clients' notes.

They are sent to the model. They are not part of the conversation: they are not recorded, and do
not count when a history is compared with an earlier one.
"""

import hmac
import re
import unicodedata
from typing import Final

from keepthread.context.chat_templates import sendable

ADDITION_STARTS: Final = "<keepthread-memory"
ADDITION_ENDS: Final = "</keepthread-memory>"
"""The beginning and the end of each addition."""
_NAME: Final = "keepthread-memory"
_ASCII_SPACES: Final = b" \t\n\r\v\f\x1c\x1d\x1e\x1f"
_SIGNATURE: Final = 32
"""Digits of the signature of an addition."""

_NOTES: Final = (
    "system-reminder",  # Claude Code
    "environment_context",  # Codex
    "permissions instructions",
    "collaboration_mode",
    "user_instructions",
    "INSTRUCTIONS",
    "environment_details",  # Cline, Roo Code
)
"""Elements that coding agents put around their own texts in the user's turn.

A text counts as a note only if it is such an element from its beginning to its end.
"""
_INSTRUCTIONS: Final = "# AGENTS.md instructions for "
"""Codex writes this before its element `INSTRUCTIONS`."""

_FILES: Final = re.compile(
    r"(?:I am working with you on code in a git repository\.\s+)?"
    r"Here are summaries of some (?:other )?files present in my git repo"
    r"|Here are some READ ONLY files, provided for your reference"
    r"|I have \*added these files to the chat\*"
    r"|I am not sharing (?:any files that you can edit|the full contents of any files with you) yet"
    r"|Don't try and edit any existing code without asking me to add the files to the chat!"
)
"""How Aider begins messages with files; they come after the history, and change with the files."""
_OTHER_PROJECT: Final = "I switched to a new code base. Please don't consider the above files"
"""Aider ends its examples with this: the conversation begins after it."""
_PRESET: Final = (
    "Ok, I won't try and edit those files",
    "Ok, I will use these files as references",
    "Ok, any changes I propose will be to those files",
    "Ok, I will use that as the true, current contents",
    "Ok, based on your requests I will suggest which files",
)
"""How answers begin that Aider writes itself to those messages."""


def letters(text: str) -> bytes:
    """Return a text without its spaces, in composed letters: clients change both."""
    if text.isascii():  # nearly as fast as copying it: histories are long
        return text.encode().translate(None, _ASCII_SPACES)
    composed = "".join(unicodedata.normalize("NFC", text).split())
    return composed.encode("utf-8", "surrogatepass")


def signed_addition(text: str, key: bytes) -> str:
    """Return a text as an addition with a signature, so that it is known if it comes back.

    Others can write the same tags, and theirs stay in the conversation.
    """
    text = f"\n{sendable(text).replace(_NAME, _NAME.replace('-', ' '))}\n"
    return f"{_opening(text, key)}{text}{ADDITION_ENDS}"


def without_addition(text: str, key: bytes) -> str:
    """Return a text without the addition at its end that was signed with a key."""
    end = text.rstrip()
    if not key or not end.endswith(ADDITION_ENDS):
        return text
    start = end.rfind(ADDITION_STARTS)
    opening, is_open, inner = end[start : -len(ADDITION_ENDS)].partition(">")
    expected = _opening(inner, key)
    if start < 0 or not hmac.compare_digest(f"{opening}{is_open}".encode(), expected.encode()):
        return text
    return text[:start].rstrip()


def _opening(inner: str, key: bytes) -> str:
    """Return the tag before a text; clients change spaces, so these are not signed."""
    signature = hmac.digest(key, letters(inner), "sha256").hex()[:_SIGNATURE]
    return f"{ADDITION_STARTS} id={signature}>"


def is_note(text: str) -> bool:
    """Return whether a whole text is a note of a client to the model."""
    text = text.strip()
    if text.startswith(_INSTRUCTIONS):
        text = text.partition("\n")[2].lstrip()
    if _FILES.match(text):
        return True
    return any(text.startswith(f"<{name}>") and text.endswith(f"</{name}>") for name in _NOTES)


def ends_examples(text: str) -> bool:
    """Return whether a user's text says that the messages before it were examples."""
    return text.lstrip().startswith(_OTHER_PROJECT)


def is_preset(text: str) -> bool:
    """Return whether a client wrote this answer itself, if it follows a note."""
    return text.strip() == "Ok." or text.lstrip().startswith(_PRESET)


def without_notes(text: str, key: bytes) -> str:
    """Return a text without an addition signed with a key; empty if it is a note."""
    return "" if is_note(text) else without_addition(text, key)
