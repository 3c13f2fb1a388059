"""Anthropic's messages API, and every server that implements it."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from keepthread.context.ids import distinct_calls
from keepthread.context.rendering import wire_name
from keepthread.context.wires.anthropic import render
from keepthread.models.base import RemoteModel
from keepthread.models.request import (
    Question,
    TextBuffer,
    count_of,
    native_of,
    parameters_of,
    text_of,
)
from keepthread.types import Native, Reply, Tool, ToolCall, Usage

_CUT: Final = ("max_tokens", "refusal", "model_context_window_exceeded")
_MAX_TOKENS: Final = 8192
"""The default limit of an answer; the API requires one."""
_INPUTS: Final = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_THOUGHTS: Final = {"thinking": "signature", "redacted_thinking": "data"}
"""Types of reasoning blocks, and the field that the provider checks when they are sent back."""
_JSON: Final = "json"
_DELTAS: Final = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", _JSON),
}


class AnthropicModel(RemoteModel):
    """A model of Anthropic, or of a server with the same API.

    >>> model = AnthropicModel("claude-sonnet-4-5", key="…")
    """

    package = "anthropic"
    own = "https://api.anthropic.com"
    ends = ("/messages", "/v1")
    root = ""
    path = "/v1/messages"
    models_path = "/v1/models"
    answer_tokens = _MAX_TOKENS
    optional: ClassVar[Mapping[str, str | None]] = {"cache_control": None}

    def _request(self, question: Question) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self.name,
            "max_tokens": question.max_tokens or _MAX_TOKENS,
            **render(question.selection, self._endpoint.host),
            "stream": True,
        }
        if len(request["messages"]) > 1:
            # A window's beginning stays the same and can be cached; a single message need not be.
            request["cache_control"] = {"type": "ephemeral"}
        if question.schema is not None:
            form = {"type": "json_schema", "schema": self._schema(dict(question.schema))}
            request["output_config"] = {"format": form}
        if question.tools:
            request["tools"] = [_tool(tool) for tool in question.tools]
        elif called := _called(request["messages"]):
            # The API rejects earlier calls if the request does not define their tools.
            request["tools"] = [_tool(Tool(name)) for name in called]
            request["tool_choice"] = {"type": "none"}
        return request

    def _schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema as the provider accepts it; unsupported rules become descriptions."""
        try:
            return self._sdk.transform_schema(schema)
        except (ValueError, TypeError, AssertionError):  # let the provider judge
            return schema

    def _parser(self, names: Mapping[str, str]) -> "MessageStreamParser":
        return MessageStreamParser(names, self._endpoint.host)

    def _connected(self, sdk: Any, **settings: Any) -> Any:
        client = sdk.AsyncAnthropic(**settings, open_telemetry=False)
        client._custom_headers = {}  # noqa: SLF001 - they come from the environment
        return client


class MessageStreamParser:
    """Parses the events of an answer."""

    def __init__(self, names: Mapping[str, str] = {}, provider: str = "") -> None:
        """Keep the names of tools by their names on the wire, and the host that answers."""
        self.said = TextBuffer()
        self.ended = False
        self._names = names
        self._provider = provider
        self._blocks: list[_Block] = []
        self._at: dict[int, _Block] = {}
        self._stop = ""
        self._usage: dict[str, int] = {}

    def take(self, event: Mapping[str, Any]) -> str:
        """Parse an event, and return the text it adds to the answer."""
        match event["type"]:
            case "message_start":
                self._cost(event["message"].get("usage"))
            case "content_block_start":
                return self._begin(event["index"], dict(event["content_block"]))
            case "content_block_delta":
                return self._delta(self._at[event["index"]], event["delta"])
            case "message_delta":
                self._cost(event.get("usage"))
                self._stop = text_of(event["delta"].get("stop_reason"))
                self.ended = bool(self._stop)
            case _:
                pass
        return ""

    def _begin(self, index: int, given: dict[str, Any]) -> str:
        block = _Block(given)
        self._blocks.append(block)  # some servers use one index for all blocks
        self._at[index] = block
        return self.said.add(text_of(given["text"])) if block.kind == "text" else ""

    def _delta(self, block: "_Block", delta: Mapping[str, Any]) -> str:
        """Add to a block, and return the text that it adds to the answer."""
        name, field = _DELTAS.get(delta["type"], ("", ""))
        if not name:
            return ""
        given = text_of(delta[name])
        block.add(field, given)
        return self.said.add(given) if name == "text" else ""

    def _cost(self, usage: Mapping[str, Any] | None) -> None:
        """Keep the latest numbers: each is a total."""
        given = (usage or {}).items()
        self._usage |= {name: count_of(value) for name, value in given if value is not None}

    def items(self) -> list[dict[str, Any]]:
        """Return the blocks as they are sent back; raise `ValueError` if a call was cut short."""
        return [block.item() for block in self._blocks]

    def reply(self) -> Reply:
        """Return the whole answer."""
        called = [block for block in self._blocks if block.kind == "tool_use"]
        calls = distinct_calls(
            [
                ToolCall(
                    id=block.text("id"),
                    name=self._names.get(block.text("name"), block.text("name")),
                    arguments=block.arguments,
                )
                for block in called
            ]
        )
        for block, call in zip(called, calls, strict=True):
            block.given["id"] = call.id
        native = self._native() if calls else None
        return Reply(self.said.text, calls, self._spent(), self._stop in _CUT, native)

    def _spent(self) -> Usage | None:
        if not self._usage:
            return None
        counts = {**dict.fromkeys(_INPUTS, 0), "output_tokens": 0, **self._usage}
        return Usage(
            input=sum(counts[name] for name in _INPUTS),
            output=counts["output_tokens"],
            cached=counts["cache_read_input_tokens"],
        )

    def _native(self) -> Native | None:
        """Return the blocks if there is reasoning before calls: it must be sent back unchanged.

        Anthropic accepts no reasoning without its signature.
        """
        thoughts = [block for block in self._blocks if block.kind in _THOUGHTS]
        if not thoughts or not all(block.text(_THOUGHTS[block.kind]) for block in thoughts):
            return None
        try:
            return native_of("anthropic", [b.item() for b in self._blocks], self._provider)
        except (ValueError, RecursionError):  # a call cut short, half a character, or too deep
            return None


class _Block:
    """A block of an answer: its first event, and the texts added since."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.kind = text_of(given["type"])
        named = ("id", "name") if self.kind == "tool_use" else ()
        self.given = given | {name: text_of(given.get(name)) for name in named}
        self._added: dict[str, TextBuffer] = {}

    def add(self, field: str, piece: str) -> None:
        """Add to a text."""
        if field not in self._added:
            self._added[field] = TextBuffer()
            self._added[field].add(text_of(self.given.get(field)))
        self._added[field].add(piece)

    def text(self, field: str) -> str:
        """Return the text of a field that has arrived so far."""
        added = self._added.get(field)
        return added.text if added else text_of(self.given.get(field))

    @property
    def arguments(self) -> str:
        """Return the arguments of a call."""
        return self.text(_JSON) or json.dumps(self.given.get("input") or {}, ensure_ascii=False)

    def item(self) -> dict[str, Any]:
        """Return the block as it is sent back."""
        texts = {field: pieces.text for field, pieces in self._added.items()}
        kept = {name: value for name, value in {**self.given, **texts}.items() if name != _JSON}
        if self.kind == "tool_use" or _JSON in texts:
            kept["input"] = json.loads(self.arguments)
        return {name: value for name, value in kept.items() if value is not None}


def _called(messages: list[Any]) -> list[str]:
    """Return the names of the tools that were called."""
    blocks = (block for message in messages for block in message["content"])
    return list(dict.fromkeys(block["name"] for block in blocks if block["type"] == "tool_use"))


def _tool(tool: Tool) -> dict[str, Any]:
    return {
        "name": wire_name(tool.name),
        "description": tool.description,
        "input_schema": parameters_of(tool),
    }
