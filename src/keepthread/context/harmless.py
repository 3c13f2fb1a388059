"""Harmless text: no mark in it that a model's chat template would obey."""

import re
from typing import Final

# What the templates of chat models read as the turn of somebody else. Compiled when first used.
_ANGLE: Final = (
    r"<(?="
    r"[|｜]"  # <|im_start|>, <|eot_id|>, <｜User｜>
    r"|\w{1,40}[|｜]>"  # <turn|>
    r"|</?SYS>>"
    r"|/?(?:s|bos|eos|pad|unk|sop|think|tool_call|tool_response)>"
    r"|(?:start|end)_of_\w{1,20}>"
    r"|fim_\w{1,20}>"
    r")"
)
_SQUARE: Final = (
    r"\[(?=/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT|gMASK)\])"
)
CUT: Final = "…"


def harmless(text: str, fence: str = "") -> str:
    """Return a text without the fence, and with no mark that a chat template would obey.

    The first sign of such a mark is replaced by one that looks like it: `‹|im_start|>`.
    """
    if "\0" in text:  # no wire carries it, so what it parts would be whole again
        text = text.replace("\0", "")
    if fence:
        text = text.replace(fence, CUT)
    if "<" in text:
        text = re.sub(_ANGLE, "‹", text, flags=re.IGNORECASE)
    if "[" in text:
        text = re.sub(_SQUARE, "［", text, flags=re.IGNORECASE)
    return text
