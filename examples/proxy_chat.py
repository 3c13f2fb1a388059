"""A chat with a tool that knows nothing of keepthread: a proxy remembers for it.

    pip install openai 'keepthread[cli,server]'
    keepthread proxy                  # prints http://127.0.0.1:8766/k/TOKEN/v1
    export OPENAI_BASE_URL=http://127.0.0.1:8766/k/TOKEN/s/weather/v1
    OPENAI_API_KEY=… python examples/proxy_chat.py "What is the weather in Jakarta?"
    OPENAI_API_KEY=… python examples/proxy_chat.py "How about Tokyo?"

The second run is another process, and sends only its own question. Only the base URL differs from
a chat without memory: `/s/weather` names the conversation.
"""

import json
import os
import sys
from typing import Any

from openai import OpenAI

MODEL = os.environ.get("MODEL", "gpt-5-mini")
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}


def weather(city: str) -> str:
    """Stand in for a weather service."""
    return f"{city}: {14 + len(city) % 7 * 3} degrees"


def answer(client: OpenAI, question: str) -> str:
    """Ask the model until it calls no more tools."""
    messages: list[Any] = [{"role": "user", "content": question}]
    while True:
        reply = client.chat.completions.create(model=MODEL, messages=messages, tools=[WEATHER])
        said: Any = reply.choices[0].message
        if not said.tool_calls:
            return said.content or "…"
        messages.append(said.model_dump(include={"role", "content", "tool_calls"}))
        for call in said.tool_calls:
            result = weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


with OpenAI() as openai:
    for asked in sys.argv[1:]:
        print(answer(openai, asked))
