"""Check `messages` and `system` as Anthropic's messages API does."""

from itertools import pairwise
from typing import Any, Final

from keepthread.testing.wires import (
    IMAGES,
    NAME,
    PLAIN_ID,
    is_base64,
    is_list,
    is_object,
    is_web_address,
    too_deep,
    unsendable,
)

FIELDS: Final = {
    "text": {"type", "text", "cache_control", "citations"},
    "image": {"type", "source", "cache_control"},
    "tool_use": {"type", "id", "name", "input", "cache_control", "caller"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    "redacted_thinking": {"type", "data"},
    "server_tool_use": {"type", "id", "name", "input", "cache_control", "caller"},
    "web_search_tool_result": {"type", "tool_use_id", "content", "cache_control", "caller"},
}
USERS: Final = ("text", "image", "tool_result")
ASSISTANTS: Final = tuple(kind for kind in FIELDS if kind not in ("image", "tool_result"))


def check(request: dict[str, Any]) -> list[str]:
    """Return what the server would refuse; nothing if it accepts."""
    if problems := unsendable(request):
        return problems
    problems = _system(request)
    messages = request.get("messages")
    if not is_list(messages):
        return [*problems, "messages: Input should be a valid list"]
    if not messages:
        return [*problems, "messages: at least one message is required"]
    problems += [p for at, message in enumerate(messages) for p in _message(message, at)]
    return problems or [*_roles(messages), *_pairs(messages)]


def _system(request: dict[str, Any]) -> list[str]:
    if "system" not in request:
        return []
    system = request["system"]
    if isinstance(system, str):
        # An empty text: "system: text content blocks must be non-empty".
        return [] if system.strip() else ["system: text content blocks must be non-empty"]
    if not is_list(system):
        return ["system: Input should be a valid list"]
    return [p for n, block in enumerate(system) for p in _block(block, ("text",), f"system.{n}")]


def _message(message: Any, at: int) -> list[str]:
    where = f"messages.{at}"
    if not is_object(message):
        return [f"{where}: Input should be a valid dictionary"]
    role, content = message.get("role"), message.get("content")
    if role == "system":
        # “The Messages API accepts a top-level `system` parameter, not \"system\" as an input …”
        return ['messages: Unexpected role "system"']
    if role not in ("user", "assistant"):
        return [f"{where}.role: Input should be 'user' or 'assistant'"]
    if extra := set(message) - {"role", "content"}:
        return [f"{where}.{min(extra)}: Extra inputs are not permitted"]
    if isinstance(content, str):
        return _text(content, where)
    if not is_list(content):
        return [f"{where}.content: Input should be a valid list"]
    if not content:
        # “all messages must have non-empty content except for the optional final assistant message”
        return [f"{where}: all messages must have non-empty content"]
    allowed = USERS if role == "user" else ASSISTANTS
    return [p for n, b in enumerate(content) for p in _block(b, allowed, f"{where}.content.{n}")]


def _text(text: Any, where: str) -> list[str]:
    if not isinstance(text, str):
        return [f"{where}.text: Input should be a valid string"]
    if not text:
        return [f"{where}: text content blocks must be non-empty"]
    if not text.strip():
        return [f"{where}: text content blocks must contain non-whitespace text"]
    return []


def _block(block: Any, allowed: tuple[str, ...], where: str) -> list[str]:
    kind = block.get("type") if is_object(block) else None
    if not isinstance(kind, str) or kind not in FIELDS:
        # “Input tag 'input_text' found using 'type' does not match any of the expected tags”
        return [f"{where}: Input tag {kind!r} does not match any of the expected tags"]
    if kind not in allowed:
        # “`tool_use` blocks can only be in `assistant` messages”, and the like.
        return [f"{where}: `{kind}` blocks cannot be in this message"]
    if extra := set(block) - FIELDS[kind]:
        return [f"{where}.{kind}.{min(extra)}: Extra inputs are not permitted"]
    if kind == "text":
        return _text(block.get("text"), where)
    if kind == "image":
        return _image(block.get("source"), where)
    if kind in ("tool_use", "server_tool_use"):
        return _tool_use(block, where)
    if kind in ("tool_result", "web_search_tool_result"):
        return _tool_result(block, where)
    return _thinking(block, where)


def _image(source: Any, where: str) -> list[str]:
    kind = source.get("type") if is_object(source) else None
    if kind == "url":
        good = is_web_address(source.get("url"))
        # “Only HTTPS URLs are supported.”
        return [] if good else [f"{where}.image.source.url: Only HTTPS URLs are supported"]
    if kind != "base64":
        return [f"{where}.image.source: Input tag {kind!r} does not match 'base64', 'url', 'file'"]
    if source.get("media_type") not in IMAGES:
        # “Input should be 'image/jpeg', 'image/png', 'image/gif' or 'image/webp'”
        return [f"{where}.image.source.base64.media_type: Input should be 'image/jpeg', …"]
    if not is_base64(source.get("data")):
        return [f"{where}.image.source.base64: invalid base64 data"]
    return []


def _tool_use(block: dict[str, Any], where: str) -> list[str]:
    id, name = block.get("id"), block.get("name")
    if not isinstance(id, str) or not PLAIN_ID.fullmatch(id):
        return [f"{where}.tool_use.id: String should match pattern '^[a-zA-Z0-9_-]+$'"]
    if not isinstance(name, str) or not NAME.fullmatch(name):
        # The server says {1,128}; older models and other hosts of them say {1,64}.
        return [f"{where}.tool_use.name: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"]
    if not is_object(block.get("input")):
        return [f"{where}.tool_use.input: Input should be a valid dictionary"]
    if too_deep(block["input"]):
        return [f"{where}.tool_use.input: recursion limit exceeded"]
    return []


def _tool_result(block: dict[str, Any], where: str) -> list[str]:
    id, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(id, str) or not PLAIN_ID.fullmatch(id):
        return [f"{where}.tool_result.tool_use_id: String should match pattern '^[a-zA-Z0-9_-]+$'"]
    if content is None or block["type"] != "tool_result":
        return []
    if isinstance(content, str):  # blank ones are refused where Bedrock serves the model
        return _text(content, f"{where}.tool_result.content")
    if not is_list(content):
        return [f"{where}.tool_result.content: Input should be a valid list"]
    inner = f"{where}.tool_result.content"
    return [p for n, b in enumerate(content) for p in _block(b, ("text", "image"), f"{inner}.{n}")]


def _thinking(block: dict[str, Any], where: str) -> list[str]:
    needed = "data" if block["type"] == "redacted_thinking" else "signature"
    if not isinstance(block.get(needed), str) or not block[needed]:
        # “messages.1.content.0.thinking.signature: Field required”
        return [f"{where}.{block['type']}.{needed}: Field required"]
    return []


def _roles(messages: list[dict[str, Any]]) -> list[str]:
    problems: list[str] = []
    roles = [message["role"] for message in messages]
    if roles[0] != "user":
        problems.append('messages: first message must use the "user" role')
    for before, role in pairwise(roles):
        if before == role:
            # Newer servers join them; older ones: "… but found multiple \"user\" roles in a row".
            problems.append(f'messages: roles must alternate, but found multiple "{role}" in a row')
    if roles[-1] == "assistant":
        text = _last_text(messages[-1])
        if text != text.rstrip():
            problems.append("messages: final assistant content cannot end with trailing whitespace")
        # “This model does not support assistant message prefill. The conversation must end with …”
        problems.append("The conversation must end with a user message")
    return problems


def _last_text(message: dict[str, Any]) -> str:
    content = message["content"]
    return content if isinstance(content, str) else content[-1].get("text", "")


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message["content"]
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _pairs(messages: list[dict[str, Any]]) -> list[str]:
    """Compare calls with the results at the head of the message right after them."""
    problems: list[str] = []
    seen: set[str] = set()
    waiting: list[str] = []
    for at, message in enumerate(messages):
        blocks = _blocks(message)
        problems += _answers(blocks, waiting, at)
        waiting = [block["id"] for block in blocks if block["type"] == "tool_use"]
        served: set[str] = set()
        for block in blocks:
            if block["type"] in ("tool_use", "server_tool_use"):
                if block["id"] in seen:
                    problems.append(f"messages.{at}: `tool_use` ids must be unique")
                seen.add(block["id"])
                served.add(block["id"])
            elif block["type"] == "web_search_tool_result" and block["tool_use_id"] not in served:
                # “Each `…_tool_result` block must have a corresponding `server_tool_use` block …”
                problems.append(f"messages.{at}: unexpected `tool_use_id` without server_tool_use")
    if waiting:
        problems.append(_unanswered(len(messages) - 1, waiting))
    return problems


def _answers(blocks: list[dict[str, Any]], waiting: list[str], at: int) -> list[str]:
    problems: list[str] = []
    results = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    if missing := [id for id in waiting if id not in results]:
        problems.append(_unanswered(at - 1, missing))
    if strange := [id for id in results if id not in waiting]:
        # “Each `tool_result` block must have a corresponding `tool_use` block in the previous …”
        problems.append(
            f"messages.{at}: unexpected `tool_use_id` found in `tool_result` blocks: {strange[0]}"
        )
    if len(set(results)) < len(results):
        # “each tool_use must have a single result. Found multiple `tool_result` blocks with id: …”
        problems.append(f"messages.{at}: each tool_use must have a single result")
    kinds = [block["type"] for block in blocks]
    if "tool_result" in kinds[len(results) :]:
        # Text before a result makes the API answer as if the result were missing.
        problems.append(f"messages.{at}: tool_result blocks must come first in the content")
    return problems


def _unanswered(at: int, ids: list[str]) -> str:
    # “… Each `tool_use` block must have a corresponding `tool_result` block in the next message.”
    return (
        f"messages.{at}: `tool_use` ids were found without `tool_result` blocks immediately after:"
        f" {', '.join(ids)}"
    )
