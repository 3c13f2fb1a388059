"""Check `messages` as OpenAI's chat completions API does."""

import json
import re
from typing import Any, Final

from keepthread.testing.wires import (
    IMAGES,
    NAME,
    is_base64,
    is_list,
    is_object,
    is_web_address,
    too_deep,
    unsendable,
)

ROLES: Final = ("system", "developer", "user", "assistant", "tool")
SPEAKER: Final = re.compile(r"[^\s<|\\/>]{1,64}")
PARTS: Final = {
    "system": ("text",),
    "developer": ("text",),
    "user": ("text", "image_url", "input_audio", "file"),
    "assistant": ("text", "refusal"),
    "tool": ("text",),
}
MOST_ID: Final = 40


def check(request: dict[str, Any]) -> list[str]:
    """Return what the server would refuse; nothing if it accepts."""
    if problems := unsendable(request):
        return problems
    messages = request.get("messages")
    if not is_list(messages):
        return ["Invalid type for 'messages': expected an array of objects"]
    if not messages:
        return ["Invalid 'messages': empty array. Expected an array with minimum length 1"]
    problems = [p for at, message in enumerate(messages) for p in _message(message, at)]
    return problems or _pairs(messages)


def _message(message: Any, at: int) -> list[str]:
    where = f"messages[{at}]"
    if not is_object(message):
        return [f"Invalid type for '{where}': expected an object"]
    role = message.get("role")
    if role not in ROLES:
        return [f"Invalid value: {role!r} for '{where}.role'. Supported values are: {ROLES}"]
    problems = _content(message, where)
    if "tool_calls" in message:
        problems += _calls(message, where)
    if role == "tool" and not isinstance(message.get("tool_call_id"), str):
        # “Missing parameter 'tool_call_id': messages with role 'tool' must have a 'tool_call_id'.”
        problems.append(f"Missing parameter 'tool_call_id' in '{where}'")
    name = message.get("name")
    if name is not None and not (isinstance(name, str) and SPEAKER.fullmatch(name)):
        # “Expected a string that matches the pattern '^[^\\s<|\\\\/>]+$'.”
        problems.append(f"Invalid '{where}.name': string does not match pattern")
    return problems


def _content(message: dict[str, Any], where: str) -> list[str]:
    content, role = message.get("content"), message["role"]
    if content is None:
        if role == "assistant" and (message.get("tool_calls") or message.get("refusal")):
            return []
        # “Invalid value for 'content': expected a string, got null.”
        return [f"Invalid value for 'content': expected a string, got null ({where})"]
    if isinstance(content, str):
        return []
    if not is_list(content):
        return [f"Invalid type for '{where}.content': expected one of a string or array of objects"]
    if not content:
        return [f"Invalid '{where}.content': empty array. Expected an array with minimum length 1"]
    return [p for n, part in enumerate(content) for p in _part(part, role, f"{where}.content[{n}]")]


def _part(part: Any, role: str, where: str) -> list[str]:
    if not is_object(part):
        return [f"Invalid type for '{where}': expected an object"]
    kind = part.get("type")
    if kind == "image_url" and role != "user":
        # “Image URLs are only allowed for messages with role 'user', but …”
        return [f"Image URLs are only allowed for messages with role 'user' ('{where}')"]
    if kind not in PARTS[role]:
        return [f"Invalid value: {kind!r} for '{where}.type'. Supported values are: {PARTS[role]}"]
    if kind == "text" and not isinstance(part.get("text"), str):
        return [f"Missing required parameter: '{where}.text'"]
    return _image(part, where) if kind == "image_url" else []


def _image(part: dict[str, Any], where: str) -> list[str]:
    image = part.get("image_url")
    if not is_object(image) or not isinstance(image.get("url"), str):
        # “Invalid type for 'messages[0].content[1].image_url': expected an object, …”
        return [f"Invalid type for '{where}.image_url': expected an object"]
    return image_problems(image["url"], where)


def image_problems(url: str, where: str) -> list[str]:
    """Return what OpenAI refuses in the address of an image."""
    if not url.startswith("data:"):
        # “Invalid 'messages[0].content[1].image_url'. Expected a valid URL, but got …”
        good = is_web_address(url)
        return [] if good else [f"Invalid '{where}.image_url'. Expected a valid URL"]
    head, _, data = url.partition(",")
    media_type, _, encoding = head.removeprefix("data:").partition(";")
    if media_type not in IMAGES:
        # “You uploaded an unsupported image. Please make sure your image is … 'png', 'jpeg' …”
        return [f"You uploaded an unsupported image at '{where}': {media_type}"]
    if encoding != "base64" or not is_base64(data):
        return [f"Invalid base64 image_url at '{where}'"]
    return []


def _calls(message: dict[str, Any], where: str) -> list[str]:
    calls = message["tool_calls"]
    if message["role"] != "assistant":
        return [f"'tool_calls' is only allowed with role 'assistant' ('{where}')"]
    if not is_list(calls):
        return [f"Invalid type for '{where}.tool_calls': expected an array of objects"]
    if not calls:
        # “Invalid 'messages[1].tool_calls': empty array. Expected an array with minimum length 1”
        return [f"Invalid '{where}.tool_calls': empty array"]
    return [p for n, call in enumerate(calls) for p in _call(call, f"{where}.tool_calls[{n}]")]


def _call(call: Any, where: str) -> list[str]:
    if not is_object(call) or call.get("type") != "function":
        return [f"Missing required parameter: '{where}.type'"]
    id, function = call.get("id"), call.get("function")
    if not isinstance(id, str) or not id:
        return [f"Missing required parameter: '{where}.id'"]
    if len(id) > MOST_ID:
        # “string too long. Expected a string with maximum length 40, but got … 43 instead.”
        return [f"Invalid '{where}.id': string too long. Expected a string with maximum length 40"]
    if not is_object(function):
        return [f"Missing required parameter: '{where}.function'"]
    return function_problems(function, f"{where}.function")


def function_problems(function: dict[str, Any], where: str) -> list[str]:
    """Return what OpenAI refuses in the name and arguments of a call."""
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        # “string does not match pattern. Expected … '^[a-zA-Z0-9_-]+$'”; longer than 64: too long.
        return [f"Invalid '{where}.name': string does not match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"]
    if not isinstance(arguments, str):
        # “expected a string, but got an object instead.”
        return [f"Invalid type for '{where}.arguments': expected a string"]
    try:
        value = json.loads(arguments, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        # OpenAI takes any text; servers that speak like it parse it and answer 400 or 500.
        return [f"Invalid '{where}.arguments': not valid JSON"]
    if not is_object(value) or too_deep(value):
        return [f"Invalid '{where}.arguments': not a JSON object that servers parse"]
    return []


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _pairs(messages: list[dict[str, Any]]) -> list[str]:
    """Compare calls with the tool messages right after them."""
    problems: list[str] = []
    waiting: list[str] = []
    answered: set[str] = set()
    seen: set[str] = set()
    for at, message in enumerate(messages):
        if message["role"] == "tool":
            id = message["tool_call_id"]
            if id in waiting:
                waiting.remove(id)
                answered.add(id)
            elif id in answered:
                # “Duplicate value for 'tool_call_id' of 'call_…', in messages[7] and messages[8].”
                problems.append(f"Duplicate value for 'tool_call_id' of {id!r} in messages[{at}]")
            else:
                problems.append(
                    f"messages[{at}] with role 'tool' must be a response to a preceding message"
                    " with 'tool_calls'"
                )
            continue
        problems += _unanswered(waiting)
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
        if len(set(waiting)) < len(waiting) or seen.intersection(waiting):
            problems.append(f"Duplicate value for 'tool_calls.id' in messages[{at}]")
        seen.update(waiting)
    return problems + _unanswered(waiting)


def _unanswered(waiting: list[str]) -> list[str]:
    if not waiting:
        return []
    # “… The following tool_call_ids did not have response messages: call_…”
    problem = "An assistant message with 'tool_calls' must be followed by tool messages"
    return [f"{problem} responding to each 'tool_call_id': {', '.join(waiting)}"]
