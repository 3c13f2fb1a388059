"""Memory for an agent of Agno, at the level of messages: the agent itself remembers nothing.

    pip install keepthread agno openai
    OPENAI_API_KEY=… python examples/agno_chat.py "What is the weather in Jakarta?"
    OPENAI_API_KEY=… python examples/agno_chat.py "How about Tokyo?"

The agent is given what it should see, and what it adds is stored. It needs no database.
"""

import asyncio
import os
import sys
from typing import Any

from agno.agent import Agent
from agno.models.message import Message as AgnoMessage
from agno.models.openai import OpenAIChat

from keepthread import Memory, Session, from_openai_chat

MODEL = os.environ.get("MODEL", "gpt-5-mini")
FIELDS = {"role", "content", "tool_calls", "tool_call_id"}  # what Agno shares with OpenAI


def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"{city}: {14 + len(city) % 7 * 3} degrees"  # stands in for a weather service


async def answer(agent: Agent, session: Session, question: str) -> str:
    """Run the agent on what it should see, and store what it adds."""
    async with session.turn(question) as turn:  # the question is stored first
        seen: list[Any] = (await turn.context(budget=4000)).to_openai_chat()["messages"]
        result = await agent.arun([AgnoMessage(**message) for message in seen])
        added = (result.messages or [])[len(seen) :]
        *steps, last = from_openai_chat([message.model_dump(include=FIELDS) for message in added])
        await turn.append(*steps)
        return (await turn.finish(last)).content  # and the answer last


async def main() -> None:
    """Answer each question of the command line in one conversation."""
    agent = Agent(model=OpenAIChat(id=MODEL), tools=[weather], telemetry=False)
    async with Memory.open("sqlite:///chat.db") as memory:
        session = await memory.session("me", system_prompt="You are brief.")
        for question in sys.argv[1:]:
            print(await answer(agent, session, question))


asyncio.run(main())
