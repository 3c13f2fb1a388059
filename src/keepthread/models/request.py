"""What both wires need to ask: who is asked, a conversation that is in order, names of tools."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from keepthread.context.blocks import calls_of
from keepthread.context.rendering import wire_name
from keepthread.errors import InvalidInput
from keepthread.models.failures import Exceeded
from keepthread.models.limits import MOST_TEXT
from keepthread.types import JSON, Message, Native, Selection, Tool, Wire

_NO_PARAMETERS: Final[Mapping[str, JSON]] = {"type": "object", "properties": {}}


class Question(NamedTuple):
    """One question to a model."""

    selection: Selection
    tools: Sequence[Tool] = ()
    schema: Mapping[str, JSON] | None = None
    max_tokens: int | None = None


def conversation(messages: Sequence[Message], system: str) -> Selection:
    """Return messages as what is rendered; refuse them if a call lacks its results."""
    results: list[str] = []
    for message in messages:
        if not results:
            results = [call.id for call in calls_of(message)]
        elif message.role == "tool" and message.tool_call_id == results[0]:
            del results[0]
        else:
            break
    if results:
        raise InvalidInput(
            f"the call {results[0]!r} has no result behind it; give the messages of a context,"
            " or each call's results right behind it, in the order of the calls"
        )
    return Selection(0, 0, system, messages, ())


def wire_names(tools: Sequence[Tool]) -> dict[str, str]:
    """Return the names of tools by the names that a provider takes."""
    names = {wire_name(tool.name): tool.name for tool in tools}
    if len(names) < len(tools):
        raise InvalidInput(
            "two tools have names that a provider cannot tell apart: use letters, digits, _ and -"
            " alone, 64 at most"
        )
    return names


def parameters_of(tool: Tool) -> dict[str, Any]:
    """Return a tool's parameters as the object that providers ask for."""
    return {**_NO_PARAMETERS, **tool.parameters}


def address_of(url: str, *, ends: Sequence[str], root: str) -> tuple[str, str]:
    """Return a base address and its host; `ends` are what people copy along, `root` is added."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise InvalidInput("base_url must be like https://HOST/v1 and nothing more")
    if parts.username is not None:
        raise InvalidInput("base_url has a user's name in it; give what is secret as key")
    path = parts.path.rstrip("/")
    for end in ends:
        path = path.removesuffix(end)
    return f"{parts.scheme}://{parts.netloc}{path or root}", parts.netloc


def native_of(wire: Wire, items: Sequence[JSON], provider: str) -> Native:
    """Return a provider's own items; raise `ValueError` if no request could carry them."""
    json.dumps(items, ensure_ascii=False).encode()
    return Native(wire, items, provider)


_SURROGATE: Final = "[\ud800-\udfff]"
_OPENS: Final = "[\ud800-\udbff]$"


class Pieces:
    """What was said so far. Half of a character waits for its other half."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._said: list[str] = []
        self._half = ""
        self._size = 0

    def add(self, piece: str) -> str:
        """Take a piece, and return what can be passed on."""
        piece = self._half + piece
        self._half = ""
        if not piece.isascii() and re.search(_SURROGATE, piece):
            # Some servers cut between the halves of a pair.
            piece = piece.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
            if re.search(_OPENS, piece):
                piece, self._half = piece[:-1], piece[-1]
        self._size += len(piece.encode("utf-8", "surrogatepass"))
        if self._size > MOST_TEXT:
            raise Exceeded("gives an answer longer than 1 MB")
        self._said.append(piece)
        return piece

    def rest(self) -> str:
        """Return the half whose other half never came."""
        half, self._half = self._half, ""
        self._said.append(half)
        return half

    @property
    def text(self) -> str:
        """Return all that was said."""
        return "".join(self._said) + self._half


def text_of(given: object) -> str:
    """Return a text that may be left out; raise `TypeError` if it is something else."""
    if given is None or isinstance(given, str):
        return given or ""
    raise TypeError("no text")


def count_of(given: object) -> int:
    """Return a number of tokens that may be left out."""
    return given if isinstance(given, int) and given >= 0 else 0
