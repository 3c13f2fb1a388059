"""Memory for a LangGraph graph, at the level of messages: the graph itself remembers nothing.

    pip install 'keepthread[openai]' langgraph
    OPENAI_API_KEY=… python examples/langgraph_chat.py "What is the weather in Jakarta?"
    OPENAI_API_KEY=… python examples/langgraph_chat.py "How about Tokyo?"

A graph is given what the model should see, and what it says is stored. It needs no checkpointer.
"""

import asyncio
import os
import sys
from typing import Any

from langchain_core.messages import convert_to_openai_messages
from langchain_core.tools import tool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from openai import AsyncOpenAI

from keepthread import Memory, Session, from_openai_chat

MODEL = os.environ.get("MODEL", "gpt-5-mini")


@tool
def weather(city: str) -> str:
    """Tell the weather of a city."""
    return f"{city}: {14 + len(city) % 7 * 3} degrees"  # stands in for a weather service


def graph_of(client: AsyncOpenAI) -> Any:
    """Return a graph like any other: a model that calls tools until it has an answer."""

    async def model(state: MessagesState) -> Any:
        messages: Any = convert_to_openai_messages(state["messages"])
        tools: Any = [convert_to_openai_tool(weather)]
        reply = await client.chat.completions.create(model=MODEL, messages=messages, tools=tools)
        said = reply.choices[0].message.model_dump(exclude_none=True)
        return {"messages": [{"content": "", **said}]}

    graph = StateGraph(MessagesState)
    graph.add_node("model", model).add_node("tools", ToolNode([weather]))
    graph.add_edge(START, "model").add_edge("tools", "model")
    return graph.add_conditional_edges("model", tools_condition).compile()


async def answer(graph: Any, session: Session, question: str) -> str:
    """Run the graph on what it should see, and store what it adds."""
    async with session.turn(question) as turn:  # the question is stored first
        seen = (await turn.context(budget=4000)).to_openai_chat()["messages"]
        result = await graph.ainvoke({"messages": seen})
        added: Any = convert_to_openai_messages(result["messages"][len(seen) :])
        *steps, last = from_openai_chat(added)
        await turn.append(*steps)
        return (await turn.finish(last)).content  # and the answer last


async def main() -> None:
    """Answer each question of the command line in one conversation."""
    async with AsyncOpenAI() as client, Memory.open("sqlite:///chat.db") as memory:
        session = await memory.session("me", system_prompt="You are brief.")
        for question in sys.argv[1:]:
            print(await answer(graph_of(client), session, question))


asyncio.run(main())
