"""A reader that believes: it obeys all that anybody says in a prompt, but for what is quoted.

It knows the delimiter of the session, as a model that reads the first line of a block does, and
enters a block only by the very line that opens one. Otherwise it is as careless as possible: for it
a block ends wherever something like its end appears, in letters of any width and case and with any
invisible characters between; a mark of a chat template counts wherever it appears in a message,
quoted or not, since a tokenizer ignores quotations. It shares no code with what renders a context.
"""

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

BLANKS: Final[dict[int, str]] = dict.fromkeys((0x2800, 0x3164, 0x115F, 0x1160, 0xFFA0), " ")
"""Signs that look like a space and are none."""
TOKENS: Final = re.compile(
    r"<\|[^<>|\n]{1,60}\|?>|<\w{1,30}\|>|<｜[^<>\n]{1,60}｜>|</?s>|<</?SYS>>|</?(?:bos|eos|pad|sop)>"
    r"|</?(?:think|tool_call|tool_response|role)>|<(?:start|end)_of_\w+>|<(?:BOS|EOS)_TOKEN>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|TOOL_RESULTS|TOOL_CALLS|AVAILABLE_TOOLS|gMASK)\]|\[\|\w+\|\]"
    r"|<(?:extra_id|reserved|SPECIAL)_\d+>|<(?:用户|AI)>|\]~!?b\]?|\[e~\[",
    re.IGNORECASE,
)
"""What the templates of chat models are made of: a token, not a text, to who takes it for one."""


DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")


class Said(NamedTuple):
    """What somebody says in a prompt."""

    role: str
    text: str


# --- whose words there are, on each wire ---


def said_in_chat(request: Mapping[str, Any]) -> Iterator[Said]:
    """Yield what is said in OpenAI's chat completions; what tools said is theirs."""
    for message in request["messages"]:
        if message["role"] != "tool":
            yield from _contents(message["role"], message.get("content"))


def said_in_responses(request: Mapping[str, Any]) -> Iterator[Said]:
    """Yield what is said in OpenAI's responses."""
    yield Said("system", request.get("instructions", ""))
    for item in request["input"]:
        if "role" in item:
            yield from _contents(item["role"], item["content"])


def said_in_anthropic(request: Mapping[str, Any]) -> Iterator[Said]:
    """Yield what is said in Anthropic's messages."""
    yield Said("system", request.get("system", ""))
    for message in request["messages"]:
        yield from _contents(message["role"], message["content"])


def _contents(role: str, content: Any) -> Iterator[Said]:
    if isinstance(content, str):
        yield Said(role, content)
    for part in content if isinstance(content, list) else ():
        if isinstance(part.get("text"), str):
            yield Said(role, part["text"])


# --- what of it is believed ---


def steered(said: Sequence[Said], delimiter: str, codeword: str) -> str:
    """Return what steers the reader, or nothing: an order outside of all quotations."""
    for role, text in said:
        if role in ("system", "developer") and compact(codeword) in compact(text):
            return f"in the system's words: {_around(text, codeword)}"
        if found := _ordered("\n".join(outside(text, delimiter)), codeword):
            return f"in the words of {role}: {found}"
        if found := by_template(text, codeword):
            return f"by a chat template, in the words of {role}: {found}"
    return ""


def steered_by_text(text: str, turns: int, delimiter: str, codeword: str) -> str:
    """Return what steers the reader of a text, or nothing; it should have so many turns."""
    if found := _ordered("\n".join(outside(text, delimiter, labels=True)), codeword):
        return f"in the text: {found}"
    begun: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line[0].isspace():
            begun[-1:] = ["\n".join([*begun[-1:], line])]
        else:
            begun.append(line)
    if len(begun) != turns:
        return f"in the text: {len(begun)} turns, and {turns} messages"
    found = [by_template(turn, codeword) for turn in begun if not turn.startswith("Tool")]
    return next((f"by a chat template, in the text: {each}" for each in found if each), "")


def forged_in_recalled(text: str, delimiter: str, entries: int) -> str:
    """Return what is wrong with the block of recalled text, or nothing.

    In it a line at the margin is somebody's word, so there must be one for each fact and each piece
    that was recalled; lines that go on are indented. Days stand in order.
    """
    head, end = (
        f"[recalled, quoted, delimiter {delimiter}]",
        f"[end of quote, delimiter {delimiter}]",
    )
    lines = text.splitlines()
    if head not in lines:
        return ""
    block = lines[lines.index(head) + 1 :]
    block = block[: block.index(end)]
    days = [line for line in block if DAY.fullmatch(line)]
    begun = [line for line in block if line[:1] != " " and line not in days]
    if len(begun) != entries:
        return f"{len(begun)} voices in what was recalled, and {entries} pieces: {begun!r}"[:300]
    if days != sorted(set(days)):
        return f"days in what was recalled are not in order: {days}"
    return ""


def outside(text: str, delimiter: str, *, labels: bool = False) -> Iterator[str]:
    """Yield the lines that no quotation holds, those around a block included.

    With `labels` a quotation may begin behind a label, as in `Tool weather: > It rains.`
    """
    opening = re.compile(rf"(?:User: |  )?\[[^\[\]\n]*quoted, delimiter {re.escape(delimiter)}\]")
    inside = False
    for line in text.splitlines():
        if inside:
            compacted = compact(line)
            inside = not (compact(delimiter) in compacted and "end of quote" in compacted)
            if not inside:
                yield line
        elif opening.fullmatch(line):
            inside = True
            yield line
        elif labels and not line[:1].isspace():
            label, _, rest = line.partition(": ")
            yield label if rest.startswith(">") else line
        elif not line.lstrip(" ").startswith(">"):
            yield line


def by_template(text: str, codeword: str) -> str:
    """Return what a tokenizer would take for somebody's turn, and that gives the order."""
    found = TOKENS.search(text)
    return _ordered(text[found.start() :], codeword) if found else ""


def _ordered(text: str, codeword: str) -> str:
    """Return the order as it stands in a text, read in any way, or nothing."""
    order = re.compile(rf"obey\s+{compact(codeword)}")
    for line in (text, *(each[::-1] for each in text.splitlines() if "\u202e" in each)):
        compacted = compact(line)
        if found := order.search(compacted):
            return repr(compacted[max(0, found.start() - 80) : found.end() + 20])
    return ""


def compact(text: str) -> str:
    """Return a text as somebody reads it who takes all that looks alike for the same."""
    spread = unicodedata.normalize("NFKD", text.translate(BLANKS)).translate(BLANKS).casefold()
    unseen = [c for c in set(spread) if unicodedata.category(c)[0] in "MC" and not c.isspace()]
    return spread.translate(dict.fromkeys(map(ord, unseen))) if unseen else spread


def holds(value: Any, codeword: str) -> bool:
    """Tell whether a codeword stands anywhere in a value, in whichever letters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    plain, compacted = compact(codeword), compact(text)
    return plain in compacted or plain[::-1] in compacted


def _around(text: str, codeword: str) -> str:
    compacted = compact(text)
    at = compacted.find(compact(codeword))
    return repr(compacted[max(0, at - 80) : at + 40])
