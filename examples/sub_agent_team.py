"""A team: a scout and a critic work side by side, each on its own task, and a lead answers.

    pip install 'keepthread[openai]'
    OPENAI_API_KEY=… python examples/sub_agent_team.py "Where should we spend a week in May?"

A member of the team sees its task and its orders, and of the conversation nothing but a snippet.
Its work is kept in a session of its own; its answer comes back as the result of a tool.
For a pipeline that writes its own plan see `keepthread.orchestrator`.
"""

import asyncio
import os
import sys

from keepthread import Memory, Session, Turn
from keepthread.models import OpenAIModel

MODEL = os.environ.get("MODEL", "gpt-5-mini")
TEAM = {
    "scout": "You find three good places. You are brief, and name each with one reason.",
    "critic": "You name what people regret about such trips. You are brief.",
}


async def work(turn: Turn, model: OpenAIModel, member: str, task: str, snippet: str) -> None:
    """Let one member of the team do its task."""
    async with turn.delegate(
        task, agent=member, system_prompt=TEAM[member], snippet=snippet
    ) as child:
        if child.answer is not None:  # it was done before a crash
            return
        context = await child.context(budget=2000)  # its task, its orders, the snippet
        reply = await model.complete(context.messages, system=context.system)
        await child.finish(reply.content)


async def answer(session: Session, model: OpenAIModel, question: str) -> None:
    """Send the team out, then let the lead answer from what it brings back."""
    async with session.turn(question) as turn:
        before = (await turn.context(budget=300, newest=False)).text
        snippet = f"Said before:\n{before}" if before else "Nothing was said before."
        await asyncio.gather(*(work(turn, model, member, question, snippet) for member in TEAM))
        context = await turn.context()  # the conversation, and what the team brought back
        text = ""
        async for piece in model.stream(context.messages, system=context.system):
            if isinstance(piece, str):
                text += piece
                print(piece, end="", flush=True)
        print()
        await turn.finish(text)


async def main() -> None:
    """Answer each question of the command line in one conversation."""
    key, url = os.environ["OPENAI_API_KEY"], os.environ.get("OPENAI_BASE_URL")
    model = OpenAIModel(MODEL, key=key, base_url=url)
    async with Memory.open("sqlite:///team.db") as memory:
        session = await memory.session("trip", system_prompt="You lead a team. Answer briefly.")
        for question in sys.argv[1:]:
            await answer(session, model, question)
    await model.close()


asyncio.run(main())
