"""Requests that providers refuse, each with a piece of the answer, and some that they accept."""

from typing import Any, Final, TypeAlias

Bad: TypeAlias = tuple[str, dict[str, Any]]

LONG_ID: Final = "fc_0f0e50a1476a6c35006912c58dc9f8819192c25864eb16f07f"
PIXEL: Final = "iVBORw0KGgo="
DEEP: Final = '{"a":' * 120 + "1" + "}" * 120


# --- OpenAI chat ---

USER: Final = {"role": "user", "content": "What is the weather?"}


def call(id: Any = "call_1", name: Any = "weather", arguments: Any = "{}") -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": id, "type": "function", "function": function}


def asks(*calls: Any, content: Any = None) -> dict[str, Any]:
    return {"role": "assistant", "content": content, "tool_calls": list(calls)}


def result(id: Any = "call_1", content: Any = "32 °C") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": id, "content": content}


def chat(*messages: Any) -> dict[str, Any]:
    return {"messages": list(messages)}


def picture(url: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}


BAD_CHAT: Final[list[Bad]] = [
    ("expected an array", {}),
    ("empty array", chat()),
    ("expected an object", chat("hello")),
    ("Supported values", chat({"role": "human", "content": "hello"})),
    ("Supported values", chat({"content": "hello"})),
    ("got null", chat({"role": "user", "content": None})),
    ("got null", chat(USER, {"role": "assistant", "content": None})),
    ("got null", chat(USER, asks(call()), result(content=None))),
    ("string or array of objects", chat({"role": "user", "content": {"text": "hello"}})),
    ("empty array", chat({"role": "user", "content": []})),
    ("Supported values", chat({"role": "user", "content": [{"type": "input_text", "text": "a"}]})),
    ("Missing required", chat({"role": "user", "content": [{"type": "text"}]})),
    ("only allowed for messages", chat(USER, {**picture("https://a.b/c"), "role": "assistant"})),
    ("expected an object", chat({"role": "user", "content": [{"type": "image_url"}]})),
    ("valid URL", chat(picture("file:///etc/passwd"))),
    ("valid URL", chat(picture("https://"))),
    ("unsupported image", chat(picture(f"data:image/tiff;base64,{PIXEL}"))),
    ("Invalid base64", chat(picture("data:image/png;base64,@@@"))),
    ("must be followed by tool messages", chat(USER, asks(call()))),
    ("must be followed by tool messages", chat(USER, asks(call()), USER, result())),
    (
        "must be followed by tool messages",
        chat(USER, asks(call("call_1"), call("call_2")), result("call_1")),
    ),
    ("must be a response", chat(USER, result())),
    ("must be a response", chat(USER, asks(call()), result(), result("call_9"))),
    ("must be a response", chat(USER, asks(call()), result(), USER, result("call_9"))),
    ("Duplicate value", chat(USER, asks(call()), result(), result())),
    ("Duplicate value", chat(USER, asks(call(), call()), result(), result())),
    ("Duplicate value", chat(USER, asks(call()), result(), asks(call()), result())),
    ("empty array", chat(USER, asks(content="Well"))),
    ("only allowed with role", chat({**USER, "tool_calls": [call()]}, result())),
    ("too long", chat(USER, asks(call(LONG_ID)), result(LONG_ID))),
    ("Missing required", chat(USER, asks(call("")), result(""))),
    ("Missing required", chat(USER, asks({"id": "call_1", "function": {}}), result())),
    ("does not match pattern", chat(USER, asks(call(name="my tool")), result())),
    ("does not match pattern", chat(USER, asks(call(name="")), result())),
    ("does not match pattern", chat(USER, asks(call(name="a" * 65)), result())),
    ("does not match pattern", chat(USER, asks(call(name="météo")), result())),
    ("expected a string", chat(USER, asks(call(arguments={})), result())),
    ("not valid JSON", chat(USER, asks(call(arguments="{city: Tokyo}")), result())),
    ("not valid JSON", chat(USER, asks(call(arguments='{"n":NaN}')), result())),
    ("not a JSON object", chat(USER, asks(call(arguments="[1]")), result())),
    ("not a JSON object", chat(USER, asks(call(arguments=DEEP)), result())),
    ("tool_call_id", chat(USER, asks(call()), {"role": "tool", "content": "32 °C"})),
    ("does not match pattern", chat({**USER, "name": "Ana Silva"})),
    ("not valid JSON", chat({"role": "user", "content": "broken \ud83d emoji"})),
]

GOOD_CHAT: Final[list[dict[str, Any]]] = [
    chat(USER),
    chat({"role": "system", "content": "Be brief."}),
    chat({"role": "developer", "content": "Be brief."}, {**USER, "name": "ana"}),
    chat(USER, asks(call()), result(), {"role": "assistant", "content": "32 °C."}),
    chat(USER, asks(call("a"), call("b"), content="Looking"), result("b"), result("a", "")),
    chat(USER, asks(call("a")), result("a"), asks(call("b")), result("b"), USER, USER),
    chat(picture("https://example.org/a.png")),
    chat(picture(f"data:image/png;base64,{PIXEL}")),
    chat({"role": "user", "content": ""}, {"role": "assistant", "content": ""}),
    chat(USER, {"role": "assistant", "content": None, "refusal": "I cannot."}),
]


# --- OpenAI responses ---

ASKED: Final = {"role": "user", "content": "What is the weather?"}
REASONING: Final = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"}
SAID: Final = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "status": "completed",
    "content": [{"type": "output_text", "text": "32 °C.", "annotations": []}],
}


def calls(
    call_id: Any = "call_1", name: Any = "weather", arguments: Any = "{}", **more: Any
) -> dict[str, Any]:
    kind = "function_call"
    return {"type": kind, "call_id": call_id, "name": name, "arguments": arguments, **more}


def output(call_id: Any = "call_1", output: Any = "32 °C") -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call_id, "output": output}


def responses(*items: Any, **more: Any) -> dict[str, Any]:
    return {"input": list(items), **more}


def shows(url: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "input_image", "image_url": url}]}


BAD_RESPONSES: Final[list[Bad]] = [
    ("Missing required", {}),
    ("must be provided", responses()),
    ("has moved to 'input'", chat(USER)),
    ("instructions", responses(ASKED, instructions="")),
    ("instructions", responses(ASKED, instructions=["Be brief."])),
    ("expected an object", responses("hello")),
    ("Invalid value", responses({"type": "tool_result", "content": "32 °C"})),
    ("Supported values", responses({"role": "tool", "content": "32 °C"})),
    ("Unknown parameter", responses(ASKED, asks(call(), content="Looking"))),
    ("array or a string", responses({"role": "user", "content": None})),
    ("empty array", responses({"role": "user", "content": []})),
    ("Invalid value: 'text'", responses({"role": "user", "content": [{"type": "text"}]})),
    (
        "Invalid value: 'input_text'",
        responses(ASKED, {"role": "assistant", "content": [{"type": "input_text", "text": "a"}]}),
    ),
    (
        "Invalid value: 'output_text'",
        responses({"role": "user", "content": [{"type": "output_text", "text": "a"}]}),
    ),
    ("Missing required", responses({"role": "user", "content": [{"type": "input_text"}]})),
    ("expected an image URL", responses(shows({"url": "https://a.b/c.png"}))),
    ("valid URL", responses(shows("ftp://a.b/c.png"))),
    ("unsupported image", responses(shows(f"data:image/svg+xml;base64,{PIXEL}"))),
    ("Invalid base64", responses(shows("data:image/png;base64,"))),
    ("No tool output found", responses(ASKED, calls())),
    ("No tool output found", responses(ASKED, calls("a"), calls("b"), output("b"))),
    ("No tool call found", responses(ASKED, output())),
    ("No tool call found", responses(ASKED, output(), calls())),
    ("Duplicate function call with", responses(ASKED, calls(), calls(), output())),
    ("Duplicate function call output", responses(ASKED, calls(), output(), output())),
    ("empty string", responses(ASKED, calls(""), output(""))),
    ("too long", responses(ASKED, calls("c" * 65), output("c" * 65))),
    ("Missing required", responses(ASKED, calls(None), output(None))),
    ("Missing required", responses(ASKED, calls(), output(output=None))),
    ("does not match pattern", responses(ASKED, calls(name="my.tool"), output())),
    ("does not match pattern", responses(ASKED, calls(name=None), output())),
    ("expected a string", responses(ASKED, calls(arguments={}), output())),
    ("not valid JSON", responses(ASKED, calls(arguments=""), output())),
    ("begins with 'fc'", responses(ASKED, calls(id="call_1"), output())),
    ("begins with 'rs'", responses(ASKED, {**REASONING, "id": "msg_1"}, SAID)),
    ("begins with 'msg'", responses(ASKED, {**SAID, "id": "chatcmpl-1"})),
    ("letters, numbers", responses(ASKED, calls(id="fc_a|b"), output())),
    ("too long", responses(ASKED, calls(id="fc_" + "1" * 64), output())),
    ("summary", responses(ASKED, {"type": "reasoning", "id": "rs_1"}, SAID)),
    ("required following item", responses(ASKED, REASONING)),
    ("required following item", responses(ASKED, REASONING, ASKED)),
    ("Duplicate item", responses(ASKED, SAID, ASKED, SAID)),
    ("not valid JSON", responses({"role": "user", "content": "broken \ud83d emoji"})),
]

GOOD_RESPONSES: Final[list[dict[str, Any]]] = [
    {"input": "hello"},
    responses(ASKED, instructions="Be brief."),
    responses({"type": "message", **ASKED}, SAID, ASKED),
    responses(ASKED, REASONING, SAID),
    responses(ASKED, REASONING, calls(id="fc_1"), output(), SAID),
    responses(ASKED, calls("a"), calls("b"), output("b"), output("a", ""), ASKED),
    responses(ASKED, {"role": "assistant", "content": "32 °C."}),
    responses(shows("https://example.org/a.png")),
    responses(ASKED, {"type": "web_search_call", "id": "ws_1", "status": "completed"}, SAID),
    responses(ASKED, calls(), output(output=[{"type": "input_text", "text": "32 °C"}])),
]


# --- Anthropic ---


def text(words: Any) -> dict[str, Any]:
    return {"type": "text", "text": words}


def user(*blocks: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def use(id: Any = "toolu_1", name: Any = "weather", **more: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": {}, **more}


def gives(id: Any = "toolu_1", content: Any = "32 °C", **more: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


def image(**source: Any) -> dict[str, Any]:
    return {"type": "image", "source": source}


def anthropic(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages), **more}


HELLO: Final = user(text("What is the weather?"))
THOUGHT: Final = {"type": "thinking", "thinking": "Let me see.", "signature": "EqQB"}
SERVED: Final = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
FOUND: Final = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
NESTED: Final[dict[str, Any]] = {}
_inner = NESTED
for _ in range(120):
    _inner["a"] = _inner = {}

BAD_ANTHROPIC: Final[list[Bad]] = [
    ("valid list", {}),
    ("at least one message", anthropic()),
    ("valid dictionary", anthropic("hello")),
    ('Unexpected role "system"', anthropic({"role": "system", "content": "Be brief."}, HELLO)),
    ("'user' or 'assistant'", anthropic(HELLO, {"role": "tool", "content": "32 °C"})),
    ("Extra inputs", anthropic({**HELLO, "name": "ana"})),
    ("first message must use", anthropic(assistant(text("Hello")), HELLO)),
    ("roles must alternate", anthropic(HELLO, HELLO)),
    ("must end with a user message", anthropic(HELLO, assistant(text("It is")))),
    ("trailing whitespace", anthropic(HELLO, assistant(text("It is ")))),
    ("non-empty content", anthropic(user())),
    ("non-empty content", anthropic(HELLO, assistant(), HELLO)),
    ("must be non-empty", anthropic(user(text("")))),
    ("must be non-empty", anthropic({"role": "user", "content": ""})),
    ("non-whitespace", anthropic(user(text(" \n\t")))),
    ("non-whitespace", anthropic(HELLO, assistant(text("\n\n"), use()), user(gives()))),
    ("valid string", anthropic(user(text(None)))),
    ("valid list", anthropic({"role": "user", "content": None})),
    ("expected tags", anthropic(user({"type": "input_text", "text": "hello"}))),
    ("Extra inputs", anthropic(user({**text("hello"), "name": "ana"}))),
    ("system: text content", anthropic(HELLO, system="")),
    ("must be non-empty", anthropic(HELLO, system=[text("")])),
    ("system: Input", anthropic(HELLO, system={"text": "Be brief."})),
    ("without `tool_result`", anthropic(HELLO, assistant(use()), HELLO)),
    ("without `tool_result`", anthropic(HELLO, assistant(use("a"), use("b")), user(gives("a")))),
    (
        "without `tool_result`",
        anthropic(HELLO, assistant(use()), HELLO, assistant(text("a")), user(gives())),
    ),
    ("unexpected `tool_use_id`", anthropic(user(gives()))),
    ("unexpected `tool_use_id`", anthropic(HELLO, assistant(use()), user(gives(), gives("b")))),
    ("must be unique", anthropic(HELLO, assistant(use(), use()), user(gives()))),
    (
        "must be unique",
        anthropic(HELLO, assistant(use()), user(gives()), assistant(use()), user(gives())),
    ),
    ("single result", anthropic(HELLO, assistant(use()), user(gives(), gives()))),
    ("must come first", anthropic(HELLO, assistant(use()), user(text("Here:"), gives()))),
    ("cannot be in this message", anthropic(user(use()), assistant(text("a")), HELLO)),
    ("cannot be in this message", anthropic(HELLO, assistant(gives()), HELLO)),
    (
        "cannot be in this message",
        anthropic(HELLO, assistant(image(type="url", url="https://a.b/c.png")), HELLO),
    ),
    ("tool_use.id", anthropic(HELLO, assistant(use("functions.Bash:0")), user(gives("a")))),
    ("tool_use.id", anthropic(HELLO, assistant(use("")), user(gives("")))),
    ("tool_use_id: String", anthropic(HELLO, assistant(use()), user(gives("a b")))),
    ("tool_use.name", anthropic(HELLO, assistant(use(name="my tool")), user(gives()))),
    ("tool_use.name", anthropic(HELLO, assistant(use(name="a" * 65)), user(gives()))),
    ("valid dictionary", anthropic(HELLO, assistant(use(input="{}")), user(gives()))),
    ("valid dictionary", anthropic(HELLO, assistant(use(input=[1])), user(gives()))),
    ("recursion limit", anthropic(HELLO, assistant(use(input=NESTED)), user(gives()))),
    ("Extra inputs", anthropic(HELLO, assistant(use(arguments="{}")), user(gives()))),
    ("must be non-empty", anthropic(HELLO, assistant(use()), user(gives(content=[text("")])))),
    ("cannot be in", anthropic(HELLO, assistant(use()), user(gives(content=[THOUGHT])))),
    ("signature", anthropic(HELLO, assistant({"type": "thinking", "thinking": "a"}), HELLO)),
    ("server_tool_use", anthropic(HELLO, assistant(FOUND), HELLO)),
    ("HTTPS", anthropic(user(image(type="url", url="http://a.b/c.png")))),
    ("media_type", anthropic(user(image(type="base64", media_type="image/bmp", data=PIXEL)))),
    ("base64 data", anthropic(user(image(type="base64", media_type="image/png", data="a")))),
    ("does not match 'base64'", anthropic(user(image(type="path", path="a.png")))),
    ("not valid JSON", anthropic(user(text("broken \ud83d emoji")))),
    ("not valid JSON", anthropic(HELLO, assistant(use(input={"n": float("nan")})), user(gives()))),
]

GOOD_ANTHROPIC: Final[list[dict[str, Any]]] = [
    anthropic(HELLO),
    anthropic({"role": "user", "content": "hello"}, system="Be brief."),
    anthropic(HELLO, system=[text("Be brief.")]),
    anthropic(HELLO, assistant(text("Looking "), use()), user(gives())),
    anthropic(HELLO, assistant(use("a"), use("b")), user(gives("b"), gives("a"), text("And?"))),
    anthropic(HELLO, assistant(THOUGHT, text("Well"), use()), user(gives(is_error=True))),
    anthropic(HELLO, assistant(SERVED, FOUND, text("32 °C.")), HELLO),
    anthropic(user(text("Look"), image(type="url", url="https://example.org/a.png"))),
    anthropic(user(image(type="base64", media_type="image/png", data=PIXEL))),
    anthropic(HELLO, assistant(use()), user(gives(content=[text("32 °C")]))),
]
