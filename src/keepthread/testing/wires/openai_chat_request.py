"""Check a request as OpenAI's chat completions API does: each field, and contradicting fields."""

from collections.abc import Mapping
from typing import Any, Final

from keepthread.testing.wires import fields, is_object, openai_chat, schemas
from keepthread.testing.wires.fields import FLAG, LIST, OBJECT, TEXT, TEXTS, or_null

_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max")
_TIERS: Final = ("auto", "default", "flex", "scale", "priority", "fast")

RULES: Final = {
    "messages": fields.ANYTHING,  # looked into by `openai_chat`
    "model": TEXT,
    "audio": or_null(OBJECT),
    "frequency_penalty": or_null(fields.number(-2, 2)),
    "function_call": fields.either(TEXT, OBJECT),
    "functions": LIST,
    "logit_bias": or_null(OBJECT),
    "logprobs": or_null(FLAG),
    "max_completion_tokens": or_null(fields.whole(1)),
    "max_tokens": or_null(fields.whole(1)),
    "metadata": or_null(OBJECT),
    "modalities": or_null(TEXTS),
    "moderation": or_null(OBJECT),
    "n": or_null(fields.whole(1, 1)),  # the provider takes 128; a script has one answer
    "parallel_tool_calls": FLAG,
    "prediction": or_null(OBJECT),
    "presence_penalty": or_null(fields.number(-2, 2)),
    "prompt_cache_key": or_null(TEXT),
    "prompt_cache_options": OBJECT,
    "prompt_cache_retention": or_null(fields.one_of("in_memory", "24h")),
    "reasoning_effort": or_null(fields.one_of(*_EFFORTS)),
    "response_format": OBJECT,
    "safety_identifier": or_null(TEXT),
    "seed": or_null(fields.whole(-(2**63), 2**63 - 1)),
    "service_tier": or_null(fields.one_of(*_TIERS)),
    "stop": or_null(fields.either(TEXT, TEXTS)),
    "store": or_null(FLAG),
    "stream": or_null(FLAG),
    "stream_options": or_null(OBJECT),
    "temperature": or_null(fields.number(0, 2)),
    "tool_choice": fields.either(TEXT, OBJECT),
    "tools": LIST,
    "top_logprobs": or_null(fields.whole(0, 20)),
    "top_p": or_null(fields.number(0, 1)),
    "user": TEXT,
    "verbosity": or_null(fields.one_of("low", "medium", "high")),
    "web_search_options": OBJECT,
}
STREAMING: Final = {"include_usage": FLAG, "include_obfuscation": FLAG}
FUNCTION: Final = {
    "name": fields.NAMED,
    "description": fields.STRING,
    "parameters": OBJECT,
    "strict": or_null(FLAG),
}
FORMAT: Final = {
    "name": fields.NAMED,
    "description": fields.STRING,
    "schema": OBJECT,
    "strict": or_null(FLAG),
}
MOST_TOOLS: Final = 128
MOST_DESCRIPTION: Final = 1024
MESSAGE: Final = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {
        *("role", "content", "name", "tool_calls", "refusal"),
        *("audio", "annotations", "function_call"),
    },
    "tool": {"role", "content", "name", "tool_call_id"},
}


def check(request: dict[str, Any]) -> list[str]:
    """Return what the server would refuse; nothing if it accepts."""
    problems = field_problems(request, RULES, "")
    if "model" not in request:
        problems.append("you must provide a 'model' parameter")
    problems = problems or openai_chat.check(request) or _tools(request)
    return problems or [
        *_messages(request),
        *_tokens(request),
        *stream_problems(request, STREAMING),
        *_choice(request),
        *_format(request),
    ]


def field_problems(
    values: Mapping[str, Any], rules: Mapping[str, fields.FieldRule], at: str
) -> list[str]:
    """Return the unknown and the invalid fields of an object, in OpenAI's words."""
    strange = fields.unknown(values, rules)
    # “Unrecognized request argument supplied: foo”
    problems = [f"Unknown parameter: '{at}{name}'." for name in strange]
    for name, words in fields.wrong(values, rules).items():
        problems.append(f"Invalid value for '{at}{name}': expected {words}")
    return problems


def _messages(request: dict[str, Any]) -> list[str]:
    """Refuse what is in a message and should not be, as servers with the same wire do."""
    problems: list[str] = []
    for at, message in enumerate(request["messages"]):
        strange = fields.unknown(message, MESSAGE[message["role"]])
        # “Additional properties are not allowed ('id' was unexpected) - 'messages.0'”
        problems += [
            f"Additional properties are not allowed: 'messages[{at}].{n}'" for n in strange
        ]
        for call in message.get("tool_calls", ()):
            for name in fields.unknown(call, {"id", "type", "function"}):
                problems.append(f"Additional properties are not allowed: '{name}' of a tool call")
    return problems


def _tokens(request: dict[str, Any]) -> list[str]:
    if request.get("max_tokens") and request.get("max_completion_tokens"):
        return ["Setting 'max_tokens' and 'max_completion_tokens' at the same time"]
    return []


def stream_problems(request: dict[str, Any], rules: Mapping[str, fields.FieldRule]) -> list[str]:
    """Return what is wrong with the options of a stream, which an API has rules for."""
    options = request.get("stream_options")
    if options is None:
        return []
    if not request.get("stream"):
        return ["The 'stream_options' parameter is only allowed when 'stream' is enabled."]
    return field_problems(options, rules, "stream_options.")


def _tools(request: dict[str, Any]) -> list[str]:
    tools = request.get("tools")
    if tools is None:
        return []
    if not 0 < len(tools) <= MOST_TOOLS:
        # “Invalid 'tools': empty array. Expected an array with minimum length 1”
        return ["Invalid 'tools': empty array, or longer than 128"]
    if problems := [p for at, tool in enumerate(tools) for p in _tool(tool, f"tools[{at}]")]:
        return problems
    names = _names(request)
    return [] if len(set(names)) == len(names) else ["Duplicate names in 'tools'"]


def _tool(tool: Any, where: str) -> list[str]:
    function = tool.get("function") if is_object(tool) else None
    if not is_object(function) or tool.get("type") != "function":
        return [f"Missing required parameter: '{where}.function', of type 'function'"]
    problems = field_problems(tool, {"type": TEXT, "function": OBJECT}, f"{where}.")
    problems += field_problems(function, FUNCTION, f"{where}.function.")
    if "name" not in function:
        problems.append(f"Missing required parameter: '{where}.function.name'.")
    if not problems and len(function.get("description", "")) > MOST_DESCRIPTION:
        problems.append(f"Invalid '{where}.function.description': string too long")
    if problems or "parameters" not in function:
        return problems
    found = schemas.openai_problems(function["parameters"], strict=function.get("strict"))
    return [f"Invalid schema for function {function['name']!r}: {problem}" for problem in found]


def _choice(request: dict[str, Any]) -> list[str]:
    for name in ("tool_choice", "parallel_tool_calls"):
        if name in request and "tools" not in request:
            return [f"'{name}' is only allowed when 'tools' are specified."]
    choice = request.get("tool_choice", "auto")
    if isinstance(choice, str):
        good = choice in ("none", "auto", "required")
        return [] if good else [f"Invalid value for 'tool_choice': {choice!r}"]
    function = choice.get("function")
    named = function.get("name") if is_object(function) else None
    if choice.get("type") == "function" and named in _names(request):
        return []
    return [f"Tool choice {named!r} not found in 'tools' parameter."]


def _format(request: dict[str, Any]) -> list[str]:
    given = request.get("response_format", {"type": "text"})
    kind, inner = given.get("type"), given.get("json_schema")
    if strange := fields.unknown(given, {"type", "json_schema"}):
        return [f"Unknown parameter: 'response_format.{name}'." for name in strange]
    if kind == "json_object":
        # “… must contain the word 'json' in some form, to use 'response_format' of …”
        good = "json" in repr(request["messages"]).lower()
        return [] if good else ["'messages' must contain the word 'json' in some form"]
    if kind != "json_schema":
        return [] if kind == "text" else [f"Invalid value for 'response_format.type': {kind!r}"]
    if not is_object(inner) or not {"name", "schema"} <= inner.keys():
        return ["Missing required parameter: 'response_format.json_schema', its name or schema"]
    if problems := field_problems(inner, FORMAT, "response_format.json_schema."):
        return problems
    found = schemas.openai_problems(inner["schema"], strict=inner.get("strict"))
    return [f"Invalid schema for response_format {inner['name']!r}: {p}" for p in found]


def _names(request: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in request.get("tools", ())]
