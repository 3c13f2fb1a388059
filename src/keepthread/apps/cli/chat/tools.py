"""Tools in a chat: what the model is offered, and answers that need several requests.

A chat whose model calls no tool loads nothing of what runs them.
"""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final

from keepthread.apps.cli.chat.notices import without_tools
from keepthread.apps.cli.chat.talk import Talk
from keepthread.context.context import Context
from keepthread.errors import KeepthreadError
from keepthread.memory.turn import Turn
from keepthread.models.request import stream_with_tools
from keepthread.types import Reply, Tool, Usage

if TYPE_CHECKING:
    from keepthread.apps.cli.chat.orchestrator import Tools
    from keepthread.apps.cli.chat.plain import ToolDisplay
    from keepthread.orchestrator import Runnable

ROUNDS: Final = 5
"""How often the model may call tools for one answer."""


class ChatTools:
    """Offers tools to the model of a chat: those of the memory, and those of `mcp.json`."""

    def __init__(self, talk: Talk, *, memory: bool, servers: "Tools | None" = None) -> None:
        """Answer in a talk from now on; `memory` offers `remember` and `search_memory`."""
        self._talk = talk
        self._memory = memory
        self.servers = servers
        self.display: ToolDisplay | None = None
        self._refused: set[str] = set()
        """The models whose service takes no tools."""
        talk.answering = self.answer

    def load(self) -> None:
        """Load what the first answer needs."""
        _ = self.memory_tools

    @property
    def memory_tools(self) -> Sequence[Tool]:
        """Return the memory's own tools, unless what they note would be lost."""
        persistence = self._talk.persistence
        if not self._memory or not persistence.stores_now:
            return ()
        from keepthread.memory.facts.model_tools import TOOLS  # noqa: PLC0415 - after the prompt

        return TOOLS

    async def answer(self, turn: Turn, context: Context) -> AsyncGenerator[str | Reply]:
        """Yield the pieces of an answer, and at the end the whole; in between, tools are run.

        Text before a call is recorded with it, and is not a part of the answer.
        """
        runnable = await self._ready()
        tools = [*(each.tool for each in runnable), *self.memory_tools]
        spent: Usage | None = None
        left = ROUNDS
        while True:
            reply = Reply(truncated=True)
            async with aclosing(self._asked(context, tools if left else ())) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Reply):
                        reply = piece
                    else:
                        yield piece
            spent = reply.usage.plus(spent or Usage()) if reply.usage else spent
            if not (reply.tool_calls and left):
                break
            left -= 1
            await self._run(turn, reply, runnable)
            context = await self._talk.context(turn)
            if self._talk.last:
                self._talk.last.usage, self._talk.last.context = spent, context
        yield reply._replace(tool_calls=(), usage=spent)

    def _asked(self, context: Context, tools: Sequence[Tool]) -> AsyncGenerator[str | Reply]:
        model = self._talk.model

        def refused(reason: str) -> None:
            self._refused.add(model.name)
            self._talk.persistence.notify(without_tools(model.name, reason))

        return stream_with_tools(
            model,
            context.messages,
            () if model.name in self._refused else tools,
            system=context.system,
            on_refused=refused,
        )

    async def _ready(self) -> "Sequence[Runnable]":
        """Return the tools of the servers, once they have started."""
        if self.servers is None:
            return ()
        starting = self.display if not self.servers.started else None
        if starting:
            await starting.working(["starting tools"])
        self.servers.gate.begin(self._talk.last)
        try:
            return await self.servers.ready()
        except KeepthreadError as error:
            self._talk.persistence.notify(f"the tools of mcp.json cannot be used: {error}")
            self.servers = None
            return ()
        finally:
            if starting:
                await starting.working([])

    async def _run(self, turn: Turn, reply: Reply, runnable: "Sequence[Runnable]") -> None:
        # Only here: most answers call nothing.
        from keepthread.apps.cli.chat.tool_calls import run_calls  # noqa: PLC0415

        def recorded() -> None:
            if self._talk.last:
                self._talk.last.text = ""

        own = [tool.name for tool in self.memory_tools]
        await run_calls(turn, reply, runnable, own, recorded=recorded, display=self.display)
