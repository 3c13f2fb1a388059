"""The nouns of the house: frozen, keyword-only, made of plain values."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Literal, NamedTuple, NewType, TypeAlias

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Origin: TypeAlias = Literal["operator", "user", "assistant", "tool", "web", "import"]
State: TypeAlias = Literal["live", "erased", "damaged", "queued"]
SessionKind: TypeAlias = Literal["main", "fork", "delegate"]
Wire: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic"]
Durability: TypeAlias = Literal["memory", "process", "power", "replicated"]
JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"

SessionKey = NewType("SessionKey", str)
"""One life of a session: a deleted id made again has another key."""


def _no_meta() -> Mapping[str, JSON]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A model's wish to call a tool; `arguments` is the raw text it wrote, JSON or not."""

    id: str
    name: str
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A thing that goes with a message; the bytes live where `uri` says."""

    media_type: str
    name: str = ""
    uri: str = ""


class Native(NamedTuple):
    """A provider's own items, opaque to us, given back verbatim to that provider alone."""

    wire: Wire
    items: Sequence[JSON]
    provider: str = ""
    """The host that gave them, such as `api.deepseek.com`; empty if it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One entry of a session's log.

    The caller writes the first group of fields; they are the body that an id stands for.
    The second group may be given and is filled in otherwise; the store gives the third.
    """

    role: Role
    content: str = ""
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str | None = None
    name: str | None = None
    author: str | None = None
    """Who wrote it; None is the session's owner."""
    origin: Origin | None = None
    """Whose word it is; None becomes `operator` for the system role, else the role."""
    source: str | None = None
    """Where it came from: `tool:NAME`, `web:URL` or `import:DIGEST`."""
    attachments: Sequence[Attachment] = ()
    native: Native | None = None
    meta: Mapping[str, JSON] = field(default_factory=_no_meta)

    id: str = ""
    tokens: int = 0
    counter: str = ""
    """The name of the counter that gave `tokens`."""
    created_at: float = 0.0
    """Seconds since 1970; for people and filters, never for order."""

    seq: int = 0
    turn: int = 0
    total: int = 0
    """Tokens of the log up to and with this message."""
    digest: bytes = b""
    state: State = "live"


class ForkPoint(NamedTuple):
    """The session and position a fork was copied from."""

    session: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """What is known of one session; `key` is empty until it is stored."""

    id: str
    owner: str = "default"
    title: str = ""
    title_seq: int = 0
    """Position of the message that the title was made from; 0 if the title was set by hand."""
    tags: Sequence[str] = ()
    system_prompt: str | None = None
    meta: Mapping[str, JSON] = field(default_factory=_no_meta)
    kind: SessionKind = "main"
    parent: str | None = None
    forked_from: ForkPoint | None = None
    ready: bool = True
    """False while a fork, an import or a copy is being filled; such a session is not listed."""

    fence: str = ""
    """Drawn by chance when it is made: what stands around quotations in its contexts."""
    key: SessionKey = SessionKey("")
    created_at: float = 0.0
    updated_at: float = 0.0
    """The latest activity; may lag behind by a second."""
    messages: int = 0
    turns: int = 0
    tokens: int = 0
    epoch: int = 0
    """How often something was erased here."""
    state: State = "live"
    """Damaged: the record is not what was written, and only key, id and counts may be of use."""


class Scope(NamedTuple):
    """Whose shelf it is: a session's, an owner's, or the tenant's when both are empty."""

    session: SessionKey = SessionKey("")
    owner: str = ""


class Span(NamedTuple):
    """A range of positions in one session, both ends included."""

    session: SessionKey
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A small named value on a shelf; `version` never returns once it was replaced or dropped."""

    scope: Scope
    kind: str
    key: str
    value: JSON
    version: int
    made_of: Sequence[Span] = ()


class Gathered(NamedTuple):
    """A session's system prompt, its newest messages and its shelf, all of one moment."""

    system_prompt: str | None
    messages: Sequence[Message]
    records: Sequence[Record]
    sources: Sequence[Message] = ()
    """What the records that were followed are made of, by position, each once."""
    fence: str = ""


class Hidden(NamedTuple):
    """Positions that contexts pass over, and why."""

    first: int
    last: int
    tokens: int
    reason: str


class Choice(NamedTuple):
    """Messages that share a fate: shown in a section, or left out (no section), and why."""

    first: int
    last: int
    messages: int
    tokens: int
    section: str
    reason: str
    session: str = ""
    """The session's id if it was recalled; positions are of that session then."""


class Selection(NamedTuple):
    """What a strategy chose: messages in the order of the prompt, results behind their calls."""

    budget: int
    tokens: int
    system: str
    messages: Sequence[Message]
    choices: Sequence[Choice]
    facts: Sequence[tuple[str, int]] = ()
    """The session id and position of each message that the facts come from which are shown."""


class Summary(NamedTuple):
    """The compressed past: what stands for all visible messages up to a position."""

    text: str
    last: int
    """The last position behind it."""
    tokens: int = 0
    """What the messages behind it cost."""
    turn: int = 0
    """The last turn behind it."""
    number: int = 0
    """How many compactions it took, this one included."""
    origin: Origin = "user"
    """The lowest trust among what it was made from."""
    spans: Sequence[Span] = ()
    """The ranges that stand behind it, hidden ones left out."""
    kept: Sequence[tuple[int, float, str]] = ()
    """Positions behind it that are worth keeping word for word, how much so, and why."""
    head: int = 0
    """The end of the log when it was made."""
    by: str = ""
    """Who shortened it last."""


class CachedTool(NamedTuple):
    """A tool's result that is remembered, and for how long."""

    name: str
    arguments: Mapping[str, JSON]
    left: int
    """Turns in which it still serves, this one included."""
    cache_turns: int
    """Turns for which it serves once used."""
    call_id: str
    at: float
    """When the result was recorded, in seconds since 1970."""
    author: str
    """For whom the tool was called."""


class ProactiveTool(NamedTuple):
    """A tool's result that a program has before any model asked for it."""

    name: str
    result: JSON
    """A text, or other JSON."""
    arguments: Mapping[str, JSON] = {}
    cache_turns: int = 1
    """Turns in which it is remembered, the current one included."""


class Digest(NamedTuple):
    """A long answer in short."""

    text: str
    tokens: int
    counter: str
    head: int
    """The end of the log when it was made."""


class Importance(NamedTuple):
    """How much a message matters, from 0 to 1, and why."""

    score: float
    reason: str


# --- finding ---


class Part(NamedTuple):
    """A message, or a piece of a long one, as an index has it."""

    place: int
    """Where it stands; see `keepthread.recall.positions`."""
    words: Sequence[str]
    """Its words, each once; one that stands there again is there with `²` and `³` behind it too."""
    tokens: int
    """About what it costs to show."""
    flags: int
    """What can be told of the text at a glance; see `keepthread.recall.chunks`."""
    speaker: str = ""


class Sitting(NamedTuple):
    """A run of messages of one session without a long pause, in numbers."""

    session: SessionKey
    first: int
    """The position it begins at."""
    started_at: float
    ended_at: float
    parts: int
    length: int
    """Words in all."""
    answers: int
    """How many of its parts an assistant wrote."""


class Unread(NamedTuple):
    """A session that an index has not read to its end."""

    session: SessionKey
    upto: int
    """The last position that was read."""
    last: int
    """The end of the log."""
    epoch: int
    sitting: Sitting | None = None
    """The last one that was begun, for the index of words."""


class MessageFilter(NamedTuple):
    """Which messages a search may find: of a time, and of some roles."""

    since: float = -inf
    """Written at this time or later; seconds since 1970."""
    until: float = inf
    """Written before this time."""
    roles: Collection[Role] | None = None
    """None is every role."""

    def admits(self, message: Message) -> bool:
        """Return whether a message is one of these."""
        return self.since <= message.created_at < self.until and (
            self.roles is None or message.role in self.roles
        )


class Found(NamedTuple):
    """Where words stand in a scope, and how large the scope is."""

    places: Mapping[str, Sequence[int]]
    """The places of each word, ascending; of a frequent one the last alone."""
    sittings: Sequence[Sitting]


class Placed(NamedTuple):
    """A message and the session it is in."""

    session: SessionKey
    id: str
    """The session's id."""
    owner: str
    message: Message


class Embedding(NamedTuple):
    """A text as vectors: one for each of its tokens, or one for all of it.

    Each vector has length 1 and is written as bytes, a signed one for a dimension, times 127.
    """

    vectors: bytes
    dimensions: int
    ids: Sequence[int] = ()
    """The tokens, by their numbers in the model's vocabulary; none if the vector is for all."""


# --- talking to models ---


class Usage(NamedTuple):
    """What a model's answer cost, in its provider's tokens."""

    input: int = 0
    output: int = 0
    cached: int = 0
    """How many of `input` the provider had seen before."""

    def plus(self, other: "Usage") -> "Usage":
        """Return what both took together."""
        return Usage(*(mine + its for mine, its in zip(self, other, strict=True)))


class Tool(NamedTuple):
    """What a model may call; `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, JSON] = {}


class Reply(NamedTuple):
    """What a model said: a text, calls of tools, or both."""

    content: str = ""
    tool_calls: Sequence[ToolCall] = ()
    usage: Usage | None = None
    truncated: bool = False
    """True if it was broken off, by a limit or by the provider."""
    native: Native | None = None


class Shortened(NamedTuple):
    """A text in fewer bytes, and what a model took for it."""

    text: str
    usage: Usage | None = None


class Damage(NamedTuple):
    """One place where stored data is not what was written."""

    what: str
    session: str = ""
    seq: int = 0


class Verification(NamedTuple):
    """What `verify` looked at, and every damage it found."""

    sessions: int
    messages: int
    records: int
    damages: Sequence[Damage] = ()

    @property
    def sound(self) -> bool:
        """Tell whether nothing was found."""
        return not self.damages


class Residue(NamedTuple):
    """Where bytes of what was erased may still be, and until when; for people."""

    where: str
    why: str
    until: str


class Cleaning(NamedTuple):
    """What a store did to let go of erased bytes."""

    done: Sequence[str]
    """What was done, in words."""
    searched: Sequence[str]
    """The files that were searched for the probes, by name."""
    found: int
    """Probes that are still in one of them."""
    residues: Sequence[Residue] = ()
    again: bool = False
    """Whether something that ends by itself was in the way, so that it is to be done again."""
