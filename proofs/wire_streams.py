"""Generated answers, and the streams in which servers of both wires send them.

An answer is made first; how it is sent is chosen then: in which pieces, with which ids and
indexes, in which form of server-sent events. What must arrive follows from the answer alone.
"""

import json
import random
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from keepthread.types import ToolCall, Usage

Random = random.Random

TEXTS: Final = (
    "",
    "It is sunny.",
    "Two\nlines, and a tab\t.",
    "Hi 👩‍👩‍👧 🎉 ok 👍🏽",
    "气温是三十度。",
    "data: [DONE]\n\ndata: {}",
    "a \u2028 b \x85 c \r\n d",
    'quote " and \\ and \x7f',
    "é😀" * 9,
)
NAMES: Final = ("look", "weather-now", "f", "get_time")
IDS: Final = ("own", "own", "own", "none", "same", "some")
"""What ids a server gives: each call its own, none, all the same, or only some of them."""


class Answer(NamedTuple):
    """What a model says."""

    text: str
    thinking: str
    calls: Sequence[tuple[str, str, str]]
    """The id that the server gives, the name and the arguments of each call."""
    usage: Usage
    finish: str
    one_index: bool = False
    """Whether the server gives all calls one index."""


def answer(rng: Random, mark: str = "m", *, whole: bool = True, most_calls: int = 3) -> Answer:
    """Return an answer by chance; `mark` goes into the arguments of its calls.

    Unless it is `whole`, it may be cut by a limit, in the middle of its last call.
    """
    count = rng.choice((0, 1, 1, 2, 3)[: most_calls + 2])
    ids = _ids(rng, count)
    names = rng.choice((NAMES, NAMES[:1]))  # often all calls are of one tool
    calls = [(ids[n], rng.choice(names), _arguments(rng, f"{mark}-{n}")) for n in range(count)]
    finish = "tool_calls" if calls else "stop"
    if not whole and rng.random() < 0.3:
        finish = "length"
        if calls and all(ids):
            id, name, arguments = calls[-1]
            calls[-1] = (id, name, arguments[: rng.randint(len(mark) + 12, len(arguments))])
    text = rng.choice(TEXTS) if calls or rng.random() < 0.1 else rng.choice(TEXTS[1:])
    thinking = rng.choice(TEXTS) if rng.random() < 0.5 else ""
    usage = Usage(rng.randint(1, 999), rng.randint(1, 99), 0)
    return Answer(text, thinking, calls, usage, finish, one_index=rng.random() < 0.4)


def _ids(rng: Random, count: int) -> list[str]:
    kind = rng.choice(IDS)
    own = [f"call_{rng.choice(('0', '1', f'{rng.randrange(10**9)}'))}_{n}" for n in range(count)]
    if kind == "none":
        return [""] * count
    if kind == "same":
        return ["call_x"] * count
    return [id if kind == "own" or rng.random() < 0.5 else "" for id in own]


def _arguments(rng: Random, mark: str) -> str:
    value: dict[str, Any] = {"mark": mark}
    if rng.random() < 0.7:
        value["q"] = rng.choice(TEXTS)
    if rng.random() < 0.3:
        value["deep"] = [{"a": [1.5, None, {"}{": '"}'}]}]
    return json.dumps(value, ensure_ascii=rng.random() < 0.5)


def in_pieces(rng: Random, text: str) -> list[str]:
    """Return a text in pieces that may end in the middle of a character."""
    units = text.encode("utf-16-le")
    ends = sorted({0, len(units), *(2 * rng.randint(0, len(units) // 2) for _ in range(3))})
    return [units[start:end].decode("utf-16-le", "surrogatepass") for start, end in pairwise(ends)]


# --- OpenAI's chat completions ---


def chat_events(rng: Random, said: Answer) -> list[dict[str, Any]]:
    """Return an answer as chunks."""
    events = [_chunk({"role": "assistant", "content": ""})]
    if said.thinking:
        pieces = in_pieces(rng, said.thinking)
        events += [_chunk({"reasoning_content": piece}) for piece in pieces]
    events += [_chunk({"content": piece}) for piece in in_pieces(rng, said.text)]
    for index, (id, name, arguments) in enumerate(said.calls):
        at = {"index": 0 if said.one_index else index}
        first, *rest = ["", *in_pieces(rng, arguments)] if rng.random() < 0.5 else [arguments]
        begun = {**at, "type": "function", "function": {"name": name, "arguments": first}}
        events.append(_chunk({"tool_calls": [begun | ({"id": id} if id else {})]}))
        events += [
            _chunk({"tool_calls": [{**at, "function": {"arguments": piece}}]}) for piece in rest
        ]
    events.append(_chunk({}, said.finish))
    usage = {"prompt_tokens": said.usage.input, "completion_tokens": said.usage.output}
    return [*events, {"choices": [], "usage": usage}]


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


# --- Anthropic's messages ---

_STOPS: Final = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


def anthropic_events(rng: Random, said: Answer, signature: str = "sig") -> list[dict[str, Any]]:
    """Return an answer as events."""
    usage = {"input_tokens": said.usage.input, "output_tokens": 1}
    events: list[dict[str, Any]] = [{"type": "message_start", "message": {"usage": usage}}]
    blocks: list[tuple[dict[str, Any], list[dict[str, Any]]]] = []
    if said.thinking:
        pieces = in_pieces(rng, said.thinking)
        deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces]
        deltas.append({"type": "signature_delta", "signature": signature})
        blocks.append(({"type": "thinking", "thinking": "", "signature": ""}, deltas))
    if said.text:
        deltas = [{"type": "text_delta", "text": piece} for piece in in_pieces(rng, said.text)]
        blocks.append(({"type": "text", "text": ""}, deltas))
    for id, name, arguments in said.calls:
        begun = {"type": "tool_use", "id": id, "name": name, "input": {}}
        pieces = in_pieces(rng, arguments)
        blocks.append((begun, [{"type": "input_json_delta", "partial_json": p} for p in pieces]))
    for number, (block, deltas) in enumerate(blocks):
        index = 0 if said.one_index else number
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas
        ]
        events.append({"type": "content_block_stop", "index": index})
    ended = {"stop_reason": _STOPS[said.finish], "stop_sequence": None}
    told = {"output_tokens": said.usage.output}
    return [
        *events,
        {"type": "message_delta", "delta": ended, "usage": told},
        {"type": "message_stop"},
    ]


# --- server-sent events ---


def encoded(rng: Random, events: Sequence[dict[str, Any]], *, chat: bool) -> bytes:
    """Return events as the bytes of a stream, in one of the forms that the standard allows."""
    end = rng.choice(("\n", "\n", "\r\n", "\r"))
    space = rng.choice(("", " "))
    lines: list[str] = []
    for event in events:
        if rng.random() < 0.1:
            lines += [rng.choice((": ping", ":")), ""]
        if not chat:
            lines.append(f"event:{space}{event['type']}")
        lines += [f"data:{space}{_json(rng, event)}", ""]
    if chat:
        lines += [f"data:{space}[DONE]", ""]
    return "".join(line + end for line in lines).encode()


def _json(rng: Random, event: dict[str, Any]) -> str:
    """Return JSON; what UTF-8 cannot hold, half a character, is always an escape."""
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    if rng.random() < 0.5:
        try:
            text.encode()
            return text
        except UnicodeEncodeError:
            pass
    return json.dumps(event, separators=(",", ":"))


# --- what must arrive ---


def problems_with(said: Answer, content: str, calls: Sequence[ToolCall], *, cut: bool) -> list[str]:
    """Return in what a reply differs from the answer."""
    problems: list[str] = []
    if content != said.text:
        problems.append(f"the text is {content!r}, not {said.text!r}")
    got = [(call.name, call.arguments) for call in calls]
    right = [(name, arguments) for _, name, arguments in said.calls]
    if got != right:
        problems.append(f"the calls are {got}, not {right}")
    ids = [call.id for call in calls]
    if len(set(ids)) < len(ids) or not all(ids):
        problems.append(f"the ids of the calls are {ids}")
    for place, (id, _, _) in enumerate(said.calls):
        first = id and id not in [other for other, _, _ in said.calls[:place]]
        if got == right and first and ids[place] != id:
            problems.append(f"the call {id!r} has the id {ids[place]!r}")
    if cut != (said.finish == "length"):
        problems.append(f"cut is {cut}, and it ended by {said.finish!r}")
    return problems
