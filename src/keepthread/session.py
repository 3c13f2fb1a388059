"""A session as programs use it: append, ask for a context, take turns, hide, fork, pin."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from keepthread import branching
from keepthread.context.render import Context
from keepthread.gather import MARKS, marks_of
from keepthread.thread import Thread
from keepthread.turn import Turn
from keepthread.types import JSON, Attachment, Message, Role, Scope, SessionInfo, SessionKey


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How much a session holds, in the log and as contexts see it."""

    messages: int
    exchanges: int
    tokens: int
    visible_messages: int
    visible_tokens: int


class Session:
    """One conversation; get it from `Memory.session`."""

    def __init__(self, thread: Thread, info: SessionInfo) -> None:
        """Hold a session that is there."""
        self._thread = thread
        self._store = thread.store
        self.info = info

    @property
    def id(self) -> str:
        """Return the session's id."""
        return self.info.id

    @property
    def key(self) -> SessionKey:
        """Return the key of this life of the session."""
        return self.info.key

    @property
    def owner(self) -> str:
        """Return whose conversation it is."""
        return self.info.owner

    # --- writing ---

    async def append(self, *messages: Message, expect: int | None = None) -> list[Message]:
        """Store messages at the end of the log, all or none, and return them as stored.

        See `Store.append` for ids, retries and `expect`.
        """
        return await self._thread.append(messages, expect=expect)

    async def add_turn(self, role: Role, content: str, *, id: str | None = None) -> Message:
        """Store one message by its role and text."""
        (stored,) = await self._thread.append([Message(role=role, content=content, id=id or "")])
        return stored

    def exchange(
        self,
        text: str,
        *,
        id: str | None = None,
        author: str | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> Turn:
        """Begin a turn: `async with session.exchange("…") as turn`.

        The user message is stored before the block is entered. An id makes it safe to deliver the
        same request twice: the turn goes on, and once finished, `turn.answer` is the answer.
        """
        message = Message(
            role="user", content=text, id=id or "", author=author, attachments=attachments
        )
        return Turn(self._thread, message)

    # --- reading ---

    async def messages(self, after: int = 0, limit: int = 100) -> list[Message]:
        """Return messages behind a position, oldest first, hidden ones included."""
        return await self._store.read(self.key, after=after, limit=limit)

    async def context(
        self,
        view: str | None = None,
        *,
        budget: int | None = None,
        query: str | None = None,
        newest: bool = True,
    ) -> Context:
        """Return what a model should see now: by a view's name, a budget, or both.

        `newest=False` leaves the newest user message out, for callers who place it themselves.
        `query` is what to recall by, for strategies that recall; others pass over it.
        """
        return await self._thread.context(view, budget=budget, query=query, newest=newest)

    async def status(self) -> Status:
        """Return how much there is, in the log and to be seen."""
        marks = await self._store.scan(Scope(session=self.key), MARKS)
        info = await self.refresh()
        count, tokens = marks_of(marks).hidden_before(info.messages + 1)
        return Status(
            messages=info.messages,
            exchanges=info.exchanges,
            tokens=info.tokens,
            visible_messages=info.messages - count,
            visible_tokens=info.tokens - tokens,
        )

    # --- hiding, branching, details ---

    async def clear(self) -> None:
        """Start afresh: nothing so far is shown any more, and the log keeps all of it."""
        await branching.clear(self._store, self.key)

    async def rewind(self, to: int) -> None:
        """Hide what came after a position; 0 hides all."""
        await branching.rewind(self._store, self.key, to)

    async def fork(self, at: int | None = None, *, id: str | None = None) -> "Session":
        """Return a new session with a copy of this one up to a position, or of all."""
        name = self._thread.ids() if id is None else id
        made = await branching.fork(self._store, await self.refresh(), name, at)
        return Session(replace(self._thread, key=made.key), made)

    async def pin(self, id: str) -> None:
        """Keep a message in every context, by its id."""
        await branching.pin(self._store, self.key, id)

    async def unpin(self, id: str) -> bool:
        """Let go of a pinned message; tell whether it was pinned."""
        return await branching.unpin(self._store, self.key, id)

    async def update(
        self,
        *,
        title: str | None = None,
        tags: Sequence[str] | None = None,
        system_prompt: str | None = None,
        meta: Mapping[str, JSON] | None = None,
    ) -> SessionInfo:
        """Change what is said of the session; None leaves a thing as it is."""
        given = {"title": title, "tags": tags, "system_prompt": system_prompt, "meta": meta}
        changes: dict[str, Any] = {name: v for name, v in given.items() if v is not None}
        self.info = await self._store.put_session(replace(await self.refresh(), **changes))
        return self.info

    async def refresh(self) -> SessionInfo:
        """Return the session's record as it is now."""
        self.info = await self._store.describe(self.key)
        return self.info
