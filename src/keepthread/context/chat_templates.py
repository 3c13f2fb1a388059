r"""Marks of chat templates: what a model's server may read as the start of another turn.

Texts are searched as a careless reader takes them: compatibility forms, look-alike letters and
invisible characters are resolved first, so `＜|im_start|＞` and `<\u200b|im_start|>` are found.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

_SURROGATE: Final = "[\ud800-\udfff]"
# Strings, compiled when first used: importing keepthread must stay fast. All letters are lower
# case, because a reading is.
_ANGLE: Final = (
    r"<(?="
    r"[ \t]{0,3}\|"  # <|im_start|>, <|eot_id|>, <｜User｜>
    r"|\w{1,40}\|>"  # <turn|>
    r"|</?sys>>"
    r"|/?(?:s|bos|eos|pad|unk|sop|sep|cls|mask|eoh|eoa|eot|eod|eom|im_start|im_end)>"
    r"|/?(?:think|role|answer|tools?|tool_calls?|tool_response|arg_key|arg_value|function_calls)>"
    r"|/?(?:user|system|assistant|human|bot)>"
    r"|[ \t]{0,3}/?[ \t]{0,3}system[-_ ]reminder\b"  # of coding agents
    r"|/?(?:image|img|video|audio)>|\w{1,20}_soft_token>"
    r"|/?(?:function|parameter)="
    r"|/?(?:antml:)?invoke\b"
    r"|(?:bos|eos|pad|unk)_token>"
    r"|(?:start|end)_(?:of|function)_\w{1,20}>"
    r"|(?:extra_id|reserved|special|unused)_?\d{1,5}>"
    r"|ctrl\d{1,4}>|0x[0-9a-f]{2}>"
    r"|_(?:end|system|user|bot|start)>"
    r"|(?:fim|longcat)_\w{1,20}>"
    r"|seed:\w{1,20}>"
    r"|(?:用户|ai)>"
    r")"
)
_SQUARE: Final = (
    r"\[(?="
    r"/?(?:inst|system_prompt|available_tools|tool_calls|tool_results|tool_content"
    r"|model_settings|think|gmask|args|call_id|img|img_break|img_end|prefix|suffix|middle)\]"
    r"|/?(?:bos|eos|sep|cls|pad|mask|unk|user|bot|system|assistant)\]"
    r"|@\w{1,20}@\]"  # [@BOS@]
    r"|\|\w{1,20}\|\]"  # [|user|]
    r"|e~\["
    r")"
)
_OTHERS: Final = (
    r"\](?=~)"  # ]~b]system
    r"|>(?=>(?:answer|question|title|abstract|introduction|summary|comment|domain|prefix|suffix"
    r"|middle)<<)"
    r"|#(?<!##)(?=##\s{0,3}(?:instruction|response|input|system|user|assistant|human)\b)"
)
_MARK: Final = f"{_ANGLE}|{_SQUARE}|{_OTHERS}"
_REPLACEMENTS: Final = {"<": "‹", "[": "(", "]": ")", ">": "›", "#": "♯"}
"""Replacements of the first character of a mark. No Unicode normalization reverses them."""
_MAY_START: Final = r"[<\[#]|>>|\]~"
"""What a reading with a mark in it must contain."""

# Not drawn, or drawn over what comes before: controls, format characters, variation selectors,
# tags, fillers, combining marks, private use.
_UNSEEN: Final = (
    "[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\xad\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u0600-\u0605"
    "\u061c\u06dd\u070f\u08e2\u115f\u1160\u17b4\u17b5\u180b-\u180f\u1ab0-\u1aff\u1dc0-\u1dff"
    "\u200b-\u200f\u202a-\u202e\u2060-\u206f\u20d0-\u20ff\u2800\u3164\ue000-\uf8ff\ufe00-\ufe0f"
    "\ufe20-\ufe2f\ufeff\uffa0\ufff9-\ufffb\U0001bca0-\U0001bca3\U0001d165-\U0001d182"
    "\U000e0000-\U000e0fff\U000f0000-\U0010ffff]+"
)
_LOOK_ALIKES: Final = {
    "a": "ɑαа⍺",
    "b": "ƄЬьᏏᑲᖯƅ",
    "c": "ϲсᴄⲥꮯ\U0001043d",
    "d": "ԁᏧᑯꓒ",
    "e": "еҽ℮ꬲєε",
    "f": "ꞙꬵքϝƒ",
    "g": "ɡցƍ",
    "h": "һհᏂ",
    "i": "іιıɩꙇӏ",
    "k": "кκ",
    "m": "мⅿ",
    "n": "ոռη",
    "o": "оοօσߋഠ၀",
    "p": "рρ⍴",
    "q": "ԛգզ",
    "r": "гᴦⲅꮁ",
    "s": "ѕꜱꮪ",
    "t": "тτᴛ",
    "u": "υսʋᴜꭎꭒ",
    "v": "ѵνᴠ",
    "x": "хχ×",
    "y": "уγүყ",
    "0": "ዐ०੦૦௦౦೦൦๐໐٠۰ⵔ߀〇",
    "1": "ⵏ׀ᛁ١۱ⲓꓲ",
    "2": "ᒿꙅƨϩ",
    "3": "ȜЗзƷʒӠꝪⳅȝӡꝫ",
    "4": "Ꮞ",
    "5": "Ƽƽ",
    "6": "бᏮⳓ",
    "7": "\U000104d2\U000104fa",
    "8": "Ȣȣ৪੪ଃ",
    "9": "Ꝯꝯ৭੧୨൭ⳋগ",
    "<": "˂ᐸ❮𝈶",
    ">": "˃ᐳ❯𝈷",
    "|": "ǀ∣⏐❘丨",
    "[": "❲⁅⟦【〔",
    "]": "❳⁆⟧】〕",
}
_LONGEST_TABLE: Final = 4096


def sanitize(text: str) -> str:
    """Return a text that every API accepts, without marks that a chat template would interpret."""
    return escaped(sendable(text))


def sendable(text: str) -> str:
    """Return a text without lone surrogates and NUL, which break parsers and models."""
    if "\0" in text:
        text = text.replace("\0", "")
    if not text.isascii() and re.search(_SURROGATE, text):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def escaped(text: str) -> str:
    """Return a text in which the first character of each mark is replaced: `‹|im_start|>`."""
    places = marks(text)
    if not places:
        return text
    parts: list[str] = []
    end = 0
    for place, sign in places:
        parts += [text[end:place], _REPLACEMENTS[sign]]
        end = place + 1
    return "".join([*parts, text[end:]])


def marks(text: str) -> list[tuple[int, str]]:
    """Return where marks begin in a text, each with the character that it is read as."""
    seen = read(text)
    if not re.search(_MAY_START, seen):
        return []
    found = [(each.start(), each[0]) for each in re.finditer(_MARK, seen)]
    if not found or seen == text or (len(seen) == len(text) and text.isascii()):
        return found
    places = [place for _, place in reading(text)]
    # One character may be read as several, such as ≪ as two angles.
    return list({places[at]: (places[at], sign) for at, sign in found}.values())


def read(text: str) -> str:
    """Return a text as a careless reader takes it: small plain letters, and nothing unseen."""
    if text.isascii():
        return (re.sub(_UNSEEN, "", text) if not text.isprintable() else text).lower()
    # A long text has few different characters, and to replace them takes no time.
    return text.translate({ord(sign): _read_sign(sign) for sign in set(text)})


def reading(text: str) -> Iterator[tuple[str, int]]:
    """Yield the characters of `read(text)`, each with its place in the text."""
    for place, sign in enumerate(text):
        for each in _read_sign(sign):
            yield each, place


@lru_cache(maxsize=_LONGEST_TABLE)
def _read_sign(sign: str) -> str:
    """Return what one character is read as: itself, if that has no letter or sign of ASCII."""
    known = _table().get(sign)
    if known is not None:
        return known
    seen = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", sign).casefold())
    seen = "".join(_table().get(each, each) for each in re.sub(_UNSEEN, "", seen))
    plain = any(each.isascii() and not each.isspace() for each in seen)
    return seen if plain or not seen else sign


@lru_cache(maxsize=1)
def _table() -> dict[str, str]:
    return {each: sign for sign, others in _LOOK_ALIKES.items() for each in others}
