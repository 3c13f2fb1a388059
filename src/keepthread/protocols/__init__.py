"""Protocols: what a store, strategy, model, embedder, counter or tracer must implement."""

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from keepthread.protocols.search import Searchable as Searchable
from keepthread.protocols.store import MadeRecords as MadeRecords
from keepthread.protocols.store import Progress as Progress
from keepthread.protocols.store import Relatives as Relatives
from keepthread.protocols.store import Store as Store
from keepthread.protocols.store import TokenCounter as TokenCounter
from keepthread.protocols.store import Updates as Updates
from keepthread.types import (
    JSON,
    Digest,
    Embedding,
    Hidden,
    Importance,
    Message,
    Origin,
    ProvidedNote,
    Reply,
    Selection,
    SessionKey,
    Shortened,
    Summary,
    Tool,
)

Need: TypeAlias = Literal["facts", "summaries", "recall"]
"""Material that is read only for strategies that need it."""
RecallScope: TypeAlias = Literal["owner", "session"]
"""Where to recall from: all sessions of the owner, or the one that asks."""


class CachedResult(NamedTuple):
    """A cached tool result with its call, so that a context can show the two alone."""

    call: Message
    result: Message
    left: int
    """Turns in which it may still be used, this one included."""
    cache_turns: int
    asked: int = 0
    """The position of the message with the call."""


class History(NamedTuple):
    """Material about the messages before a window."""

    summary: Summary | None = None
    gap: Sequence[Message] = ()
    """The newest messages between summary and window, which no usable summary covers."""
    digests: Mapping[int, Digest] = {}
    """Shortened versions of long answers, by position."""
    important: Sequence[tuple[Message, Importance]] = ()
    """Important messages before the window, oldest first."""


class KnownFact(NamedTuple):
    """A fact that a context may show."""

    key: str
    text: str
    always: bool
    """Whether it belongs to the profile, which is shown for every question."""
    score: float
    """Its relevance to the question, or its weight in the profile; the highest is shown first."""
    reason: str
    trust: Origin = "user"
    """The least trusted origin it comes from; the owner's once the owner has confirmed it."""
    messages: Sequence[tuple[str, str, int]] = ()
    """Owner, session id and position of each message it comes from."""
    version: int = 0
    """The version of its record."""


class Recollection(NamedTuple):
    """A chunk of an old message that is relevant to the question."""

    session: SessionKey
    id: str
    """The session's id."""
    message: Message
    text: str
    """The text of the chunk."""
    part: int
    """The number of the chunk in its message, from 0."""
    segment_start: float
    """When its run of messages began, in seconds since 1970."""
    score: float
    reason: str
    epoch: int = 0
    """The session's epoch when the message was read."""


class Recalled(NamedTuple):
    """The recalled chunks for a context, best first."""

    hits: Sequence[Recollection] = ()
    notes: Sequence[str] = ()
    """Reasons why it may be incomplete: not everything is indexed, the model was too slow."""


class Material(NamedTuple):
    """Everything that a strategy may choose from.

    `messages` are the newest visible ones, oldest first; `totals` their running token totals,
    without hidden messages. `earlier` is the number of visible messages before them.
    """

    counter: TokenCounter
    system_prompt: str = ""
    system_tokens: int = 0
    messages: Sequence[Message] = ()
    totals: Sequence[int] = ()
    first: int = 1
    """The first visible position of the log."""
    earlier: int = 0
    newest_user: Message | None = None
    system_messages: Sequence[Message] = ()
    """System messages of the operator in the log, oldest first."""
    pins: Sequence[Message] = ()
    hidden: Sequence[Hidden] = ()
    query: str | None = None
    """The text to recall by; None means the newest user message."""
    recounted: int = 0
    """The newest position whose tokens had to be counted again: another counter had stored them."""
    turn: int = 0
    """The turn that a model is about to answer."""
    passed: int = 0
    """The position of a newest user message that must be left out."""
    notes: Sequence[Message] = ()
    """The program's notes that are still valid, oldest first."""
    tool_results: Sequence[CachedResult] = ()
    """Cached tool results, oldest first."""
    beyond: Sequence[Literal["pins", "notes", "tools"]] = ()
    """Kinds with more items than are considered here: the latest 100 of each."""
    delimiter: str = ""
    """The random delimiter around quoted text; no stored text contains it."""
    past: History = History()
    facts: Sequence[KnownFact] = ()
    recalls: bool = False
    """Whether anything can be recalled here."""
    recall_scope: RecallScope = "session"
    """Where to recall from, if the strategy does not say: the memory's own setting."""
    is_text: bool = False
    """Whether the context becomes one text, so that no wire adds anything."""
    recalled: Recalled = Recalled()


class WindowStart(NamedTuple):
    """Where a window starts, and the position whose arrival made it start there."""

    first: int
    stepped: int


class RecallRequest(NamedTuple):
    """A context's request to recall."""

    room: int
    """The tokens that recalled messages may use."""
    before: int = 0
    """The first position of this session that the context already shows; 0 if it shows none."""
    everywhere: bool = False
    """Whether to recall from all sessions of the owner, or from this one only."""
    relevant_only: bool = True
    """Whether to leave room empty rather than fill it with messages of little relevance."""


class ContextPlan(Protocol):
    """The first half of a selection: it says what to read before `finish` selects."""

    @property
    def missing(self) -> int:
        """Return the tokens of older messages that would also fit; 0 if none.

        If it is not 0, older messages are read and the strategy plans again, a few times.
        """
        ...

    @property
    def window_start(self) -> WindowStart | None:
        """Return where the window starts; None if nothing before it is to be read."""
        ...

    @property
    def recall(self) -> RecallRequest | None:
        """Return what to recall; None if nothing is."""
        ...

    def finish(self, past: History, recalled: Recalled | None = None) -> Selection:
        """Return what to show within the budget, and the reason for each choice."""
        ...


class Strategy(Protocol):
    """Decides what a model sees; pure: no clock, no disk, no randomness.

    `select` is all that a strategy must have. It may also have the members of `PlannedStrategy`:
    without `needs`, it needs nothing beyond the messages, pins, notes and cached tool results;
    without `plan`, its window is all messages that were read.
    """

    def select(self, material: Material, budget: int) -> Selection:
        """Return what to show within the budget, and the reason for each choice."""
        ...


class PlannedStrategy(Strategy, Protocol):
    """A strategy that says what it needs, and where its window starts before it selects."""

    @property
    def needs(self) -> frozenset[Need]:
        """Return what to read for it.

        "facts": facts about the owner. "summaries": what is before the window; old turns are
        compacted in the background. "recall": messages related to the newest user message.
        """
        ...

    def plan(self, material: Material, budget: int) -> ContextPlan:
        """Return where the window starts and what to recall; `finish` then selects."""
        ...


class Summarizer(Protocol):
    """Shortens texts."""

    @property
    def name(self) -> str:
        """Return the summarizer's name; it is stored with each summary."""
        ...

    async def shorten(self, text: str, *, limit: int) -> Shortened:
        """Return the important parts of the text in at most `limit` bytes of UTF-8."""
        ...


class Scorer(Protocol):
    """Decides which messages are worth keeping word for word, without a model."""

    def score(self, message: Message) -> Importance | None:
        """Return a message's importance and the reason, or None if it has none."""
        ...


class NoteProvider(Protocol):
    """Looks up what a model should know before it asks, such as the screen that a user is on."""

    def __call__(
        self, data: Mapping[str, JSON], /
    ) -> ProvidedNote | Awaitable[ProvidedNote | None] | None:
        """Return a note made from the program's data, or None; it may be asynchronous."""
        ...


class ChatModel(Protocol):
    """Answers a conversation."""

    @property
    def name(self) -> str:
        """Return the model's name at its provider."""
        ...

    async def complete(
        self,
        messages: Sequence[Message],
        *,
        system: str = "",
        tools: Sequence[Tool] = (),
        schema: Mapping[str, JSON] | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        """Return the whole answer; with a `schema`, its content is JSON that matches it."""
        ...

    def stream(
        self,
        messages: Sequence[Message],
        *,
        system: str = "",
        tools: Sequence[Tool] = (),
        schema: Mapping[str, JSON] | None = None,
        max_tokens: int | None = None,
    ) -> AsyncIterator[str | Reply]:
        """Yield the answer's text in pieces, then the whole answer as a `Reply`."""
        ...


class Embedder(Protocol):
    """Turns texts into vectors; texts with similar meaning get vectors that are near each other."""

    @property
    def name(self) -> str:
        """Return the model's name; vectors of a model with another name are computed again."""
        ...

    @property
    def by_token(self) -> bool:
        """Return whether each token gets a vector; otherwise each text gets one."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Embedding]:
        """Return the vectors of each text."""
        ...


class OpenSpan(Protocol):
    """A started span, as in OpenTelemetry."""

    def set_attribute(self, key: str, value: str | bool | int | float) -> object:
        """Set an attribute of the operation."""
        ...

    def set_status(self, status: Any) -> object:
        """Set the outcome."""
        ...


class Tracer(Protocol):
    """Measures operations; OpenTelemetry's tracers implement it."""

    def start_as_current_span(
        self,
        name: str,
        *,
        attributes: Mapping[str, str | bool | int | float],
        record_exception: bool,
        set_status_on_exception: bool,
    ) -> AbstractContextManager[OpenSpan]:
        """Start a span that ends with the block; spans started in the block are its children."""
        ...
