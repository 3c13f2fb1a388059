"""Hostile inputs: what every backend must store exactly or refuse with an error of ours.

Try them all on a store of your own: `await try_hostile(store, case)` returns `case.verdict` for
each of `CASES`, and leaves the store as it was.
"""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from keepthread.errors import KeepthreadError
from keepthread.protocols import Store
from keepthread.stores.codec import new_id
from keepthread.stores.validation import MAX_BYTES, MAX_DEPTH, MAX_ID
from keepthread.types import Attachment, Message, Native, Scope, SessionInfo, ToolCall

STORED: Final = "stored exactly"
REFUSED: Final = "refused: InvalidInput"
CONFLICT: Final = "refused: Conflict"
STALE: Final = "refused: Stale"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hostile:
    """One hostile input, made again for every try, and the outcome it must have.

    One of `messages`, `session`, `record` (kind, key, value) and `tenant` is given. `expect` and
    `turn` go with messages; the log they come to holds one user message.
    """

    name: str
    verdict: str
    messages: Callable[[], Iterable[Message]] | None = None
    expect: Any = None
    turn: Any = None
    session: Callable[[], SessionInfo] | None = None
    record: Callable[[], tuple[Any, Any, Any]] | None = None
    tenant: Any = None


async def try_hostile(store: Store, case: Hostile) -> str:
    """Try a case on an open store and return what happened.

    `stored exactly` and `refused: …` also mean that what is stored is what was given, unmoved by
    what its caller does to it later; that a refusal stored nothing; and that the store stays
    usable. An error that is not keepthread's own comes through.
    """
    if case.messages:
        return await _try_messages(store, case, case.messages)
    if case.session:
        return await _try_session(store, case.session)
    if case.record:
        return await _try_record(store, case.record)
    return await _try_tenant(store, case.tenant)


# --- messages ---


async def _try_messages(store: Store, case: Hostile, make: Callable[[], Iterable[Message]]) -> str:
    key = (await store.put_session(_new_session())).key
    [before] = await store.append(key, [Message(role="user", content="before")])
    given = cast(Sequence[Message], make())
    outcome, answers, wanted = STORED, list[Message](), list[Message]()
    try:
        answers = await store.append(key, given, expect=case.expect, turn=case.turn)
        wanted = list(make())
    except KeepthreadError as error:
        outcome = _refused(error)
    exact = _all_alike(wanted, answers)
    for message in (*given, *answers):
        _spoil_message(message)
    [after] = await store.append(key, [Message(role="user", content="after")])
    found = await store.read(key, limit=len(wanted) + 3)
    if not exact or not _all_alike([before, *_distinct(wanted), after], found):
        outcome = f"changed ({outcome})"
    elif await store.find(key, ids=[message.id for message in found]) != found:
        outcome = f"not found by its id ({outcome})"
    await store.delete_session(key)
    return outcome


def _distinct(messages: Iterable[Message]) -> list[Message]:
    """Return each id once, and every message that has none yet."""
    kept: dict[object, Message] = {}
    for message in messages:
        kept.setdefault(message.id or object(), message)
    return list(kept.values())


def _all_alike(given: Sequence[Message], found: Sequence[Message]) -> bool:
    return len(given) == len(found) and all(map(_alike, given, found))


def _alike(given: Message, found: Message) -> bool:
    return (
        _body(given) == _body(found)
        and (given.tokens, given.counter) == (found.tokens, found.counter)
        and bool(found.id)
        and given.id in ("", found.id)
        and given.created_at in (0, found.created_at)
    )


def _body(message: Message) -> tuple[object, ...]:
    """Return the input in a form in which 1, 1.0 and True differ."""
    native = message.native
    return (
        message.role,
        message.content,
        tuple(message.tool_calls),
        message.tool_call_id,
        message.name,
        message.author,
        message.origin or ("operator" if message.role == "system" else message.role),
        message.source,
        tuple(message.attachments),
        native and (native.wire, json.dumps(list(native.items))),
        json.dumps(message.meta, sort_keys=True),
    )


def _spoil_message(message: Message) -> None:
    native = getattr(message.native, "items", None)
    _spoil(message.meta, message.tool_calls, message.attachments, native)


def _spoil(*values: object) -> None:
    """Empty every list and dict inside, as a careless caller might."""
    waiting = list(values)
    while waiting:
        value = waiting.pop()
        if type(value) is list:
            waiting += cast(list[object], value)
            value.clear()
        elif type(value) is dict:
            waiting += cast(dict[object, object], value).values()
            value.clear()


# --- sessions, records, tenants ---


async def _try_session(store: Store, make: Callable[[], SessionInfo]) -> str:
    known = await _session_ids(store)
    given = make()
    try:
        stored = await store.put_session(given)
    except KeepthreadError as error:
        unchanged = await _session_ids(store) == known and await _usable(store)
        return _refused(error) if unchanged else f"changed ({_refused(error)})"
    _spoil(given.meta, given.tags, stored.meta)
    found = await store.get_session(stored.id, stored.owner)
    exact = found is not None and _details(found) == _details(make())
    [said] = await store.append(stored.key, [Message(role="user", content="after")])
    exact = exact and await store.tail(stored.key) == [said]
    await store.delete_session(stored.key)
    return STORED if exact else "changed"


def _details(session: SessionInfo) -> tuple[object, ...]:
    return (
        session.id,
        session.owner,
        session.title,
        tuple(session.tags),
        session.system_prompt,
        json.dumps(session.meta, sort_keys=True),
        session.kind,
        session.parent,
        session.forked_from,
    )


async def _try_record(store: Store, make: Callable[[], tuple[Any, Any, Any]]) -> str:
    session = await store.put_session(_new_session())
    scope = Scope(session=session.key)
    kind, key, value = make()
    outcome = STORED
    try:
        await store.put(scope, kind, key, value)
        _spoil(value)
        record = await store.get(scope, kind, key)
        if record is None or json.dumps(record.value) != json.dumps(make()[2]):
            outcome = "changed"
    except KeepthreadError as error:
        outcome = _refused(error)
    if len(await store.scan(scope)) != (outcome == STORED):
        outcome = f"changed ({outcome})"
    await store.delete_session(session.key)
    return outcome


async def _try_tenant(store: Store, name: Any) -> str:
    try:
        twin = store.tenant(name)
    except KeepthreadError as error:
        return _refused(error) if await _usable(store) else f"unusable ({_refused(error)})"
    session = await twin.put_session(_new_session())
    apart = await store.get_session(session.id) is None
    await twin.delete_session(session.key)
    return STORED if apart and await _usable(store) else "changed"


def _refused(error: KeepthreadError) -> str:
    return f"refused: {type(error).__name__}"


def _new_session() -> SessionInfo:
    return SessionInfo(id=f"hostile:{new_id()}")


async def _session_ids(store: Store) -> set[str]:
    return {session.id for session in await store.list_sessions(limit=1_000_000)}


async def _usable(store: Store) -> bool:
    session = await store.put_session(_new_session())
    [said] = await store.append(session.key, [Message(role="user", content="after")])
    heard = await store.tail(session.key)
    await store.delete_session(session.key)
    return heard == [said]


# --- the cases ---


class _Text(str):
    """Text that is not quite a str."""

    __slots__ = ()


def _user(**fields: Any) -> Message:
    """Return a user's message; a field may hold what its type forbids."""
    fields.setdefault("role", "user")
    return Message(**fields)


def _users(field: str, values: Iterable[object]) -> list[Message]:
    return [_user(**{field: value}) for value in values]


def _nested(levels: int) -> dict[str, Any]:
    """Return `depth` nested dicts."""
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"in": value}
    return value


def _uncompacted(doublings: int) -> Any:
    """Return a kilobyte in a structure that is 2**doublings kilobytes when written out."""
    value: Any = "x" * 1024
    for _ in range(doublings):
        value = [value, value]
    return value


def _any() -> list[Message]:
    return [_user()]


def _native(*items: object) -> Message:
    return _user(native=Native(wire="anthropic", items=cast(Any, list(items))))


def _message(name: str, verdict: str, /, **fields: Any) -> Hostile:
    """Return a case of one message whose fields cannot be changed from outside."""
    return Hostile(name=name, verdict=verdict, messages=lambda: [_user(**fields)])


def _meta(name: str, verdict: str, make: Callable[[], Any]) -> Hostile:
    """Return a case of one message with that meta."""
    return Hostile(name=name, verdict=verdict, messages=lambda: [_user(meta=make())])


def _session(name: str, verdict: str, make: Callable[[], SessionInfo]) -> Hostile:
    return Hostile(name=name, verdict=verdict, session=make)


def _with_id(name: str, verdict: str, id: Any) -> list[Hostile]:
    """Return a session, a message, an author and a tenant of one id."""
    return [
        _session(f"a session id: {name}", verdict, lambda: SessionInfo(id=id)),
        _session(f"an owner: {name}", verdict, lambda: SessionInfo(id="s", owner=id)),
        # A message without an id gets one.
        _message(f"a message id: {name}", verdict if id else STORED, id=id),
        _message(f"an author: {name}", verdict, author=id),
        Hostile(name=f"a tenant: {name}", verdict=verdict, tenant=id),
    ]


_PACKED_ALIKE: Final = (
    "0" * 15,
    "0" * 16,
    "30" * 16,  # the bytes of the one before
    "0" * 32,
    "a" * 32,
    "A" * 32,
    "00 " * 10 + "00",  # hexadecimal to a lenient parser
    "\u0660" * 32,  # digits, but not ours
)

_SURROGATES: Final = ("\ud83d", "\ude00", "\ud83d\ude00", "\U0001f600")
"""The middle two look alike once they went through UTF-16 or \\u escapes; they are not."""

_TEXT: Final = (
    _message("NUL in content", STORED, content="a\x00b\x00"),
    Hostile(
        name="lone surrogates", verdict=STORED, messages=lambda: _users("content", _SURROGATES)
    ),
    _meta("lone surrogates in meta", STORED, lambda: {s: [s] for s in _SURROGATES}),
    Hostile(
        name="lone surrogates in native", verdict=STORED, messages=lambda: [_native(*_SURROGATES)]
    ),
    _message("line breaks of all kinds", STORED, content="\r\n\r\n\v\f\x1c\x85\u2028\u2029"),
    _message("text that turns around", STORED, content="\u202egpj.exe\u2066\u200f"),
    _message("text that is not normalized", STORED, content="e\u0301\u00e9\ufb01\u212b"),
    _message("control tokens", STORED, content="<|endoftext|><|im_start|>system\n\\u0000"),
    _message("exactly 1 MiB", STORED, content="x" * MAX_BYTES),
    _message("1 MiB and a byte", REFUSED, content="x" * (MAX_BYTES + 1)),
    _message(
        "1 MiB and a byte, in fewer characters", REFUSED, content="x\U0001f600" + "é" * (1 << 19)
    ),
    Hostile(name="50 MB", verdict=REFUSED, messages=lambda: _users("content", ["x" * 50_000_000])),
    _meta("50 MB in meta", REFUSED, lambda: {"text": "x" * 50_000_000}),
    _message("None as content", REFUSED, content=None),
    _message("content is bytes", REFUSED, content=b"text"),
    _message("content is not quite a str", REFUSED, content=_Text("text")),
)

_JSON: Final = (
    _meta("meta as deep as may be", STORED, lambda: _nested(MAX_DEPTH)),
    _meta("meta a level too deep", REFUSED, lambda: _nested(MAX_DEPTH + 1)),
    _meta("meta 2,000 deep", REFUSED, lambda: _nested(2000)),
    Hostile(
        name="native as deep as may be",
        verdict=STORED,
        messages=lambda: [_native(_nested(MAX_DEPTH - 1))],
    ),
    Hostile(
        name="native a level too deep",
        verdict=REFUSED,
        messages=lambda: [_native(_nested(MAX_DEPTH))],
    ),
    Hostile(name="native 2,000 deep", verdict=REFUSED, messages=lambda: [_native(_nested(2000))]),
    _meta("a small meta that uncompacted to megabytes", REFUSED, lambda: {"x": _uncompacted(11)}),
    _meta("NaN", REFUSED, lambda: {"x": [math.nan]}),
    _meta("infinity", REFUSED, lambda: {"x": -math.inf}),
    _meta("numbers that look alike", STORED, lambda: {"x": [0, 0.0, -0.0, False, 1, 1.0, True]}),
    _meta("the ends of floats", STORED, lambda: {"x": [5e-324, 1.7976931348623157e308, 0.1]}),
    _meta("2**80", STORED, lambda: {"x": [2**80, -(2**80), 2**63, 2**53 + 1]}),
    _meta("an int of 5,000 digits", REFUSED, lambda: {"x": 10**5000}),
    _meta("a tuple in meta", REFUSED, lambda: {"x": (1, 2)}),
    _meta("a set in meta", REFUSED, lambda: {"x": {1, 2}}),
    _meta("bytes in meta", REFUSED, lambda: {"x": b"1"}),
    _meta("an object in meta", REFUSED, lambda: {"x": object()}),
    _meta("text that is not quite a str in meta", REFUSED, lambda: {"x": _Text("1")}),
    _meta("a key that is a number", REFUSED, lambda: {1: "x"}),
    _meta("None as a key", REFUSED, lambda: {"x": {None: "x"}}),
    _meta("NUL in a key, and an empty key", STORED, lambda: {"a\x00b": 1, "": 2, "\x00": 3}),
    _meta("keys out of order", STORED, lambda: {"b": 1, "a": {"d": 1, "c": 2}, "\uffff": 3}),
    _meta("a type tag", STORED, lambda: {"lc": 1, "type": "secret", "__class__": "os.system"}),
    _meta("meta that its caller changes later", STORED, lambda: {"x": {"y": [1, {"z": [2]}]}}),
    Hostile(
        name="native that its caller changes later",
        verdict=STORED,
        messages=lambda: [_native({"type": "thinking", "of": [1, [2]]}, None, "b", 0.5)],
    ),
    _message("native on no known wire", REFUSED, native=Native(wire=cast(Any, "telex"), items=())),
    _message("native that is a dict", REFUSED, native={"wire": "anthropic", "items": []}),
)

_FIELDS: Final = (
    _message("an unknown role", REFUSED, role="hacker"),
    _message("a role that is not quite a str", REFUSED, role=_Text("user")),
    _message("a role that is a list", REFUSED, role=["user"]),
    _message("an unknown origin", REFUSED, origin="god"),
    _message("a name that is bytes", REFUSED, name=b"n"),
    _message("True as tokens", REFUSED, tokens=True),
    _message("negative tokens", REFUSED, tokens=-1),
    _message("half a token", REFUSED, tokens=0.5),
    _message("more tokens than JSON can count", REFUSED, tokens=2**53),
    _message("as many tokens as JSON can count", STORED, tokens=2**53 - 1),
    _message("a time before 1970", REFUSED, created_at=-1.0),
    _message("a time that is NaN", REFUSED, created_at=math.nan),
    _message("a time that never comes", REFUSED, created_at=math.inf),
    _message("a time too large for a float", REFUSED, created_at=10**400),
    _message("a time that is text", REFUSED, created_at="2026-01-01"),
    _message("a whole number as time", STORED, created_at=2**30),
    _message("the last time of the year 9999", STORED, created_at=253_402_300_799.5),
    _message("the first time of the year 10000", REFUSED, created_at=253_402_300_800),
    _message("a time in milliseconds", REFUSED, created_at=1_700_000_000_000),
    _message(
        "arguments that are not JSON",
        STORED,
        role="assistant",
        tool_calls=(ToolCall(id="", name="\x00", arguments='{"a": \ud800'),),
    ),
    _message("an empty tool_call_id", STORED, role="tool", tool_call_id="", name=""),
    _message(
        "10,000 tool calls",
        STORED,
        role="assistant",
        tool_calls=tuple(ToolCall(id=str(n), name="t", arguments="{}") for n in range(10_000)),
    ),
    _message("a tool call that is a dict", REFUSED, tool_calls=({"id": "1", "name": "t"},)),
    _message("tool calls in a generator", REFUSED, tool_calls=(c for c in ())),
    _message(
        "an attachment that points outside",
        STORED,
        attachments=(Attachment(media_type="\x00", uri="file:///../../x"),),
    ),
    _message(
        "an attachment of bytes", REFUSED, attachments=(Attachment(media_type=cast(Any, b"")),)
    ),
)

_LOG: Final = (
    Hostile(
        name="ids that would pack into the same bytes",
        verdict=STORED,
        messages=lambda: _users("id", _PACKED_ALIKE),
    ),
    Hostile(
        name="one id twice, the same message",
        verdict=STORED,
        messages=lambda: [_user(id="twice"), _user(), _user(id="twice")],
    ),
    Hostile(
        name="one id twice, another message",
        verdict=CONFLICT,
        messages=lambda: [_user(id="twice"), _user(), _user(id="twice", content="else")],
    ),
    Hostile(
        name="one bad message among good ones",
        verdict=REFUSED,
        messages=lambda: [_user(), _user(role="hacker"), _user()],
    ),
    Hostile(name="a generator", verdict=STORED, messages=lambda: (_user() for _ in range(3))),
    Hostile(name="no messages", verdict=STORED, messages=list[Message]),
    Hostile(name="a position long gone", verdict=STALE, expect=0, messages=_any),
    Hostile(name="a negative position", verdict=REFUSED, expect=-1, messages=_any),
    Hostile(name="True as a position", verdict=REFUSED, expect=True, messages=_any),
    Hostile(name="a position past counting", verdict=REFUSED, expect=2**63, messages=_any),
    Hostile(name="a turn never opened", verdict=REFUSED, turn=2, messages=_any),
    Hostile(name="turn 0", verdict=REFUSED, turn=0, messages=_any),
    Hostile(name="a negative turn", verdict=REFUSED, turn=-1, messages=_any),
    Hostile(name="an earlier turn", verdict=STORED, turn=1, messages=_any),
)

_IDS: Final = (
    *_with_id("empty", REFUSED, ""),
    *_with_id("as long as may be", STORED, "x" * MAX_ID),
    *_with_id("a character too long", REFUSED, "x" * (MAX_ID + 1)),
    *_with_id("NUL", REFUSED, "a\x00b"),
    *_with_id("a line break", REFUSED, "a\nb"),
    *_with_id("a lone surrogate", REFUSED, "\ud800"),
    *_with_id("right-to-left override", REFUSED, "a\u202eb"),
    *_with_id("SQL", STORED, "a'; DROP TABLE messages; --"),
    *_with_id("a path", STORED, "../../../etc/passwd"),
    *_with_id("wildcards", STORED, "%_*?[a]"),
    *_with_id("emoji", STORED, "\U0001f9f5" * MAX_ID),
    *_with_id("bytes", REFUSED, b"id"),
    *_with_id("not quite a str", REFUSED, _Text("id")),
)

_BESIDE: Final = (
    _session(
        "NUL and lone surrogates in a title",
        STORED,
        lambda: SessionInfo(id="s", title="\x00\ud800"),
    ),
    _session("a title that is bytes", REFUSED, lambda: SessionInfo(id="s", title=cast(Any, b"t"))),
    _session("a session of 1 MiB", REFUSED, lambda: SessionInfo(id="s", title="x" * MAX_BYTES)),
    _session("a session's meta too deep", REFUSED, lambda: SessionInfo(id="s", meta=_nested(65))),
    _session(
        "a session's meta changed later", STORED, lambda: SessionInfo(id="s", meta=_nested(64))
    ),
    _session("tags that are text", REFUSED, lambda: SessionInfo(id="s", tags="abc")),
    _session("an unknown kind", REFUSED, lambda: SessionInfo(id="s", kind=cast(Any, "x"))),
    _session("ready as 1", REFUSED, lambda: SessionInfo(id="s", ready=cast(Any, 1))),
    Hostile(
        name="a record changed later",
        verdict=STORED,
        record=lambda: ("k", "%", {"b": [1.0], "a": {}}),
    ),
    Hostile(name="a record with NaN", verdict=REFUSED, record=lambda: ("k", "k", [math.nan])),
    Hostile(name="a record too deep", verdict=REFUSED, record=lambda: ("k", "k", _nested(65))),
    Hostile(name="a record with no key", verdict=REFUSED, record=lambda: ("k", "", None)),
)

CASES: Final[tuple[Hostile, ...]] = (*_TEXT, *_JSON, *_FIELDS, *_LOG, *_IDS, *_BESIDE)
"""Every case."""
