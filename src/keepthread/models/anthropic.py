"""Anthropic's messages."""

import json
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from keepthread.context.anthropic import render
from keepthread.models.asking import Question, native_of, parameters_of
from keepthread.models.pieces import Pieces, count_of, text_of
from keepthread.models.remote import RemoteModel
from keepthread.tokens.counting import wire_name
from keepthread.types import Native, Reply, Tool, ToolCall, Usage

_CUT: Final = ("max_tokens", "refusal", "model_context_window_exceeded")
_MAX_TOKENS: Final = 8192
"""How long an answer may be if nobody says: the wire wants to be told."""
_INPUTS: Final = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_THOUGHTS: Final = ("thinking", "redacted_thinking")
_DELTAS: Final = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "signature_delta": ("signature", "signature"),
    "input_json_delta": ("partial_json", "json"),
}


class AnthropicModel(RemoteModel):
    """A model of Anthropic's, or of a server that speaks the same.

    >>> model = AnthropicModel("claude-sonnet-4-5", key="…")
    """

    package = "anthropic"
    own = "https://api.anthropic.com"
    ends = ("/messages", "/v1")
    root = ""
    path = "/v1/messages"
    optional: ClassVar[Mapping[str, str | None]] = {"cache_control": None}

    def _request(self, question: Question) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self.name,
            "max_tokens": question.max_tokens or _MAX_TOKENS,
            **render(question.selection),
            "stream": True,
        }
        if len(request["messages"]) > 1:
            # A window keeps its beginning; what is asked but once is not worth keeping there.
            request["cache_control"] = {"type": "ephemeral"}
        if question.schema is not None:
            form = {"type": "json_schema", "schema": self._schema(dict(question.schema))}
            request["output_config"] = {"format": form}
        if question.tools:
            request["tools"] = [_tool(tool) for tool in question.tools]
        elif called := _called(request["messages"]):
            # Calls in the past are refused without the tools they called.
            request["tools"] = [_tool(Tool(name)) for name in called]
            request["tool_choice"] = {"type": "none"}
        return request

    def _schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return a schema as the provider takes it, with what it cannot check as words."""
        try:
            return self._sdk.transform_schema(schema)
        except (ValueError, TypeError, AssertionError):  # let the provider judge
            return schema

    def _hearing(self, names: Mapping[str, str]) -> "Heard":
        return Heard(names)

    def _connected(self, sdk: Any, **settings: Any) -> Any:
        client = sdk.AsyncAnthropic(**settings, open_telemetry=False)
        client._custom_headers = {}  # noqa: SLF001 - the environment's are in it
        return client


class Heard:
    """What is heard of an answer, event by event."""

    def __init__(self, names: Mapping[str, str] = {}) -> None:
        """Know what tools are called."""
        self.said = Pieces()
        self.ended = False
        self._names = names
        self._blocks: dict[int, dict[str, Any]] = {}
        self._stop = ""
        self._usage: dict[str, int] = {}

    def take(self, event: Mapping[str, Any]) -> str:
        """Take an event, and return what it says."""
        match event["type"]:
            case "message_start":
                self._cost(event["message"].get("usage"))
            case "content_block_start":
                return self._begin(event["index"], dict(event["content_block"]))
            case "content_block_delta":
                return self._delta(self._blocks[event["index"]], event["delta"])
            case "message_delta":
                self._cost(event.get("usage"))
                self._stop = text_of(event["delta"].get("stop_reason"))
                self.ended = bool(self._stop)
            case _:
                pass
        return ""

    def _begin(self, index: int, block: dict[str, Any]) -> str:
        kind = text_of(block["type"])
        if kind == "tool_use":
            block |= {name: text_of(block[name]) for name in ("id", "name")}
        self._blocks[index] = block
        return self.said.add(text_of(block["text"])) if kind == "text" else ""

    def _delta(self, block: dict[str, Any], delta: Mapping[str, Any]) -> str:
        """Add to a block, and return what that says."""
        name, field = _DELTAS.get(delta["type"], ("", ""))
        if not name:
            return ""
        given = text_of(delta[name])
        block[field] = text_of(block.get(field)) + given
        return self.said.add(given) if name == "text" else ""

    def _cost(self, usage: Mapping[str, Any] | None) -> None:
        """Keep the latest figures: each tells of all that came before."""
        given = (usage or {}).items()
        self._usage |= {name: count_of(value) for name, value in given if value is not None}

    def reply(self) -> Reply:
        """Return the whole answer."""
        calls = [
            ToolCall(
                id=block["id"],
                name=self._names.get(block["name"], block["name"]),
                arguments=_arguments(block),
            )
            for block in self._blocks.values()
            if block["type"] == "tool_use"
        ]
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
        """Return the blocks if there are thoughts before calls: they must go back as they came."""
        blocks = self._blocks.values()
        if not any(block["type"] in _THOUGHTS for block in blocks):
            return None
        try:
            return native_of("anthropic", [_item(block) for block in blocks])
        except ValueError:  # a call that was cut short, or half a character
            return None


def _arguments(block: Mapping[str, Any]) -> str:
    return block.get("json") or json.dumps(block.get("input") or {}, ensure_ascii=False)


def _item(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return a block as it may go back."""
    kept = {name: value for name, value in block.items() if name != "json" and value is not None}
    if block["type"] == "tool_use":
        kept["input"] = json.loads(_arguments(block))
    return kept


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
