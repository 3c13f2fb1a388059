"""A session as programs use it: append, ask for a context, take turns, hide, fork, pin."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from keepthread.context.context import Context
from keepthread.context.ids import derived_ids
from keepthread.errors import InvalidInput, KeepthreadError, MessageNotFound, Stale
from keepthread.memory import history as branching
from keepthread.memory.additions import (
    AddedTo,
    Addition,
    Additions,
    drop_addition,
    make_addition,
    read_additions,
)
from keepthread.memory.alignment import Aligned, align, answer
from keepthread.memory.conversation import Conversation
from keepthread.memory.material import marks_of, newest_summary
from keepthread.memory.messages import Messages
from keepthread.memory.notes import add_note, add_provided
from keepthread.memory.rebuild import Rebuilt, rebuild
from keepthread.memory.summaries import Costs, costs_of
from keepthread.memory.tool_cache import Recorded
from keepthread.memory.tool_calls import pair, text_of, tool_request
from keepthread.memory.turn import Turn
from keepthread.memory.why_log import Explanation
from keepthread.protocols import Progress
from keepthread.stores.kinds import COSTS, MARKS
from keepthread.stores.records import forgotten_session
from keepthread.stores.validation import check_count, check_id, check_message
from keepthread.types import (
    JSON,
    Attachment,
    CachedTool,
    Hidden,
    Message,
    ProactiveTool,
    Role,
    Scope,
    SessionInfo,
    SessionKey,
    Summary,
)


class Status(NamedTuple):
    """How much a session holds, in the log and as contexts see it."""

    messages: int
    turns: int
    tokens: int
    visible_messages: int
    visible_tokens: int
    summary_bytes: int
    """Size of the newest usable summary; 0 if there is none."""
    cached_tools: int
    """Cached tool results that can still be used."""
    costs: Costs
    """Tokens and calls that models took for the summaries."""

    @property
    def compressions(self) -> int:
        """Return how many summaries a model compressed."""
        return self.costs.compressions

    @property
    def refusals(self) -> int:
        """Return how many answers of a model could not be used."""
        return self.costs.refused


class Session:
    """One conversation; get it from `Memory.session`."""

    def __init__(self, conversation: Conversation, info: SessionInfo) -> None:
        """Wrap a stored session."""
        self._conversation = conversation
        self._store = conversation.store
        self.info = info

    @property
    def id(self) -> str:
        """Return the session's id."""
        return self.info.id

    @property
    def key(self) -> SessionKey:
        """Return the key of the session, which differs after it is deleted and created again."""
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
        stored = await self._conversation.append(messages, expect=expect)
        self._conversation.maintenance.after_append(self.key, stored)
        return stored

    async def align(self, messages: Sequence[Message]) -> Aligned:
        """Make the log continue with the history that a client sends again with every request.

        Messages that the log has are kept, new ones are appended, and those that the client no
        longer has are hidden, as by `rewind`. A history without its oldest messages continues where
        it is found in the log; one that is not found is appended. Messages are compared by their
        role, text and calls, not by their ids; results of tools by their calls. Concurrent calls
        are safe and store nothing twice.
        """
        texts = self._conversation.large_texts
        compared = [texts.shortened(check_message(message)) for message in messages]
        given = [replace(message, id="") for message in messages]
        return await align(self._store, self.key, given, compared, self._append_at)

    async def add_answer(
        self, *messages: Message, after: int, hide_late: bool = True
    ) -> list[Message]:
        """Store the answer to the message at a position, and return it as stored.

        For logs that `align` keeps; `after` is its `last`. An answer that the log has is not stored
        again. An earlier one to that message is hidden, as the client asked again. If the
        conversation has continued without the answer, it is stored and, with `hide_late`, hidden.
        """
        check_count(after, "after")
        given = [replace(m, id=m.id or self._conversation.ids()) for m in messages]
        if not given:
            return []
        return await answer(
            self._store, self.key, after, given, self._append_at, hide_late=hide_late
        )

    async def _append_at(self, messages: Sequence[Message], end: int) -> list[Message]:
        return await self.append(*messages, expect=end)

    async def add_message(self, role: Role, content: str, *, id: str | None = None) -> Message:
        """Store one message by its role and text."""
        (stored,) = await self.append(Message(role=role, content=content, id=id or ""))
        return stored

    add_turn = add_message

    def turn(
        self,
        text: str,
        *,
        id: str | None = None,
        author: str | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> Turn:
        """Begin a turn: `async with session.turn("…") as turn`.

        The user message is stored before the block is entered. An id makes it safe to deliver the
        same request twice: the turn resumes, and once finished, `turn.answer` is the answer.
        """
        message = Message(
            role="user", content=text, id=id or "", author=author, attachments=attachments
        )
        return Turn(self._conversation, message)

    def resume_turn(self, id: str) -> Turn:
        """Continue a turn that was begun elsewhere: `async with session.resume_turn(id) as turn`.

        `id` is that of its user message; `MessageNotFound` is raised if there is none. The turn
        knows its open tool calls, and after `turn.suspend()` also what its last context showed.
        Several processes may resume a turn: it has one answer.
        """
        if self.info.kind == "delegate":
            raise InvalidInput(
                "a delegated task cannot be resumed directly: delegate it again from its turn"
            )
        message = Message(role="user", id=check_id(id, "a message id"))
        return Turn(self._conversation, message, resumes=True)

    async def add_note(
        self,
        key: str,
        text: str,
        *,
        tools: Iterable[ProactiveTool] = (),
        once: bool = True,
        turns: int | None = None,
    ) -> bool:
        """Add text that the program knows, such as an open file; return whether this call added it.

        It is shown as a quotation at its place in the log, and the newest note of a key stays in
        the context after the window has passed it. With `once`, it is not added while the session
        has a note of that key, from any caller; without, not while that note has the same text.
        With `turns=N` it holds in this turn and the N - 1 after it. `tools` are recorded and cached
        with it, as if the model had called them.
        """
        return await add_note(self._conversation, key, text, tools=tools, once=once, turns=turns)

    async def provide(self, data: Mapping[str, JSON]) -> list[str]:
        """Ask the memory's providers for notes; return the keys of the notes that this call added.

        A provider is asked with the program's `data` while the session has no note of its key: once
        for a session, and again after `clear`. Its note and tool results are added as by
        `add_note`. Errors of a provider are raised, and the next call asks it again.
        """
        return await add_provided(self._conversation, self._conversation.providers, data)

    # --- reading ---

    def messages(
        self, after: int = 0, limit: int | None = None, *, before: int | None = None
    ) -> Messages:
        """Return messages after a position, or before one, oldest first, hidden ones included.

        `async for message in session.messages()` reads them page by page; `await` returns a list.
        Without a limit they are all that the log has when reading begins. With `before`, a limit
        means the newest of them, so that a page of history begins where the last one ended:
        `before=page[0].seq`.
        """
        return Messages(self._store, self.key, after, limit, before)

    async def context(
        self,
        view: str | None = None,
        *,
        budget: int | None = None,
        query: str | None = None,
        newest: bool = True,
        text: bool = False,
    ) -> Context:
        """Return the context for a model: by a view's name, a budget, or both.

        `newest=False` leaves the newest user message out, for callers who place it themselves.
        `query` is the text to search by, for strategies that recall; others ignore it. `text=True`
        is for callers who only use `.text`: its budget counts what the text takes, and no more.
        """
        return await self._conversation.context(
            view, budget=budget, query=query, newest=newest, text=text
        )

    async def recall(
        self, key: str, query: str, *, budget: int, shown_from: int = 0, wait: bool = True
    ) -> Additions:
        """Return what the memory knows about a question, as a quotation to add to a prompt.

        For programs that build prompts themselves. `key` names the turn that the text is added to:
        a second call returns the same text. `shown_from` is the first position of this session that
        the prompt shows. Additions of earlier turns are returned, too, and not repeated. Without
        `wait`, the text is stored in the background; the next call waits for it.
        """
        question = AddedTo(key, query, shown_from)
        return await make_addition(self._conversation, question, budget, wait=wait)

    async def additions(self) -> list[Addition]:
        """Return what `recall` gave before; if a message in it was forgotten, it is gone."""
        return await read_additions(self._conversation)

    async def drop_addition(self, key: str) -> bool:
        """Drop what `recall` gave for a turn, as the prompt was sent without it."""
        return await drop_addition(self._conversation, key)

    async def full_text(self, message: Message | str) -> str:
        """Return all of a message's text, given the message or its id.

        The log keeps a part of a text over 1 MiB, and all of it is a blob.
        """
        if isinstance(message, str):
            found = await self._store.find(self.key, ids=[check_id(message, "a message id")])
            if not found:
                raise MessageNotFound(f"session {self.id!r} has no message {message!r}")
            message = found[0]
        return await self._conversation.large_texts.full_text(check_message(message))

    async def explanations(self, limit: int = 10) -> list[Explanation]:
        """Return the explanations of the latest contexts, newest first.

        They are kept if the memory was opened with `keep_why`.
        """
        return await self._conversation.choice_log.newest(self.key, check_count(limit, "limit"))

    async def rebuild(self, explanation: Explanation) -> Rebuilt:
        """Return the prompt of an earlier context, built again from its explanation.

        It says whether that is exactly the prompt that was shown, and what changed since. The
        explanation is one of this session's own; another one rebuilds nothing.
        """
        return await rebuild(self._conversation, explanation)

    async def status(self) -> Status:
        """Return the sizes of the log, its visible part, the summary and the tool cache."""
        scope = Scope(session=self.key)
        marks = marks_of(await self._store.scan(scope, MARKS))
        info = await self.refresh()
        end = info.messages + 1
        summary = await newest_summary(self._store, self.key, marks.hidden, before=end)
        costs = await self._store.get(scope, COSTS, COSTS)
        count, tokens = marks.hidden_before(end)
        return Status(
            messages=info.messages,
            turns=info.turns,
            tokens=info.tokens,
            visible_messages=info.messages - count,
            visible_tokens=info.tokens - tokens,
            summary_bytes=len(summary.text.encode("utf-8", "surrogatepass")) if summary else 0,
            cached_tools=len(await self.cached_tools()),
            costs=costs_of(costs.value if costs else None),
        )

    # --- cached tool results ---

    async def cache_tool(
        self,
        name: str,
        args: Mapping[str, JSON],
        result: JSON,
        cache_turns: int,
        *,
        author: str | None = None,
        id: str | None = None,
    ) -> None:
        """Record a call and its result, and cache the result for `cache_turns` turns.

        For programs that run tools themselves; see `Turn.tool` for those that do not. An `id` makes
        it safe to record the same result twice.
        """
        conversation, cache = self._conversation, self._conversation.cache
        request, text = tool_request(name, args), text_of(result)
        cache.key(request, author)  # checks the author before anything is recorded
        check_count(cache_turns, "cache_turns")
        turn = await conversation.tool_turn()
        ids = conversation.ids
        if id is not None:
            ids = derived_ids("cached tool", self.key, check_id(id, "id"))
        call, answer = await conversation.append(pair(request, text, ids))
        if cache_turns:
            await cache.remember(request, author, turn, cache_turns, Recorded(call.id, answer))
            conversation.maintenance.remembers(cache.session)

    async def cached_tool(
        self, name: str, args: Mapping[str, JSON], *, author: str | None = None
    ) -> str | None:
        """Return a cached result, or None; its lifetime starts again."""
        turn = await self._conversation.tool_turn()
        return await self._conversation.cache.find(tool_request(name, args), author, turn)

    async def cached_tools(self) -> list[CachedTool]:
        """Return the cached results that can still be used, oldest first."""
        return await self._conversation.cache.remembered(await self._conversation.tool_turn())

    async def compact(self, *, progress: Progress | None = None) -> int:
        """Compact the turns that are due into the summary; return how many compactions it took.

        Otherwise that happens automatically after `finish`, if a view's strategy needs summaries.
        `progress` gets the number of compacted turns and of those that are due.
        """
        return await self._conversation.maintenance.compactor.compact(
            self.key, wait=True, progress=progress
        )

    # --- hiding, branching, details ---

    async def clear(self) -> None:
        """Start over: contexts no longer show earlier messages; the log keeps them."""
        await branching.clear(self._store, self.key)

    async def rewind(self, to: int) -> None:
        """Hide the messages after a position; 0 hides all."""
        await branching.rewind(self._store, self.key, to)

    async def fork(self, at: int | None = None, *, id: str | None = None) -> "Session":
        """Return a new session with a copy of this one, up to a position if given."""
        name = self._conversation.ids() if id is None else id
        made = await branching.fork(
            self._store, await self.refresh(), name, at, self._conversation.blobs
        )
        return Session(self._conversation._replace(id=made.id, key=made.key, tools=None), made)

    async def pin(self, id: str) -> None:
        """Include a message in every context, by its id."""
        await branching.pin(self._store, self.key, id)

    async def unpin(self, id: str) -> bool:
        """Unpin a message; return whether it was pinned."""
        return await branching.unpin(self._store, self.key, id)

    async def pins(self) -> list[Message]:
        """Return the pinned messages, oldest first."""
        return await branching.pinned(self._store, self.key)

    async def unhide(self) -> Hidden | None:
        """Undo the latest `clear` or `rewind`, and return the range that is visible again.

        Returns None if nothing is hidden, or if messages were added since.
        """
        return await branching.unhide(self._store, self.key)

    async def hidden(self) -> list[Hidden]:
        """Return the ranges of messages that contexts skip, oldest first, each with the reason.

        The reason is `cleared` or `rewound`.
        """
        return await branching.hidden(self._store, self.key)

    async def compactions(self, limit: int = 10) -> list[Summary]:
        """Return the newest summaries of the session, newest first.

        Each covers everything visible up to its position. Most of the older ones are dropped in
        time; the log keeps the messages.
        """
        count = check_count(limit, "limit")
        return await branching.compactions(self._store, self.key, count)

    async def update(
        self,
        *,
        title: str | None = None,
        title_from: str | None = None,
        tags: Sequence[str] | None = None,
        system_prompt: str | None = None,
        meta: Mapping[str, JSON] | None = None,
        version: str | None = None,
    ) -> SessionInfo:
        """Change the session's title, prompt or metadata; None leaves a field as it is.

        Only the given fields are written, so concurrent changes of other fields stay. With the
        `version` of the `SessionInfo` that the change is based on, it is refused with `Stale` if
        any field was changed since. `title_from` is the id of the message that a title was made
        from: the title is then erased with it.
        """
        given = {"title": title, "tags": tags, "system_prompt": system_prompt, "meta": meta}
        changes: dict[str, Any] = {name: v for name, v in given.items() if v is not None}
        while True:
            seen = await self.refresh()
            if seen.forgotten:
                raise forgotten_session()
            if title is not None:
                changes["title_seq"] = 0 if title_from is None else await self._live_seq(title_from)
            if version is not None and seen.version != version:
                raise Stale(f"session {self.id!r} was changed since version {version}")
            # `Stale`: the same field was changed, or a message erased, since. The later call wins,
            # unless it names a version.
            with suppress(Stale):
                self.info = await self._store.put_session(
                    replace(seen, **changes), seen=seen, whole=version is not None
                )
                return self.info

    async def _live_seq(self, id: str) -> int:
        """Return the position of a message that is not erased."""
        found = await self._store.find(self.key, ids=[check_id(id, "a message id")])
        live = [message.seq for message in found if message.state == "live"]
        if not live:
            raise MessageNotFound(f"session {self.id!r} has no message {id!r}")
        return live[0]

    async def refresh(self) -> SessionInfo:
        """Return the session's record as it is now."""
        self.info = await self._store.describe(self.key)
        return self.info


_LONGEST_TITLE: Final = 60


def title_of(text: str) -> str:
    """Return the first line of a text, shortened to what a list shows."""
    line = next((line for line in text.splitlines() if line.strip()), "").strip()
    return line if len(line) <= _LONGEST_TITLE else f"{line[: _LONGEST_TITLE - 1].rstrip()}…"


async def entitle(session: Session, question: Message) -> None:
    """Title an untitled session after a question; failures are ignored."""
    title = title_of(question.content)
    with suppress(KeepthreadError):
        # It may have been renamed in the meantime.
        if title and not session.info.title and not (await session.refresh()).title:
            await session.update(title=title, title_from=question.id)
