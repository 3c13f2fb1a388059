"""What a request must be beside valid: each result with its call, each image and thought in place.

Nothing here comes from `keepthread.context`: the marks that the generator put into calls, images
and thoughts are looked up in the finished request.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from keepthread import Attachment, Context, Message, Native
from keepthread.models.tokens import Estimator
from proofs.p12_contexts import leaves
from proofs.wire_conversations import Provider

IMAGE_COST: Final = 1600
NAME_COST: Final = 40
"""The most that naming an attachment may cost: the names are short."""
NO_RESULT: Final = "(no result)"
CUT: Final = "characters left out …]"
CALL: Final = re.compile(r"call\d+z-\d+")
THOUGHT: Final = re.compile(r"thought\d+z([a-z.]*)")
WEB_IMAGE: Final = re.compile(r"https://example\.org/pic\d+z\.png")
DATA_IMAGE: Final = re.compile(r"data:image/(?:png|webp);base64,[A-Za-z0-9+/]+={0,2}")


class Pair(NamedTuple):
    """A call on a wire, and the result that it is shown with."""

    arguments: str
    result: str


def faults(
    context: Context, to: Provider, request: dict[str, Any], counter: Estimator
) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a request though a provider may take it: a figure, and details."""
    sent = json.dumps(request, ensure_ascii=False)
    pairs = pairs_of(to, request)
    results = [m for m in context.messages if m.role == "tool"]
    if len(pairs) != len(results):
        yield "results lost", f"{len(results)} are chosen, {len(pairs)} are sent"
    for pair in pairs:
        asked = CALL.findall(pair.arguments)
        known = asked and pair.result != NO_RESULT and CUT not in pair.result
        if known and CALL.findall(pair.result)[:1] != asked[:1]:
            yield "wrong result", f"{pair.arguments} is answered by {pair.result}"
    yield from _images(context.messages, sent, counter)
    yield from _thoughts(context.messages, to, sent)
    size = sum(map(counter.measure, leaves(request)))
    if size > context.tokens:
        yield "under-counted", f"it takes {size} tokens, not {context.tokens}"


# --- results ---


def pairs_of(to: Provider, request: dict[str, Any]) -> list[Pair]:
    """Return the calls of a request with their results, by their ids."""
    if to.wire == "openai-responses":
        items = request["input"]
        calls = {i["call_id"]: i["arguments"] for i in items if i.get("type") == "function_call"}
        outputs = [i for i in items if i.get("type") == "function_call_output"]
        return [Pair(calls[i["call_id"]], _text(i["output"])) for i in outputs]
    messages = request["messages"]
    if to.wire == "openai-chat":
        made = [call for message in messages for call in message.get("tool_calls") or ()]
        calls = {call["id"]: call["function"]["arguments"] for call in made}
        outputs = [message for message in messages if message["role"] == "tool"]
        return [Pair(calls[m["tool_call_id"]], _text(m["content"])) for m in outputs]
    blocks = [block for message in messages for block in message["content"]]
    used = [block for block in blocks if block["type"] == "tool_use"]
    calls = {block["id"]: json.dumps(block["input"]) for block in used}
    given = [block for block in blocks if block["type"] == "tool_result"]
    return [Pair(calls[b["tool_use_id"]], _text(b["content"])) for b in given]


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if "text" in part)


# --- images ---


def _images(
    messages: Sequence[Message], sent: str, counter: Estimator
) -> Iterator[tuple[str, str]]:
    """Hold every attachment against the request: an image once, or its name, at its price."""
    for message in messages:
        for file in message.attachments:
            shown = _is_shown(message, file)
            forms = {file.uri, file.uri.partition(",")[2] or file.uri}
            times = sum(sent.count(f'"{form}"') for form in forms)
            if times != shown:
                yield "attachments missing", f"{file.uri} of {message.role} is sent {times} times"
            if not shown and f"[attached: {file.name}]" not in sent:
                yield "attachments missing", f"{file.name} of {message.role} is not named"
        shown = sum(_is_shown(message, file) for file in message.attachments)
        charged = message.tokens - counter.count(replace(message, attachments=()))
        most = IMAGE_COST * shown + NAME_COST * len(message.attachments)
        if not IMAGE_COST * shown <= charged <= most:
            yield "charged wrongly", f"{charged} tokens for {message.attachments}"


def _is_shown(message: Message, file: Attachment) -> bool:
    """Tell whether an attachment is an image that some wire takes from this speaker."""
    own = message.role == "tool" or (message.role == "user" and message.origin in (None, "user"))
    web = file.media_type.startswith("image/") and WEB_IMAGE.fullmatch(file.uri)
    data = DATA_IMAGE.fullmatch(file.uri) and len(file.uri.partition(",")[2]) % 4 == 0
    return own and bool(web or data)


# --- thoughts ---


def _thoughts(messages: Sequence[Message], to: Provider, sent: str) -> Iterator[tuple[str, str]]:
    """Hold every thought against the host that it was of; none may be lost on the way back."""
    for host in THOUGHT.findall(sent):
        if host and to.host and host != to.host:
            yield "thoughts to strangers", f"a thought of {host} is sent to {to.host}"
        elif to.wire == "openai-chat" and host != to.host:
            yield "thoughts to strangers", f"a thought of {host} is sent to an unknown server"
    ids = [call.id for message in messages for call in message.tool_calls]
    for message in messages:
        own = [call.id for call in message.tool_calls]
        if not message.native or not _goes_back(message.native, to) or message.role != "assistant":
            continue
        alone = all(ids.count(id) == 1 for id in own)
        mark = THOUGHT.search(json.dumps(list(message.native.items)))
        if alone and mark and f"{mark[0]}" not in sent:
            yield "thoughts lost", f"{mark[0]} is not sent back to {to.host}"


def _goes_back(native: Native, to: Provider) -> bool:
    return bool(native.wire == to.wire and to.host and native.provider == to.host)
