"""Check a request as OpenAI's Responses API does: each field, and contradicting fields."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from keepthread.testing.wires import fields, is_object, openai_responses, schemas
from keepthread.testing.wires.fields import FLAG, LIST, OBJECT, TEXT, TEXTS, or_null
from keepthread.testing.wires.openai_chat_request import field_problems, stream_problems

_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_TIERS: Final = ("auto", "default", "flex", "scale", "priority", "fast", "ultrafast")

RULES: Final = {
    "input": fields.ANYTHING,  # looked into by `openai_responses`
    "instructions": fields.ANYTHING,
    "model": TEXT,
    "access_programs": OBJECT,
    "background": or_null(FLAG),
    "client_metadata": or_null(OBJECT),  # sent by Codex
    "context_management": or_null(LIST),
    "conversation": or_null(fields.either(TEXT, OBJECT)),
    "image": OBJECT,
    "include": or_null(TEXTS),
    "max_output_tokens": or_null(fields.whole(16)),
    "max_tool_calls": or_null(fields.whole(1)),
    "metadata": or_null(OBJECT),
    "moderation": or_null(OBJECT),
    "parallel_tool_calls": or_null(FLAG),
    "previous_response_id": or_null(TEXT),
    "prompt": or_null(OBJECT),
    "prompt_cache_key": or_null(TEXT),
    "prompt_cache_options": OBJECT,
    "prompt_cache_retention": or_null(fields.one_of("in_memory", "24h")),
    "reasoning": or_null(OBJECT),
    "safety_identifier": or_null(TEXT),
    "service_tier": or_null(fields.one_of(*_TIERS)),
    "store": or_null(FLAG),
    "stream": or_null(FLAG),
    "stream_options": or_null(OBJECT),
    "temperature": or_null(fields.number(0, 2)),
    "text": or_null(OBJECT),
    "tool_choice": or_null(fields.either(TEXT, OBJECT)),
    "tools": or_null(LIST),
    "top_logprobs": or_null(fields.whole(0, 20)),
    "top_p": or_null(fields.number(0, 1)),
    "truncation": or_null(fields.one_of("auto", "disabled")),
    "user": TEXT,
}
STREAMING: Final = {
    "include_obfuscation": FLAG,
    "reasoning_summary_delivery": fields.STRING,  # sent by Codex
}
REASONING: Final = {
    "effort": or_null(fields.one_of(*_EFFORTS)),
    "summary": or_null(fields.one_of("auto", "concise", "detailed")),
    "generate_summary": or_null(fields.one_of("auto", "concise", "detailed")),
    "context": or_null(fields.one_of("auto", "current_turn", "all_turns")),
    "mode": or_null(TEXT),
}
FUNCTION: Final = {
    "type": TEXT,
    "name": fields.NAMED,
    "description": or_null(fields.STRING),
    "parameters": or_null(OBJECT),
    "strict": or_null(FLAG),
    "defer_loading": FLAG,
    "async": FLAG,
    "allowed_callers": or_null(TEXTS),
    "output_schema": or_null(OBJECT),
}
FORMATS: Final = {
    "text": {"type": TEXT},
    "json_object": {"type": TEXT},
    "json_schema": {
        "type": TEXT,
        "name": fields.NAMED,
        "description": fields.STRING,
        "schema": OBJECT,
        "strict": or_null(FLAG),
    },
}
INCLUDABLE: Final = (
    *("file_search_call.results", "web_search_call.results", "web_search_call.action.sources"),
    *("message.input_image.image_url", "computer_call_output.output.image_url"),
    *("code_interpreter_call.outputs", "reasoning.encrypted_content"),
    "message.output_text.logprobs",
)
HOSTED: Final = (
    *("web_search", "web_search_preview", "file_search", "code_interpreter", "mcp", "shell"),
    *("image_generation", "local_shell", "computer", "computer_use_preview", "custom"),
    *("apply_patch", "namespace", "tool_search"),
)
"""Tools that are not functions; their fields are not looked into."""
MOST_TOOLS: Final = 128
MOST_PAIRS: Final = 16


def check(request: dict[str, Any], earlier: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Return what the server would refuse; nothing if it accepts."""
    if "messages" in request:
        return openai_responses.check(request)
    problems = field_problems(request, RULES, "")
    if "model" not in request:
        problems.append("Missing required parameter: 'model'.")
    problems = problems or openai_responses.check(request, earlier) or _tools(request)
    return problems or [
        *stream_problems(request, STREAMING),
        *_choice(request),
        *_format(request),
        *_include(request),
        *_metadata(request),
        *field_problems(_object(request, "reasoning"), REASONING, "reasoning."),
        *_kept(request),
    ]


def _tools(request: dict[str, Any]) -> list[str]:
    tools: list[Any] = request.get("tools") or []
    if len(tools) > MOST_TOOLS:
        return ["Invalid 'tools': array too long. Expected an array with maximum length 128"]
    if problems := [p for at, tool in enumerate(tools) for p in _tool(tool, f"tools[{at}]")]:
        return problems
    names = _names(request)
    return [] if len(set(names)) == len(names) else ["Duplicate names in 'tools'"]


def _tool(tool: Any, where: str) -> list[str]:
    kind = tool.get("type") if is_object(tool) else None
    if kind in HOSTED:
        return []
    if kind != "function":
        # “Invalid value: 'retrieval'. Supported values are: 'code_interpreter', 'function', …”
        return [f"Invalid value: {kind!r} for '{where}.type'"]
    problems = field_problems(tool, FUNCTION, f"{where}.")
    if "name" not in tool:
        # A tool in the form of chat completions is answered so.
        problems.append(f"Missing required parameter: '{where}.name'.")
    if problems or tool.get("parameters") is None:
        return problems
    found = schemas.openai_problems(tool["parameters"], strict=tool.get("strict"))
    return [f"Invalid schema for function {tool['name']!r}: {problem}" for problem in found]


def _choice(request: dict[str, Any]) -> list[str]:
    choice = request.get("tool_choice")
    if choice is None or choice in ("none", "auto"):
        return []
    if isinstance(choice, str):
        if choice != "required":
            return [f"Invalid value for 'tool_choice': {choice!r}"]
        # “Tool choice 'required' must be specified with 'tools' parameter.”
        good = bool(request.get("tools"))
        return [] if good else ["Tool choice 'required' must be specified with 'tools' parameter."]
    kind, name = choice.get("type"), choice.get("name")
    if kind in ("allowed_tools", *HOSTED) and kind != "custom":
        return []
    if kind in ("function", "custom") and name in _names(request):
        return []
    return [f"Tool choice {name!r} not found in 'tools' parameter."]


def _format(request: dict[str, Any]) -> list[str]:
    text = _object(request, "text")
    given: dict[str, Any] = text.get("format", {"type": "text"})
    words = or_null(fields.one_of("low", "medium", "high"))
    if problems := field_problems(text, {"format": OBJECT, "verbosity": words}, "text."):
        return problems
    kind = given.get("type")
    if not isinstance(kind, str) or kind not in FORMATS:
        return [f"Invalid value for 'text.format.type': {kind!r}"]
    if problems := field_problems(given, FORMATS[kind], "text.format."):
        return problems
    if kind == "json_object":
        # “… must contain the word 'json' in some form, to use 'text.format' of type …”
        good = "json" in repr([request.get("input"), request.get("instructions")]).lower()
        return [] if good else ["'input' must contain the word 'json' in some form"]
    if kind == "text":
        return []
    if not {"name", "schema"} <= given.keys():
        # “Missing required parameter: 'text.format.name'.”
        return ["Missing required parameter: 'text.format.name' or 'text.format.schema'."]
    found = schemas.openai_problems(given["schema"], strict=given.get("strict"))
    return [f"Invalid schema for response_format {given['name']!r}: {p}" for p in found]


def _include(request: dict[str, Any]) -> list[str]:
    names: list[str] = request.get("include") or []
    strange = [name for name in names if name not in INCLUDABLE]
    return [f"Invalid value: {name!r} for 'include'" for name in strange]


def _metadata(request: dict[str, Any]) -> list[str]:
    pairs = _object(request, "metadata")
    good = len(pairs) <= MOST_PAIRS and all(
        len(name) <= 64 and isinstance(value, str) and len(value) <= 512
        for name, value in pairs.items()
    )
    return [] if good else ["Invalid 'metadata': at most 16 strings of up to 512 characters"]


def _kept(request: dict[str, Any]) -> list[str]:
    """Refuse what contradicts how responses are kept."""
    problems: list[str] = []
    if request.get("previous_response_id") and request.get("conversation"):
        # “Mutually exclusive parameters: ensure you are only providing one of: …”
        problems.append("Mutually exclusive: 'previous_response_id' and 'conversation'")
    if request.get("background") and request.get("store") is False:
        problems.append("Background responses need 'store' to be true")
    return problems


def _names(request: dict[str, Any]) -> list[str]:
    tools: list[dict[str, Any]] = request.get("tools") or []
    return [tool["name"] for tool in tools if isinstance(tool.get("name"), str)]


def _object(request: dict[str, Any], name: str) -> dict[str, Any]:
    """Return a field that holds an object; one that is null or missing is empty."""
    return request.get(name) or {}
