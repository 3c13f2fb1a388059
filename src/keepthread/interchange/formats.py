"""The formats that files have, and which one it is by how a file begins."""

import re
from typing import Final

JSONL: Final = "jsonl"
MARKDOWN: Final = "markdown"
CHATGPT: Final = "chatgpt"
CLAUDE: Final = "claude"
FORMATS: Final = (JSONL, MARKDOWN, CHATGPT, CLAUDE)
CHATS: Final = "chats"
"""ChatGPT's or Claude's: their conversations say which."""

ARCHIVE: Final = b"PK\x03\x04"
"""How an archive begins."""
TRANSCRIPT: Final = "<!-- keepthread transcript"
"""How a transcript begins."""


def format_of(head: bytes) -> str:
    """Return the format of a file that begins so; an export of ours if it is none of the others."""
    head = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if head.startswith(TRANSCRIPT.encode()):
        return MARKDOWN
    if head.startswith((ARCHIVE, b"[")):
        return CHATS
    ours = not head.startswith(b"{") or re.match(rb'\{\s*"format"', head)
    return JSONL if ours else CHATS
