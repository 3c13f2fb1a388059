"""Let the orchestrator answer in a chat: show its events, and yield the answer in pieces."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress

from keepthread.apps.cli.chat.steps import Steps
from keepthread.apps.cli.chat.talk import Talk
from keepthread.context.context import Context
from keepthread.memory.turn import Turn
from keepthread.orchestrator import AnswerPiece, Event, Models, Runnable, Used, run
from keepthread.orchestrator.mcp import Server, Servers, State
from keepthread.types import Reply


class Tools:
    """MCP servers that run as long as the chat does."""

    def __init__(self, servers: Sequence[Server], tell: Callable[[str], object]) -> None:
        """Begin to start them."""
        self._servers = Servers(servers, on_event=tell)
        self._ready = asyncio.Event()
        self._over = asyncio.Event()
        self._running = asyncio.create_task(self._run())

    async def ready(self) -> Sequence[Runnable]:
        """Return the tools, once all servers have started or failed to."""
        waiting = asyncio.create_task(self._ready.wait())
        await asyncio.wait({waiting, self._running}, return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._running.done():
            self._running.result()
        return self._servers.tools

    @property
    def started(self) -> bool:
        """Return whether all servers have started, or failed to."""
        return self._ready.is_set() or self._running.done()

    @property
    def states(self) -> list[State]:
        """Return the state of each server."""
        return self._servers.states

    async def close(self) -> None:
        """End the servers."""
        self._over.set()
        if not self._ready.is_set():
            self._running.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([self._running])

    async def _run(self) -> None:
        # One task enters and leaves them, as the library below requires.
        async with self._servers:
            self._ready.set()
            await self._over.wait()


class ChatOrchestrator:
    """Answers by a route, a plan and its steps."""

    def __init__(self, talk: Talk, tools: Tools) -> None:
        """Answer in a talk from now on."""
        self._talk = talk
        self.tools = tools
        self.show: Callable[[Sequence[str]], object] = lambda _: None
        """Shows the progress, in lines."""
        self.steps = Steps()
        """How the latest request was handled."""
        talk.answering = self.answer

    async def answer(self, turn: Turn, _: Context) -> AsyncGenerator[str | Reply]:
        """Yield the pieces of an answer, and at the end the whole."""
        self.steps = Steps()
        happened: asyncio.Queue[Event | None] = asyncio.Queue()
        if not self.tools.started:
            self.show(["tools are being started"])
        tools, models = await self.tools.ready(), Models.all(self._talk.model)
        work = asyncio.create_task(
            run(turn, turn.user.content, tools, models, on_event=happened.put_nowait)
        )
        work.add_done_callback(lambda _: happened.put_nowait(None))
        try:
            while (event := await happened.get()) is not None:
                if isinstance(event, AnswerPiece):
                    yield event.text
                else:
                    await self._note(event)
            answer = await work
            yield Reply(content=answer.text, usage=answer.usage, truncated=answer.truncated)
        finally:
            work.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([work])

    async def _note(self, event: Event) -> None:
        self.steps.take(event, await self._left(event))
        self.show(self.steps.lines())

    async def _left(self, event: Event) -> str:
        """Return for how many turns a cached result remains valid."""
        if not isinstance(event, Used) or not event.remembered:
            return ""
        session = await self._talk.session()
        for each in await session.cached_tools():
            if (each.name, each.arguments) == (event.tool, event.arguments):
                return f", {each.left} of {each.cache_turns} turns left"
        return ""
