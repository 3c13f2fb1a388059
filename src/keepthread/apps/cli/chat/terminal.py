"""A chat at a terminal: asks, answers, runs commands, and ends well whatever happens."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from importlib import import_module
from pathlib import Path
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Final

from prompt_toolkit.utils import get_cwidth

import keepthread
from keepthread.apps.cli.chat.attachments import (
    AttachedFile,
    is_outside,
    mentioned,
    typed_part,
    with_files,
)
from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.commands import is_command, run
from keepthread.apps.cli.chat.commands.common import last_turn, newest
from keepthread.apps.cli.chat.commands.facts import show_waiting
from keepthread.apps.cli.chat.completion import Completing
from keepthread.apps.cli.chat.input_history import InputHistory
from keepthread.apps.cli.chat.lines import LineInput
from keepthread.apps.cli.chat.notices import chat_hint, pruned
from keepthread.apps.cli.chat.plain import DRAWN, Parts, Permission, drawing_of, draws, is_dumb
from keepthread.apps.cli.chat.prompt import Interrupted, Prompt, shortened, show, unheard
from keepthread.apps.cli.chat.prompt_limits import TooLong
from keepthread.apps.cli.chat.signals import INTERRUPTED, Signals
from keepthread.apps.cli.chat.talk import Answered
from keepthread.apps.cli.report_types import counted
from keepthread.apps.cli.sanitize import sanitize
from keepthread.errors import KeepthreadError, ModelCut, ModelError
from keepthread.memory.admin import DAY
from keepthread.types import Message, SessionInfo

if TYPE_CHECKING:
    from keepthread.apps.cli.screen import Screen

_MOMENT: Final = 0.25
"""Seconds that the first line waits for the memory; then it opens while something is typed."""
_SHORTEST_TITLE: Final = 8
_DIM: Final = "class:dim"
_BAD: Final = "class:bad"
_LEAVING: Final = 2
"""Presses of Ctrl-C that leave while an answer ends, and one more breaks it off."""


class Terminal:
    """The person at a terminal, and the chat with them."""

    def __init__(self, environ: Mapping[str, str], signals: Signals) -> None:
        """Start without a prompt; `notify` may be used at once."""
        self._environ = environ
        self._signals = signals
        self._news: list[str] = []
        self._prompt: Prompt | LineInput | None = None
        self._answering = False
        self._chat: Chat
        self._opening: asyncio.Task[None]
        self._history: InputHistory
        self._seeing: asyncio.Task[None]
        self._info: SessionInfo | None = None
        """The session as it was seen last."""
        self._drawing: Parts
        """Draws the answer that is arriving."""

    # --- a person ---

    @property
    def screen(self) -> "Screen":
        """Return the screen that draws for them."""
        return self._chat.call.screen

    def say(self, text: str) -> None:
        """Show a text."""
        show(sanitize(text, lines=True))

    async def agrees(self, question: str) -> bool:
        """Ask before something that cannot be undone."""
        assert self._prompt is not None, "there is no prompt yet"
        return await self._prompt.agrees(sanitize(question))

    def notify(self, text: str) -> None:
        """Show a notice: above the line that is being typed, or after an answer."""
        if self._prompt is None or self._answering:
            self._news.append(text)
        elif self._prompt.asking:
            self._prompt.above(sanitize(text))
        else:
            show(sanitize(text), _DIM)

    def _show_news(self) -> None:
        news, self._news = self._news, []
        for text in news:
            show(sanitize(text), _DIM)

    # --- from the first line to the last ---

    async def chat(self, chat: Chat, opening: asyncio.Task[None]) -> int:
        """Talk until the end, and return the exit status; `opening` makes the memory ready."""
        self._chat, self._opening = chat, opening
        with unheard():
            await asyncio.wait([opening], timeout=_MOMENT)
            if not self._failed():
                await self._talk()
        if self._failed():
            opening.result()
        return self._signals.status

    async def _talk(self) -> None:
        self._history = InputHistory(self._chat.talk.persistence, self._opened)
        self._history.read()
        await self._look()
        self._greet()
        for line in await self._last_turn():
            show(line, _DIM)
        prompt = self._prompt = self._line()
        self._show_news()
        if not self._opening.done():
            self._opening.add_done_callback(self._is_open)
        behind = asyncio.create_task(self._behind())
        try:
            while not (self._chat.over or self._signals.status or self._failed()):
                await self._turn(prompt)
        finally:
            behind.cancel()
        talk = self._chat.talk
        if self._chat.over and talk.last and talk.persistence.kept and not talk.persistence.away:
            show("keepthread chat -c continues here", _DIM)

    def _line(self) -> Prompt | LineInput:
        if is_dumb(self._environ):
            return LineInput()
        return Prompt(Completing(self._chat, self._opened), self._history, self._below)

    async def _turn(self, prompt: Prompt | LineInput) -> None:
        """Ask for a line, and do what it says."""
        offer, self._chat.offer = self._chat.offer, ""
        ending = self._signals
        with ending.during(lambda: prompt.end() if ending.status else prompt.interrupt()):
            try:
                line = await prompt.ask(offer)
            except EOFError:
                self._chat.over = True
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
            show("")
            self._history.read()
        else:
            await self._ask(line)
        if self._chat.ask_next:
            text, self._chat.ask_next = self._chat.ask_next, ""
            await self._ask(text)
        while (again := self._chat.again) is not None:
            self._chat.again = None
            await self._ask(again.content, again)
        await self._look()
        await self._show_waiting()

    async def _do(
        self, work: Coroutine[Any, Any, object], stop: Callable[[], object] | None = None
    ) -> bool:
        """Run something that Ctrl-C can stop; return whether it finished."""
        task = asyncio.create_task(work)
        with self._signals.during(stop or task.cancel):
            try:
                await task
            except asyncio.CancelledError:
                show("stopped", _DIM)
            except (KeepthreadError, OSError) as error:
                show(f"error: {sanitize(str(error))}", _BAD)
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
        self._show_news()

    def _stop(self) -> None:
        """End the answer; if pressed again, leave once the text that arrived is stored."""
        if self._signals.presses >= _LEAVING:
            self._signals.status = self._signals.status or INTERRUPTED
        self._chat.talk.stop()

    async def _answer(self, text: str, again: Message | None) -> None:
        talk = self._chat.talk
        await asyncio.to_thread(self._load_counter)
        self._chat.offer = typed_part(text)  # unless it is sent
        files = [] if again else await self._files(text)
        whole = with_files(text, files)
        if (over := await talk.too_long(whole)) and not await self._sends(over):
            return
        self._chat.offer = ""
        drawing = self._drawing = Parts(lambda: drawing_of(self._environ, markdown=self._markdown))
        show("")
        if self._chat.orchestrator:
            self._chat.orchestrator.show = drawing.status
        async with drawing:
            if self._signals.presses or self._signals.status:
                self._chat.offer = text
                return
            async with aclosing(talk.ask(text, again=again, files=files)) as pieces:
                async for piece in pieces:
                    drawing.add(piece)
        if talk.last is not None:
            self._comment(talk.last)
        show("")

    async def _files(self, text: str) -> list[AttachedFile]:
        """Return the files that a message names, and show how large they are.

        A pasted text may name files that its author wants to see: it asks before it sends one from
        outside the current folder.
        """
        found: list[AttachedFile] = []
        for file in await asyncio.to_thread(mentioned, text):
            foreign = "\n" in text and is_outside(file, Path.cwd())
            if foreign and not await self.agrees(f"The text names {file.name}: send that file?"):
                continue
            found.append(file)
        for file in found:
            show(sanitize(file.about(self._chat.talk.persistence.counter)), _DIM)
        return found

    async def _sends(self, over: TooLong) -> bool:
        """Ask whether a question that is too long is sent with its middle left out."""
        show(f"{sanitize(str(over))}.")
        return await self.agrees("Send it with its middle left out?")

    # --- tools ---

    async def working(self, lines: Sequence[str]) -> None:
        """Show what is being done now."""
        await self._drawing.working(lines)

    async def called(self, line: str) -> None:
        """Show a call that ended, in one line."""
        async with self._drawing.between():
            show(line, _DIM)

    async def permits(self, call: str) -> Permission:
        """Ask whether a tool may be called; Ctrl-C also ends the answer."""
        assert self._prompt is not None, "there was a request"
        async with self._drawing.between():
            show(call)
            try:
                answer = await self._prompt.choose("Allow it? [y]es / [a]lways / [n]o ")
            except EOFError:
                return "no"
            except Interrupted:
                self._signals.presses += 1
                self._stop()
                return "no"
        said = answer.strip().lower()
        return "yes" if said in ("y", "yes") else "always" if said in ("a", "always") else "no"

    def _load_counter(self) -> None:
        """Have tokens counted from now on without a wait; elsewhere than in the loop."""
        _ = self._chat.talk.persistence.counter.name

    @property
    def _markdown(self) -> bool:
        return self._chat.config.settings.chat.markdown

    def _comment(self, answered: Answered) -> None:
        """Say what the answer itself does not."""
        failure = answered.failure
        if isinstance(failure, ModelCut) or (failure and answered.text):
            show(f"cut short: {sanitize(str(failure))}", _BAD)
        elif failure:
            show(f"error: {sanitize(str(failure))}", _BAD)
            show(chat_hint(failure, self._chat.config.settings.model), _DIM)
        elif answered.truncated and not answered.text:
            show("stopped before anything arrived; /retry asks again", _DIM)
        elif answered.truncated:
            stopped = self._signals.presses or self._signals.status
            show(
                "cut short: "
                f"{'stopped' if stopped else 'a limit was reached, or the provider ended it'}",
                _DIM,
            )
        elif not answered.text:
            show("the model returned an empty answer; /retry asks again", _DIM)

    # --- what is shown around it ---

    def _greet(self) -> None:
        talk = self._chat.talk
        parts = [f"keepthread {keepthread.__version__}", talk.model.name]
        if self._info is None:
            parts.append("a new session" if self._opening.done() else "opening memory")
        else:
            parts.append(_named(self._info))
        show(f"{' · '.join(map(sanitize, parts))} · /help", _DIM)

    def _below(self) -> str:
        talk, persistence = self._chat.talk, self._chat.talk.persistence
        parts = [talk.model.name]
        if talk.last is not None:
            parts.append(talk.last.report().usage())
        if persistence.away:
            parts.append("memory unavailable")
        if not persistence.kept:
            parts.append("not kept")
        rest = sanitize("".join(f" · {part}" for part in parts))
        title = self._info.title if self._info and self._info.title else talk.id
        room = max(_SHORTEST_TITLE, get_terminal_size().columns - get_cwidth(rest))
        return f"{shortened(sanitize(title), room)}{rest}"

    async def _look(self) -> None:
        """Read the session's current title."""
        if self._opening.done():
            with suppress(KeepthreadError, OSError):
                found = await self._chat.talk.known_session()
                self._info = found.info if found else None

    async def _last_turn(self) -> list[str]:
        """Return the latest turn of a session that continues, in short, and whether it is open."""
        if self._info is None or not self._info.messages:
            return []
        with suppress(KeepthreadError, OSError):
            session = await self._chat.talk.session()
            return last_turn(await newest(session, lambda message: message.role == "user"))
        return []

    # --- in the background of the first line ---

    async def _opened(self) -> bool:
        """Wait for the memory; return whether it opened."""
        await asyncio.wait([self._opening])
        return not self._failed()

    def _failed(self) -> bool:
        done = self._opening
        return done.done() and (done.cancelled() or done.exception() is not None)

    def _is_open(self, _: object) -> None:
        assert self._prompt is not None
        if self._failed():
            self._prompt.end()
        else:
            self._seeing = asyncio.create_task(self._see())

    async def _see(self) -> None:
        """Show which session continues, now that the memory is open."""
        await self._look()
        if self._info is not None:
            self.notify(_named(self._info))
        for line in await self._last_turn():
            self.notify(line)
        if self._prompt is not None:
            self._prompt.refresh()

    async def _behind(self) -> None:
        """Load what the first prompt does not need, then maintain the store."""
        await asyncio.sleep(_MOMENT)
        talk = self._chat.talk
        if draws(self._environ, markdown=self._markdown):
            await asyncio.to_thread(import_module, DRAWN)
        if warm := getattr(talk.model, "warm", None):
            with suppress(ModelError):  # the first question will show it
                await warm()
        if await self._opened():
            await asyncio.to_thread(self._load_counter)
            if self._chat.tools:
                await asyncio.to_thread(self._chat.tools.load)
            with suppress(KeepthreadError, OSError):
                await self._prune()
                # The first context of a process is slow; what it needs is loaded by a search.
                await talk.persistence.memory.search(talk.id, limit=1)
            await self._show_waiting()

    async def _show_waiting(self) -> None:
        """Say which facts wait for the person: models draw them from what they were shown."""
        persistence = self._chat.talk.persistence
        if self._opening.done() and persistence.kept and not persistence.away:
            with suppress(KeepthreadError, OSError):
                await show_waiting(self._chat, self.notify)

    async def _prune(self) -> None:
        days = self._chat.config.settings.memory.auto_prune_days
        if days is None:
            return
        session = await self._chat.talk.known_session()
        if session and session.info.updated_at < time.time() - days * DAY:
            return  # it could not be marked as used, and would be among them
        if deleted := await self._chat.talk.persistence.prune(days):
            self.notify(pruned(deleted, days))


def _named(info: SessionInfo) -> str:
    return f"{info.title or info.id}, {counted(info.messages, 'message')}"
