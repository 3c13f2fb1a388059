"""OpenAI's chat completions API, and every server that implements it."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final, cast

from keepthread.context.ids import distinct_calls
from keepthread.context.rendering import wire_name
from keepthread.context.wires.openai_chat import render
from keepthread.models.base import RemoteModel
from keepthread.models.request import (
    Question,
    TextBuffer,
    count_of,
    native_of,
    parameters_of,
    text_of,
)
from keepthread.types import JSON, Native, Reply, Tool, ToolCall, Usage

_CUT: Final = ("length", "content_filter", "error")
_THOUGHTS: Final = ("reasoning_content", "reasoning_details")
_SIGNATURES: Final = ("extra_content",)
"""Fields that DeepSeek, Kimi, OpenRouter and Gemini send with calls and require with the results.
"""
_OLD_LIMIT: Final = "max_tokens"
_NEW_LIMIT: Final = "max_completion_tokens"


class OpenAIModel(RemoteModel):
    """A model of OpenAI, or of a server with the same API: Ollama, vLLM, llama.cpp.

    `base_url` is that server's, such as `http://localhost:11434/v1`; the default is OpenAI's.

    >>> model = OpenAIModel("qwen3", base_url="http://localhost:11434/v1")
    """

    package = "openai"
    own = "https://api.openai.com/v1"
    ends = ("/chat/completions",)
    root = "/v1"
    path = "/chat/completions"
    models_path = "/models"
    optional: ClassVar[Mapping[str, str | None]] = {
        "stream_options": None,
        _OLD_LIMIT: _NEW_LIMIT,
        _NEW_LIMIT: _OLD_LIMIT,
        **dict.fromkeys((*_THOUGHTS, *_SIGNATURES)),
    }

    def _request(self, question: Question) -> dict[str, Any]:
        request: dict[str, Any] = {
            "model": self.name,
            **render(question.selection, self._endpoint.host),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if question.tools:
            request["tools"] = [_tool(tool) for tool in question.tools]
        if question.schema is not None:
            request["response_format"] = _format(question.schema)
        if question.max_tokens is not None:
            # OpenAI's newer models reject the old name, and few others know the new one.
            limit = _NEW_LIMIT if self._url == self.own else _OLD_LIMIT
            request[limit] = question.max_tokens
        return request

    def _parser(self, names: Mapping[str, str]) -> "ChatStreamParser":
        return ChatStreamParser(names, self._endpoint.host)

    def _connected(self, sdk: Any, **settings: Any) -> Any:
        client = sdk.AsyncOpenAI(**settings)
        client.admin_api_key = client.organization = client.project = None
        client._custom_headers = {}  # noqa: SLF001 - they come from the environment
        return client


class ChatStreamParser:
    """Parses the chunks of an answer."""

    def __init__(self, names: Mapping[str, str] = {}, provider: str = "") -> None:
        """Keep the names of tools by their names on the wire, and the host that answers."""
        self.said = TextBuffer()
        self.ended = False
        self._names = names
        self._provider = provider
        self._calls: list[_PartialCall] = []
        self._at: dict[int, _PartialCall] = {}
        self._ids: dict[tuple[int, str], _PartialCall] = {}
        self._kept: dict[str, Any] = {}
        self._thought: dict[str, TextBuffer] = {}
        self._cut = False
        self._usage: Usage | None = None

    def take(self, event: Mapping[str, Any]) -> str:
        """Parse a chunk, and return the text it adds to the answer."""
        if usage := event.get("usage"):
            self._usage = _usage(usage)
        choice = next(iter(event.get("choices") or ()), None)
        if choice is None:
            return ""
        delta: dict[str, Any] = choice.get("delta") or {}
        self._thoughts(delta)
        for n, call in enumerate(cast("list[dict[str, Any]]", delta.get("tool_calls") or [])):
            self._call(call, call.get("index", n))
        if reason := text_of(choice.get("finish_reason")):
            self.ended = True
            self._cut = self._cut or reason in _CUT
        refusal = text_of(delta.get("refusal"))
        self._cut = self._cut or bool(refusal)
        return self.said.add(_text(delta.get("content")) + refusal)

    def _thoughts(self, delta: Mapping[str, Any]) -> None:
        for name in _THOUGHTS:
            thought = delta.get(name)
            if isinstance(thought, str):
                self._thought.setdefault(name, TextBuffer()).add(thought)
            elif thought:
                self._kept[name] = self._kept[name] + thought if name in self._kept else thought

    def _call(self, given: Mapping[str, Any], index: int) -> None:
        """Parse a part of a call."""
        function: dict[str, Any] = given.get("function") or {}
        id, name = text_of(given.get("id")), text_of(function.get("name"))
        call = self._begun(index, id, name)
        if call is None:
            call = _PartialCall()
            self._calls.append(call)
        self._at[index] = call
        if id:
            self._ids[index, id] = call
        call.id = call.id or id
        call.named += bool(name)
        call.name = call.name or name
        call.arguments.add(text_of(function.get("arguments")))
        call.kept |= {name: given[name] for name in _SIGNATURES if given.get(name)}

    def _begun(self, index: int, id: str, name: str) -> "_PartialCall | None":
        """Return the call that a part continues.

        Some servers use one index for all calls: then an id, or another tool's name, starts a new
        call.
        """
        call = self._at.get(index)
        if call and id:
            begins = call.id or (name and call.name)
            call = self._ids.get((index, id), None if begins else call)
        return None if call and name and call.name not in ("", name) else call

    def reply(self) -> Reply:
        """Return the whole answer."""
        parts = [part for call in self._calls for part in call.parts()]
        calls = distinct_calls(
            [
                ToolCall(
                    id=part.id,
                    name=self._names.get(part.name, part.name),
                    arguments=part.arguments.text or "{}",
                )
                for part in parts
            ]
        )
        native = self._native(parts, calls)
        return Reply(self.said.text, calls, self._usage, self._cut, native)

    def _native(self, parts: Sequence["_PartialCall"], calls: Sequence[ToolCall]) -> Native | None:
        """Return the message if its calls must be sent back with the reasoning before them."""
        thoughts = {name: pieces.text for name, pieces in self._thought.items() if pieces.text}
        kept = {**self._kept, **thoughts}
        if not calls or not (kept or any(part.kept for part in parts)):
            return None
        items = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": part.name, "arguments": call.arguments},
                **part.kept,
            }
            for part, call in zip(parts, calls, strict=True)
        ]
        said = {"role": "assistant", "content": self.said.text or None, "tool_calls": items}
        try:
            for call in calls:
                json.loads(call.arguments)
            return native_of("openai-chat", [{**said, **kept}], self._provider)
        except (ValueError, RecursionError):  # a call cut short, half a character, or too deep
            return None


class _PartialCall:
    """A tool call that arrives in parts."""

    def __init__(self, name: str = "", arguments: str = "") -> None:
        self.id = ""
        self.name = name
        self.named = 0
        """Number of parts that name the tool."""
        self.arguments = TextBuffer()
        self.arguments.add(arguments)
        self.kept: dict[str, Any] = {}

    def parts(self) -> "list[_PartialCall]":
        """Split it into calls: without ids, calls of one tool with one index arrive as one.

        Its arguments are then several JSON objects in a row.
        """
        found = _objects(self.arguments.text) if self.named > 1 or not self.id else []
        if len(found) < 2:
            return [self]
        parts = [_PartialCall(self.name, each) for each in found]
        parts[0].id, parts[0].kept = self.id, self.kept
        return parts


def _objects(text: str) -> list[str]:
    """Return the JSON objects that a text consists of; the last may be cut short.

    Return an empty list if it is anything else.
    """
    found: list[str] = []
    decoder = json.JSONDecoder()
    text = text.lstrip()
    at = 0
    try:
        while at < len(text) and text[at] == "{":
            _, end = decoder.raw_decode(text, at)
            found.append(text[at:end])
            at = cast("re.Match[str]", re.compile(r"\s*").match(text, end)).end()
    except (ValueError, RecursionError):
        return [*found, text[at:]]
    return found if at == len(text) else []


def _text(content: Any) -> str:
    """Return content that is a text or a list of parts."""
    if isinstance(content, list):
        parts = cast("list[dict[str, Any]]", content)
        return "".join(text_of(part["text"]) for part in parts if part["type"] == "text")
    return text_of(content)


def _usage(usage: Mapping[str, Any]) -> Usage:
    details: dict[str, Any] = usage.get("prompt_tokens_details") or {}
    return Usage(
        input=count_of(usage.get("prompt_tokens")),
        output=count_of(usage.get("completion_tokens")),
        cached=count_of(details.get("cached_tokens")),
    )


def _tool(tool: Tool) -> dict[str, Any]:
    function = {
        "name": wire_name(tool.name),
        "description": tool.description,
        "parameters": parameters_of(tool),
    }
    return {"type": "function", "function": function}


def _format(schema: Mapping[str, JSON]) -> dict[str, Any]:
    form = {"name": "answer", "schema": schema, "strict": _is_strict(schema)}
    return {"type": "json_schema", "json_schema": form}


def _is_strict(schema: JSON) -> bool:
    """Return whether every object requires all its properties; OpenAI enforces no other schema."""
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if schema.get("type") == "object" or isinstance(properties, Mapping):
            required = schema.get("required", ())
            if (
                schema.get("additionalProperties") is not False
                or not isinstance(properties, Mapping)
                or not isinstance(required, Sequence)
                or set(required) != set(properties)
            ):
                return False
        return all(_is_strict(part) for part in schema.values())
    if isinstance(schema, str) or not isinstance(schema, Sequence):
        return True
    return all(_is_strict(part) for part in schema)
