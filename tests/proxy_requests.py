"""Requests for the proxy, as clients might write them: odd, but JSON."""

import json
from typing import Any

from hypothesis import strategies as st

from keepthread.apps.proxy.types import WireName

WIRES: list[WireName] = ["openai-chat", "openai-responses", "anthropic"]
_NAMES = ["role", "type", "content", "text", "name", "id", "call_id", "tool_use_id", "output"]
_KINDS = ["text", "input_text", "tool_result", "tool_use", "image_url", "thinking", "function_call"]
_ROLES = ["user", "assistant", "system", "tool", "developer"]

_texts = st.text(max_size=12) | st.sampled_from(["Where?", "\ud83d", "<system-reminder>", "\0"])
_scalars = st.none() | st.booleans() | st.integers() | st.floats() | _texts
_json = st.recursive(
    _scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(_NAMES) | _texts, inner, max_size=4)
    ),
    max_leaves=8,
)


def history_of(wire: WireName) -> str:
    return "input" if wire == "openai-responses" else "messages"


def _part(wire: WireName) -> st.SearchStrategy[Any]:
    text = "input_text" if wire == "openai-responses" else "text"
    return st.one_of(
        st.fixed_dictionaries({"type": st.just(text), "text": _texts}),
        st.fixed_dictionaries(
            {"type": st.just("tool_result"), "tool_use_id": _texts, "content": _texts}
        ),
        st.fixed_dictionaries({"type": st.sampled_from(_KINDS), "x": _json}),
    )


def _item(wire: WireName) -> st.SearchStrategy[Any]:
    content = _texts | st.lists(_part(wire), max_size=4)
    said = st.fixed_dictionaries(
        {"role": st.sampled_from(_ROLES), "content": content}, optional={"extra": _json}
    )
    asked = st.fixed_dictionaries({"role": st.just("user"), "content": content})
    return st.one_of(asked, said, st.dictionaries(st.sampled_from(_NAMES), _json, max_size=4))


@st.composite
def written(draw: st.DrawFn, value: Any) -> str:
    """Return JSON with space in odd places, names that come twice, and letters as escapes."""
    space = st.sampled_from(["", "", "", " ", "\n\t", "\r\n"])
    if isinstance(value, dict):
        pairs: list[tuple[str, Any]] = list(value.items())
        if pairs and draw(st.integers(0, 9)) == 0:
            pairs.insert(0, (pairs[-1][0], draw(_json)))  # the last counts
        parts = [
            f"{draw(space)}{json.dumps(name)}{draw(space)}:{draw(space)}{draw(written(each))}"
            for name, each in pairs
        ]
        return "{" + ",".join(parts) + draw(space) + "}"
    if isinstance(value, list):
        return "[" + ",".join(draw(space) + draw(written(each)) for each in value) + "]"
    if isinstance(value, str):
        plain = value.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in value)
        return json.dumps(value, ensure_ascii=not plain or draw(st.booleans()))
    return json.dumps(value)


@st.composite
def requests(draw: st.DrawFn) -> tuple[WireName, str]:
    """Return a wire, and a request on it."""
    wire = draw(st.sampled_from(WIRES))
    history: Any = draw(st.lists(_item(wire), max_size=5))
    if wire == "openai-responses" and draw(st.integers(0, 4)) == 0:
        history = draw(_texts)
    fields = [
        ("model", "m"),
        (history_of(wire), history),
        ("stream", draw(st.booleans())),
        ("other", draw(_json)),
    ]
    body = dict(draw(st.permutations(fields)))
    space = draw(st.sampled_from(["", " ", "\n"]))
    return wire, space + draw(written(body)) + space


@st.composite
def request_texts(draw: st.DrawFn) -> tuple[WireName, str]:
    """Return a wire, and a text that may be no request: one that was cut, or changed."""
    wire, text = draw(requests())
    at = draw(st.integers(0, len(text)))
    return wire, text[:at] + draw(st.text(max_size=2)) + text[at + draw(st.integers(0, 3)) :]
