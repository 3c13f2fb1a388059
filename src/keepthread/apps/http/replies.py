"""Replies: values of the library as JSON, pages with signed cursors, and entity tags."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from fastapi import Response
from fastapi.responses import JSONResponse

from keepthread.apps.http.caller import Caller, Operator
from keepthread.apps.http.cursors import sign, unsign
from keepthread.apps.http.problems import Problem
from keepthread.context.why import Why
from keepthread.interchange.json_types import to_json
from keepthread.memory.rebuild import PromptChange
from keepthread.types import Message, Page, SessionInfo

_TAG: Final = re.compile(r'(?:^|,)\s*(W/)?"([^"]*)"')


class PlainJSON(JSONResponse):
    """JSON of any stored text: a lone surrogate, which UTF-8 does not have, is escaped."""

    def render(self, content: Any) -> bytes:
        """Return the bytes of the body."""
        try:
            return _dumps(content, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            return _dumps(content, ensure_ascii=True).encode()


def _dumps(content: object, *, ensure_ascii: bool) -> str:
    return json.dumps(content, ensure_ascii=ensure_ascii, allow_nan=False, separators=(",", ":"))


# --- what replies hold beyond the library's types ---


class TurnState(NamedTuple):
    """A turn: its user message, and the answer once there is one."""

    id: str
    """The id of the user message, which names the turn."""
    number: int
    """The number of the turn in its session."""
    user: Message
    answer: Message | None


class BuiltContext(NamedTuple):
    """A context: the messages for a model, in the order of the prompt, and the reasons."""

    system: str
    """The system prompt; empty if there is none."""
    messages: list[Message]
    """The messages shown; messages made from others have position 0."""
    tokens: int
    budget: int
    truncated: list[int]
    """Positions of messages that are shown with their middle left out."""
    truncated_newest: bool
    """Whether the newest user message is one of them."""
    rendered: Mapping[str, Any] | None
    """The fields to send to the API that the request named."""
    text: str | None
    """The conversation as one text, if the request asked for it."""
    why: Why
    """The reason for each message that is shown or left out."""


class RebuiltPrompt(NamedTuple):
    """The prompt of an earlier context, as far as it can be rebuilt."""

    matches: bool
    """Whether it is identical to the original prompt."""
    context: BuiltContext | None
    """The context with that prompt; null if it does not match."""
    messages: list[Message]
    """The messages that could be rebuilt, in the order of the prompt."""
    changes: list[PromptChange]
    """The changes since; a prompt may match although something is hidden or recounted now."""


class AddedNotes(NamedTuple):
    """The keys of the notes that a request added."""

    keys: list[str]


class FactDocument(NamedTuple):
    """The facts as a document in Markdown that people can edit."""

    text: str


class FactExport(NamedTuple):
    """All facts, also those that no longer hold."""

    facts: Mapping[str, Any]
    """A document that `import_facts` reads."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Whether a request changed something, and how many things."""

    changed: bool
    count: int


class Erasing(NamedTuple):
    """An erasure that is not done yet. Send the same request again to get its receipt."""

    id: str
    """The name of the erasure; a request without an `id` is sent again with this one."""


class CachedText(NamedTuple):
    """A cached tool result, or null if none can be used."""

    result: str | None


class RecordedText(NamedTuple):
    """The text that is recorded for a tool."""

    text: str


class WhoCalls(NamedTuple):
    """The identity that the credential proves."""

    tenant: str
    owner: str | None
    """The owner that it is bound to; null if each request names one."""
    scopes: Sequence[str]


class MessageText(NamedTuple):
    """All of a message's text."""

    text: str


class KeyInfo(NamedTuple):
    """A key of the tenant, without its secret, which is stored nowhere."""

    id: str
    name: str
    owner: str | None
    """The only owner it may act for; null means that each request names the owner."""
    scopes: Sequence[str]
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    """From when on it is refused."""


class CreatedKey(NamedTuple):
    """A new key. Its text is returned only once and cannot be retrieved again."""

    key: KeyInfo
    text: str
    """Clients send it as `Authorization: Bearer TEXT`."""


# --- replies ---


def reply(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a value of a public type as JSON."""
    return PlainJSON(to_json(value), status, headers)


def nothing() -> Response:
    """Return an empty reply."""
    return Response(status_code=204)


def page_of(caller: Caller | Operator, operation: str, page: Page[Any] | list[Any]) -> Response:
    """Return a page; its `next` is signed for this caller and operation."""
    after: str | None = getattr(page, "next", None)
    signed = None if after is None else sign(caller, operation, after)
    return PlainJSON({"items": to_json(list(page)), "next": signed})


def cursor_of(caller: Caller | Operator, operation: str, text: str | None) -> str | None:
    """Return the library's cursor in a signed one; refuse one of another caller or operation."""
    return None if text is None else unsign(caller, operation, text)


# --- entity tags ---


def tag_of(version: str) -> str:
    """Return a version as an entity tag."""
    return f'"{version}"'


def session_reply(info: SessionInfo, status: int = 200, *, location: str = "") -> Response:
    """Return a session with its entity tag, and where it is if it is new."""
    headers = {"ETag": tag_of(info.version)} | ({"Location": location} if location else {})
    return reply(info, status, headers)


def is_known(if_none_match: str | None, version: str) -> bool:
    """Return whether a client has this version already."""
    if if_none_match is None:
        return False
    tags = [tag for _, tag in _TAG.findall(if_none_match)]
    return if_none_match.strip() == "*" or version in tags


def not_modified(version: str) -> Response:
    """Return the reply to a client that has this version already."""
    return Response(status_code=304, headers={"ETag": tag_of(version)})


def matched(if_match: str | None, version: str) -> str | None:
    """Return the version that a change is based on; None if any will do.

    Without the header `If-Match` the change is refused, and so is one based on another version.
    """
    if if_match is None:
        raise Problem(
            428,
            "precondition_required",
            "send the header If-Match with the ETag of the version that the change is based on",
        )
    if if_match.strip() == "*":
        return None
    if version in [tag for weak, tag in _TAG.findall(if_match) if not weak]:
        return version
    raise stale()


def stale() -> Problem:
    """Return the problem of a change that is based on an older version."""
    return Problem(
        412, "stale", "it has changed since this version; read it again and repeat the change"
    )
