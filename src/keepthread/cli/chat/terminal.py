"""A chat at a terminal: asks, answers, runs commands, and ends well whatever happens."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import aclosing, suppress
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import keepthread
from keepthread.cli.chat.chat import Chat
from keepthread.cli.chat.commands import is_command, run
from keepthread.cli.chat.completing import Completing
from keepthread.cli.chat.keeping import AWAY
from keepthread.cli.chat.plain import DRAWN, drawing_of, draws
from keepthread.cli.chat.prompt import LEAVES, Interrupted, Prompt, above, agreed, show, unheard
from keepthread.cli.chat.said import Said
from keepthread.cli.chat.signals import INTERRUPTED, Signals
from keepthread.cli.chat.talk import Answered
from keepthread.cli.harmless import harmless
from keepthread.errors import KeepthreadError, ModelCut, ModelError
from keepthread.memory import DAY
from keepthread.types import Message, SessionInfo

if TYPE_CHECKING:
    from keepthread.cli.screen import Screen

_MOMENT: Final = 0.25
"""Seconds that the first line waits for the memory; then it opens while something is typed."""
_DIM: Final = "class:dim"
_BAD: Final = "class:bad"
_LEAVING: Final = 2
"""Presses of Ctrl-C that leave while an answer ends, and one more breaks it off."""


class Terminal:
    """The person at a terminal, and the chat with them."""

    def __init__(self, environ: Mapping[str, str], signals: Signals) -> None:
        """Begin with nobody asked; `tell` may be used at once."""
        self._environ = environ
        self._signals = signals
        self._news: list[str] = []
        self._prompt: Prompt | None = None
        self._answering = False
        self._chat: Chat
        self._opening: asyncio.Task[None]
        self._said: Said
        self._info: SessionInfo | None = None
        """The session as it was seen last."""

    # --- a person ---

    @property
    def screen(self) -> "Screen":
        """Return what draws for them."""
        return self._chat.call.screen

    def say(self, text: str) -> None:
        """Tell one thing."""
        show(harmless(text, lines=True))

    async def agrees(self, question: str) -> bool:
        """Ask before something that cannot be undone."""
        return await agreed(harmless(question))

    def tell(self, text: str) -> None:
        """Tell what happened meanwhile: above the line that is typed, or behind an answer."""
        if self._prompt is None or self._answering:
            self._news.append(text)
        elif self._prompt.asking:
            above(harmless(text), _DIM)
        else:
            show(harmless(text), _DIM)

    def _tell_news(self) -> None:
        news, self._news = self._news, []
        for text in news:
            show(harmless(text), _DIM)

    # --- from the first line to the last ---

    async def chat(self, chat: Chat, opening: asyncio.Task[None]) -> int:
        """Talk until the end, and return the exit status; `opening` makes the memory ready."""
        self._chat, self._opening = chat, opening
        await asyncio.wait([opening], timeout=_MOMENT)
        if opening.done():
            opening.result()
        self._said = Said(chat.talk.keeping, chat.talk.owner, self._opened)
        self._said.read()
        await self._look()
        self._greet()
        self._prompt = Prompt(Completing(chat, self._opened), self._said, self._below)
        self._tell_news()
        opening.add_done_callback(self._is_open)
        behind = asyncio.create_task(self._behind())
        try:
            with unheard():
                while not (chat.over or self._signals.status or self._failed()):
                    await self._turn(self._prompt)
        finally:
            behind.cancel()
        if self._failed():
            opening.result()
        return self._signals.status

    async def _turn(self, prompt: Prompt) -> None:
        """Ask for a line, and do what it says."""
        offer, self._chat.offer = self._chat.offer, ""
        ending = self._signals
        with ending.during(lambda: prompt.end() if ending.status else prompt.interrupt()):
            try:
                line = await prompt.ask(offer)
            except EOFError:
                self._chat.over = True
                return
            except Interrupted:
                show(LEAVES, _DIM)
                return
        if not line.strip():
            return
        if not self._opening.done() and not await self._do(self._opened()):
            self._chat.offer = line
        elif not self._failed():
            await self._take(line)

    async def _take(self, line: str) -> None:
        if is_command(line):
            await self._do(run(self._chat, line))
            self._said.read()
        else:
            await self._ask(line)
        while (again := self._chat.again) is not None:
            self._chat.again = None
            await self._ask(again.content, again)
        with suppress(*AWAY):
            await self._look()

    async def _do(
        self, work: Coroutine[Any, Any, object], stop: Callable[[], object] | None = None
    ) -> bool:
        """Do something that Ctrl-C can end; tell whether it came to its own end."""
        task = asyncio.create_task(work)
        with self._signals.during(stop or task.cancel):
            try:
                await task
            except asyncio.CancelledError:
                show("stopped", _DIM)
            except (KeepthreadError, OSError) as error:
                show(f"error: {harmless(str(error))}", _BAD)
            else:
                return True
        return False

    # --- answers ---

    async def _ask(self, text: str, again: Message | None = None) -> None:
        self._answering = True
        try:
            await self._do(self._answer(text, again), self._stop)
        finally:
            self._answering = False
        self._tell_news()

    def _stop(self) -> None:
        """End the answer; pressed again meanwhile, leave when what arrived is stored."""
        if self._signals.presses >= _LEAVING:
            self._signals.status = self._signals.status or INTERRUPTED
        self._chat.talk.stop()

    async def _answer(self, text: str, again: Message | None) -> None:
        talk = self._chat.talk
        drawing = drawing_of(self._environ, markdown=self._markdown)
        show("")
        async with drawing, aclosing(talk.ask(text, again=again)) as pieces:
            async for piece in pieces:
                drawing.add(piece)
        if talk.last is not None:
            self._comment(talk.last)
        show("")

    @property
    def _markdown(self) -> bool:
        return self._chat.config.settings.chat.markdown

    def _comment(self, answered: Answered) -> None:
        """Say what the answer itself does not."""
        failure = answered.failure
        if isinstance(failure, ModelCut) or (failure and answered.text):
            show(f"cut short: {harmless(str(failure))}", _BAD)
        elif failure:
            show(f"error: {harmless(str(failure))}", _BAD)
            show("/retry asks again", _DIM)
        elif answered.cut:
            stopped = self._signals.presses or self._signals.status
            show(f"cut short: {'stopped' if stopped else 'it reached its limit'}", _DIM)

    # --- what is shown around it ---

    def _greet(self) -> None:
        talk = self._chat.talk
        parts = [f"keepthread {keepthread.__version__}", talk.model.name]
        if self._info is None:
            parts.append("a new session" if self._opening.done() else "memory is being opened")
        else:
            parts.append(f"{self._info.title or self._info.id}, {self._info.messages:,} messages")
        show(f"{' · '.join(map(harmless, parts))} · /help", _DIM)

    def _below(self) -> str:
        talk, keeping = self._chat.talk, self._chat.talk.keeping
        parts = [self._info.title if self._info and self._info.title else talk.id, talk.model.name]
        if talk.last is not None:
            context = talk.last.context
            parts.append(f"{context.tokens:,} of {context.selection.budget:,} tokens")
        if keeping.away:
            parts.append("memory away")
        if not keeping.kept:
            parts.append("not kept")
        return " · ".join(map(harmless, parts))

    async def _look(self) -> None:
        """See what the session is called now."""
        if self._opening.done():
            found = await self._chat.talk.known_session()
            self._info = found.info if found else None

    # --- behind the first line ---

    async def _opened(self) -> bool:
        """Wait for the memory; tell whether there is one."""
        await asyncio.wait([self._opening])
        return not self._failed()

    def _failed(self) -> bool:
        done = self._opening
        return done.done() and (done.cancelled() or done.exception() is not None)

    def _is_open(self, _: object) -> None:
        assert self._prompt is not None
        if self._failed():
            self._prompt.end()
        self._prompt.refresh()

    async def _behind(self) -> None:
        """Load what is not needed before the first question, then look after the store."""
        await asyncio.sleep(_MOMENT)
        talk = self._chat.talk
        if draws(self._environ, markdown=self._markdown):
            await asyncio.to_thread(import_module, DRAWN)
        if warm := getattr(talk.model, "warm", None):
            with suppress(ModelError):  # the first question will tell
                await warm()
        if await self._opened():
            with suppress(*AWAY):
                await asyncio.to_thread(lambda: talk.keeping.memory.counter.name)
                await self._prune()

    async def _prune(self) -> None:
        days = self._chat.config.settings.memory.auto_prune_days
        keeping = self._chat.talk.keeping
        if days is None or keeping.away or not keeping.kept:
            return
        if self._info and self._info.updated_at < time.time() - days * DAY:
            return  # the one that goes on here would be among them
        if pruned := await keeping.memory.prune(days):
            self.tell(f"{pruned:,} sessions without activity for {days} days were deleted")
