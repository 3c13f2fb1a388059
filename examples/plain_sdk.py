"""Memory around a plain loop with OpenAI's SDK, tools included.

    pip install 'keepthread[openai]'
    OPENAI_API_KEY=… python examples/plain_sdk.py "What is the weather in Jakarta?"
    OPENAI_API_KEY=… python examples/plain_sdk.py "How about Tokyo?"

The second run is another process, and still knows what "how about" means.
OPENAI_BASE_URL names another server that speaks the same, MODEL another model.
"""

import asyncio
import json
import os
import sys
from typing import Any

from openai import AsyncOpenAI

from keepthread import Memory, Message, Session, ToolCall

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


async def weather(city: str) -> str:
    """Stand in for a weather service."""
    return f"{city}: {14 + len(city) % 7 * 3} degrees"


async def answer(client: AsyncOpenAI, session: Session, question: str) -> str:
    """Ask the model until it calls no more tools; everything is remembered on the way."""
    async with session.turn(question) as turn:  # the question is stored first
        while True:
            context = await turn.context(budget=4000)  # what the model should see of it all
            messages = context.to_openai_chat()["messages"]
            reply = await client.chat.completions.create(
                model=MODEL, messages=messages, tools=[WEATHER]
            )
            said: Any = reply.choices[0].message
            if not said.tool_calls:
                stored = await turn.finish(said.content or "…")  # the answer is stored last
                return stored.content
            calls = [
                ToolCall(id=call.id, name=call.function.name, arguments=call.function.arguments)
                for call in said.tool_calls
            ]
            text = said.content or ""
            await turn.append(Message(role="assistant", content=text, tool_calls=calls))
            for call in calls:
                # Runs the tool and stores its result. For three turns it is not run again
                # for the same city: the result is remembered.
                given = json.loads(call.arguments)
                await turn.tool(call.name, given, weather, call_id=call.id, cache_turns=3)


async def main() -> None:
    """Answer each question of the command line in one conversation."""
    async with AsyncOpenAI() as client, Memory.open("sqlite:///chat.db") as memory:
        session = await memory.session("me", system_prompt="You are brief.")
        for question in sys.argv[1:]:
            print(await answer(client, session, question))


asyncio.run(main())
