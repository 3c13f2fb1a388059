"""An MCP server for tests: over a real store, with clients of the SDK in both eras."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from mcp import Client, types

from keepthread import Memory, Message
from keepthread.apps.mcp import server
from keepthread.apps.mcp.actions import ClientMemory
from keepthread.memory.owner import OwnerMemory
from keepthread.models.tokens import Estimator

Era = Literal["auto", "legacy"]
ERAS: tuple[Era, ...] = ("auto", "legacy")
ANN = "ann"
SECRET = "quetzal"
"""A word that only another owner wrote."""


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[Memory]:
    """Open a store of two owners."""
    async with Memory.open(f"sqlite:///{folder}/mcp.db", counter=Estimator()) as memory:
        await fill(memory.for_owner(ANN), "hazelnuts")
        await fill(memory.for_owner("bob"), SECRET)
        yield memory


async def fill(memory: OwnerMemory, word: str) -> None:
    """Give an owner a session, a fact that holds and one that waits."""
    session = await memory.session("trip")
    await session.append(
        Message(role="user", content=f"I am allergic to {word}.", id="m1", created_at=1e9),
        Message(role="assistant", content=f"Noted: no {word}.", id="m2", created_at=1e9 + 60),
    )
    await memory.facts.remember(f"Is allergic to {word}.")
    await memory.facts.remember(f"Fears {word}.", by="model", source="mcp:elsewhere")


@asynccontextmanager
async def client(
    memory: OwnerMemory, era: Era = "auto", *, may_forget: bool = False, name: str = "tester"
) -> AsyncIterator[Client]:
    """Connect a client to the server of one owner, in this process."""

    def memory_of(request: Any) -> ClientMemory:
        who = server.client_of(request)
        return ClientMemory(memory=memory, client=who, may_forget=may_forget)

    info = types.Implementation(name=name, version="1")
    async with Client(server.build(memory_of), mode=era, client_info=info) as connected:
        yield connected


def text_of(result: Any) -> str:
    """Return the text of a tool's result, of a resource or of a prompt."""
    if isinstance(result, types.ReadResourceResult):
        (content,) = result.contents
        assert isinstance(content, types.TextResourceContents)
        return content.text
    content = result.messages[0].content if hasattr(result, "messages") else result.content[0]
    assert isinstance(content, types.TextContent)
    return content.text
