"""Talking to a model with memory around it; no terminal is needed for that."""

import asyncio
import time
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Collection,
    Mapping,
    Sequence,
)
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

from keepthread.apps.cli.chat.attachments import AttachedFile, Images, with_files
from keepthread.apps.cli.chat.persistence import AWAY, Persistence
from keepthread.apps.cli.chat.prompt_limits import PromptLimits, TooLong
from keepthread.apps.cli.report_types import ContextReport
from keepthread.context.context import Context
from keepthread.context.hidden import HiddenRanges
from keepthread.errors import (
    KeepthreadError,
    ModelCut,
    ModelError,
    SessionGone,
    SessionNotFound,
)
from keepthread.memory.session import Session, entitle, title_of
from keepthread.memory.turn import Turn
from keepthread.protocols import ChatModel
from keepthread.stores.codec import new_id
from keepthread.types import JSON, Message, Reply, SessionInfo, Usage

if TYPE_CHECKING:
    from keepthread.memory.owner import OwnerMemory

Answering: TypeAlias = Callable[[Turn, Context], AsyncIterator[str | Reply]]
"""Finds the answer to a turn: pieces of it, and at the end the whole."""

VIEW: Final = "chat"
ONE_SHOT: Final = "one-shot"
"""The tag of a session that one question began, until a person continues it in a chat."""
_IDLE: Final = 3600.0
"""Seconds without activity after which resuming a session is noted."""
_EARLIER: Final = 100
"""The number of messages of a resumed session that are searched for long questions."""


@dataclass(slots=True, kw_only=True)
class Answered:
    """The outcome of a question; it fills while the answer arrives."""

    question: Message
    context: Context
    history: int | None = None
    """The budget of the history in this context."""
    text: str = ""
    answer: Message | None = None
    """The answer as stored; None if nothing arrived."""
    usage: Usage | None = None
    truncated: bool = False
    """Whether it was broken off: by hand, by a limit, or by a failure."""
    failure: ModelError | None = None
    began: float = field(default_factory=time.monotonic)
    first: float = 0.0
    """Seconds until the first piece."""
    seconds: float = 0.0

    def report(self) -> ContextReport:
        """Return what the model saw, to be shown."""
        return ContextReport(view=VIEW, why=self.context.why, history=self.history)


class Talk:
    """One conversation at a time with one model at a time."""

    def __init__(
        self,
        persistence: Persistence,
        model: ChatModel,
        *,
        system: str = "",
        id: str = "",
        limits: PromptLimits | None = None,
    ) -> None:
        """Begin a new session, or with an id that one; it is made when something is said.

        Without `limits`, prompts have the budget of the view.
        """
        self.persistence = persistence
        self.model = model
        self.system = system
        self.limits = limits
        self.id = id or new_session_id()
        self.one_shot = False
        """Whether one question is asked; a session that it begins has the tag `ONE_SHOT`."""
        self.answering: Answering = self._by_model
        """Produces the answer: the model, unless something else is set."""
        self.last: Answered | None = None
        """The outcome of the latest question."""
        self.answered: list[Answered] = []
        """All that was asked since this program began."""
        self.unanswered: Message | None = None
        """The latest question, if nothing came of it."""
        self.images = Images()
        """The images of the questions, and of the contexts."""
        self._said: list[Message] = []
        self._earlier: list[Message] | None = None
        """The newest questions of a resumed session; None until they are read."""
        self._session: Session | None = None
        self._home: OwnerMemory | None = None
        self._stopped = asyncio.Event()
        self._noted: set[str] = set()
        """Messages of which was said that the model no longer sees them whole."""

    # --- the session ---

    async def session(self) -> Session:
        """Return the session in the current memory; it is created if it is missing."""
        memory = self.persistence.memory
        if self._session is None or self._home is not memory:
            new = self._info()
            self._session = await memory.session(
                new.id, system_prompt=new.system_prompt, tags=new.tags
            )
            self._home = memory
        return self._session

    async def known_session(self) -> Session | None:
        """Return the session if it exists already."""
        try:
            await self.persistence.memory.get_session(self.id)
        except SessionNotFound:
            return None
        return await self.session()

    def move(self, id: str) -> None:
        """Continue in another session."""
        self.id = id
        self._session = self.last = self.unanswered = None
        self._said.clear()
        self._earlier = None

    async def mark_used(self) -> None:
        """Note activity in a session that was idle for long, so that no program prunes it.

        Prune deletes what is idle, decided when it deletes. So this also holds if another program
        prunes, or if this chat prunes before its session was shown.
        """
        session = await self.known_session()
        if session is not None and session.info.updated_at < time.time() - _IDLE:
            with suppress(*AWAY):  # a store that cannot be written cannot be pruned either
                await session.update()

    def unsay(self, ids: Collection[str] | None = None) -> None:
        """Let go of messages that were hidden or erased, or of all: they shall not come up again.

        Else they would be shown once more if the store went away.
        """
        self._said = [m for m in self._said if ids is not None and m.id not in ids]
        self._earlier = None
        if self.last and (ids is None or self.last.question.id in ids):
            self.last = None
        if self.unanswered and (ids is None or self.unanswered.id in ids):
            self.unanswered = None

    # --- asking ---

    async def ask(
        self, text: str, *, again: Message | None = None, files: Sequence[AttachedFile] = ()
    ) -> AsyncGenerator[str]:
        """Store a question, ask the model, and give the answer piece by piece; then store it.

        `last` is what came of it. `again` is a question that is stored already. Of `files`, text
        is quoted after the question, and images are attached to it.
        """
        self._stopped.clear()
        asked = again or Message(
            role="user",
            content=with_files(text, files),
            id=new_id(),
            attachments=self.images.attach(files),
        )
        async with self.persistence.using(), AsyncExitStack() as stack:
            await self._load_images(asked)
            turn, context = await self._begun(stack, asked)
            self.unanswered = turn.user
            history = await self.history_budget()
            answered = self.last = Answered(question=turn.user, context=context, history=history)
            self.answered.append(answered)
            try:
                while True:
                    try:
                        async with aclosing(self._pieces(turn, answered)) as pieces:
                            async for piece in pieces:
                                yield piece
                        break
                    except AWAY as error:  # it could not be recorded what tools were called
                        await self._leave(error)
                        turn, answered.context = await self._begun(stack, asked)
                        answered.text = ""
            finally:
                await self._finish(turn, answered)

    async def too_long(self, text: str) -> TooLong | None:
        """Return why the model cannot take a question as a whole, or None if it can."""
        if self.limits is None:
            return None
        session = await self.known_session()
        system = session.info.system_prompt if session else self.system
        counter = self.persistence.counter
        return await self.limits.too_long(self.model, counter, text, system or "")

    async def history_budget(self) -> int | None:
        """Return the budget of the history, without a question; None if it is the view's."""
        return await self.limits.budget(self.model, 0) if self.limits else None

    async def context(self, turn: Turn) -> Context:
        """Return what the model sees: the history, and the newest message whole if it fits."""
        budget = None
        if self.limits is not None:
            budget = await self.limits.budget(self.model, turn.user.tokens)
        context = await turn.context(VIEW, budget=budget)
        await self._warn_truncated(context, turn.user)
        return await self.images.shown(self.persistence.memory, context)

    async def _warn_truncated(self, context: Context, newest: Message) -> None:
        """Show once which long messages before the newest the model no longer sees whole."""
        most = await self.history_budget()
        if most is None:
            return
        if self._earlier is None:
            session = await self.session()
            messages = await session.messages(before=newest.seq, limit=_EARLIER)
            self._earlier = [m for m in messages if m.role == "user" and m.state == "live"]
        hidden = HiddenRanges.of(context.selection.hidden)
        whole = {m.seq for m in context.messages} - context.truncated
        long = [m for m in (*self._earlier, *self._said) if m.role == "user" and m.tokens > most]
        cut = [m for m in long if m.seq not in whole and not hidden.hides(m.seq)]
        new = {m.id: m for m in cut if m.id not in self._noted}
        if not new:
            return
        self._noted.update(new)
        *others, latest = new.values()
        title = repr(title_of(latest.content))
        if others:
            self.persistence.notify(
                f"the model no longer sees all of {len(new)} of your messages, the latest {title}:"
                f" each has more tokens than the history may have, {most:,}"
                " (memory.max_history_tokens)"
            )
        else:
            self.persistence.notify(
                f"the model no longer sees all of your message {title}:"
                f" its {latest.tokens:,} tokens are more than the history may have, {most:,}"
                " (memory.max_history_tokens)"
            )

    def stop(self) -> None:
        """End the answer that is arriving; what arrived is kept."""
        self._stopped.set()

    async def _load_images(self, question: Message) -> None:
        """Read the images of a question that is asked again: the store may go away."""
        if question.attachments:
            with suppress(*AWAY):
                await self.images.load(self.persistence.memory, question.attachments)

    async def _begun(self, stack: AsyncExitStack, asked: Message) -> tuple[Turn, Context]:
        """Store the question and choose what the model sees; elsewhere, if the store is away."""
        while True:
            try:
                session = await self.session()
                await self._adopt(session)
                turn = await stack.enter_async_context(await self._opened(session, asked))
                await self.images.release(self.persistence.memory)
                return turn, await self.context(turn)
            except SessionGone:
                self.persistence.notify(
                    f"another program deleted session {self.id}; it starts again empty"
                )
                self._session = None
                self.unsay()
            except AWAY as error:
                await self._leave(error)

    async def _opened(self, session: Session, asked: Message) -> Turn:
        """Return the turn of a question, once the images are stored that it refers to."""
        attachments = asked.attachments
        if attachments:
            await self.images.keep(self.persistence.memory, attachments)
        return session.turn(asked.content, id=asked.id, attachments=attachments)

    async def _leave(self, error: Exception) -> None:
        if not self.persistence.kept and self.persistence.away:
            raise error  # it is kept in this process already
        info = self._session.info if self._session else self._info()
        await self.persistence.leave(error, info, self._said, self.images)
        self._session = None

    def _info(self) -> SessionInfo:
        owner = self.persistence.owner
        tags = (ONE_SHOT,) if self.one_shot else ()
        return SessionInfo(id=self.id, owner=owner, system_prompt=self.system or None, tags=tags)

    async def _adopt(self, session: Session) -> None:
        """Make a session of one question a chat, once a person continues it."""
        if not self.one_shot and ONE_SHOT in session.info.tags:
            await session.update(tags=[tag for tag in session.info.tags if tag != ONE_SHOT])

    def _by_model(self, _: Turn, context: Context) -> AsyncIterator[str | Reply]:
        return self.model.stream(context.messages, system=context.system)

    async def _pieces(self, turn: Turn, answered: Answered) -> AsyncGenerator[str]:
        """Give what is answered until it ends, fails or is stopped."""
        stream = self.answering(turn, answered.context)
        try:
            async for piece in _until(self._stopped, stream):
                if isinstance(piece, Reply):
                    answered.usage = piece.usage
                    answered.truncated = piece.truncated
                    return
                answered.first = answered.first or time.monotonic() - answered.began
                answered.text += piece
                yield piece
            answered.truncated = True
        except ModelError as error:
            answered.failure = error
            answered.truncated = isinstance(error, ModelCut)
        except (GeneratorExit, asyncio.CancelledError):  # nobody wants the rest
            answered.truncated = True
            raise
        finally:
            answered.seconds = time.monotonic() - answered.began

    async def _finish(self, turn: Turn, answered: Answered) -> None:
        """Store what arrived, if anything did."""
        self._said.append(answered.question)
        if not answered.text:
            await self._entitle(answered.question)
            return
        self.unanswered = None
        meta = meta_of(self.model.name, answered.usage, truncated=answered.truncated)
        message = Message(role="assistant", content=answered.text, meta=meta)
        try:
            answered.answer = await turn.finish(message)
        except AWAY as error:
            answered.answer = await self._finish_elsewhere(error, answered.question, message)
        self._said.append(answered.answer)
        await self._entitle(answered.question)

    async def _finish_elsewhere(
        self, error: Exception, question: Message, message: Message
    ) -> Message:
        await self._leave(error)
        async with await self._opened(await self.session(), question) as turn:
            return await turn.finish(message)

    async def _entitle(self, question: Message) -> None:
        """Name a new session by what was asked first."""
        with suppress(KeepthreadError):
            await entitle(await self.session(), question)


def new_session_id(now: Callable[[], datetime] = datetime.now) -> str:
    """Return an id that can be typed: the day, and four letters by chance."""
    return f"{now():%Y-%m-%d}-{_letters(new_id())}"


def _letters(id: str) -> str:
    # No vowels, no look-alikes: nothing that reads as a word or can be mistyped.
    letters = "bcdfghjkmnpqrtvwxz"
    number = int(id[-12:], 16)
    return "".join(letters[number // len(letters) ** place % len(letters)] for place in range(4))


def meta_of(model: str, usage: Usage | None, *, truncated: bool) -> Mapping[str, JSON]:
    """Return what is kept with an answer: who gave it, what it took, whether it is whole."""
    meta: dict[str, JSON] = {"model": model}
    if usage:
        meta["usage"] = cast(JSON, usage._asdict())
    if truncated:
        meta["truncated"] = True
    return meta


async def _until(
    stopped: asyncio.Event, stream: AsyncIterator[str | Reply]
) -> AsyncGenerator[str | Reply]:
    """Give what a stream gives until it ends, or is stopped."""
    end = asyncio.ensure_future(stopped.wait())
    try:
        while True:
            step = asyncio.ensure_future(anext(stream))
            try:
                await asyncio.wait({step, end}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                whole = step.done()
                if not whole:
                    step.cancel()
                    await ended(step)  # a stream that is still running cannot be closed
            if not whole:
                with suppress(asyncio.CancelledError):
                    step.result()
                return
            try:
                yield step.result()
            except StopAsyncIteration:
                return
    finally:
        end.cancel()
        if isinstance(stream, AsyncGenerator):
            await stream.aclose()


async def ended(task: "asyncio.Future[Any]") -> None:
    """Wait for the end of a task that was cancelled, also if this one is cancelled as well."""
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
