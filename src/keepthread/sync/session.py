"""Sessions and turns, blocking."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from keepthread.memory.notes import add_provided
from keepthread.memory.session import Session as AsyncSession
from keepthread.memory.turn import Turn as AsyncTurn
from keepthread.sync.derive import Wrapper, blocking
from keepthread.sync.loop import Call
from keepthread.types import (
    JSON,
    Attachment,
    Message,
    ProactiveTool,
    SessionInfo,
    SessionKey,
)


class Turn(Wrapper[AsyncTurn]):
    """One turn: a user message, tool calls, an answer; get it from `Session.turn`.

    The methods are those of `keepthread.Turn`, without `await`.
    """

    @property
    def user(self) -> Message:
        """Return the user message, as stored once the turn is entered."""
        return self._wrapped.user

    @property
    def answer(self) -> Message | None:
        """Return the answer, or None before the turn has one."""
        return self._wrapped.answer

    @property
    def number(self) -> int:
        """Return the number of the turn."""
        return self._wrapped.number

    def __enter__(self) -> Self:
        """Store the user message, or find the one stored under its id."""
        self._loop.run(self._wrapped.__aenter__)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close open tool calls if an exception ends the turn."""
        self._loop.run(self._wrapped.__aexit__, kind, error, trace)

    append = blocking(AsyncTurn.append)
    memory_tool = blocking(AsyncTurn.memory_tool)
    context = blocking(AsyncTurn.context)
    finish = blocking(AsyncTurn.finish)
    suspend = blocking(AsyncTurn.suspend)

    def tool(
        self,
        name: str,
        args: Mapping[str, JSON],
        run: Callable[..., object],
        *,
        call_id: str | None = None,
        cache_turns: int = 0,
        side_effects: bool = False,
    ) -> str:
        """See `keepthread.Turn.tool`; `run` is a plain function, called in this thread."""
        call = Call(self._loop)
        return call.run(
            self._wrapped.tool,
            name,
            args,
            call.call_caller(run),
            call_id=call_id,
            cache_turns=cache_turns,
            side_effects=side_effects,
        )

    def delegate(
        self,
        task: str,
        *,
        agent: str | None = None,
        system_prompt: str | None = None,
        snippet: str | None = None,
        facts: bool = False,
        own_facts: bool = True,
        recorded: bool = True,
    ) -> "Turn":
        """Run a task in a child session: `with turn.delegate("…") as child`.

        See `keepthread.Turn.delegate`.
        """
        child = self._wrapped.delegate(
            task,
            agent=agent,
            system_prompt=system_prompt,
            snippet=snippet,
            facts=facts,
            own_facts=own_facts,
            recorded=recorded,
        )
        return Turn(self._loop, child)


class Session(Wrapper[AsyncSession]):
    """One conversation; get it from `Memory.session`.

    The methods are those of `keepthread.Session`, without `await`.
    """

    @property
    def info(self) -> SessionInfo:
        """Return the session's data as last read; `refresh` reads it again."""
        return self._wrapped.info

    @property
    def id(self) -> str:
        """Return the session's id."""
        return self._wrapped.id

    @property
    def key(self) -> SessionKey:
        """Return the key of this life of the session."""
        return self._wrapped.key

    @property
    def owner(self) -> str:
        """Return whose conversation it is."""
        return self._wrapped.owner

    # --- writing ---

    append = blocking(AsyncSession.append)
    align = blocking(AsyncSession.align)
    add_answer = blocking(AsyncSession.add_answer)
    recall = blocking(AsyncSession.recall)
    additions = blocking(AsyncSession.additions)
    drop_addition = blocking(AsyncSession.drop_addition)
    add_message = blocking(AsyncSession.add_message)
    add_turn = blocking(AsyncSession.add_turn)

    def turn(
        self,
        text: str,
        *,
        id: str | None = None,
        author: str | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> Turn:
        """Begin a turn: `with session.turn("…") as turn`; see `keepthread.Session.turn`."""
        turn = self._wrapped.turn(text, id=id, author=author, attachments=attachments)
        return Turn(self._loop, turn)

    def resume_turn(self, id: str) -> Turn:
        """Continue a turn: `with session.resume_turn(id) as turn`; see `keepthread.Session`."""
        return Turn(self._loop, self._wrapped.resume_turn(id))

    def add_note(
        self,
        key: str,
        text: str,
        *,
        tools: Iterable[ProactiveTool] = (),
        once: bool = True,
        turns: int | None = None,
    ) -> bool:
        """See `keepthread.Session.add_note`; `tools` is iterated in this thread."""
        return self._loop.run(
            self._wrapped.add_note, key, text, tools=[*tools], once=once, turns=turns
        )

    def provide(self, data: Mapping[str, JSON]) -> list[str]:
        """See `keepthread.Session.provide`; the providers are called in this thread."""
        call = Call(self._loop)
        conversation = self._wrapped._conversation  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - hidden from users only
        providers = {
            key: call.tool_in_caller(provider) for key, provider in conversation.providers.items()
        }
        return call.run(add_provided, conversation, providers, data)

    # --- reading ---

    def messages(
        self, after: int = 0, limit: int | None = None, *, before: int | None = None
    ) -> list[Message]:
        """Return messages after a position, or before one, oldest first, hidden ones included.

        Without a limit they are all of the log. A log that does not fit into memory is read in
        parts: `messages(after=seq, limit=1000)`. With `before`, a limit means the newest of them.
        """
        return self._loop.run(self._wrapped.messages(after, limit, before=before).read)

    full_text = blocking(AsyncSession.full_text)
    context = blocking(AsyncSession.context)
    explanations = blocking(AsyncSession.explanations)
    rebuild = blocking(AsyncSession.rebuild)
    status = blocking(AsyncSession.status)

    # --- tool results and summaries ---

    cache_tool = blocking(AsyncSession.cache_tool)
    cached_tool = blocking(AsyncSession.cached_tool)
    cached_tools = blocking(AsyncSession.cached_tools)
    compact = blocking(AsyncSession.compact)

    # --- hiding, forking, editing ---

    clear = blocking(AsyncSession.clear)
    rewind = blocking(AsyncSession.rewind)
    unhide = blocking(AsyncSession.unhide)

    def fork(self, at: int | None = None, *, id: str | None = None) -> "Session":
        """See `keepthread.Session.fork`."""
        return Session(self._loop, self._loop.run(self._wrapped.fork, at, id=id))

    pin = blocking(AsyncSession.pin)
    unpin = blocking(AsyncSession.unpin)
    pins = blocking(AsyncSession.pins)
    hidden = blocking(AsyncSession.hidden)
    compactions = blocking(AsyncSession.compactions)
    update = blocking(AsyncSession.update)
    refresh = blocking(AsyncSession.refresh)
