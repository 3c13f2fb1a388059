"""Check a request as Anthropic's messages API does: each field, and contradicting fields."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from keepthread.testing.wires import anthropic, fields, is_list, is_object, schemas
from keepthread.testing.wires.fields import FLAG, LIST, OBJECT, TEXT, TEXTS, or_null

MOST_MARKS: Final = 4
"""Blocks that may be marked for the cache."""
RULES: Final = {
    "model": TEXT,
    "messages": fields.ANYTHING,  # looked into by `anthropic`, as `system`
    "system": fields.ANYTHING,
    "max_tokens": fields.whole(1),  # 0 fills the cache and says nothing; a script has an answer
    "cache_control": or_null(OBJECT),
    "container": or_null(fields.either(TEXT, OBJECT)),
    "diagnostics": or_null(OBJECT),
    "inference_geo": or_null(TEXT),
    "metadata": OBJECT,
    "output_config": OBJECT,
    "service_tier": fields.one_of("auto", "standard_only"),
    "speed": or_null(fields.one_of("standard", "fast")),
    "stop_sequences": TEXTS,
    "stream": FLAG,
    "thinking": OBJECT,
    "tool_choice": OBJECT,
    "tools": LIST,
}
REMOVED: Final = ("temperature", "top_p", "top_k")
"""Refused since version 2026-10-21, and before by newer models."""
TOOL: Final = {
    "name": fields.NAMED,
    "input_schema": OBJECT,
    "description": fields.STRING,
    "type": or_null(fields.one_of("custom")),
    "cache_control": or_null(OBJECT),
    "strict": FLAG,
    "allowed_callers": LIST,
    "defer_loading": FLAG,
    "eager_input_streaming": or_null(FLAG),
    "input_examples": LIST,
}
OUTPUT: Final = {
    "effort": or_null(fields.one_of("low", "medium", "high", "xhigh", "max")),
    "format": or_null(OBJECT),
}
THINKING: Final = {
    "type": fields.one_of("enabled", "disabled", "adaptive", "between_tools"),
    "budget_tokens": fields.whole(1024),
    "display": or_null(fields.one_of("summarized", "omitted")),
}
CHOICE: Final = {
    "type": fields.one_of("auto", "any", "tool", "none"),
    "name": TEXT,
    "disable_parallel_tool_use": FLAG,
}
MARK: Final = {"type": fields.one_of("ephemeral"), "ttl": fields.one_of("5m", "1h")}


def check(request: dict[str, Any]) -> list[str]:
    """Return what the server would refuse; nothing if it accepts."""
    if removed := [name for name in REMOVED if name in request]:
        return [f"`{removed[0]}` is deprecated for this model."]
    problems = _fields(request, RULES, "")
    problems += [f"{n}: Field required" for n in ("model", "max_tokens") if n not in request]
    problems = problems or anthropic.check(request) or _tools(request)
    return problems or [
        *_choice(request),
        *_thinking(request),
        *_output(request),
        *_metadata(request),
        *_citations(request),
        *_marks(request),
    ]


def _fields(values: Mapping[str, Any], rules: Mapping[str, fields.FieldRule], at: str) -> list[str]:
    strange = fields.unknown(values, rules)
    problems = [f"{at}{name}: Extra inputs are not permitted" for name in strange]
    for name, words in fields.wrong(values, rules).items():
        problems.append(f"{at}{name}: Input should be {words}")
    return problems


def _tools(request: dict[str, Any]) -> list[str]:
    tools = request.get("tools", [])
    problems = [p for at, tool in enumerate(tools) for p in _tool(tool, f"tools.{at}")]
    if problems:
        return problems
    names = [tool["name"] for tool in tools]
    if len(set(names)) < len(names):
        return ["tools: Tool names must be unique."]
    kinds = {block["type"] for block in _blocks(request)}
    if not tools and kinds & {"tool_use", "tool_result"}:
        return ["Requests which include `tool_use` or `tool_result` blocks must define tools"]
    return []


def _tool(tool: Any, where: str) -> list[str]:
    if not is_object(tool):
        return [f"{where}: Input should be a valid dictionary"]
    problems = _fields(tool, TOOL, f"{where}.custom.")
    missing = [name for name in ("name", "input_schema") if name not in tool]
    problems += [f"{where}.custom.{name}: Field required" for name in missing]
    if problems:
        return problems
    schema = tool["input_schema"]
    found = schemas.problems({"properties": {}, **schema})
    if {"oneOf", "allOf", "anyOf"} & schema.keys():
        found.append("input_schema does not support oneOf, allOf, or anyOf at the top level")
    if not found and tool.get("strict"):
        found = schemas.answer_problems(schema)
    return [f"{where}.custom.input_schema: {problem}" for problem in found]


def _choice(request: dict[str, Any]) -> list[str]:
    if "tool_choice" not in request:
        return []
    if not request.get("tools"):
        return ["tool_choice: may only be specified while providing tools"]
    choice = request["tool_choice"]
    if problems := _fields(choice, CHOICE, "tool_choice."):
        return problems
    kind, name = choice.get("type"), choice.get("name")
    if kind == "tool" and name not in [tool["name"] for tool in request["tools"]]:
        return [f"Tool '{name}' not found in provided tools"]
    if kind is None or (kind != "tool" and name is not None):
        return ["tool_choice: Input tag does not match any of the expected tags"]
    return []


def _thinking(request: dict[str, Any]) -> list[str]:
    if "thinking" not in request:
        return []
    thinking = request["thinking"]
    if problems := _fields(thinking, THINKING, "thinking."):
        return problems
    kind, budget = thinking.get("type"), thinking.get("budget_tokens")
    if kind is None or (kind == "enabled") != (budget is not None):
        return ["thinking: Input tag or budget_tokens: Field required"]
    if kind == "enabled" and budget >= request["max_tokens"]:
        return ["`max_tokens` must be greater than `thinking.budget_tokens`"]
    if kind != "disabled" and request.get("tool_choice", {}).get("type") in ("any", "tool"):
        return ["Thinking may not be enabled when tool_choice forces tool use."]
    return []


def _output(request: dict[str, Any]) -> list[str]:
    config = request.get("output_config", {})
    if problems := _fields(config, OUTPUT, "output_config."):
        return problems
    given = config.get("format")
    if given is None:
        return []
    rules = {"type": fields.one_of("json_schema"), "schema": OBJECT}
    if problems := _fields(given, rules, "output_config.format."):
        return problems
    if missing := rules.keys() - given.keys():
        return [f"output_config.format.{min(missing)}: Field required"]
    found = schemas.problems({"properties": {}, **given["schema"]})
    found = found or schemas.answer_problems(given["schema"])
    return [f"output_config.format.schema: {problem}" for problem in found]


def _metadata(request: dict[str, Any]) -> list[str]:
    return _fields(request.get("metadata", {}), {"user_id": or_null(TEXT)}, "metadata.")


def _citations(request: dict[str, Any]) -> list[str]:
    said = (m["content"] for m in request["messages"] if m["role"] == "user")
    blocks = (block for content in said if is_list(content) for block in content)
    if any(block.get("citations") for block in blocks):
        return ["citations: not permitted in `user` messages"]
    return []


def _marks(request: dict[str, Any]) -> list[str]:
    """Refuse cache marks that are invalid, too many, or in the wrong order."""
    marks = [block["cache_control"] for block in _marked(request)]
    marks += [request["cache_control"]] if request.get("cache_control") is not None else []
    problems = [p for mark in marks for p in _mark(mark)]
    if problems:
        return problems
    if len(marks) > MOST_MARKS:
        # “A maximum of 4 blocks with cache_control may be provided. Found 5.”
        return [f"A maximum of 4 blocks with cache_control may be provided. Found {len(marks)}."]
    lives = [mark.get("ttl", "5m") for mark in marks]
    if lives != sorted(lives):  # "1h" is before "5m"
        return ["a ttl='1h' cache_control block must not come after a ttl='5m' one"]
    return []


def _mark(mark: Any) -> list[str]:
    if not is_object(mark) or "type" not in mark:
        return ["cache_control.type: Field required"]
    return _fields(mark, MARK, "cache_control.")


def _marked(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what is marked, in the order in which a cache reads it."""
    system = request.get("system")
    every = [*request.get("tools", []), *(system if is_list(system) else ()), *_blocks(request)]
    for block in every:
        if block.get("cache_control") is not None:
            yield block


def _blocks(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for message in request["messages"]:
        content = message["content"]
        for block in content if is_list(content) else ():
            yield block
            inner = block.get("content")
            if block["type"] == "tool_result" and is_list(inner):
                yield from inner
