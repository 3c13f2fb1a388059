"""What a scripted server is to say, and what it was asked."""

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias, cast

from keepthread.types import ToolCall, Usage, Wire

_WORDS: Final = re.compile(r"\s*\S+|\s+")
_ARGUMENTS: Final = 8
_SILENT: Final = {"type", "role", "id", "tool_use_id", "tool_call_id", "cache_control", "signature"}


class Gate:
    """Holds an answer in the middle, until the test lets it go.

    >>> gate = Gate()
    >>> line = Say("It is sunny.", hold=gate)
    """

    def __init__(self) -> None:
        """Be closed, with nobody in front of it."""
        self.reached = threading.Event()
        """Set when an answer stands in front of it."""
        self.opened = threading.Event()

    def open(self) -> None:
        """Let through whoever waits, and whoever comes."""
        self.opened.set()


class Say(NamedTuple):
    """One answer, how it comes, and what goes wrong with it."""

    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    thinking: str = ""
    """What it thought before, which Anthropic's wire alone can tell."""
    usage: Usage | None = None
    """What it cost; if None, a token for four characters."""
    finish: str | None = None
    """stop, length, tool_calls or content_filter, on either wire; if None, what fits."""
    pieces: int | None = None
    """In how many pieces a stream brings the text; if None, word by word."""
    first_after: float = 0.0
    """Seconds before the first byte."""
    every: float = 0.0
    """Seconds between pieces."""
    hold: Gate | None = None
    hold_after: int = 1
    """Pieces before it stands at the gate; 0, or if it comes whole: nothing is sent before."""
    cut_after: int | None = None
    """Pieces after which the connection breaks; 0: right after the headers. A whole answer breaks
    off halfway."""
    unfinished: bool = False
    """A stream brings every piece and ends in good order, but without its closing events."""
    status: int = 200
    message: str = ""
    """What it says instead, if the status is another than 200."""
    headers: Mapping[str, str] = {}
    """Such as `Retry-After`."""
    fails_after: int | None = None
    """Pieces after which the error comes, in the middle of a stream that began well."""


class Received(NamedTuple):
    """A request that was in order."""

    wire: Wire
    path: str
    headers: Mapping[str, str]
    """By their names in small letters."""
    body: Mapping[str, Any]

    @property
    def streams(self) -> bool:
        """Return whether the answer is to come in pieces."""
        return self.body.get("stream") is True

    @property
    def system(self) -> str:
        """Return the system prompt, wherever the wire puts it."""
        if self.wire == "anthropic":
            return _text(self.body.get("system", ""))
        said = (m for m in self.body["messages"] if m["role"] in ("system", "developer"))
        return "\n\n".join(_text(message["content"]) for message in said)

    @property
    def text(self) -> str:
        """Return what the user said last."""
        said = [_text(m["content"]) for m in self.body["messages"] if m["role"] == "user"]
        return next((text for text in reversed(said) if text), "")

    @property
    def context(self) -> str:
        """Return everything that the model was given to read."""
        return "\n".join(_strings([self.system, self.body["messages"]]))


Line: TypeAlias = str | Say | Callable[[Received], "str | Say"]
"""One line of a script: an answer, or what makes an answer of the request."""


def spoken(line: Line, asked: Received) -> Say:
    """Return what a line of a script says to a request, with its cost and its end."""
    said = line if isinstance(line, str | Say) else line(asked)
    say = Say(said) if isinstance(said, str) else said
    finish = say.finish or ("tool_calls" if say.tool_calls else "stop")
    return say._replace(usage=say.usage or _usage(asked, say), finish=finish)


def in_pieces(text: str, pieces: int | None) -> list[str]:
    """Return a text in pieces: as many as there are words, unless told."""
    if pieces is None:
        return _WORDS.findall(text)
    cuts = [len(text) * n // pieces for n in range(pieces + 1)]
    return [text[at:to] for at, to in pairwise(cuts) if at < to]


def arguments_in_pieces(call: ToolCall) -> list[str]:
    """Return a call's arguments as a stream brings them: broken anywhere."""
    text = call.arguments
    return [text[at : at + _ARGUMENTS] for at in range(0, len(text), _ARGUMENTS)]


def input_of(call: ToolCall) -> Any:
    """Return a call's arguments as the object they stand for."""
    return json.loads(call.arguments or "{}")


def _usage(asked: Received, say: Say) -> Usage:
    heard = sum(len(text) for text in _strings([asked.system, asked.body["messages"]]))
    called = sum(len(call.name + call.arguments) for call in say.tool_calls)
    return Usage(input=heard // 4, output=(len(say.thinking) + len(say.text) + called) // 4)


def _text(content: Any) -> str:
    """Return the text of a message, be it plain or in parts."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if part.get("type") == "text")


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in cast("list[Any]", value) for text in _strings(item)]
    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value).items()
        return [text for name, item in inner if name not in _SILENT for text in _strings(item)]
    return []
