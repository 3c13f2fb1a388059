"""The data types of keepthread: frozen, keyword-only, made of plain values."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from math import inf
from typing import Literal, NamedTuple, NewType, TypeAlias, TypeVar

from keepthread.references import Reference

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Origin: TypeAlias = Literal["operator", "user", "assistant", "tool", "web", "import"]
State: TypeAlias = Literal["live", "erased", "damaged", "queued"]
SessionKind: TypeAlias = Literal["main", "fork", "delegate"]
Wire: TypeAlias = Literal["openai-chat", "openai-responses", "anthropic"]
Durability: TypeAlias = Literal["memory", "process", "power", "replicated"]
SessionChange: TypeAlias = Literal["session_created", "session_updated", "session_deleted"]
MessageChange: TypeAlias = Literal["messages_added", "messages_erased"]
ChangeKind: TypeAlias = Literal[SessionChange, MessageChange, "fact_changed", "forgotten"]
JSON: TypeAlias = "bool | int | float | str | Sequence[JSON] | Mapping[str, JSON] | None"
T = TypeVar("T")
SessionKey = NewType("SessionKey", str)
"""Identifies one session for good: a session created again under a deleted id has another key."""


class Page(list[T]):
    """A part of a longer list; `next` is the cursor to continue with, or None at the end."""

    def __init__(self, items: Iterable[T] = (), *, cursor: str | None = None) -> None:
        """Take the items and the cursor after the last of them."""
        super().__init__(items)
        self.next = cursor


def _no_meta() -> Mapping[str, JSON]:
    return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A model's request to call a tool; `arguments` is the raw text it wrote, JSON or not."""

    id: str
    name: str
    arguments: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """A file that belongs to a message; its bytes are stored at `uri`."""

    media_type: str
    name: str = ""
    uri: str = ""


class Native(NamedTuple):
    """A provider's own items; we do not read them, and send them verbatim to that provider only."""

    wire: Wire
    items: Sequence[JSON]
    provider: str = ""
    """The host that sent them, such as `api.deepseek.com`; empty if unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One entry of a session's log.

    The caller sets the first group of fields: they are the body that an id identifies. The
    second group is optional; missing values are filled in. The store sets the third.
    """

    role: Role
    content: str = ""
    tool_calls: Sequence[ToolCall] = ()
    tool_call_id: str | None = None
    name: str | None = None
    author: str | None = None
    """Who wrote it; None means the session's owner."""
    origin: Origin | None = None
    """Whose statement it is; None becomes `operator` for the system role, else the role."""
    source: str | None = None
    """Where it came from: `tool:NAME`, `web:URL` or `import:DIGEST`."""
    attachments: Sequence[Attachment] = ()
    native: Native | None = None
    meta: Mapping[str, JSON] = field(default_factory=_no_meta)

    id: str = ""
    tokens: int = 0
    counter: str = ""
    """The name of the counter that computed `tokens`."""
    created_at: float = 0.0
    """Seconds since 1970; for display and filters, never for order."""

    seq: int = 0
    turn: int = 0
    total: int = 0
    """Tokens of the log up to and including this message."""
    digest: bytes = b""
    state: State = "live"


class ForkPoint(NamedTuple):
    """The session and position a fork was copied from."""

    session: str
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """The metadata of a session; `key` is empty until it is stored."""

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
    """False while a fork, import or copy is being written; such a session is not listed."""
    forgotten: bool = False
    """Whether the whole session was forgotten: its tombstones are internal and never shown."""
    delimiter: str = ""
    """A random delimiter around quoted text in its contexts, chosen when it is created."""
    key: SessionKey = SessionKey("")
    created_at: float = 0.0
    updated_at: float = 0.0
    """The latest activity; may be up to a second late."""
    messages: int = 0
    turns: int = 0
    tokens: int = 0
    epoch: int = 0
    """Number of erasures in this session."""
    state: State = "live"
    """"damaged" if the stored session is not what was written: then rely on key and id only."""

    @property
    def version(self) -> str:
        """Return a text that changes with title, tags, prompt and metadata, and with erasures."""
        described = (self.title, self.title_seq, [*self.tags], self.system_prompt, self.epoch)
        data = json.dumps([*described, self.meta], sort_keys=True)
        return sha256(data.encode()).hexdigest()[:16]


class Scope(NamedTuple):
    """Whom records belong to: a session, an owner, or the tenant if both are empty."""

    session: SessionKey = SessionKey("")
    owner: str = ""


class Span(NamedTuple):
    """A range of positions in one session, both ends included."""

    session: SessionKey
    first: int
    last: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A small named value beside the log; once replaced or dropped, a `version` is never reused."""

    scope: Scope
    kind: str
    key: str
    value: JSON
    version: int
    made_of: Sequence[Span] = ()


class Gathered(NamedTuple):
    """A session's system prompt, newest messages and records, read at one moment."""

    system_prompt: str | None
    messages: Sequence[Message]
    records: Sequence[Record]
    sources: Sequence[Message] = ()
    """The messages that the followed records are made of, by position, each once."""
    delimiter: str = ""
    more: Sequence[str] = ()
    """Followed kinds that have more records than the limit."""


class Hidden(NamedTuple):
    """Positions that contexts skip, and why."""

    first: int
    last: int
    tokens: int
    reason: str


class Choice(NamedTuple):
    """Messages treated alike: shown in a section, or left out (no section), and why."""

    first: int
    last: int
    messages: int
    tokens: int
    section: str
    reason: str
    session: str = ""
    """The id of the session they were recalled from; the positions are of that session."""


class Selection(NamedTuple):
    """A strategy's choice: messages in prompt order, each tool result after its call."""

    budget: int
    tokens: int
    system: str
    messages: Sequence[Message]
    choices: Sequence[Choice]
    facts: Sequence[tuple[str, str, int]] = ()
    """Owner, session id and position of each message that the shown facts come from."""
    made: Sequence[tuple[Message, Reference]] = ()
    """Messages that are not in the log as they are shown, and what they were made of."""
    hidden: Sequence[Hidden] = ()


class Summary(NamedTuple):
    """A text that replaces all visible messages up to a position."""

    text: str
    last: int
    """The last position it covers."""
    tokens: int = 0
    """Tokens of the messages it covers."""
    turn: int = 0
    """The last turn it covers."""
    number: int = 0
    """Number of compactions so far, this one included."""
    origin: Origin = "user"
    """The least trusted origin among the messages it covers."""
    spans: Sequence[Span] = ()
    """The ranges it covers, without hidden ones."""
    important: Sequence[tuple[int, float, str]] = ()
    """Covered positions worth keeping word for word: position, score and reason."""
    head: int = 0
    """The end of the log when it was made."""
    by: str = ""
    """The name of the summarizer that shortened it last."""


class CachedTool(NamedTuple):
    """A cached tool result, and how long it stays cached."""

    name: str
    arguments: Mapping[str, JSON]
    left: int
    """Turns in which it may still be used, this one included."""
    cache_turns: int
    """Turns it stays cached after each use."""
    call_id: str
    at: float
    """When the result was recorded, in seconds since 1970."""
    author: str
    """The author on whose behalf the tool was called."""
    result: str
    """The result, as it was recorded; reading it here does not start its lifetime again."""


class ProactiveTool(NamedTuple):
    """A tool result that the program provides before a model asks for it."""

    name: str
    result: JSON
    """A text, or other JSON."""
    arguments: Mapping[str, JSON] = {}
    cache_turns: int = 1
    """Turns it stays cached, the current one included."""


class ProvidedNote(NamedTuple):
    """A note that a provider returns: text for the model, and tool results that belong to it."""

    text: str
    tools: Sequence[ProactiveTool] = ()


class Digest(NamedTuple):
    """A shortened version of a long answer."""

    text: str
    tokens: int
    counter: str
    head: int
    """The end of the log when it was made."""


class Importance(NamedTuple):
    """How much a message matters, from 0 to 1, and why."""

    score: float
    reason: str


# --- search ---


class Part(NamedTuple):
    """A message, or a chunk of a long one, as stored in a search index."""

    place: int
    """Session and position as one number; see `keepthread.recall.positions`."""
    words: Sequence[str]
    """Its words, each once; a repeated word is also listed with the suffixes `²` and `³`."""
    tokens: int
    """Roughly the tokens needed to show it."""
    flags: int
    """Simple properties of the text, as bits; see `keepthread.recall.chunks`."""
    speaker: str = ""


class Segment(NamedTuple):
    """Statistics of a run of messages of one session without a long pause."""

    session: SessionKey
    first: int
    """The position of its first message."""
    started_at: float
    ended_at: float
    parts: int
    length: int
    """Total number of words."""
    answers: int
    """How many of its parts an assistant wrote."""


class Unread(NamedTuple):
    """A session that is not fully indexed yet."""

    session: SessionKey
    until: int
    """The last position that is indexed."""
    last: int
    epoch: int
    segment: Segment | None = None
    """The newest one that is indexed, for the word index."""


class MessageFilter(NamedTuple):
    """Limits a search to a time range and to some roles."""

    since: float = -inf
    """Written at this time or later; seconds since 1970."""
    until: float = inf
    """Written before this time."""
    roles: Collection[Role] | None = None
    """None means every role."""

    def admits(self, message: Message) -> bool:
        """Return whether a message matches."""
        return self.since <= message.created_at < self.until and (
            self.roles is None or message.role in self.roles
        )


class Found(NamedTuple):
    """The places of words in a scope, statistics of the scope, and its unread sessions."""

    places: Mapping[str, Sequence[int]]
    """The places of each word, ascending; for a frequent word only the newest ones."""
    segments: Sequence[Segment]
    unread: Sequence[Unread] = ()
    older: Mapping[str, Sequence[int]] = {}
    """Earlier places of frequent words: those that also hold a rarer word; ascending."""


class Placed(NamedTuple):
    """A message, and its session: the key, id and owner, and the epoch when it was read."""

    session: SessionKey
    id: str
    owner: str
    message: Message
    epoch: int


class Embedding(NamedTuple):
    """A text as vectors: one for each of its tokens, or one for the whole text.

    Each vector has length 1 and is stored as one signed byte per dimension: the value times 127.
    """

    vectors: bytes
    dimensions: int
    ids: Sequence[int] = ()
    """The tokens, as numbers in the model's vocabulary; empty if one vector covers the text."""


# --- models ---


class Usage(NamedTuple):
    """The cost of a model's answer, in its provider's tokens."""

    input: int = 0
    output: int = 0
    cached: int = 0
    """How many of `input` were in the provider's prompt cache."""

    def plus(self, other: "Usage") -> "Usage":
        """Return the sum of both."""
        return Usage(*(mine + its for mine, its in zip(self, other, strict=True)))


class Tool(NamedTuple):
    """A tool that a model may call; `parameters` is a JSON schema."""

    name: str
    description: str = ""
    parameters: Mapping[str, JSON] = {}


class Reply(NamedTuple):
    """A model's answer: a text, tool calls, or both."""

    content: str = ""
    tool_calls: Sequence[ToolCall] = ()
    usage: Usage | None = None
    truncated: bool = False
    """True if it is incomplete because of a limit or the provider."""
    native: Native | None = None


class Shortened(NamedTuple):
    """A shortened text, and the model's token usage if a model wrote it."""

    text: str
    usage: Usage | None = None


class Damage(NamedTuple):
    """One place where stored data is not what was written."""

    what: str
    session: str = ""
    seq: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A change to stored data: says what to read again, and contains no text.

    `owner` is empty if it concerns the whole tenant; `ids` are of messages, facts or receipts.
    """

    kind: ChangeKind
    at: float
    owner: str
    session: str = ""
    key: SessionKey = SessionKey("")
    ids: Sequence[str] = ()


class Verification(NamedTuple):
    """The number of items that `verify` checked, and every damage it found."""

    sessions: int
    messages: int
    records: int
    damages: Sequence[Damage] = ()

    @property
    def sound(self) -> bool:
        """Return whether no damage was found."""
        return not self.damages


class Residue(NamedTuple):
    """Where bytes of erased text may still be, and until when; for display."""

    where: str
    why: str
    until: str


class Cleaning(NamedTuple):
    """The steps a store took to remove the bytes of erased data."""

    done: Sequence[str]
    """The steps, in words."""
    searched: Sequence[str]
    """The names of the files that were searched for the probes."""
    found: Sequence[int]
    """The places in the list of probes of those that are still in one of the files."""
    residues: Sequence[Residue] = ()
    again: bool = False
    """Whether a temporary obstacle prevented part of it, so that it should be repeated later."""
