"""Encode messages into the bytes that stores keep, and decode and check them.

A message is kept as content bytes and, where it has more than a role and a text, plain JSON with
a fixed schema. Text is UTF-8 with lone surrogates passed through, so it survives byte for byte.
"""

import json
import os
import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, NamedTuple, TypeAlias, cast

from keepthread.errors import Damaged, InvalidInput
from keepthread.stores.validation import MAX_BYTES, check_id, check_text, plain, show
from keepthread.types import JSON, Attachment, Message, Native, Origin, Role, State, ToolCall

ROLES: Final[tuple[Role, ...]] = ("system", "user", "assistant", "tool")
ORIGINS: Final = frozenset(("operator", "user", "assistant", "tool", "web", "import"))
WIRES: Final = frozenset(("openai-chat", "openai-responses", "anthropic"))
USER: Final = ROLES.index("user")

_ROLE_CODES: Final[dict[object, int]] = {role: code for code, role in enumerate(ROLES)}
_OWN_ORIGINS: Final[tuple[Origin, ...]] = ("operator", "user", "assistant", "tool")
_CALL_FIELDS: Final = ("id", "name", "arguments")
_ATTACHMENT_FIELDS: Final = ("media_type", "name", "uri")
_ERASED: Final = 128  # added to the role in a tombstone's digest
_NO_DIGEST: Final = bytes(32)

_pack_lengths = struct.Struct("<BHI").pack
_pack_places = struct.Struct("<7qd").pack

PackedId: TypeAlias = bytes | str
Guard: TypeAlias = int | bytes
GuardOf: TypeAlias = Callable[[int, int, int, bytes, int, int, int, float, bytes], Guard]
"""How a backend checks a row: as `guard_of` does, or in a way that its server can compute."""


class Body(NamedTuple):
    """The body of a message as stored; the content of a tombstone is `None`."""

    role: int
    content: bytes | None
    extra: bytes | None
    digest: bytes


class Row(NamedTuple):
    """One message as stored; `turns` is the running count of the log."""

    seq: int
    id: PackedId
    role: int
    content: bytes | None
    extra: bytes | None
    tokens: int
    counter: bytes
    turn: int
    turns: int
    total: int
    created_at: float
    digest: bytes
    guard: Guard


def dumps(value: JSON, what: str, *, limit: int = MAX_BYTES) -> bytes:
    """Return plain JSON as bytes, at most `limit` of them."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except ValueError as error:  # an int of more digits than Python prints
        raise InvalidInput(f"{what} cannot be written as JSON: {error}") from None
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > limit:
        raise InvalidInput(f"{what} has {len(data)} bytes; the limit is {limit}")
    return data


def loads(data: bytes) -> Any:
    """Return the JSON that `dumps` wrote."""
    return json.loads(data.decode("utf-8", "surrogatepass"))


def digest(id: str, role: int, content: bytes, extra: bytes | None) -> bytes:
    """Return the SHA-256 of a body, which is the same in every store and copy."""
    name = id.encode()
    if extra is None:
        return sha256(_pack_lengths(role, len(name), 0) + name + content).digest()
    return sha256(_pack_lengths(role, len(name), len(extra)) + name + extra + content).digest()


def guard_of(
    place: int,
    seq: int,
    tokens: int,
    counter: bytes,
    turn: int,
    turns: int,
    total: int,
    created_at: float,
    digest: bytes,
) -> int:
    """Return a checksum over a row's digest and its other values.

    `place` is the session's number, so that a row that strays into another session is noticed.
    """
    numbers = _pack_places(place, seq, tokens, turn, turns, total, len(counter), created_at)
    return zlib.crc32(digest + numbers + counter)


def guarded(place: int, numbers: Sequence[Any]) -> bool:
    """Return whether a row's values from `seq` to `guard` are what was written."""
    try:
        return numbers[-1] == guard_of(place, *numbers[:-1])
    except (TypeError, struct.error):  # damage can change a value's type as well
        return False


def value_check(*values: int | float | str | bytes | None) -> int:
    """Return a checksum over the values of a small record."""
    check = 0
    for value in values:
        data = value if isinstance(value, bytes) else repr(value).encode()
        check = zlib.crc32(data, zlib.crc32(b"%d" % len(data), check))
    return check


def new_id() -> str:
    """Return a new UUIDv7 as 32 lower-case hexadecimal digits: ids sort by time and pack well."""
    random = os.urandom(10).hex()
    variant = "89ab"[int(random[3], 16) & 3]
    return f"{time.time_ns() // 1_000_000:012x}7{random[:3]}{variant}{random[4:19]}"


def pack_id(id: str) -> PackedId:
    """Return 16 bytes for an id of 32 lower-case hexadecimal digits, else the id itself."""
    if len(id) == 32:
        try:
            packed = bytes.fromhex(id)
        except ValueError:
            return id
        if packed.hex() == id:
            return packed
    return id


def unpack_id(id: PackedId) -> str:
    """Return the id that `pack_id` packed."""
    return id.hex() if isinstance(id, bytes) else id


def encode(message: Message, id: str, *, limit: int = MAX_BYTES) -> Body:
    """Return the body of a message, or raise `InvalidInput`."""
    role = _role_code(message.role)
    text = check_text(message.content, "content")
    if len(text) > limit:  # checked before 50 MB are copied
        raise InvalidInput(f"the message has {len(text)} characters; the limit is {limit} bytes")
    content = text.encode("utf-8", "surrogatepass")
    if type(message.meta) is not dict:
        raise InvalidInput(f"meta must be a dict, not {show(message.meta)}")
    extra = _encode_extra(message, role, limit) if _has_extra(message) else None
    size = len(content) + (len(extra) if extra else 0)
    if size > limit:
        raise InvalidInput(f"the message has {size} bytes; the limit is {limit}")
    return Body(role, content, extra, digest(id, role, content, extra))


def encode_as_is(message: Message, *, limit: int = MAX_BYTES) -> Body:
    """Return the body of a message that was read from a store, in any state."""
    if message.state == "erased":
        return tombstone(message.id, _role_code(message.role))
    body = encode(message, message.id, limit=limit)
    if message.state == "damaged":  # it must remain damaged in every copy
        return body._replace(digest=_NO_DIGEST)
    if message.digest != body.digest:
        raise Damaged(f"message {show(message.id)} does not match its digest")
    return body


def tombstone(id: str, role: int) -> Body:
    """Return the tombstone of an erased message."""
    return Body(role, None, None, digest(id, role + _ERASED, b"", None))


def _role_code(role: object) -> int:
    code = _ROLE_CODES.get(role) if type(role) is str else None
    if code is None:
        raise InvalidInput(f"role must be one of {', '.join(ROLES)}, not {show(role)}")
    return code


def _has_extra(m: Message) -> bool:
    return bool(
        m.tool_calls
        or m.meta
        or m.attachments
        or not m.tool_call_id is m.name is m.author is m.origin is m.source is m.native is None
    )


def _encode_extra(message: Message, role: int, limit: int) -> bytes | None:
    extra: dict[str, JSON] = {}
    if message.tool_calls:
        extra["tool_calls"] = _plain_nouns(message.tool_calls, ToolCall, _CALL_FIELDS)
    for field in ("tool_call_id", "name", "source"):
        if (text := getattr(message, field)) is not None:
            extra[field] = check_text(text, field)
    if message.author is not None:
        extra["author"] = check_id(message.author, "author")
    if message.origin is not None and message.origin != _OWN_ORIGINS[role]:
        extra["origin"] = _one_of(message.origin, ORIGINS, "origin")
    if message.attachments:
        extra["attachments"] = _plain_nouns(message.attachments, Attachment, _ATTACHMENT_FIELDS)
    if message.native is not None:
        extra["native"] = _plain_native(message.native)
    if message.meta:
        extra["meta"] = plain(message.meta, "meta")
    return dumps(extra, "the message", limit=limit) if extra else None


def _one_of(value: object, known: frozenset[str], what: str) -> str:
    if type(value) is str and value in known:
        return value
    raise InvalidInput(f"{what} must be one of {', '.join(sorted(known))}, not {show(value)}")


def _plain_nouns(values: object, noun: type, fields: Sequence[str]) -> JSON:
    if type(values) is not tuple and type(values) is not list:
        raise InvalidInput(f"{noun.__name__}s must come in a tuple or a list, not {show(values)}")
    for value in cast(Sequence[object], values):
        if type(value) is not noun:
            raise InvalidInput(f"expected {noun.__name__}, not {show(value)}")
    return [
        {f: check_text(getattr(value, f), f"{noun.__name__}.{f}") for f in fields}
        for value in cast(Sequence[object], values)
    ]


def _plain_native(native: object) -> JSON:
    if type(native) is not Native or type(native.items) not in (tuple, list):
        raise InvalidInput(f"native must be Native with a tuple or a list, not {show(native)}")
    items = plain(list(native.items), "native", ordered=True)  # their order is the provider's
    given: dict[str, JSON] = {"wire": _one_of(native.wire, WIRES, "native.wire"), "items": items}
    provider = check_text(native.provider, "native.provider")
    return {**given, "provider": provider} if provider else given


class _MessageBuilder:
    """A message under construction, with the same slots as `Message`.

    Setting twenty fields of a frozen dataclass costs 7 µs; filling this and turning it into a
    `Message` costs 0.5, and a context of 4,096 tokens has a hundred messages.
    """

    __slots__ = Message.__slots__

    def __init__(  # noqa: PLR0913 - positional for speed, and private
        self,
        id: str,
        role: int,
        content: str,
        tokens: int,
        counter: str,
        created_at: float,
        seq: int,
        turn: int,
        total: int,
        digest: bytes,
        state: State,
    ) -> None:
        self.role = ROLES[role]
        self.content = content
        self.tool_calls: Sequence[ToolCall] = ()
        self.tool_call_id: str | None = None
        self.name: str | None = None
        self.author: str | None = None
        self.origin = _OWN_ORIGINS[role]
        self.source: str | None = None
        self.attachments: Sequence[Attachment] = ()
        self.native: Native | None = None
        self.meta: Mapping[str, JSON] = {}
        self.id = id
        self.tokens = tokens
        self.counter = counter
        self.created_at = created_at
        self.seq = seq
        self.turn = turn
        self.total = total
        self.digest = digest
        self.state = state

    def take_extra(self, extra: dict[str, Any]) -> None:
        """Fill in the fields that are stored as JSON."""
        self.tool_calls = tuple(ToolCall(**call) for call in extra.get("tool_calls", ()))
        self.tool_call_id = extra.get("tool_call_id")
        self.name = extra.get("name")
        self.author = extra.get("author")
        self.origin = extra.get("origin", self.origin)
        self.source = extra.get("source")
        self.attachments = tuple(Attachment(**a) for a in extra.get("attachments", ()))
        if native := extra.get("native"):
            items = tuple(native["items"])
            self.native = Native(native["wire"], items, native.get("provider", ""))
        self.meta = extra.get("meta", self.meta)

    def done(self) -> Message:
        """Become a frozen `Message`."""
        self.__class__ = Message  # pyright: ignore[reportAttributeAccessIssue]
        return cast(Message, self)


def decode(place: int, row: Row | tuple[Any, ...], guard_of: GuardOf = guard_of) -> Message:
    """Return a row's message; its state is `damaged` if the row is not what was written."""
    seq, id, role, content, extra, tokens, counter, turn, turns, total, at, sha, guard = row
    try:
        name = id.hex() if type(id) is bytes else cast(str, id)
        if guard != guard_of(place, seq, tokens, counter, turn, turns, total, at, sha):
            return _decode_damaged(Row._make(row))
        if content is None:
            intact = extra is None and sha == tombstone(name, role).digest
            text, state = "", "erased"
        else:
            intact = sha == digest(name, role, content, extra)
            text, state = content.decode("utf-8", "surrogatepass"), "live"
        if not intact:
            return _decode_damaged(Row._make(row))
        draft = _MessageBuilder(
            name, role, text, tokens, counter.decode(), at, seq, turn, total, sha, state
        )
        if extra is not None:
            draft.take_extra(loads(extra))
    except (TypeError, ValueError, LookupError, AttributeError, struct.error):
        return _decode_damaged(Row._make(row))  # damage can change a value's type as well
    return draft.done()


def _decode_damaged(row: Row) -> Message:
    """Return the readable parts of a damaged row, for display; none of them can be trusted."""
    content = row.content if isinstance(row.content, bytes) else b""
    draft = _MessageBuilder(
        row.id.hex() if isinstance(row.id, bytes) else str(row.id),
        row.role if type(row.role) is int and 0 <= row.role < len(ROLES) else USER,
        content.decode("utf-8", "replace"),
        0,
        "",
        0.0,
        _whole(row.seq),
        _whole(row.turn),
        _whole(row.total),
        _NO_DIGEST,
        "damaged",
    )
    return draft.done()


def missing(seq: int) -> Message:
    """Return a damaged placeholder for a position whose message is missing."""
    return _MessageBuilder("", USER, "", 0, "", 0.0, seq, 0, 0, _NO_DIGEST, "damaged").done()


def _whole(value: object) -> int:
    return value if type(value) is int else 0


def stored(message: Message, id: str, body: Body, row: Row) -> Message:
    """Return the message as it was stored, without reading it again."""
    draft = _MessageBuilder(
        id,
        body.role,
        message.content,
        row.tokens,
        row.counter.decode(),
        row.created_at,
        row.seq,
        row.turn,
        row.total,
        body.digest,
        "live",
    )
    if body.extra is not None:
        draft.take_extra(loads(body.extra))
    return draft.done()
