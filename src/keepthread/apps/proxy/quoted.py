"""Texts in a user's turn that the user did not write: what the proxy adds, and clients' notes.

They are sent to the model. They are not part of the conversation: they are not recorded, and do
not count when a history is compared with an earlier one.
"""

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
    return any(text.startswith(f"<{name}>") and text.endswith(f"</{name}>") for name in _NOTES)


def own_words(text: str) -> str:
    """Return what the user wrote of a text: nothing of a note, and no addition."""
    return "" if is_note(text) else without_additions(text)
