"""Texts in a user's turn that the user did not write: what the proxy adds, and clients' notes.

They are sent to the model. They are not part of the conversation: they are not recorded, and do
not count when a history is compared with an earlier one.
"""

import re
from typing import Final

ADDITION_STARTS: Final = "<keepthread-memory"
ADDITION_ENDS: Final = "</keepthread-memory>"
"""The beginning and the end of each addition, so that one that a client sends back is known."""

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


def without_additions(text: str) -> str:
    """Return a text without an addition of the proxy at its end."""
    if ADDITION_STARTS not in text or not text.rstrip().endswith(ADDITION_ENDS):
        return text
    return text[: text.index(ADDITION_STARTS)].rstrip()


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


def own_words(text: str) -> str:
    """Return the user's own part of a text, without notes and additions."""
    return "" if is_note(text) else without_additions(text)
