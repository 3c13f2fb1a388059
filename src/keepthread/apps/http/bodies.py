"""The bodies of requests: each is checked before anything is read or written.

Unknown fields are refused. No body names an owner or a tenant: they come from the credential.
"""

from typing import Annotated, Any, Final, Literal, cast

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from keepthread.stores.validation import MAX_COUNT, MAX_ID, MAX_TIME
from keepthread.types import (
    Attachment,
    Message,
    Native,
    Origin,
    ProactiveTool,
    Role,
    ToolCall,
    Wire,
)

MAX_ITEMS: Final = 1000
MAX_HISTORY: Final = 10_000
"""Messages that one request appends, and other lists in bodies."""
MAX_FACTS: Final = 10_000
"""Facts or lines of a document that one request loads."""
MAX_PAGE: Final = 200

Name = Annotated[str, Field(min_length=1, max_length=MAX_ID)]
Position = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Seconds = Annotated[float, Field(ge=0, lt=MAX_TIME, description="Seconds since 1970.")]
Limit = Annotated[int, Field(ge=1, le=MAX_PAGE)]
Values = Annotated[dict[str, Any], Field(description="Any JSON object.")]
Format = Literal["messages", "text", "openai-chat", "openai-responses", "anthropic"]


class RequestBody(BaseModel):
    """The base of all bodies: strict types, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


# --- sessions ---


class SessionBody(RequestBody):
    """A session to create, under an id in the path; all fields are optional."""

    title: str = Field(default="", examples=["A trip to Oslo"])
    system_prompt: str | None = None
    tags: list[Name] = Field(default=[], max_length=MAX_ITEMS, examples=[["travel"]])
    meta: Values = Field(default={})


class NewSessionBody(SessionBody):
    """A session to create; without an `id` it gets a new one."""

    id: Name | None = Field(default=None, examples=["trip"])


class SessionChangesBody(RequestBody):
    """Changes of a session; a field that is missing stays as it is."""

    title: str | None = Field(default=None, examples=["Two weeks in Oslo"])
    title_from: Name | None = Field(
        default=None, description="The id of the message that the title was made from."
    )
    system_prompt: str | None = None
    tags: list[Name] | None = Field(default=None, max_length=MAX_ITEMS)
    meta: Values | None = None


class ForkBody(RequestBody):
    """Where to fork, and the new session's id; both are optional."""

    at: Position | None = Field(default=None, description="The last position that is copied.")
    id: Name | None = None


class RewindBody(RequestBody):
    """The last position that stays visible; 0 hides all messages."""

    to: Position = Field(examples=[0])


# --- messages ---


class ToolCallBody(RequestBody):
    """A model's request to call a tool."""

    id: str
    name: str
    arguments: str = Field(default="", description="As the model wrote them, valid JSON or not.")


class AttachmentBody(RequestBody):
    """A file that belongs to a message. The server stores the `uri` and never fetches it."""

    media_type: str = Field(examples=["image/png"])
    name: str = ""
    uri: str = ""


class NativeBody(RequestBody):
    """A provider's own items, which go back to that provider verbatim."""

    wire: Wire
    items: list[Any]
    provider: str = ""


class MessageBody(RequestBody):
    """A message to store. With an `id` it is safe to send it again."""

    role: Role = Field(examples=["user"])
    content: str = Field(default="", examples=["I am vegetarian."])
    id: Name | None = None
    tool_calls: list[ToolCallBody] = Field(default=[], max_length=MAX_ITEMS)
    tool_call_id: str | None = None
    name: str | None = None
    author: Name | None = Field(default=None, description="Who wrote it, if not the owner.")
    origin: Origin | None = None
    source: str | None = Field(default=None, examples=["tool:weather"])
    attachments: list[AttachmentBody] = Field(default=[], max_length=MAX_ITEMS)
    native: NativeBody | None = None
    meta: Values = Field(default={})
    created_at: Seconds = 0.0

    def message(self) -> Message:
        """Return it as a message of the library."""
        native = self.native
        return Message(
            role=self.role,
            content=self.content,
            id=self.id or "",
            tool_calls=[ToolCall(**call.model_dump()) for call in self.tool_calls],
            tool_call_id=self.tool_call_id,
            name=self.name,
            author=self.author,
            origin=self.origin,
            source=self.source,
            attachments=attachments(self.attachments),
            native=Native(native.wire, native.items, native.provider) if native else None,
            meta=self.meta,
            created_at=self.created_at,
        )


def attachments(bodies: list[AttachmentBody]) -> list[Attachment]:
    """Return attachments as the library knows them."""
    return [Attachment(**body.model_dump()) for body in bodies]


class MessagesBody(RequestBody):
    """Messages to append, all or none."""

    messages: list[MessageBody] = Field(min_length=1, max_length=MAX_ITEMS)


class HistoryBody(RequestBody):
    """The history of a conversation as a client has it, oldest first."""

    messages: list[MessageBody] = Field(max_length=MAX_HISTORY)


class AppendBody(MessagesBody):
    """Messages to append to the log, all or none."""

    expect: Position | None = Field(
        default=None, description="Append only if this is the last position of the log."
    )


# --- turns and contexts ---


class TurnBody(RequestBody):
    """A user message that begins a turn. Its `id` names the turn; send it again to retry."""

    text: str = Field(examples=["What can I cook tonight?"])
    id: Name | None = Field(default=None, examples=["question-1"])
    author: Name | None = None
    attachments: list[AttachmentBody] = Field(default=[], max_length=MAX_ITEMS)


class FinishBody(RequestBody):
    """The answer of a turn: a `text`, or a `message` of the assistant."""

    text: str | None = Field(default=None, examples=["A lentil soup."])
    message: MessageBody | None = None
    usage: Values | None = Field(default=None, description="The provider's report of tokens.")
    truncated: bool = Field(default=False, description="Whether the answer was cut off.")


class ContextBody(RequestBody):
    """The context to build: by the name of a view, a budget in tokens, or both."""

    view: Name | None = Field(default=None, examples=["chat"])
    budget: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = Field(default=None, examples=[2000])
    query: str | None = Field(default=None, description="The query for recall.")
    newest: bool = Field(default=True, description="Whether to show the newest user message.")
    format: Format = Field(
        default="messages",
        description="For which API the context is rendered in `rendered`, or as one `text`.",
    )
    provider: str = Field(default="", description="The host that it is sent to, if known.")


class RebuildBody(RequestBody):
    """An explanation of the session, by the fields that name it."""

    at: Seconds = Field(examples=[0.0])
    view: str = Field(default="", examples=["chat"])
    turn: Position = Field(default=0, examples=[1])


class SearchBody(RequestBody):
    """A question to search the owner's messages by."""

    query: str = Field(examples=["food"])
    session: Name | None = None
    since: Seconds | None = None
    until: Seconds | None = None
    roles: list[Role] | None = Field(default=None, max_length=4)
    limit: Limit = 10
    cursor: str | None = Field(default=None, description="The `next` of the page before.")


# --- notes and cached tool results ---


class ToolResultBody(RequestBody):
    """The result of a tool that the program called itself."""

    name: Name = Field(examples=["weather"])
    arguments: Values = Field(default={}, examples=[{"city": "Oslo"}])
    result: Any = Field(default=None, description="A text, or other JSON.", examples=["rain"])
    cache_turns: Position = Field(default=1, description="Number of turns it is cached.")

    def tool(self) -> ProactiveTool:
        """Return it as the library knows it."""
        return ProactiveTool(self.name, self.result, self.arguments, self.cache_turns)


class CachedResultBody(ToolResultBody):
    """A tool's call and result to record and cache. With an `id` it is safe to send it again."""

    author: Name | None = None
    id: Name | None = None


class ToolQueryBody(RequestBody):
    """A tool's call whose cached result is wanted."""

    name: Name = Field(examples=["weather"])
    arguments: Values = Field(default={}, examples=[{"city": "Oslo"}])
    author: Name | None = None


class TurnToolBody(ToolResultBody):
    """The result of a tool that the client ran in a turn."""

    call_id: str | None = Field(
        default=None, description="The id of the model's call that it answers."
    )
    cache_turns: Position = Field(default=0, description="Number of turns it is cached.")


class MemoryToolBody(RequestBody):
    """A model's call of a tool of the memory."""

    name: Literal["remember", "search_memory"]
    arguments: Values = Field(default={}, examples=[{"query": "food"}])
    call_id: str | None = Field(
        default=None, description="The id of the model's call that it answers."
    )


class NoteBody(RequestBody):
    """Text that the program knows, such as an open file."""

    key: Name = Field(examples=["open-file"])
    text: str = Field(examples=["notes.txt: buy lentils"])
    once: bool = Field(
        default=True, description="Whether to skip it if the key already has a note."
    )
    turns: Annotated[int, Field(ge=1, le=MAX_COUNT)] | None = None
    tools: list[ToolResultBody] = Field(default=[], max_length=MAX_ITEMS)


class ProvideBody(RequestBody):
    """The data that the server's providers of notes get."""

    data: Values = Field(default={}, examples=[{"file": "notes.txt"}])


# --- facts and forgetting ---


class FactBody(RequestBody):
    """A fact about the owner. `by: model` means that it waits until the owner confirms it."""

    text: str = Field(examples=["Is vegetarian."])
    subject: str = ""
    attribute: str = Field(default="", examples=["diet"])
    value: str = Field(default="", examples=["vegetarian"])
    many: bool = False
    session: Name | None = None
    messages: list[Name] = Field(default=[], max_length=MAX_ITEMS)
    since: Seconds | None = None
    until: Seconds | None = None
    agent: str = ""
    by: Literal["owner", "model"] = "owner"
    source: str = ""


class FactChangesBody(RequestBody):
    """Corrections of a fact; a field that is missing stays as it is."""

    text: str | None = Field(default=None, examples=["Is vegan."])
    subject: str | None = None
    attribute: str | None = None
    value: str | None = None
    since: Seconds | None = None
    until: Seconds | None = None


class FactQueryBody(RequestBody):
    """A question to search the owner's facts by."""

    query: str = Field(examples=["diet"])
    limit: Limit = 10


def _few_lines(text: str) -> str:
    if len(text.splitlines()) > MAX_FACTS:
        raise ValueError(f"a document may have {MAX_FACTS} lines")
    return text


def _few_facts(value: Any) -> Any:
    entries: Any = cast("dict[str, Any]", value).get("facts") if isinstance(value, dict) else value
    if isinstance(entries, list) and len(cast("list[Any]", entries)) > MAX_FACTS:
        raise ValueError(f"a document may have {MAX_FACTS} facts")
    return cast(Any, value)


class FactDocumentBody(RequestBody):
    """A document of facts, as `get_fact_document` returns it, with a person's changes."""

    text: Annotated[str, AfterValidator(_few_lines)] = Field(examples=["# Facts\n\n- Likes tea.\n"])
    prune: bool = Field(
        default=False,
        description="Whether to forget facts whose lines are gone; needs the scope `forget`.",
    )


class FactImportBody(RequestBody):
    """Facts as `export_facts` returns them, or a list of objects with a `fact`."""

    facts: Annotated[Any, AfterValidator(_few_facts)] = Field(examples=[[{"fact": "Likes tea."}]])


class ForgetBody(RequestBody):
    """What to erase: messages that match every given field, or `everything` of the owner.

    Nothing is erased unless `dry_run` is false.
    """

    session: Name | None = Field(default=None, examples=["trip"])
    message: Name | None = None
    author: Name | None = None
    source: str | None = None
    since: Seconds | None = None
    until: Seconds | None = None
    everything: bool = False
    answers: bool = Field(default=False, description="Whether to erase answers made from them.")
    dry_run: bool = Field(default=True, description="Whether to report only.")
    id: Name | None = Field(
        default=None,
        description="Your id for this erasure: a repeated request returns its receipt.",
    )


# --- keys ---


class KeyBody(RequestBody):
    """A key to make: what it is for, and what it may do."""

    name: Name = Field(examples=["mobile app"])
    scopes: list[Literal["read", "write", "forget", "admin", "proxy", "mcp"]] = Field(
        min_length=1, max_length=6, examples=[["read", "write"]]
    )
    owner: Name | None = Field(
        default=None, description="The only owner it may act for; null means any of the tenant."
    )
    expires_at: Seconds | None = None


class RotateBody(RequestBody):
    """Seconds for which the old key stays valid alongside the new one."""

    grace: Annotated[float, Field(ge=0, le=7 * 86_400)] = 0.0
