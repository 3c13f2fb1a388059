"""The lines of a scripted server, and the requests it received."""

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeAlias, cast

from keepthread.types import ToolCall, Usage, Wire

_WORDS: Final = re.compile(r"\s*\S+|\s+")
_ARGUMENTS: Final = 8
_SILENT: Final = {
    *("type", "role", "id", "tool_use_id", "tool_call_id", "call_id", "cache_control"),
    *("signature", "encrypted_content", "status"),
}
_TEXTS: Final = ("text", "input_text", "output_text")


class Gate:
    """Holds an answer in the middle, until the test opens it.

    >>> gate = Gate()
    >>> line = Say("It is sunny.", hold=gate)
    """

    def __init__(self) -> None:
        """Begin closed, with no answer waiting."""
        self.reached = threading.Event()
        """Set when an answer waits at it."""
        self.opened = threading.Event()

    def open(self) -> None:
        """Let through all answers that wait, and all later ones."""
        self.opened.set()


class Say(NamedTuple):
    """One answer, how it is sent, and its faults."""

    text: str = ""
    tool_calls: Sequence[ToolCall] = ()
    thinking: str = ""
    """The model's thoughts before the answer; OpenAI's chat completions do not have them."""
    usage: Usage | None = None
    """Its usage; if None, a token for four characters."""
    finish: str | None = None
    """stop, length, tool_calls or content_filter, for every API; None derives it. OpenAI's
    Responses can also answer that the response has `failed`, with the status 200."""
    pieces: int | None = None
    """Number of pieces in which a stream sends the text; if None, word by word."""
    first_after: float = 0.0
    """Seconds before the first byte."""
    every: float = 0.0
    """Seconds between pieces."""
    hold: Gate | None = None
    hold_after: int = 1
    """Pieces before it waits at the gate; 0, or for a whole answer: it waits before all of it."""
    cut_after: int | None = None
    """Pieces after which the connection breaks; 0: right after the headers. A whole answer breaks
    off halfway."""
    unfinished: bool = False
    """A stream sends every piece and ends normally, but without its closing events."""
    status: int = 200
    message: str = ""
    """The error message, if the status is not 200 or the response has failed."""
    headers: Mapping[str, str] = {}
    """Such as `Retry-After`."""
    fails_after: int | None = None
    """Pieces after which the error comes, in the middle of a stream that began well."""


class Received(NamedTuple):
    """A valid request."""

    wire: Wire
    path: str
    headers: Mapping[str, str]
    """By their names in lower case."""
    body: Mapping[str, Any]
    raw: bytes = b""
    """The body as it was sent."""
    earlier: Sequence[Mapping[str, Any]] = ()
    """Items that OpenAI's Responses keep: of `previous_response_id`, or of `conversation`."""

    @property
    def streams(self) -> bool:
        """Return whether the answer is to be streamed."""
        return self.body.get("stream") is True

    @property
    def messages(self) -> Sequence[Mapping[str, Any]]:
        """Return the history that the model was given, in the form of the API."""
        if self.wire != "openai-responses":
            return self.body["messages"]
        given: Any = self.body.get("input", ())
        if isinstance(given, str):
            given = ({"role": "user", "content": given},)
        return (*self.earlier, *given)

    @property
    def system(self) -> str:
        """Return the system prompt, from the field that the API uses."""
        if self.wire == "anthropic":
            return _text(self.body.get("system", ""))
        said = [m["content"] for m in self.messages if m.get("role") in ("system", "developer")]
        return "\n\n".join(map(_text, [*filter(None, [self.body.get("instructions")]), *said]))

    @property
    def text(self) -> str:
        """Return the text of the last user message."""
        said = [_text(m["content"]) for m in self.messages if m.get("role") == "user"]
        return next((text for text in reversed(said) if text), "")

    @property
    def context(self) -> str:
        """Return all texts that the model was given."""
        return "\n".join(_strings([self.system, *self.messages]))


Line: TypeAlias = str | Say | Callable[[Received], "str | Say"]
"""One line of a script: an answer, or a function that makes one from the request."""


def spoken(line: Line, asked: Received) -> Say:
    """Return a line's answer to a request, with its usage and its finish reason."""
    said = line if isinstance(line, str | Say) else line(asked)
    say = Say(said) if isinstance(said, str) else said
    finish = say.finish or ("tool_calls" if say.tool_calls else "stop")
    return say._replace(usage=say.usage or _usage(asked, say), finish=finish)


def in_pieces(text: str, pieces: int | None) -> list[str]:
    """Return a text in pieces: as many as given, or else one per word."""
    if pieces is None:
        return _WORDS.findall(text)
    cuts = [len(text) * n // pieces for n in range(pieces + 1)]
    return [text[at:to] for at, to in pairwise(cuts) if at < to]


def arguments_in_pieces(call: ToolCall) -> list[str]:
    """Return a call's arguments in the pieces of a stream, broken anywhere."""
    text = call.arguments
    return [text[at : at + _ARGUMENTS] for at in range(0, len(text), _ARGUMENTS)]


def input_of(call: ToolCall) -> Any:
    """Return a call's arguments as an object."""
    return json.loads(call.arguments or "{}")


def _usage(asked: Received, say: Say) -> Usage:
    heard = sum(len(text) for text in _strings([asked.system, *asked.messages]))
    called = sum(len(call.name + call.arguments) for call in say.tool_calls)
    return Usage(input=heard // 4, output=(len(say.thinking) + len(say.text) + called) // 4)


def _text(content: Any) -> str:
    """Return the text of a message, plain or in parts."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content or () if part.get("type") in _TEXTS)


def _strings(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, list):
        return [text for item in cast("list[Any]", value) for text in _strings(item)]
    if isinstance(value, dict):
        inner = cast("dict[str, Any]", value).items()
        return [text for name, item in inner if name not in _SILENT for text in _strings(item)]
    return []
