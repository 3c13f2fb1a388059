"""Whole requests that providers refuse, each with the status and a piece of the answer."""

from typing import Any, Final, TypeAlias

Bad: TypeAlias = tuple[str, dict[str, Any]]

SCHEMA: Final = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
STRICT: Final = {**SCHEMA, "additionalProperties": False}
HELLO: Final = [{"role": "user", "content": "Hello"}]


def chat(**given: Any) -> dict[str, Any]:
    return {"model": "m", "messages": HELLO, **given}


def function(**given: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, **given}}


def with_schema(schema: Any, **given: Any) -> dict[str, Any]:
    return chat(tools=[function(parameters=schema, **given)])


def format_of(schema: Any, **given: Any) -> dict[str, Any]:
    inner = {"name": "answer", "schema": schema, "strict": True, **given}
    return chat(response_format={"type": "json_schema", "json_schema": inner})


CALLED: Final = [
    *HELLO,
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "sunny"},
]

GOOD_CHAT: Final[list[dict[str, Any]]] = [
    chat(),
    chat(stream=True, stream_options={"include_usage": True}, temperature=2, top_p=1.0),
    chat(max_tokens=1, stop=["a", "b"], seed=7, user="u", n=1, reasoning_effort="low"),
    chat(max_completion_tokens=100, max_tokens=None, stream=None, stream_options=None),
    chat(messages=CALLED),
    chat(tools=[function(description="d")], tool_choice="required", parallel_tool_calls=False),
    chat(tools=[function()], tool_choice={"type": "function", "function": {"name": "weather"}}),
    chat(tools=[{"type": "function", "function": {"name": "now"}}]),
    with_schema(STRICT, strict=True),
    with_schema(
        {**SCHEMA, "$defs": {"a": {"type": "null"}}, "properties": {"city": {"$ref": "#/$defs/a"}}}
    ),
    format_of(STRICT),
    format_of(SCHEMA, strict=False),
    chat(
        messages=[{"role": "user", "content": "Answer in JSON."}],
        response_format={"type": "json_object"},
    ),
]
BAD_CHAT: Final[list[Bad]] = [
    ("'model'", {"messages": HELLO}),
    ("'model'", chat(model="")),
    ("'model'", chat(model=None)),
    ("expected an array", {"model": "m"}),
    ("Unknown parameter: 'top_k'", chat(top_k=3)),
    ("Unknown parameter: 'system'", chat(system="Be brief.")),
    ("'max_tokens'", chat(max_tokens=0)),
    ("'max_tokens'", chat(max_tokens="100")),
    ("'max_tokens'", chat(max_tokens=True)),
    ("'max_completion_tokens'", chat(max_completion_tokens=1.5)),
    ("at the same time", chat(max_tokens=5, max_completion_tokens=5)),
    ("'temperature'", chat(temperature=2.1)),
    ("'temperature'", chat(temperature="hot")),
    ("'top_p'", chat(top_p=-0.1)),
    ("'stream'", chat(stream="yes")),
    ("only allowed when 'stream'", chat(stream_options={"include_usage": True})),
    ("stream_options.usage", chat(stream=True, stream_options={"usage": True})),
    ("include_usage", chat(stream=True, stream_options={"include_usage": 1})),
    ("'stop'", chat(stop=[1])),
    ("'reasoning_effort'", chat(reasoning_effort="huge")),
    ("empty array", chat(tools=[])),
    ("longer than 128", chat(tools=[function(name=f"n{n}") for n in range(129)])),
    ("'tools'", chat(tools={"weather": SCHEMA})),
    ("tools[0].function", chat(tools=[{"name": "weather", "input_schema": SCHEMA}])),
    ("function.name", chat(tools=[{"type": "function", "function": {"parameters": SCHEMA}}])),
    ("function.name", chat(tools=[function(name="the weather")])),
    ("Unknown parameter: 'tools[0].name'", chat(tools=[{**function(), "name": "weather"}])),
    ("function.schema", chat(tools=[function(schema=SCHEMA)])),
    ("too long", chat(tools=[function(description="d" * 1025)])),
    ("Duplicate names", chat(tools=[function(), function()])),
    ("of 'type: \"object\"'", with_schema({})),
    ("of 'type: \"object\"'", with_schema({"type": "string"})),
    ("missing properties", with_schema({"type": "object"})),
    ("missing items", with_schema({**SCHEMA, "properties": {"city": {"type": "array"}}})),
    ("'text' is not valid", with_schema({**SCHEMA, "properties": {"city": {"type": "text"}}})),
    ("is not a schema", with_schema({**SCHEMA, "properties": {"city": "string"}})),
    ("array of strings", with_schema({**SCHEMA, "required": True})),
    ("extra required key", with_schema({**SCHEMA, "required": ["town"]})),
    ("'enum'", with_schema({**SCHEMA, "properties": {"city": {"enum": []}}})),
    ("not found", with_schema({**SCHEMA, "properties": {"city": {"$ref": "#/$defs/a"}}})),
    ("'anyOf'", with_schema({**SCHEMA, "properties": {"city": {"anyOf": []}}})),
    ("'additionalProperties'", with_schema(SCHEMA, strict=True)),
    ("every key", with_schema({**STRICT, "required": []}, strict=True)),
    ("only allowed when 'tools'", chat(tool_choice="auto")),
    ("only allowed when 'tools'", chat(parallel_tool_calls=True)),
    ("'tool_choice'", chat(tools=[function()], tool_choice="any")),
    ("not found in 'tools'", chat(tools=[function()], tool_choice={"type": "tool", "name": "w"})),
    ("'response_format.type'", chat(response_format={"type": "json"})),
    ("Unknown parameter", chat(response_format={"type": "text", "schema": SCHEMA})),
    ("the word 'json'", chat(response_format={"type": "json_object"})),
    ("json_schema", chat(response_format={"type": "json_schema", "json_schema": STRICT})),
    ("json_schema.name", format_of(STRICT, name="my answer")),
    ("'additionalProperties'", format_of(SCHEMA)),
    ("'default' is not permitted", format_of({**STRICT, "default": {}})),
    ("'anyOf' at the top", format_of({**STRICT, "anyOf": [STRICT]})),
    ("Additional properties", chat(messages=[{**HELLO[0], "id": "1"}])),
    ("Additional properties", chat(messages=[{**HELLO[0], "cache_control": {}}])),
]


def message(**given: Any) -> dict[str, Any]:
    return {"model": "m", "max_tokens": 100, "messages": HELLO, **given}


def tool(**given: Any) -> dict[str, Any]:
    return {"name": "weather", "input_schema": SCHEMA, **given}


def output(schema: Any, **given: Any) -> dict[str, Any]:
    return message(output_config={"format": {"type": "json_schema", "schema": schema, **given}})


def marked(count: int, **mark: Any) -> list[dict[str, Any]]:
    mark = {"type": "ephemeral", **mark}
    return [{"type": "text", "text": "hello", "cache_control": mark} for _ in range(count)]


USED: Final = [
    *HELLO,
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "1", "name": "weather", "input": {}}],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "sunny"}]},
]

GOOD_ANTHROPIC: Final[list[dict[str, Any]]] = [
    message(),
    message(stream=True, system="Be brief.", stop_sequences=["END"], metadata={"user_id": "u"}),
    message(system=marked(3, ttl="1h"), cache_control={"type": "ephemeral"}),
    message(messages=USED, tools=[tool()], tool_choice={"type": "none"}),
    message(tools=[tool(description="", type="custom", cache_control={"type": "ephemeral"})]),
    message(tools=[tool()], tool_choice={"type": "tool", "name": "weather"}),
    message(tools=[tool(input_schema={"type": "object"})]),
    message(tools=[tool(input_schema=STRICT, strict=True)]),
    message(max_tokens=2000, thinking={"type": "enabled", "budget_tokens": 1024}),
    message(thinking={"type": "adaptive"}, output_config={"effort": "low"}),
    output(STRICT),
]
BAD_ANTHROPIC: Final[list[Bad]] = [
    ("model", {"max_tokens": 100, "messages": HELLO}),
    ("max_tokens: Field required", {"model": "m", "messages": HELLO}),
    ("messages", {"model": "m", "max_tokens": 100}),
    ("max_tokens", message(max_tokens=0)),
    ("max_tokens", message(max_tokens="100")),
    ("max_tokens", message(max_tokens=None)),
    ("temperature", message(temperature=0.5)),
    ("top_k", message(top_k=3)),
    ("n: Extra inputs", message(n=1)),
    ("stream_options: Extra inputs", message(stream=True, stream_options={})),
    ("response_format: Extra inputs", message(response_format={"type": "text"})),
    ("stream", message(stream=None)),
    ("stop_sequences", message(stop_sequences="END")),
    ("metadata.name", message(metadata={"name": "u"})),
    ("service_tier", message(service_tier="best")),
    ("system", message(system="")),
    ("system", message(system={"type": "text", "text": "Be brief."})),
    ("system.0", message(system=[{"type": "image"}])),
    ("maximum of 4", message(system=marked(5))),
    ("maximum of 4", message(system=marked(4), cache_control={"type": "ephemeral"})),
    (
        "maximum of 4",
        message(
            system=marked(2),
            messages=[{"role": "user", "content": marked(2)}],
            tools=[tool(cache_control={"type": "ephemeral"})],
        ),
    ),
    ("cache_control", message(system=marked(1, ttl="2h"))),
    ("cache_control", message(cache_control={"type": "forever"})),
    ("cache_control", message(cache_control={})),
    ("must not come after", message(system=[*marked(1), *marked(1, ttl="1h")])),
    (
        "citations",
        message(
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "text", "text": "a", "citations": [{"type": "char_location"}]}
                    ],
                }
            ]
        ),
    ),
    ("must define tools", message(messages=USED)),
    ("must define tools", message(messages=USED, tools=[])),
    ("tools", message(tools={"weather": SCHEMA})),
    ("tools.0", message(tools=["weather"])),
    ("tools.0.custom.function", message(tools=[function()])),
    ("input_schema: Field required", message(tools=[{"name": "weather"}])),
    ("tools.0.custom.name", message(tools=[tool(name="the weather")])),
    ("must be unique", message(tools=[tool(), tool()])),
    ("of 'type: \"object\"'", message(tools=[tool(input_schema={})])),
    ("top level", message(tools=[tool(input_schema={**SCHEMA, "anyOf": [SCHEMA]})])),
    ("'additionalProperties'", message(tools=[tool(strict=True)])),
    ("while providing tools", message(tool_choice={"type": "auto"})),
    ("tool_choice", message(tools=[tool()], tool_choice="auto")),
    ("tool_choice", message(tools=[tool()], tool_choice={"type": "required"})),
    ("not found", message(tools=[tool()], tool_choice={"type": "tool", "name": "now"})),
    ("tool_choice", message(tools=[tool()], tool_choice={"name": "weather"})),
    ("budget_tokens", message(thinking={"type": "enabled", "budget_tokens": 10})),
    ("budget_tokens", message(thinking={"type": "enabled"})),
    ("greater than", message(thinking={"type": "enabled", "budget_tokens": 1024})),
    (
        "forces tool use",
        message(tools=[tool()], tool_choice={"type": "any"}, thinking={"type": "adaptive"}),
    ),
    ("output_config.effort", message(output_config={"effort": "some"})),
    ("output_config.schema", message(output_config={"schema": STRICT})),
    ("schema: Field required", message(output_config={"format": {"type": "json_schema"}})),
    ("format.type", output(STRICT, type="json_object")),
    ("'additionalProperties'", output(SCHEMA)),
    ("'minLength' is not supported", output({**STRICT, "properties": {"city": {"minLength": 1}}})),
    ("of 'type: \"object\"'", output({"type": "array", "items": STRICT})),
]
