"""The sockets: what a backend, a counter or another part must do to fit into the house."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

from keepthread.protocols.store import Progress as Progress
from keepthread.protocols.store import Searchable as Searchable
from keepthread.protocols.store import Store as Store
from keepthread.protocols.store import TokenCounter as TokenCounter
from keepthread.types import (
    JSON,
    Digest,
    Embedding,
    Hidden,
    Importance,
    Message,
    Origin,
    Reply,
    Selection,
    SessionKey,
    Shortened,
    Summary,
    Tool,
)

Need: TypeAlias = Literal["facts", "summaries", "recall"]
"""Material that is read only for strategies that need it."""


class CachedResult(NamedTuple):
    """A remembered tool result as it can be shown by itself: a call, and what came of it."""

    call: Message
    result: Message
    left: int
    """Turns in which it still serves, this one included."""
    cache_turns: int


class History(NamedTuple):
    """What is known of the messages before a window."""

    summary: Summary | None = None
    gap: Sequence[Message] = ()
    """The newest messages between summary and window, which no summary that serves stands for."""
    digests: Mapping[int, Digest] = {}
    """Long answers in short, by position."""
    kept: Sequence[tuple[Message, Importance]] = ()
    """Important messages before the window, oldest first."""


class Known(NamedTuple):
    """A fact, as a context may show it."""

    key: str
    text: str
    always: bool
    """Whether it belongs to the profile, which is shown whatever is asked."""
    score: float
    """How much it bears on what is asked, or matters in the profile; the highest goes first."""
    reason: str
    trust: Origin = "user"
    """The least trusted origin it comes from; the owner's, once its owner has confirmed it."""
    messages: Sequence[tuple[str, int]] = ()
    """The session id and position of each message it comes from."""


class Recollection(NamedTuple):
    """A piece of an old message that bears on what is asked."""

    session: SessionKey
    id: str
    """The session's id."""
    message: Message
    text: str
    """The piece itself."""
    part: int
    """Which piece of the message it is, from 0."""
    sitting: float
    """When the run of messages began that it stands in, in seconds since 1970."""
    score: float
    reason: str


class Recalled(NamedTuple):
    """What was recalled for a context, the best first."""

    hits: Sequence[Recollection] = ()
    notes: Sequence[str] = ()
    """What kept it from being better: not all is indexed, the model was too slow."""


class Material(NamedTuple):
    """All that a strategy may choose from; everything it needs to know is here.

    `messages` are the newest visible ones, oldest first; `totals` their running token totals,
    hidden messages left out. `earlier` is how many visible ones are before them.
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
    pins: Sequence[Message] = ()
    hidden: Sequence[Hidden] = ()
    query: str | None = None
    """What to recall by; the newest user message if it is None."""
    recounted: int = 0
    """The newest position whose tokens were counted again here, for another counter stored them."""
    turn: int = 0
    """The turn a model is to answer."""
    passed: int = 0
    """The position of a newest user message that is to be left out."""
    notes: Sequence[Message] = ()
    """What the program told, as far as it is to be held on to, oldest first."""
    live: Sequence[CachedResult] = ()
    """Remembered tool results, oldest first."""
    fence: str = ""
    """What no remembered text can know: the fence around quotations."""
    past: History = History()
    facts: Sequence[Known] = ()
    recalls: bool = False
    """Whether anything can be recalled here."""
    recalled: Recalled = Recalled()


class WindowStart(NamedTuple):
    """Where a window starts, and the position whose arrival made it start there."""

    first: int
    stepped: int


class RecallRequest(NamedTuple):
    """What a context asks of recall."""

    room: int
    """The tokens that recalled messages may take."""
    before: int = 0
    """The first position of this session that the context shows anyway; 0 if it shows none."""
    everywhere: bool = True
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
    """Says a text in fewer bytes."""

    @property
    def name(self) -> str:
        """Name the way of shortening; it is kept with what came of it."""
        ...

    async def shorten(self, text: str, *, limit: int) -> Shortened:
        """Return the text in at most `limit` bytes of UTF-8, what matters kept."""
        ...


class Scorer(Protocol):
    """Tells what is worth keeping word for word, without a model."""

    def score(self, message: Message) -> Importance | None:
        """Return how much a message matters and why, or None if it is like any other."""
        ...


class ChatModel(Protocol):
    """Answers a conversation."""

    @property
    def name(self) -> str:
        """Name the model, as its provider does."""
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
        """Return the whole answer; with a `schema`, its content is JSON that obeys it."""
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
        """Yield the answer piece by piece, and at the end the whole of it."""
        ...


class Embedder(Protocol):
    """Says texts in vectors, such that what means the same is near."""

    @property
    def name(self) -> str:
        """Name the model; it is stored with its vectors, and another's are made anew."""
        ...

    @property
    def by_token(self) -> bool:
        """Tell whether each token gets a vector; else each text gets one."""
        ...

    async def embed(self, texts: Sequence[str]) -> Sequence[Embedding]:
        """Return the vectors of each text."""
        ...


class OpenSpan(Protocol):
    """A span that has begun, as OpenTelemetry has it."""

    def set_attribute(self, key: str, value: str | bool | int | float) -> object:
        """Note something of what is being done."""
        ...

    def set_status(self, status: Any) -> object:
        """Say how it went."""
        ...


class Tracer(Protocol):
    """Times what is done; OpenTelemetry's tracers fit."""

    def start_as_current_span(
        self,
        name: str,
        *,
        attributes: Mapping[str, str | bool | int | float],
        record_exception: bool,
        set_status_on_exception: bool,
    ) -> AbstractContextManager[OpenSpan]:
        """Begin a span that lasts as long as the block, and is around those begun in it."""
        ...
