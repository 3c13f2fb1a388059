"""Types that the parts of the proxy share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

from keepthread.types import Message

WireName = Literal["openai-chat", "openai-responses", "anthropic"]
"""The API that a request speaks."""

Mode = Literal["alongside", "thread", "aside", "off"]
"""How the memory takes part in a request.

alongside: the client sends the whole history, and recall and facts are added to its newest turn.
thread: the client sends one turn and names a session, and the context is built from the log.
aside: the provider keeps the history, and the request is only recorded.
off: the request is relayed as it is.
"""


class ClientIdentity(NamedTuple):
    """Which conversation a request belongs to, as the client names it."""

    session: str | None = None
    """The client's name of the conversation; None if it names none."""
    agent: str | None = None
    """The sub-agent that speaks: its requests go to a child session."""
    user: str | None = None
    """The user that the client names; it is a label of messages, never an owner."""
    is_side: bool = False
    """Whether the request is about the conversation, not part of it: a title, tags, a summary."""


class TextPlace(NamedTuple):
    """Where a text can be added to a turn of a request."""

    at: int
    """The position in the text of the request."""
    before: str
    """JSON before the added text, such as `,{"type":"text","text":"`."""
    after: str
    """JSON after it."""


class UserTurn(NamedTuple):
    """A turn of the user in a request."""

    digest: str
    """A hash of the conversation up to this turn, without what the proxy has added."""
    text: str
    """The text that the user wrote."""
    place: TextPlace | None
    """None if nothing can be added there, such as between a tool call and its result."""


@dataclass(frozen=True, kw_only=True)
class ReadRequest:
    """A request of a client, as far as the proxy understands it."""

    wire: WireName
    text: str
    """Its JSON, as the client wrote it."""
    model: str
    messages: Sequence[Message]
    """The history that it sends, without a system prompt."""
    turns: Sequence[UserTurn]
    """The turns of the user, oldest first."""
    ends_with_user: bool
    """Whether the newest turn is the user's question, not the result of a tool."""
    items: tuple[int, int]
    """Where the array of the history is in the text, from its `[` to after its `]`."""
    leading: int = 0
    """Items at its beginning that are a system prompt (OpenAI's chat)."""
    identity: ClientIdentity = field(default_factory=ClientIdentity)
    mode: Mode = "alongside"
    streams: bool = False
    is_late: bool = False
    """Whether it was relayed before the memory was asked: later requests may be recorded by now."""
    unread: int = 0
    """Items or parts of the history that no message can hold: they are relayed, not recorded."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The decision of the memory about a request, before it is sent on."""

    mode: Mode
    session: str | None = None
    """The session that it is recorded in; None if it is not recorded."""
    additions: Mapping[str, str] = field(default_factory=dict[str, str])
    """Texts to add to turns, by the digests of the turns: new ones, and earlier ones again."""
    history: str | None = None
    """The JSON array that replaces the history, in the mode `thread`."""
    tokens_added: int = 0
    why: str | None = None
    """The id of the explanation."""
    state: Literal["recorded", "not-recorded", "unavailable"] = "recorded"
    reason: str = ""
    """Why it is not recorded, in a few words for a header."""
    recording: object = None
    """What `record` needs."""


class ProviderAnswer(NamedTuple):
    """The answer of a provider, as far as it arrived."""

    messages: Sequence[Message]
    complete: bool
    """Whether the end marker of the wire arrived."""


class AnswerReader(Protocol):
    """Reads an answer while its bytes pass by. It keeps no bytes that it does not need."""

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the body, after content encodings are removed."""
        ...

    def finish(self) -> ProviderAnswer | None:
        """Return the answer at the end of the body; None if it holds none, such as an error."""
        ...


class MemoryOfProxy(Protocol):
    """The memory of one owner, as the proxy uses it."""

    async def addition_key(self) -> bytes:
        """Return what signs additions for this owner; it is always the same."""
        ...

    async def prepare(self, request: ReadRequest, *, records: bool = True) -> Prepared:
        """Record the newest messages of a request, and decide what is added to it.

        Without `records` nothing is stored: the request only counts tokens.
        """
        ...

    async def record(self, prepared: Prepared, answer: ProviderAnswer | None) -> None:
        """Record an answer; None says that the provider gave none."""
        ...
