"""Parts of requests and answers that all chat models share."""

import json
import re
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from keepthread.context.blocks import calls_of
from keepthread.context.rendering import wire_name
from keepthread.errors import InvalidInput, ModelError
from keepthread.models.failures import LimitExceeded, may_refuse_tools
from keepthread.models.limits import MAX_TEXT
from keepthread.protocols import ChatModel
from keepthread.types import JSON, Message, Native, Reply, Selection, Tool, Wire

_NO_PARAMETERS: Final[Mapping[str, JSON]] = {"type": "object", "properties": {}}


class Question(NamedTuple):
    """One question to a model."""

    selection: Selection
    tools: Sequence[Tool] = ()
    schema: Mapping[str, JSON] | None = None
    max_tokens: int | None = None


def conversation(messages: Sequence[Message], system: str) -> Selection:
    """Return messages as a selection to render; raise if a call lacks its results."""
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
            f"the call {results[0]!r} has no result after it; give the messages of a context,"
            " or put each call's results right after it, in the order of the calls"
        )
    return Selection(0, 0, system, messages, ())


async def stream_with_tools(
    model: ChatModel,
    messages: Sequence[Message],
    tools: Sequence[Tool],
    *,
    system: str = "",
    on_refused: Callable[[str], object],
) -> AsyncGenerator[str | Reply]:
    """Yield a model's answer; a service that refuses tools is asked once more without them.

    `on_refused` is called with the refusal as soon as an answer without tools has begun.
    """
    refusal = ""
    for offered in (tools, ()):
        said, stream = False, model.stream(messages, system=system, tools=offered)
        try:
            async for piece in stream:
                if refusal and not said:
                    on_refused(refusal)
                said = True
                yield piece
        except ModelError as error:
            if said or not offered or not may_refuse_tools(error):
                raise
            refusal = str(error)
        else:
            return
        finally:
            if isinstance(stream, AsyncGenerator):
                await stream.aclose()


def wire_names(tools: Sequence[Tool]) -> dict[str, str]:
    """Map the names that providers accept to the names of the tools."""
    names = {wire_name(tool.name): tool.name for tool in tools}
    if len(names) < len(tools):
        raise InvalidInput(
            "two tools have names that a provider cannot distinguish: use only letters, digits, _"
            " and -, at most 64 characters"
        )
    return names


def parameters_of(tool: Tool) -> dict[str, Any]:
    """Return a tool's parameters as the JSON schema object that providers require."""
    return {**_NO_PARAMETERS, **tool.parameters}


def check_key(key: str | None) -> None:
    """Raise `InvalidInput` if a key cannot be sent as it is."""
    if key is not None and not re.fullmatch("[!-~]+", key):
        raise InvalidInput(
            "the key contains a space, a line break or a non-ASCII character; copy it again"
        )


def address_of(
    url: str, *, ends: Sequence[str], root: str, argument: str = "base_url"
) -> tuple[str, str]:
    """Return the base URL and its host.

    `ends` are suffixes to remove, `root` is the path if there is none; errors name the argument.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query:
        raise InvalidInput(f"{argument} must have the form https://HOST/v1, without a query")
    if parts.username is not None:
        raise InvalidInput(f"{argument} contains a user name; pass secrets as key")
    path = parts.path.rstrip("/")
    for end in ends:
        path = path.removesuffix(end)
    return f"{parts.scheme}://{parts.netloc}{path or root}", parts.netloc


def native_of(wire: Wire, items: Sequence[JSON], provider: str) -> Native:
    """Return a provider's own items; raise `ValueError` if no request could contain them."""
    json.dumps(items, ensure_ascii=False).encode()
    return Native(wire, items, provider)


_SURROGATE: Final = "[\ud800-\udfff]"
_OPENS: Final = "[\ud800-\udbff]$"


class TextBuffer:
    """The text of an answer so far; holds back half of a surrogate pair until the other half."""

    def __init__(self) -> None:
        """Start empty."""
        self._said: list[str] = []
        self._half = ""
        self._size = 0

    def add(self, piece: str) -> str:
        """Add a piece, and return the text that can be passed on."""
        piece = self._half + piece
        self._half = ""
        if not piece.isascii() and re.search(_SURROGATE, piece):
            # Some servers cut between the halves of a pair.
            piece = piece.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")
            if re.search(_OPENS, piece):
                piece, self._half = piece[:-1], piece[-1]
        self._size += len(piece.encode("utf-8", "surrogatepass"))
        if self._size > MAX_TEXT:
            raise LimitExceeded("returned an answer longer than 1 MB")
        self._said.append(piece)
        return piece

    def rest(self) -> str:
        """Return half of a surrogate pair if its other half never came."""
        half, self._half = self._half, ""
        self._said.append(half)
        return half

    @property
    def text(self) -> str:
        """Return the whole text."""
        return "".join(self._said) + self._half


def text_of(given: object) -> str:
    """Return an optional text; raise `TypeError` if it is something else."""
    if given is None or isinstance(given, str):
        return given or ""
    raise TypeError("not a text")


def count_of(given: object) -> int:
    """Return an optional number of tokens; 0 if it is missing or invalid."""
    return given if isinstance(given, int) and given >= 0 else 0
