"""Reading a provider's answer while its bytes pass by, whole or as a stream of events.

A reader never raises, and an event that it does not know changes nothing: the client gets the
bytes anyway. An answer that was cut short has only its text, since a client cannot use half a call.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol, cast

from keepthread.apps.proxy.events import EventLines
from keepthread.apps.proxy.types import AnswerReader, ProviderAnswer, WireName
from keepthread.context.wires.anthropic import from_anthropic
from keepthread.context.wires.openai_responses import from_openai_responses
from keepthread.errors import KeepthreadError
from keepthread.models.anthropic import MessageStreamParser
from keepthread.models.openai import ChatStreamParser
from keepthread.models.request import TextBuffer
from keepthread.types import Message

_MOST: Final = 64 * 2**20
"""Bytes of an answer that is not a stream; a longer one is not read."""
_DONE: Final = b"[DONE]"
_SIGNED: Final = {"thinking": "signature", "redacted_thinking": "data"}
_BAD: Final = (
    AttributeError,
    KeepthreadError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Exceptions raised by malformed answers."""


class _WireAnswer(Protocol):
    """An answer on one wire."""

    def take(self, event: Mapping[str, Any]) -> None:
        """Take an event of a stream."""
        ...

    def take_end(self) -> None:
        """Take the marker `[DONE]`."""
        ...

    def take_whole(self, body: Mapping[str, Any]) -> None:
        """Take an answer that is not a stream."""
        ...

    def answer(self) -> ProviderAnswer:
        """Return what arrived; without messages if there is none."""
        ...


def answer_reader(wire: WireName, streams: bool, *, provider: str = "") -> AnswerReader:
    """Return a reader for the answer to a request that asked for a stream, or did not.

    `provider` is the host that answers.
    """
    return _BodyReader(_ANSWERS[wire](provider), streams)


class _BodyReader:
    """Finds out whether a body is JSON or events, and hands on what is in it."""

    def __init__(self, answer: _WireAnswer, streams: bool) -> None:
        self._answer = answer
        self._streams = streams
        self._whole: list[bytes] | None = None
        self._size = 0
        self._events: EventLines | None = None
        self._ignores = False

    def feed(self, data: bytes) -> None:
        if not self._begun(data):
            return
        if self._events is not None:
            self._take(self._events.feed(data))
            self._ignores = self._events.overflowed
        elif self._whole is not None:
            self._size += len(data)
            self._whole.append(data)
            self._ignores = self._size > _MOST
        if self._ignores:
            self._whole = None

    def finish(self) -> ProviderAnswer | None:
        if self._events is not None and not self._ignores:
            self._take(self._events.finish())
        try:
            if self._whole is not None:
                body: object = json.loads(b"".join(self._whole))
                self._answer.take_whole(cast("Mapping[str, Any]", body))
            answer = self._answer.answer()
        except _BAD:
            return None
        return answer if answer.messages else None

    def _begun(self, data: bytes) -> bool:
        """Return whether data is to be read; the first character says what kind it is."""
        if self._ignores:
            return False
        if self._whole is not None or self._events is not None:
            return True
        first = data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
        if first == b"{":
            self._whole = []
        elif first and self._streams:
            self._events = EventLines()
        elif first:
            self._ignores = True
        return bool(first) and not self._ignores

    def _take(self, found: Sequence[bytes]) -> None:
        for data in found:
            if data.strip() == _DONE:
                self._answer.take_end()
                continue
            try:
                event: object = json.loads(data)
                if isinstance(event, dict):
                    self._answer.take(cast("Mapping[str, Any]", event))
            except _BAD:
                continue


def _only_text(text: str) -> ProviderAnswer:
    said = [Message(role="assistant", content=text)] if text.strip() else []
    return ProviderAnswer(said, complete=False)


def _spoken(messages: Sequence[Message], *, complete: bool = True) -> ProviderAnswer:
    """Return an answer; an empty one has no messages."""
    said = any(m.content or m.tool_calls or m.native for m in messages)
    return ProviderAnswer(messages if said else (), complete)


class _ChatAnswer:
    """An answer of OpenAI's chat completions. Of several choices, it is the first."""

    def __init__(self, provider: str) -> None:
        self._parser = ChatStreamParser(provider=provider)
        self._choices = 1
        self._ended = False
        self._failed = False

    def take(self, event: Mapping[str, Any]) -> None:
        self._failed |= bool(event.get("error"))
        for choice in event.get("choices") or ():
            index = choice.get("index") or 0
            self._choices = max(self._choices, index + 1)
            if index == 0:
                self._parser.take({"choices": [_with_functions(choice)]})

    def take_end(self) -> None:
        self._ended = True

    def take_whole(self, body: Mapping[str, Any]) -> None:
        choices = [
            {**choice, "delta": choice["message"], "finish_reason": choice.get("finish_reason")}
            for choice in body["choices"]
        ]
        self.take({"choices": choices})
        self._ended = True

    def answer(self) -> ProviderAnswer:
        reply = self._parser.reply()
        if self._failed or not (self._ended or self._parser.ended):
            return _only_text(reply.content)
        meta = {"choices": self._choices} if self._choices > 1 else {}
        message = Message(
            role="assistant",
            content=reply.content,
            tool_calls=tuple(reply.tool_calls),
            native=reply.native,
            meta=meta,
        )
        return _spoken([message])


def _with_functions(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Return a choice in which custom tools are called like functions."""
    delta = dict(choice.get("delta") or {})
    calls = [dict(call) for call in delta.get("tool_calls") or ()]
    for call in calls:
        if custom := call.get("custom"):
            call["function"] = {"name": custom.get("name"), "arguments": custom.get("input")}
    return {**choice, "delta": {**delta, "tool_calls": calls} if calls else delta}


class _AnthropicAnswer:
    """An answer of Anthropic's messages."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._parser = MessageStreamParser(provider=provider)
        self._ended = False
        self._failed = False

    def take(self, event: Mapping[str, Any]) -> None:
        self._failed |= event["type"] == "error"
        self._ended |= event["type"] == "message_stop"
        self._parser.take(event)

    def take_end(self) -> None:
        """Take a marker that this wire does not have."""

    def take_whole(self, body: Mapping[str, Any]) -> None:
        for index, block in enumerate(body["content"]):
            self._parser.take(
                {"type": "content_block_start", "index": index, "content_block": block}
            )
        self._ended = True

    def answer(self) -> ProviderAnswer:
        text = self._parser.said.text
        if self._failed or not (self._ended or self._parser.ended):
            return _only_text(text)
        try:
            items = [item for item in self._parser.items() if _is_signed(item)]
            said = [{"role": "assistant", "content": items}]
            return _spoken(from_anthropic(said, provider=self._provider))
        except _BAD:  # a call was cut short by a limit
            return _only_text(text)._replace(complete=True)


def _is_signed(block: Mapping[str, Any]) -> bool:
    """Return whether a block can be sent back: no reasoning can without its signature."""
    signature = _SIGNED.get(str(block.get("type")))
    return signature is None or bool(block.get(signature))


class _ResponsesAnswer:
    """An answer of OpenAI's responses."""

    def __init__(self, provider: str) -> None:
        self._provider = provider
        self._items: list[Mapping[str, Any]] = []
        self._begun: dict[object, TextBuffer] = {}
        self._ended = False

    def take(self, event: Mapping[str, Any]) -> None:
        index = event.get("output_index")
        match event["type"]:
            case "response.output_text.delta" | "response.refusal.delta":
                self._begun.setdefault(index, TextBuffer()).add(event["delta"])
            case "response.output_item.done":
                self._begun.pop(index, None)
                self._items.append(event["item"])
            case "response.completed" | "response.incomplete":
                self._items = event["response"].get("output") or self._items
                self._ended = True
            case _:
                pass

    def take_end(self) -> None:
        """Take a marker that this wire does not have."""

    def take_whole(self, body: Mapping[str, Any]) -> None:
        if body.get("status", "completed") in ("completed", "incomplete"):
            self._items = body["output"]
            self._ended = True

    def answer(self) -> ProviderAnswer:
        messages = from_openai_responses(self._items, provider=self._provider)
        if self._ended:
            return _spoken(messages)
        texts = [m.content for m in messages] + [begun.text for begun in self._begun.values()]
        return _only_text("\n".join(filter(None, texts)))


_ANSWERS: Final[Mapping[WireName, Callable[[str], _WireAnswer]]] = {
    "openai-chat": _ChatAnswer,
    "openai-responses": _ResponsesAnswer,
    "anthropic": _AnthropicAnswer,
}
