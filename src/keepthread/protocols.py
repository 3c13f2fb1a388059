"""The sockets: what a backend, a counter or another part must do to fit into the house."""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, NamedTuple, Protocol, Self, TypeAlias

from keepthread.types import (
    JSON,
    Cleaning,
    Digest,
    Durability,
    Embedding,
    Found,
    Gathered,
    Hidden,
    Importance,
    Message,
    MessageFilter,
    Origin,
    Part,
    Placed,
    Record,
    Reply,
    Scope,
    Selection,
    SessionInfo,
    SessionKey,
    Shortened,
    Sitting,
    Span,
    Summary,
    Tool,
    Unread,
    Verification,
)

Progress: TypeAlias = Callable[[int, int], None]
"""Called now and then, in another thread, with how much is done and how much there is in all."""

Need: TypeAlias = Literal["facts", "summaries", "recall"]
"""Material that is read only for strategies that need it."""


class TokenCounter(Protocol):
    """Counts what a message costs; the name is stored beside every count."""

    @property
    def name(self) -> str:
        """Name the way of counting, so that counts of another can be told apart."""
        ...

    def count(self, message: Message) -> int:
        """Return the tokens a message takes on any wire, its frame included."""
        ...


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


class Store(Protocol):
    """A log and a shelf, behind a wall: one tenant's messages in order, and records beside them.

    Every method answers or raises one of `keepthread.errors`; an outage is never an empty history.
    A session's methods take its key; the key of a deleted session raises `SessionGone`.
    Everything acknowledged survives what `durability` names.
    """

    @property
    def durability(self) -> Durability:
        """Name what an acknowledged write survives."""
        ...

    def tenant(self, name: str) -> Self:
        """Return this store behind another wall; both share one engine, closed with the first."""
        ...

    async def close(self) -> None:
        """Finish what was begun and let go of everything; closing twice is fine."""
        ...

    # --- sessions ---

    async def put_session(
        self, session: SessionInfo, *, seen: SessionInfo | None = None
    ) -> SessionInfo:
        """Create a session that has no key yet, or update one that has.

        An update replaces title, tags, system prompt, meta and `ready`, nothing else. A taken id
        raises `SessionExists`. Times that a new session brings are kept, and changes to one that
        is not ready are no activity. With `seen`, the session as the caller read it, only the
        fields that differ from it are written; if one of them was changed by somebody else since,
        or a message was erased since, `Stale` is raised and nothing is written.
        """
        ...

    async def get_session(self, id: str) -> SessionInfo | None:
        """Return the session of that id, ready or not, or None."""
        ...

    async def describe(self, session: SessionKey) -> SessionInfo:
        """Return what is known of a session now."""
        ...

    async def list_sessions(
        self, *, owner: str | None = None, limit: int = 10
    ) -> list[SessionInfo]:
        """Return ready sessions, latest activity first, without delegates.

        May lag behind an append by a second.
        """
        ...

    async def scan_sessions(
        self, *, after: SessionKey | None = None, limit: int = 100
    ) -> list[SessionInfo]:
        """Return every session behind a key, or from the first, in the order they were made.

        Those that are not ready and delegates are among them. The key may be of a deleted one.
        """
        ...

    async def delete_session(
        self, session: SessionKey, *, unready: bool = False, idle_since: float | None = None
    ) -> None:
        """Remove a session, its messages and its shelf.

        With `unready`, only one that is not ready; with `idle_since`, only one without activity
        at or after that time. Another raises `Stale`, decided in the transaction that deletes.
        """
        ...

    # --- the log ---

    async def append(
        self,
        session: SessionKey,
        messages: Sequence[Message],
        *,
        expect: int | None = None,
        turn: int | None = None,
    ) -> list[Message]:
        """Store messages at the end of the log, all or none, and return them as stored.

        A message without an id gets one. An id seen before in this session is not stored twice:
        the stored message is returned, a tombstone if it was erased; another body under it raises
        `Conflict`. New messages are stored only if `expect`, when given, is the last position of
        the log; else `Stale` is raised. Each user message opens the next turn, and what
        follows belongs to the latest; `turn` puts all of them into an earlier one instead. A
        log counts up to 2**53 - 1 tokens; messages beyond that raise `InvalidInput`.
        """
        ...

    async def load(self, session: SessionKey, messages: Sequence[Message]) -> int:
        """Copy messages that a store gave out to the end of the log, position by position.

        Positions, turns, counts and times are kept, tombstones and damage as well; what is
        there already is passed over. Returns the last position. A gap raises `Stale`, another
        message at a position `Conflict`.
        """
        ...

    async def tail(
        self,
        session: SessionKey,
        *,
        tokens: int | None = None,
        limit: int | None = None,
        before: int | None = None,
        after: int = 0,
        least: int = 0,
    ) -> list[Message]:
        """Return the newest messages that fit, oldest first, between two positions if given.

        Reads about what it returns, however long the log. Tombstones and damaged messages are
        among them and cost no tokens. `least` messages are returned whatever they cost.
        """
        ...

    async def gather(
        self,
        session: SessionKey,
        *,
        tokens: int,
        least: int = 0,
        kinds: Sequence[str] = (),
        follow: Sequence[str] = (),
    ) -> Gathered:
        """Return at one moment what a context is made of: prompt, tail, records of these kinds.

        `follow` names more kinds, whose records come with the messages of this session that they
        are made of; such records must be made of few.
        A session whose record is damaged raises `Damaged`: its system prompt is not known.
        """
        ...

    async def read(
        self, session: SessionKey, *, after: int = 0, upto: int | None = None, limit: int = 100
    ) -> list[Message]:
        """Return messages behind a position, oldest first."""
        ...

    async def find(
        self, session: SessionKey, *, ids: Iterable[str] = (), seqs: Iterable[int] = ()
    ) -> list[Message]:
        """Return the messages of these ids and positions that there are, oldest first."""
        ...

    async def erase(self, session: SessionKey, seqs: Iterable[int]) -> int:
        """Replace messages by tombstones, for ever, and return the session's new epoch.

        The session's records that are made of them are dropped at the same moment. Nothing new to
        erase leaves the epoch as it is; an unknown position raises `MessageNotFound` and erases
        nothing.
        """
        ...

    async def recount(
        self, session: SessionKey, counter: TokenCounter, *, progress: Progress | None = None
    ) -> int:
        """Count what another counter counted, set the running totals right, all or none.

        Returns how many messages were counted. Tombstones and damaged messages cost nothing.
        """
        ...

    # --- the shelf ---

    async def put(
        self,
        scope: Scope,
        kind: str,
        key: str,
        value: JSON,
        *,
        made_of: Sequence[Span] = (),
        version: int | None = None,
        epochs: Mapping[SessionKey, int] | None = None,
    ) -> int:
        """Put a record on a shelf and return its new version, which no other put ever had.

        `version` is the one the caller saw (0: none); `epochs` the epochs of the sessions the
        value was made from. If either moved, `Stale` is raised and nothing is put.
        """
        ...

    async def get(self, scope: Scope, kind: str, key: str) -> Record | None:
        """Return one record, or None."""
        ...

    async def scan(
        self,
        scope: Scope,
        kind: str | None = None,
        *,
        after: str | None = None,
        before: str | None = None,
        limit: int | None = None,
    ) -> list[Record]:
        """Return a shelf's records, by kind and key; of one kind, or all.

        Of one kind: those whose key is behind `after` and before `before`, by the code points of
        their characters; with a limit the last ones, reading no more than it returns.
        """
        ...

    async def owners(self) -> list[str]:
        """Return the owners who have a record on their shelf, by name."""
        ...

    async def drop(self, scope: Scope, kind: str, key: str, *, version: int | None = None) -> bool:
        """Take a record off its shelf; tell whether it was there. `version` as in `put`."""
        ...

    # --- integrity ---

    async def verify(self, *, progress: Progress | None = None) -> Verification:
        """Check everything of this tenant, and the file as far as there is one."""
        ...

    async def clean(
        self,
        *,
        sessions: Sequence[SessionKey] = (),
        rewrite: bool = False,
        probes: Sequence[bytes] = (),
    ) -> Cleaning:
        """Let go of the bytes of what was erased in these sessions, as far as the engine can.

        `rewrite` also does what takes long and locks others out. The engine's files are searched
        for the probes where they can be read. What may be left, where and until when, is said.
        """
        ...

    # --- what only some engines can do ---

    async def finder(self) -> "Searchable | None":
        """Return what finds words in it, or None if the engine cannot."""
        ...


class Searchable(Protocol):
    """A store that knows where words stand; what that is worth is not its business.

    An index is a view of the log: it remembers how far it has read each session (`view` names it),
    is read on by whoever asks, and loses what `erase` and `delete_session` take, at that moment.
    Delegates and sessions that are not ready are in no index. `owner=None` is every owner.
    """

    async def unread(
        self, view: str, *, owner: str | None = None, session: SessionKey | None = None
    ) -> list[Unread]:
        """Return the sessions that a view has not read to the end; never read ones are at 0."""
        ...

    async def index(
        self,
        view: str,
        read: Unread,
        upto: int,
        parts: Sequence[Part],
        sittings: Sequence[Sitting],
    ) -> None:
        """Add what stands behind `read.upto` up to a position, and remember that it was read.

        `sittings` are those that began or grew, as they are now. If the view was read on by
        another, or something was erased in the session since, `Stale` is raised and nothing added.
        """
        ...

    async def places(
        self,
        view: str,
        words: Sequence[str],
        *,
        owner: str | None = None,
        session: SessionKey | None = None,
        only: MessageFilter | None = None,
        most: int = 5000,
    ) -> Found:
        """Return where these words stand, up to `most` places of each, the last ones.

        `only` confines it to some messages: the last places among those are returned.
        """
        ...

    async def parts(self, view: str, places: Sequence[int]) -> list[Part]:
        """Return what the index has of these places, without their words, as far as it has any."""
        ...

    async def fetch(
        self, places: Sequence[int], *, kinds: Sequence[str] = ()
    ) -> tuple[list[Placed], list[Record]]:
        """Return the messages at places, each once, and their sessions' records of some kinds.

        What was erased or deleted meanwhile is not among them.
        """
        ...

    async def put_vectors(
        self, view: str, read: Unread, upto: int, vectors: Mapping[int, Embedding]
    ) -> None:
        """Keep vectors by place, and remember that the view was read to a position; as `index`."""
        ...

    async def vectors(self, view: str, places: Sequence[int]) -> dict[int, Embedding]:
        """Return the vectors that are kept for these places."""
        ...

    async def nearest(
        self,
        view: str,
        to: Embedding,
        *,
        owner: str | None = None,
        session: SessionKey | None = None,
        only: MessageFilter | None = None,
        limit: int = 300,
    ) -> list[int]:
        """Return the places whose single vectors are nearest, nearest first; may miss a few.

        `only` confines it to some messages: the nearest among those are returned.
        """
        ...

    async def drop_view(self, view: str) -> None:
        """Forget a view of this tenant: what it holds and how far it has read."""
        ...
