"""Memory for an agent of the OpenAI Agents SDK, at the level of messages.

    pip install keepthread openai-agents
    OPENAI_API_KEY=… python examples/openai_agents_chat.py "What is the weather in Jakarta?"
    OPENAI_API_KEY=… python examples/openai_agents_chat.py "How about Tokyo?"

The agent is given what it should see, and what it adds is stored. It needs no session of its own.
"""

import asyncio
import os
import sys
from typing import Any

from agents import Agent, OpenAIChatCompletionsModel, Runner, function_tool, set_tracing_disabled
from openai import AsyncOpenAI

from keepthread import Memory, Session, from_openai_responses

MODEL = os.environ.get("MODEL", "gpt-5-mini")


@function_tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"{city}: {14 + len(city) % 7 * 3} degrees"  # stands in for a weather service


async def answer(agent: Agent, session: Session, question: str) -> str:
    """Run the agent on what it should see, and store what it adds."""
    async with session.turn(question) as turn:  # the question is stored first
        seen = (await turn.context(budget=4000)).to_openai_responses()
        informed = agent.clone(instructions=seen.get("instructions"))
        result = await Runner.run(informed, seen["input"])
        added: list[Any] = result.to_input_list()[len(seen["input"]) :]
        *steps, last = from_openai_responses(added)
        await turn.append(*steps)
        return (await turn.finish(last)).content  # and the answer last


async def main() -> None:
    """Answer each question of the command line in one conversation."""
    set_tracing_disabled(True)  # nothing is sent anywhere but to the model
    async with AsyncOpenAI() as client, Memory.open("sqlite:///chat.db") as memory:
        session = await memory.session("me", system_prompt="You are brief.")
        # Chat completions, so that other servers than OpenAI's will do as well.
        model = OpenAIChatCompletionsModel(MODEL, openai_client=client)
        agent = Agent("Assistant", model=model, tools=[weather])
        for question in sys.argv[1:]:
            print(await answer(agent, session, question))


asyncio.run(main())
