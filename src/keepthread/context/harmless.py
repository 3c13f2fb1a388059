"""Harmless text: no mark in it that a model's chat template would obey, and no fence."""

import re
import unicodedata
from functools import lru_cache
from typing import Final

# What the templates of chat models read as the turn of somebody else. Compiled when first used.
_ANGLE: Final = (
    r"<(?="
    r"[|｜]"  # <|im_start|>, <|eot_id|>, <｜User｜>
    r"|\w{1,40}[|｜]>"  # <turn|>
    r"|</?SYS>>"
    r"|/?(?:s|bos|eos|pad|unk|sop|think|role|tool_call|tool_response)>"
    r"|(?:bos|eos|pad|unk)_token>"
    r"|(?:start|end)_of_\w{1,20}>"
    r"|(?:extra_id|reserved|special|unused)_?\d{1,5}>"
    r"|(?:fim|longcat)_\w{1,20}>"
    r"|seed:\w{1,20}>"
    r"|(?:用户|AI)>"
    r")"
)
_SQUARE: Final = (
    r"\[(?="
    r"/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT"
    r"|MODEL_SETTINGS|THINK|gMASK)\]"
    r"|\|\w{1,20}\|\]"  # [|user|]
    r"|e~\["
    r")"
)
CUT: Final = "…"


def harmless(text: str, fence: str = "") -> str:
    """Return a text without the fence, and with no mark that a chat template would obey.

    The first sign of such a mark is replaced by one that looks like it: `‹|im_start|>`.
    """
    if "\0" in text:  # no wire carries it, so what it parts would be whole again
        text = text.replace("\0", "")
    if fence:
        text = _without(text, fence)
    if "<" in text:
        text = re.sub(_ANGLE, "‹", text, flags=re.IGNORECASE)
    if "[" in text:
        text = re.sub(_SQUARE, "［", text, flags=re.IGNORECASE)
    return text.replace("]~", ")~")  # ]~b]system


# --- the fence, in whichever letters ---


def _without(text: str, fence: str) -> str:
    """Return a text without the fence, also where it is written in other letters.

    A model may have said the fence to somebody, and it may take `０ａ` for `0a`.
    """
    text, fence = text.replace(fence, CUT), _read(fence)
    if not fence or not _may_hold(text, fence):
        return text
    signs = [(each, place) for place, sign in enumerate(text) for each in _read(sign)]
    read = "".join(each for each, _ in signs)
    parts: list[str] = []
    end = 0
    at = read.find(fence)
    while at >= 0:
        parts += [text[end : signs[at][1]], CUT]
        end = signs[at + len(fence) - 1][1] + 1
        at = read.find(fence, at + len(fence))
    return "".join([*parts, text[end:]])


def _may_hold(text: str, fence: str) -> bool:
    """Tell, in little time, whether a text may hold the fence in some letters."""
    signs = (text if text.isascii() else unicodedata.normalize("NFKD", text)).casefold()
    return all(sign in signs for sign in fence) and fence in re.sub(r"[\W_]+", "", signs)


@lru_cache(maxsize=4096)
def _read(text: str) -> str:
    """Return a text as a careless reader takes it: small plain letters, and nothing unseen."""
    signs = unicodedata.normalize("NFKD", text).casefold()
    return "".join(sign for sign in signs if unicodedata.category(sign)[0] not in "MC")
