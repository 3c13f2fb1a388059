"""A session on a server: the same calls as a session in this process."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from keepthread.context.context import Context
from keepthread.errors import InvalidInput, NotFound, Unsupported
from keepthread.memory.additions import Addition, Additions
from keepthread.memory.alignment import Aligned
from keepthread.memory.messages import Messages
from keepthread.memory.rebuild import PromptChange, Rebuilt
from keepthread.memory.remote.connection import given, segment
from keepthread.memory.remote.requests import (
    PAGE,
    RemoteContext,
    RemoteMessages,
    Requests,
    context_body,
    message_body,
)
from keepthread.memory.remote.turn import RemoteTurn
from keepthread.memory.remote.values import from_json
from keepthread.memory.session import Session, Status
from keepthread.memory.turn import Turn
from keepthread.memory.why_log import Explanation
from keepthread.protocols import Progress
from keepthread.stores.codec import new_id
from keepthread.stores.validation import check_count, check_id, check_message
from keepthread.types import (
    JSON,
    Attachment,
    CachedTool,
    Hidden,
    Message,
    ProactiveTool,
    SessionInfo,
    Summary,
)

T = TypeVar("T")


class RemoteSession(Session):
    """One conversation on a server; get it from `Memory.session`."""

    def __init__(self, requests: Requests, info: SessionInfo) -> None:
        """Wrap a session of an owner."""
        self._owner_requests = requests
        self._requests = requests.below(f"/sessions/{segment(info.id)}")
        self._connection = requests.connection
        self.info = info

    # --- writing ---

    async def append(self, *messages: Message, expect: int | None = None) -> list[Message]:
        """Store messages at the end of the log, all or none, and return them as stored."""
        body = {"messages": [message_body(each) for each in messages], **given(expect=expect)}
        if not messages:
            return []
        return await self._requests.page(Message, "POST", "/messages", body)

    async def align(self, messages: Sequence[Message]) -> Aligned:
        """Make the log continue with the history that a client sends again with every request."""
        body: dict[str, JSON] = {"messages": [message_body(each) for each in messages]}
        done = await self._requests.json("POST", "/messages/align", body, once=True)
        return from_json(Aligned, done)

    async def add_answer(
        self, *messages: Message, after: int, hide_late: bool = True
    ) -> list[Message]:
        """Raise `Unsupported`: a log that `align` keeps is kept where the store is opened."""
        del messages, after, hide_late
        raise _not_over_http()

    async def recall(
        self, key: str, query: str, *, budget: int, shown_from: int = 0, wait: bool = True
    ) -> Additions:
        """Raise `Unsupported`: prompts are added to where the store is opened."""
        del key, query, budget, shown_from, wait
        raise _not_over_http()

    async def additions(self) -> list[Addition]:
        """Raise `Unsupported`; see `recall`."""
        raise _not_over_http()

    async def drop_addition(self, key: str) -> bool:
        """Raise `Unsupported`; see `recall`."""
        del key
        raise _not_over_http()

    def turn(
        self,
        text: str,
        *,
        id: str | None = None,
        author: str | None = None,
        attachments: Sequence[Attachment] = (),
    ) -> Turn:
        """Begin a turn: `async with session.turn("…") as turn`."""
        message = Message(
            role="user",
            content=text,
            id=id or new_id(),
            author=author,
            attachments=attachments,
        )
        return RemoteTurn(self.id, self._requests, message)

    def resume_turn(self, id: str) -> Turn:
        """Continue a turn that was begun elsewhere, by the id of its user message."""
        message = Message(role="user", id=check_id(id, "a message id"))
        return RemoteTurn(self.id, self._requests, message, resumes=True)

    async def add_note(
        self,
        key: str,
        text: str,
        *,
        tools: Iterable[ProactiveTool] = (),
        once: bool = True,
        turns: int | None = None,
    ) -> bool:
        """Add text that the program knows, such as an open file; return whether this call did."""
        shown: list[JSON] = [
            {
                "name": tool.name,
                "arguments": dict(tool.arguments),
                "result": tool.result,
                "cache_turns": tool.cache_turns,
            }
            for tool in tools
        ]
        body = {"key": key, "text": text, "once": once, "tools": shown, **given(turns=turns)}
        return (await self._requests.json("POST", "/notes", body, once=True))["changed"]

    async def provide(self, data: Mapping[str, JSON]) -> list[str]:
        """Ask the server's providers for notes; return the keys of those that this call added."""
        body = {"data": dict(data)}
        return (await self._requests.json("POST", "/provide", body, once=True))["keys"]

    # --- reading ---

    def messages(
        self, after: int = 0, limit: int | None = None, *, before: int | None = None
    ) -> Messages:
        """Return messages after a position, or before one, oldest first, hidden ones included."""
        return RemoteMessages(self._requests, after, limit, before)

    async def context(
        self,
        view: str | None = None,
        *,
        budget: int | None = None,
        query: str | None = None,
        newest: bool = True,
        text: bool = False,
    ) -> Context:
        """Return what a model should see now: by a view's name, a budget, or both."""
        body = context_body(view, budget, query, newest=newest, text=text)
        return RemoteContext(await self._requests.json("POST", "/context", body), is_text=text)

    async def full_text(self, message: Message | str) -> str:
        """Return all of a message's text, given the message or its id."""
        id = check_message(message).id if isinstance(message, Message) else message
        path = f"/messages/{segment(check_id(id, 'a message id'))}/text"
        return (await self._requests.json("GET", path))["text"]

    async def explanations(self, limit: int = 10) -> list[Explanation]:
        """Return the explanations of the latest contexts, newest first, as far as they are kept."""
        return await self._newest(Explanation, "/explanations", limit)

    async def rebuild(self, explanation: Explanation) -> Rebuilt:
        """Return the prompt of an earlier context, built again by the server.

        The server finds the explanation among those that it keeps.
        """
        if not isinstance(explanation, Explanation):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput("rebuild takes an explanation, one of `session.explanations()`")
        body = {"at": explanation.at, "view": explanation.view, "turn": explanation.turn}
        found = await self._requests.json("POST", "/rebuild", body)
        context = found["context"]
        return Rebuilt(
            found["matches"],
            None if context is None else RemoteContext(context, is_text=False),
            tuple(from_json(Message, each) for each in found["messages"]),
            tuple(from_json(PromptChange, each) for each in found["changes"]),
        )

    async def status(self) -> Status:
        """Return the size of the log, of its visible part, of the summary and of the tool cache."""
        return from_json(Status, await self._requests.json("GET", "/status"))

    # --- remembered tool results ---

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
        """Record a call and its result, and cache the result for `cache_turns` turns."""
        body = {
            "name": name,
            "arguments": dict(args),
            "result": result,
            "cache_turns": cache_turns,
            **given(author=author, id=id),
        }
        await self._requests.json("POST", "/tools", body, once=True)

    async def cached_tool(
        self, name: str, args: Mapping[str, JSON], *, author: str | None = None
    ) -> str | None:
        """Return a cached result, or None; its lifetime starts again."""
        body = {"name": name, "arguments": dict(args), **given(author=author)}
        return (await self._requests.json("POST", "/tools/find", body))["result"]

    async def cached_tools(self) -> list[CachedTool]:
        """Return the cached results that can still be used, oldest first."""
        return await self._requests.page(CachedTool, "GET", "/tools")

    async def compact(self, *, progress: Progress | None = None) -> int:  # noqa: ARG002 - one request
        """Compact the turns that are due into the summary; return how many compactions it took."""
        return (await self._requests.json("POST", "/compact", once=True))["count"]

    # --- hiding, branching, details ---

    async def clear(self) -> None:
        """Start over: contexts show nothing of what came before; the log keeps all of it."""
        await self._requests.json("POST", "/clear")

    async def rewind(self, to: int) -> None:
        """Hide the messages after a position; 0 hides all."""
        await self._requests.json("POST", "/rewind", {"to": to})

    async def fork(self, at: int | None = None, *, id: str | None = None) -> Session:
        """Return a new session with a copy of this one, up to a position if given."""
        made = await self._requests.json("POST", "/fork", given(at=at, id=id), once=True)
        return RemoteSession(self._owner_requests, from_json(SessionInfo, made))

    async def pin(self, id: str) -> None:
        """Keep a message in every context, by its id."""
        await self._requests.json("PUT", f"/pins/{segment(check_id(id, 'a message id'))}")

    async def unpin(self, id: str) -> bool:
        """Unpin a message; return whether it was pinned."""
        try:
            await self._requests.json("DELETE", f"/pins/{segment(check_id(id, 'a message id'))}")
        except NotFound as error:
            if type(error) is not NotFound:  # the session itself is missing
                raise
            return False
        return True

    async def pins(self) -> list[Message]:
        """Return the pinned messages, oldest first."""
        return await self._requests.page(Message, "GET", "/pins")

    async def unhide(self) -> Hidden | None:
        """Take back the latest `clear` or `rewind`, and return the range that is shown again."""
        shown = await self._requests.page(Hidden, "POST", "/unhide", once=True)
        return shown[0] if shown else None

    async def hidden(self) -> list[Hidden]:
        """Return the ranges of messages that contexts skip, oldest first, each with the reason."""
        return await self._requests.page(Hidden, "GET", "/hidden")

    async def compactions(self, limit: int = 10) -> list[Summary]:
        """Return the newest summaries of the session, newest first."""
        return await self._newest(Summary, "/compactions", limit)

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
        """Change the session's title, prompt or metadata; None leaves a field as it is."""
        body = given(
            title=title,
            title_from=title_from,
            tags=None if tags is None else list(tags),
            system_prompt=system_prompt,
            meta=None if meta is None else dict(meta),
        )
        match = {"If-Match": "*" if version is None else f'"{version}"'}
        route = self._requests.route("PATCH", "", body, headers=match)
        self.info = from_json(SessionInfo, await self._connection.json(route))
        return self.info

    async def refresh(self) -> SessionInfo:
        """Return the session's record as it is now."""
        self.info = from_json(SessionInfo, await self._requests.json("GET", ""))
        return self.info

    # --- inside ---

    async def _newest(self, kind: type[T], path: str, limit: int) -> list[T]:
        """Return the newest values of a list that the server shows one page of."""
        size = min(check_count(limit, "limit"), PAGE)
        return await self._requests.page(kind, "GET", path, query={"limit": size}) if size else []


def _not_over_http() -> Unsupported:
    return Unsupported(
        "this is not available over HTTP; open the store directly, as the proxy does"
    )
