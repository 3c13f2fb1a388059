"""Checks and JSON encoding of sessions and records, shared by all backends."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NamedTuple, cast

from keepthread.context.ids import derived_id
from keepthread.errors import Damaged, InvalidInput, SessionGone, Stale
from keepthread.recall.chunks import ASSISTANT
from keepthread.recall.positions import length_of, span
from keepthread.stores.codec import ROLES, dumps, loads
from keepthread.stores.kinds import MARKS
from keepthread.stores.validation import (
    MAX_COUNT,
    check_count,
    check_id,
    check_text,
    check_time,
    plain,
    show,
)
from keepthread.text_caches import register_cache
from keepthread.types import (
    JSON,
    Durability,
    ForkPoint,
    MessageFilter,
    Record,
    Scope,
    Segment,
    SessionInfo,
    SessionKey,
    SessionKind,
    Span,
    Unread,
)

KINDS: Final[tuple[SessionKind, ...]] = ("main", "fork", "delegate")


def check_session(session: SessionInfo, *, now: float, ids: Callable[[], str]) -> SessionInfo:
    """Return a valid session with its times set, or raise `InvalidInput`.

    A new session without a delimiter gets a random one, from the source of ids.
    """
    check_id(session.id, "a session id")
    check_id(session.owner, "owner")
    if session.kind not in KINDS:
        raise InvalidInput(f"kind must be one of {', '.join(KINDS)}, not {show(session.kind)}")
    if type(session.ready) is not bool:
        raise InvalidInput(f"ready must be True or False, not {show(session.ready)}")
    if type(session.forgotten) is not bool or (session.forgotten and session.ready):
        raise InvalidInput("forgotten must be True or False, and a forgotten session is not ready")
    return replace(
        session,
        delimiter=session.delimiter or ("" if session.key else derived_id("delimiter", ids())[:12]),
        created_at=_time(session.created_at, now, "created_at"),
        updated_at=_time(session.updated_at, now, "updated_at"),
    )


def _time(given: object, now: float, what: str) -> float:
    return check_time(now if given == 0 else given, what)


CHANGEABLE: Final = ("title", "title_seq", "tags", "system_prompt", "meta", "ready", "forgotten")
"""The fields of a session that an update may change."""


class Update(NamedTuple):
    """A change of a session, which the transaction that stores it applies to the stored one."""

    given: SessionInfo
    seen: SessionInfo | None
    """The session as the caller read it; None replaces all fields."""
    whole: bool
    """Whether nothing of the session may have changed since it was read."""
    now: float
    """The time of this activity."""

    @property
    def key(self) -> SessionKey:
        """Return the key of the session."""
        return self.given.key

    def of(self, known: SessionInfo) -> SessionInfo:
        """Return the stored session with the change.

        With `seen`, only fields that differ from it change. If another writer changed one of them
        in the meantime, or with `whole` any field, or a message was erased, `Stale` is raised.
        """
        wanted = {name: getattr(self.given, name) for name in CHANGEABLE}
        if self.seen is None:
            return replace(known, **wanted)
        check_epoch(known.epoch, self.seen.epoch)
        changes = {n: v for n, v in wanted.items() if not _alike(v, getattr(self.seen, n))}
        for name in CHANGEABLE if self.whole else changes:
            now = getattr(known, name)
            # A repeated attempt whose first answer was lost finds its own change.
            if not _alike(now, getattr(self.seen, name)) and not _alike(now, wanted[name]):
                raise Stale(f"the session's {name} was changed in the meantime")
        changed = replace(known, **changes)
        if changed.ready and changed.forgotten:
            raise Stale("the session was forgotten in the meantime")
        return changed


def _alike(one: object, other: object) -> bool:
    """Return whether two values of a field are stored as the same JSON."""
    return _comparable(one) == _comparable(other)


def _comparable(value: object) -> object:
    if isinstance(value, list | tuple):
        return [*cast(Sequence[object], value)]
    if isinstance(value, dict):  # as JSON, because 1 == True in Python
        return dumps(plain(cast(object, value), "meta"), "meta")
    return value


NOT_DELETED: Final = {
    "ready": "the session is ready",
    "active": "the session has been active in the meantime",
}
"""Why a session does not meet the condition of a delete."""


class Condition(NamedTuple):
    """When a session may be deleted: as long as it is not ready, or without recent activity."""

    unready: bool = False
    idle_since: float | None = None

    def __bool__(self) -> bool:
        """Return whether there is any condition."""
        return self.unready or self.idle_since is not None

    def check(self, session: SessionInfo) -> None:
        """Raise `Stale` if a session does not meet the condition."""
        if not self:
            return
        if session.state == "damaged":
            raise damaged_session(session.id)
        if self.unready and session.ready:
            raise Stale(NOT_DELETED["ready"])
        if self.idle_since is not None and session.updated_at >= self.idle_since:
            raise Stale(NOT_DELETED["active"])


def condition(*, unready: bool, idle_since: float | None) -> Condition:
    """Return a checked condition."""
    if type(unready) is not bool:
        raise InvalidInput(f"unready must be True or False, not {show(unready)}")
    since = None if idle_since is None else check_time(idle_since, "idle_since")
    return Condition(unready, since)


_KEY_DIGITS: Final = 19


def sid_of(key: SessionKey) -> int:
    """Return a session key as the number that most stores use; -1 for one that never existed."""
    if type(key) is str and key.isascii() and key.isdecimal() and len(key) < _KEY_DIGITS:
        return int(key) if key[0] != "0" else -1
    raise SessionGone("this is not a session key of this store")


def is_listed(info: SessionInfo) -> bool:
    """Return whether a session is listed and indexed: it is ready, and not a delegate."""
    return info.ready and info.kind != "delegate"


def damaged_session(id: str) -> Damaged:
    """Return the error for a session whose record is not what was written."""
    return Damaged(f"the record of session {id!r} is damaged; run `verify`")


def encode_details(session: SessionInfo) -> bytes:
    """Return as JSON the fields of a session that no query needs."""
    fork = session.forked_from
    if fork is not None and type(fork) is not ForkPoint:
        raise InvalidInput(f"forked_from must be a ForkPoint, not {show(fork)}")
    meta: object = session.meta
    if not isinstance(meta, dict):
        raise InvalidInput(f"meta must be a dict, not {show(meta)}")
    if type(session.tags) not in (tuple, list):
        raise InvalidInput(f"tags must be a tuple or a list, not {show(session.tags)}")
    details: dict[str, JSON] = {
        "delimiter": check_text(session.delimiter, "delimiter"),
        "title": check_text(session.title, "title"),
        "tags": [check_text(tag, "a tag") for tag in session.tags],
        "system_prompt": _optional(session.system_prompt, "system_prompt"),
        "meta": plain(cast(object, meta), "meta"),
        "parent": None if session.parent is None else check_id(session.parent, "parent"),
        "forked_from": None
        if fork is None
        else [check_id(fork.session, "forked_from"), check_count(fork.seq, "forked_from")],
    }
    if title_seq := check_count(session.title_seq, "title_seq"):
        details["title_seq"] = title_seq
    if session.forgotten:
        details["forgotten"] = True
    return dumps(details, "the session")


_FORGOTTEN: Final = b'"forgotten":true'


def refuses_messages(details: bytes) -> bool:
    """Return whether a session that is not ready was forgotten, by the details it is stored with.

    Nothing is appended to a session that is being written, so it does not matter that its metadata
    may hold the same text. The scripts of servers search for the same bytes.
    """
    return _FORGOTTEN in details


def forgotten_session() -> SessionGone:
    """Return the error for a new message of a session that was forgotten as a whole."""
    return SessionGone("the session was forgotten; get it by its id to begin again")


def _optional(value: object, what: str) -> str | None:
    return None if value is None else check_text(value, what)


def decode_details(details: bytes) -> dict[str, Any]:
    """Return the fields of a session that `encode_details` wrote."""
    fields: dict[str, Any] = loads(details)
    fields["tags"] = tuple(fields["tags"])
    fields.setdefault("title_seq", 0)
    fields.setdefault("forgotten", False)
    if "fence" in fields:  # its name before 2026-11-19: Redis has no format
        fields["delimiter"] = fields.pop("fence")
    if fork := fields["forked_from"]:
        fields["forked_from"] = ForkPoint(session=fork[0], seq=fork[1])
    return fields


def check_filter(value: str | None, what: str) -> None:
    """Raise `InvalidInput` if a filter cannot match any stored name; None means no filter."""
    if value is not None:
        check_id(value, what)


def check_scope(scope: Scope) -> Scope:
    """Return a scope that names a session, an owner or neither."""
    if scope.session and scope.owner:
        raise InvalidInput("a scope is a session or an owner, not both")
    if scope.owner:
        check_id(scope.owner, "owner")
    return scope


class Keys(NamedTuple):
    """A range of keys of one kind; the limit keeps the last ones. Or all kinds but one."""

    after: str = ""
    before: str = "\U0010ffff"  # not printable, so every key sorts before it
    limit: int = MAX_COUNT
    without: str = ""
    """A kind to leave out of all kinds."""


ALL_KEYS: Final = Keys()


def check_keys(
    kind: str | None,
    after: str | None,
    before: str | None,
    limit: int | None,
    without: str | None = None,
) -> Keys:
    """Return the range of keys to scan; without a kind, it must be all keys."""
    check_filter(kind, "kind")
    check_filter(without, "without")
    if without is not None and kind is not None:
        raise InvalidInput("`without` is only for a scan of all kinds")
    if after is before is limit is None:
        return ALL_KEYS if without is None else Keys(without=without)
    if kind is None:
        raise InvalidInput("`after`, `before` and `limit` need a kind")
    return Keys(
        ALL_KEYS.after if after is None else check_id(after, "after"),
        ALL_KEYS.before if before is None else check_id(before, "before"),
        ALL_KEYS.limit if limit is None else check_count(limit, "limit"),
    )


def encode_value(kind: str, key: str, value: JSON) -> bytes:
    """Return a record's value as JSON, its kind and key checked."""
    check_id(kind, "kind")
    check_id(key, "key")
    return dumps(plain(value, "the value", ordered=True), "the value")


def encode_spans(spans: Sequence[Span]) -> bytes | None:
    """Return spans as JSON, or None if there are no spans."""
    if not spans:
        return None
    plain_spans: JSON = [
        [check_id(s.session, "made_of"), check_count(s.first, "first"), check_count(s.last, "last")]
        for s in spans
    ]
    return dumps(plain_spans, "made_of")


def decode_spans(data: bytes | None) -> tuple[Span, ...]:
    """Return the spans that `encode_spans` wrote."""
    if data is None:
        return ()
    rows = cast(list[tuple[SessionKey, int, int]], loads(data))
    return tuple(Span(session=s, first=first, last=last) for s, first, last in rows)


def touches(spans: Sequence[Span], session: SessionKey, seqs: Sequence[int]) -> bool:
    """Return whether spans cover one of these positions of a session, which must ascend."""
    return any(
        bisect_left(seqs, span.first) < bisect_right(seqs, span.last)
        for span in spans
        if span.session == session
    )


_LONG: Final = 4096


@lru_cache(maxsize=32)  # every context reads the hidden ranges of its session
def _marks(value: bytes) -> JSON:
    return loads(value)


register_cache(_marks.cache_clear)


def decode_record(
    scope: Scope, kind: str, key: str, value: bytes, version: int, made_of: bytes | None
) -> Record:
    """Return a record from its stored bytes."""
    return Record(
        scope=scope,
        kind=kind,
        key=key,
        value=_marks(value) if kind == MARKS and len(value) > _LONG else loads(value),
        version=version,
        made_of=decode_spans(made_of),
    )


def check_version(current: int, seen: int | None) -> None:
    """Raise `Stale` if the record is not the one the caller read (0: no record)."""
    if seen is not None and seen != current:
        raise Stale(f"the record is at version {current}, not at {seen}")


def check_epoch(current: int, seen: int) -> None:
    """Raise `Stale` if a message was erased since the caller read the session."""
    if seen != current:
        raise Stale(f"the session is at epoch {current}, not at {seen}")


_LEVELS: Final[tuple[Durability, ...]] = ("memory", "process", "power", "replicated")


def check_durability(level: object) -> None:
    """Raise `InvalidInput` for an unknown durability; None means the engine's default."""
    if level is not None and level not in _LEVELS:
        raise InvalidInput(f"durability must be one of {', '.join(_LEVELS)}, not {show(level)}")


def strength(level: Durability) -> int:
    """Return the rank of a durability; higher means that writes survive more."""
    return _LEVELS.index(level)


def check_reading(read: Unread, until: int, *, epoch: int, mark: int, last: int) -> None:
    """Raise `Stale` if a message was erased, or another caller indexed more in the meantime.

    `mark` is the last indexed position, `last` the end of the log.
    """
    check_epoch(epoch, read.epoch)
    if mark != read.until:
        raise Stale(f"the index has read up to {mark}, not {read.until}")
    if not mark <= until <= last:
        raise InvalidInput(f"there are no messages from {mark} to {until}")


def role_bits(only: MessageFilter) -> int:
    """Return the roles that a filter admits, as bits in the order of `ROLES`."""
    roles = ROLES if only.roles is None else set(only.roles)
    return sum(1 << ROLES.index(role) for role in roles)


def check_readable(*, readable: bool) -> None:
    """Raise `Stale` for a delegate or a session that is not ready: they are not indexed."""
    if not readable:
        raise Stale("the session is a delegate, or not ready: no view reads it")


def check_places(read: Unread, until: int, places: Iterable[int]) -> None:
    """Raise `InvalidInput` if a place is outside the range that was read."""
    lowest, highest = span(int(read.session), read.until + 1, until)
    if not all(lowest <= place <= highest for place in places):
        raise InvalidInput("a place is outside the part of the log that was read")


def check_segments(read: Unread, segments: Iterable[Segment]) -> None:
    """Raise `InvalidInput` if a segment is of another session."""
    if any(segment.session != read.session for segment in segments):
        raise InvalidInput("a segment belongs to another session")


def without(segment: Segment, place: int, flags: int) -> Segment | None:
    """Return a segment without one of its parts, or None if that was the last."""
    if segment.parts <= 1:
        return None
    return segment._replace(
        parts=segment.parts - 1,
        length=segment.length - length_of(place),
        answers=segment.answers - (flags & ASSISTANT > 0),
    )
