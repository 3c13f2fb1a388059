"""Sessions, messages and records as the objects of an export, and back, checked."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple, cast

from keepthread.errors import InvalidInput, KeepthreadError
from keepthread.stores.rows import draft_copy
from keepthread.stores.validation import MAX_BYTES, check_count, check_id, show
from keepthread.types import (
    JSON,
    Attachment,
    ForkPoint,
    Message,
    Native,
    Record,
    SessionInfo,
    SessionKey,
    ToolCall,
)

_ALWAYS: Final = ("seq", "id", "role", "content", "turn", "tokens", "counter", "total")
_IF_GIVEN: Final = ("tool_call_id", "name", "author", "source", "state")
_PLACE: Final = ("id", "seq", "turn", "total", "created_at")
_DEFAULTS: Final = {f.name: f.default for f in fields(Message)}
_SESSION: Final = ("id", "owner", "title", "system_prompt", "meta", "kind", "parent", "ready")
_SESSION_ONLY: Final = frozenset(
    (*_SESSION, "title_seq", "tags", "forked_from", "created_at", "updated_at", "state", "messages")
)
_SPAN: Final = 4
_DAMAGED_TEXT: Final = MAX_BYTES // 4  # characters that always fit into a message


# --- sessions ---


def session_to_json(session: SessionInfo) -> dict[str, JSON]:
    """Return a session for an export; its key and epoch are left out: they belong to one store."""
    out: dict[str, JSON] = {name: getattr(session, name) for name in _SESSION}
    out["tags"] = list(session.tags)
    if session.title_seq:
        out["title_seq"] = session.title_seq
    if fork := session.forked_from:
        out["forked_from"] = {"session": fork.session, "seq": fork.seq}
    out |= {"created_at": session.created_at, "updated_at": session.updated_at}
    if session.state != "live":
        out["state"] = session.state
    return out | {"messages": session.messages}


def session_from_json(value: Any) -> SessionInfo:
    """Return the session of a line; checks that every store makes are not repeated here."""
    value = _object(value, "the session", _SESSION_ONLY)
    check_id(value.get("id"), "a session id")
    check_id(value.get("owner", "default"), "owner")
    check_count(value.get("messages"), "messages")
    check_count(value.get("title_seq", 0), "title_seq")
    if type(value.get("tags", [])) is not list:
        raise InvalidInput(f"tags must be a list, not {show(value['tags'])}")
    if type(value.get("ready", True)) is not bool:
        raise InvalidInput(f"ready must be true or false, not {show(value['ready'])}")
    if value.get("state", "live") not in ("live", "damaged"):
        raise InvalidInput(f"state must be live or damaged, not {show(value['state'])}")
    if value.get("parent") is not None:
        check_id(value["parent"], "parent")
    if "forked_from" in value:
        fork = _object(value["forked_from"], "forked_from", {"session", "seq"})
        origin = check_id(fork.get("session"), "forked_from")
        seq = check_count(fork.get("seq"), "forked_from")
        value["forked_from"] = ForkPoint(session=origin, seq=seq)
    return SessionInfo(**value)


# --- messages ---


def message_to_json(message: Message) -> dict[str, JSON]:
    """Return a message with its fields, without those that have their default."""
    out: dict[str, JSON] = {name: getattr(message, name) for name in _ALWAYS}
    out |= {"created_at": message.created_at, "digest": message.digest.hex()}
    for name in _IF_GIVEN:
        if (given := getattr(message, name)) != _DEFAULTS[name]:
            out[name] = given
    if message.origin not in (None, "operator" if message.role == "system" else message.role):
        out["origin"] = message.origin
    if message.tool_calls:
        out["tool_calls"] = [
            {"id": c.id, "name": c.name, "arguments": c.arguments} for c in message.tool_calls
        ]
    if message.attachments:
        out["attachments"] = [
            {"media_type": a.media_type, "name": a.name, "uri": a.uri} for a in message.attachments
        ]
    if message.native:
        wire, items, provider = message.native
        out["native"] = {"wire": wire, "items": list(items)}
        out["native"] |= {"provider": provider} if provider else {}
    if message.meta:
        out["meta"] = dict(message.meta)
    return out


def message_from_json(value: Any) -> Message:
    """Return the message of a line; refuse one that no store could have written."""
    value = _object(value, "the message", _DEFAULTS.keys())
    for name, noun in (("tool_calls", ToolCall), ("attachments", Attachment)):
        if name in value:
            value[name] = _nouns(value[name], name, noun)
    if "native" in value:
        native = _object(value["native"], "native", {"wire", "items", "provider"})
        value["native"] = Native(
            wire=native.get("wire", ""),
            items=native.get("items", ()),
            provider=native.get("provider", ""),
        )
    try:
        value["digest"] = bytes.fromhex(value.get("digest", ""))
    except (TypeError, ValueError):
        raise InvalidInput(f"digest must be hexadecimal, not {show(value['digest'])}") from None
    if "role" not in value:
        raise InvalidInput("the message has no role")
    message = Message(**value)
    body = draft_copy(message).body
    if message.state == "erased":
        _check_tombstone(message, body.digest)
    check_count(message.turn, "turn")
    check_count(message.total, "total")
    return message


def _check_tombstone(message: Message, digest: bytes) -> None:
    """Refuse a tombstone with text."""
    bare = Message(role=message.role, state="erased", **{f: getattr(message, f) for f in _PLACE})
    if message != replace(bare, digest=digest):
        raise InvalidInput("an erased message has an id and a position, and nothing else")


def _nouns(values: Any, what: str, noun: type[ToolCall] | type[Attachment]) -> list[Any]:
    if type(values) is not list:
        raise InvalidInput(f"{what} must be a list, not {show(values)}")
    known = {f.name for f in fields(noun)}
    try:
        return [noun(**_object(value, what, known)) for value in cast(list[Any], values)]
    except TypeError as error:
        raise InvalidInput(f"{what}: {error}") from None


def presentable(message: Message) -> Message:
    """Return a message that can be exported: damage may have made its id or text unusable."""
    if message.state != "damaged":
        return message
    try:
        check_id(message.id, "id")
    except KeepthreadError:
        message = replace(message, id="")
    return replace(message, content=message.content[:_DAMAGED_TEXT])


# --- records ---


class SessionName(NamedTuple):
    """How an export names a session; files of version 1 give no owner."""

    owner: str | None
    id: str | None


NO_SESSION: Final = SessionName(None, None)
"""The name of a deleted session."""


class NamedSpan(NamedTuple):
    """A range of positions as an export names it."""

    session: SessionName
    first: int
    last: int


def record_to_json(
    record: Record, scope: JSON, names: Mapping[SessionKey, SessionName]
) -> dict[str, JSON]:
    """Return a record for an export; sessions are named by owner and id, deleted ones by null."""
    spans: Sequence[JSON] = [
        [*names.get(s.session, NO_SESSION), s.first, s.last] for s in record.made_of
    ]
    out: dict[str, JSON] = {"scope": scope, "kind": record.kind, "key": record.key}
    out["value"] = record.value
    return out | {"made_of": spans} if spans else out


def record_from_json(value: Any) -> dict[str, Any]:
    """Return the fields of a record's line; checks that every store makes are not repeated."""
    value = _object(value, "the record", {"scope", "kind", "key", "value", "made_of"})
    if absent := {"scope", "kind", "key", "value"} - value.keys():
        raise InvalidInput(f"the record has no {', '.join(sorted(absent))}")
    scope = _object(value["scope"], "scope", {"session", "owner"})
    for name, given in scope.items():
        check_id(given, name)
    spans: object = value.setdefault("made_of", [])
    if not isinstance(spans, list):
        raise InvalidInput(f"made_of must be a list, not {show(spans)}")
    value["made_of"] = [_span(span) for span in cast(list[object], spans)]
    return value


def _span(value: object) -> NamedSpan:
    parts = cast(list[Any], value) if isinstance(value, list) else []
    if len(parts) == _SPAN - 1:  # version 1, in which ids were unique
        parts = [None, *parts]
    if len(parts) != _SPAN:
        raise InvalidInput("made_of must hold lists of owner, session, first and last position")
    owner, id, first, last = parts
    for given in (owner, id):
        if given is not None:
            check_id(given, "made_of")
    return NamedSpan(SessionName(owner, id), check_count(first, "first"), check_count(last, "last"))


def _object(value: Any, what: str, known: Collection[str]) -> dict[str, Any]:
    """Return a copy of a JSON object; refuse unknown fields."""
    if type(value) is not dict:
        raise InvalidInput(f"{what} must be an object, not {show(value)}")
    found = cast(dict[str, Any], value)
    if unknown := found.keys() - set(known):
        raise InvalidInput(f"{what} has no field {', '.join(map(show, sorted(unknown)))}")
    return dict(found)
