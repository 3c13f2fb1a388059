"""Check `input` and `instructions` as OpenAI's responses API does."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from keepthread.testing.wires import PLAIN_ID, is_list, is_object, unsendable
from keepthread.testing.wires.openai_chat import function_problems, image_problems

ROLES: Final = ("assistant", "system", "developer", "user")
PARTS: Final = {
    "assistant": ("output_text", "refusal"),
    "system": ("input_text", "input_image", "input_file"),
    "developer": ("input_text", "input_image", "input_file"),
    "user": ("input_text", "input_image", "input_file"),
}
PREFIXES: Final = {"message": "msg", "function_call": "fc", "reasoning": "rs"}
"""Prefix of an item's id, where it has one."""
HOSTED: Final = (
    *("web_search_call", "file_search_call", "code_interpreter_call", "computer_call"),
    *("image_generation_call", "local_shell_call", "shell_call", "apply_patch_call"),
    *("mcp_call", "mcp_list_tools", "mcp_approval_request", "compaction"),
)
"""Items of tools that run at the provider, or whose form is not checked here."""
GIVEN: Final = (
    *("computer_call_output", "local_shell_call_output", "shell_call_output"),
    *("apply_patch_call_output", "mcp_approval_response"),
)
"""Results of those tools that a client gives."""
OUTPUTS: Final = {
    "function_call_output": "function_call",
    "custom_tool_call_output": "custom_tool_call",
}
NEEDED: Final = {"reasoning": ("summary", list), "item_reference": ("id", str)}
CALLS: Final = tuple(OUTPUTS.values())
MOST_ID: Final = 64


def check(request: dict[str, Any], earlier: Sequence[Mapping[str, Any]] = ()) -> list[str]:
    """Return what the server would refuse; nothing if it accepts.

    `earlier` are the items that the server keeps, which come before the request's own.
    """
    if problems := unsendable(request):
        return problems
    if "messages" in request:
        # “Unsupported parameter: 'messages'. In the Responses API, this parameter has moved …”
        return ["Unsupported parameter: 'messages' has moved to 'input'"]
    problems = _instructions(request)
    items = request.get("input")
    if isinstance(items, str) and items:
        return problems
    if items is None and earlier:
        items = []
    if not is_list(items):
        return [*problems, "Missing required parameter: 'input'"]
    if not items and not earlier:
        # “One of \"input\" or \"previous_response_id\" or 'prompt' … must be provided.”
        return [*problems, "One of 'input' or 'previous_response_id' must be provided"]
    problems += [p for at, item in enumerate(items) for p in _item(item, f"input[{at}]")]
    whole = [*earlier, *items]
    return problems or [*_ids(items), *_pairs(whole), *_reasoning(whole)]


def _instructions(request: dict[str, Any]) -> list[str]:
    if "instructions" not in request or request["instructions"] is None:
        return []
    text = request["instructions"]
    if not isinstance(text, str) or not text.strip():
        return ["Invalid type for 'instructions': expected a string that says something"]
    return []


def _item(item: Any, where: str) -> list[str]:
    if not is_object(item):
        return [f"Invalid type for '{where}': expected an object"]
    kind = item.get("type", "message")
    problems = _item_id(item, kind, where)
    if kind == "message":
        return problems + _message(item, where)
    if kind == "function_call":
        return problems + _call_id(item, where) + function_problems(item, where)
    if kind == "custom_tool_call":
        good = isinstance(item.get("input"), str) and isinstance(item.get("name"), str)
        missing = [] if good else [f"Missing required parameter: '{where}.input' or its name"]
        return problems + _call_id(item, where) + missing
    if kind in OUTPUTS:
        return problems + _call_id(item, where) + _output(item, where)
    if kind in NEEDED:
        # “Missing required parameter: 'input[1].summary'.”
        name, form = NEEDED[kind]
        good = isinstance(item.get(name), form)
        return problems + ([] if good else [f"Missing required parameter: '{where}.{name}'"])
    if kind in HOSTED or kind in GIVEN:
        return problems
    # “Invalid value: 'tool_result'. Supported values are: 'code_interpreter_call', …”
    return [*problems, f"Invalid value: {kind!r} for '{where}.type'"]


def _item_id(item: dict[str, Any], kind: str, where: str) -> list[str]:
    id = item.get("id")
    if id is None:
        return []
    if not isinstance(id, str) or not PLAIN_ID.fullmatch(id):
        # “Expected an ID that contains letters, numbers, underscores, or dashes, but …”
        return [f"Invalid '{where}.id': Expected an ID that contains letters, numbers, underscores"]
    if len(id) > MOST_ID:
        return [f"Invalid '{where}.id': string too long. Expected a string with maximum length 64"]
    if not id.startswith(PREFIXES.get(kind, "")):
        # “Invalid 'input[2].id': 'call_…'. Expected an ID that begins with 'fc'.”
        return [f"Invalid '{where}.id': Expected an ID that begins with '{PREFIXES[kind]}'"]
    return []


def _message(item: dict[str, Any], where: str) -> list[str]:
    role, content = item.get("role"), item.get("content")
    if role not in ROLES:
        return [f"Invalid value: {role!r} for '{where}.role'. Supported values are: {ROLES}"]
    if "tool_calls" in item:
        return [f"Unknown parameter: '{where}.tool_calls'."]
    if isinstance(content, str):
        return []
    if not is_list(content):
        return [f"Invalid type for '{where}.content': expected one of an array or a string"]
    if not content:
        return [f"Invalid '{where}.content': empty array. Expected an array with minimum length 1"]
    return [p for n, part in enumerate(content) for p in _part(part, role, f"{where}.content[{n}]")]


def _part(part: Any, role: str, where: str) -> list[str]:
    kind = part.get("type") if is_object(part) else None
    if kind not in PARTS[role]:
        # “Invalid value: 'text'. Supported values are: 'input_text', 'input_image', …”
        return [f"Invalid value: {kind!r} for '{where}.type'. Supported values are: {PARTS[role]}"]
    if kind in ("input_text", "output_text") and not isinstance(part.get("text"), str):
        return [f"Missing required parameter: '{where}.text'"]
    if kind == "input_image" and not part.get("file_id"):
        url = part.get("image_url")
        if not isinstance(url, str):
            return [f"Invalid type for '{where}.image_url': expected an image URL"]
        return image_problems(url, where)
    return []


def _call_id(item: dict[str, Any], where: str) -> list[str]:
    id = item.get("call_id")
    if not isinstance(id, str):
        return [f"Missing required parameter: '{where}.call_id'"]
    if not id:
        # “Invalid 'input[2].call_id': empty string. Expected a string with minimum length 1”
        return [f"Invalid '{where}.call_id': empty string"]
    if len(id) > MOST_ID:
        # “Expected a string with maximum length 64, but got a string with length 116 instead.”
        return [f"Invalid '{where}.call_id': string too long. Expected maximum length 64"]
    return []


def _output(item: dict[str, Any], where: str) -> list[str]:
    output = item.get("output")
    if isinstance(output, str):
        return []
    if not is_list(output):
        return [f"Missing required parameter: '{where}.output'"]
    return [p for n, part in enumerate(output) for p in _part(part, "user", f"{where}.output[{n}]")]


def _ids(items: Sequence[Mapping[str, Any]]) -> list[str]:
    ids = [item["id"] for item in items if item.get("id")]
    # “Duplicate item found with id rs_…. Remove duplicate items from your input and try again.”
    return [f"Duplicate item found with id {id}" for id in sorted(set(ids)) if ids.count(id) > 1]


def _pairs(items: Sequence[Mapping[str, Any]]) -> list[str]:
    problems: list[str] = []
    asked: dict[str, str] = {}
    answered: set[str] = set()
    for item in items:
        id, kind = item.get("call_id", ""), item.get("type", "message")
        if kind in CALLS:
            if id in asked:
                problems.append(f"Duplicate function call with call_id {id}")
            asked[id] = kind
        elif kind in OUTPUTS:
            if asked.get(id) != OUTPUTS[kind]:
                problems.append(f"No tool call found for function call output with call_id {id}.")
            elif id in answered:
                problems.append(f"Duplicate function call output with call_id {id}")
            answered.add(id)
    return problems + [
        f"No tool output found for function call {id}." for id in sorted(asked.keys() - answered)
    ]


def _reasoning(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Refuse a reasoning item that is not right before the output it belongs to."""
    problems: list[str] = []
    for at, item in enumerate(items):
        if item.get("type") != "reasoning":
            continue
        rest: Mapping[str, Any] = items[at + 1] if at + 1 < len(items) else {}
        kind = rest.get("type", "message") if rest else None
        made = kind in ("reasoning", *CALLS, *HOSTED)
        if not made and not (kind == "message" and rest.get("role") == "assistant"):
            problems.append(
                f"Item {item.get('id')!r} of type 'reasoning' was provided without its required"
                " following item."
            )
    return problems
