"""What every backend does alike with sessions and shelves: check, and turn into JSON and back."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, cast

from keepthread.checks import (
    MAX_COUNT,
    check_count,
    check_id,
    check_text,
    check_time,
    plain,
    show,
)
from keepthread.codec import dumps, loads
from keepthread.derived import derived_id
from keepthread.errors import InvalidInput, Stale
from keepthread.types import (
    JSON,
    ForkPoint,
    Record,
    Scope,
    SessionInfo,
    SessionKey,
    SessionKind,
    Span,
)

KINDS: Final[tuple[SessionKind, ...]] = ("main", "fork", "delegate")


def check_session(session: SessionInfo, *, now: float, ids: Callable[[], str]) -> SessionInfo:
    """Return a session that every backend can keep, stamped, or refuse it.

    A new one gets a fence unless it brings one, drawn from what ids are drawn from.
    """
    check_id(session.id, "a session id")
    check_id(session.owner, "owner")
    if session.kind not in KINDS:
        raise InvalidInput(f"kind must be one of {', '.join(KINDS)}, not {show(session.kind)}")
    if type(session.ready) is not bool:
        raise InvalidInput(f"ready must be True or False, not {show(session.ready)}")
    return replace(
        session,
        fence=session.fence or ("" if session.key else derived_id("fence", ids())[:12]),
        created_at=_time(session.created_at, now, "created_at"),
        updated_at=_time(session.updated_at, now, "updated_at"),
    )


def _time(given: object, now: float, what: str) -> float:
    return check_time(now if given == 0 else given, what)


def with_changes(known: SessionInfo, given: SessionInfo) -> SessionInfo:
    """Return a stored session with what an update may change of it."""
    return replace(
        known,
        title=given.title,
        tags=given.tags,
        system_prompt=given.system_prompt,
        meta=given.meta,
        ready=given.ready,
    )


def encode_details(session: SessionInfo) -> bytes:
    """Return as JSON what is not needed to find a session."""
    fork = session.forked_from
    if fork is not None and type(fork) is not ForkPoint:
        raise InvalidInput(f"forked_from must be a ForkPoint, not {show(fork)}")
    meta: object = session.meta
    if not isinstance(meta, dict):
        raise InvalidInput(f"meta must be a dict, not {show(meta)}")
    if type(session.tags) not in (tuple, list):
        raise InvalidInput(f"tags must be a tuple or a list, not {show(session.tags)}")
    details: dict[str, JSON] = {
        "fence": check_text(session.fence, "fence"),
        "title": check_text(session.title, "title"),
        "tags": [check_text(tag, "a tag") for tag in session.tags],
        "system_prompt": _optional(session.system_prompt, "system_prompt"),
        "meta": plain(cast(object, meta), "meta"),
        "parent": None if session.parent is None else check_id(session.parent, "parent"),
        "forked_from": None
        if fork is None
        else [check_id(fork.session, "forked_from"), check_count(fork.seq, "forked_from")],
    }
    return dumps(details, "the session")


def _optional(value: object, what: str) -> str | None:
    return None if value is None else check_text(value, what)


def decode_details(details: bytes) -> dict[str, Any]:
    """Return the fields of a session that `encode_details` wrote; old ones have no fence."""
    fields: dict[str, Any] = loads(details)
    fields["tags"] = tuple(fields["tags"])
    if fork := fields["forked_from"]:
        fields["forked_from"] = ForkPoint(session=fork[0], seq=fork[1])
    return fields


def check_filter(value: str | None, what: str) -> None:
    """Refuse a filter that no stored name can match; None is none."""
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
    """Which keys of a kind are meant: those between two, and of these the last."""

    after: str = ""
    before: str = "\U0010ffff"  # it cannot be printed, so every key comes before it
    limit: int = MAX_COUNT


ALL_KEYS: Final = Keys()


def check_keys(kind: str | None, after: str | None, before: str | None, limit: int | None) -> Keys:
    """Return which keys of a kind to scan; without a kind it must be all."""
    check_filter(kind, "kind")
    if after is before is limit is None:
        return ALL_KEYS
    if kind is None:
        raise InvalidInput("after, before and limit are for the keys of one kind: name it")
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
    """Return spans as JSON, or None where there are none."""
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
    """Tell whether spans cover one of these positions of a session, which must ascend."""
    return any(
        bisect_left(seqs, span.first) < bisect_right(seqs, span.last)
        for span in spans
        if span.session == session
    )


def decode_record(
    scope: Scope, kind: str, key: str, value: bytes, version: int, made_of: bytes | None
) -> Record:
    """Return a record from the bytes that are kept of it."""
    return Record(
        scope=scope,
        kind=kind,
        key=key,
        value=loads(value),
        version=version,
        made_of=decode_spans(made_of),
    )


def check_version(current: int, seen: int | None) -> None:
    """Refuse to write over a record that is not the one the caller saw (0: none)."""
    if seen is not None and seen != current:
        raise Stale(f"the record is at version {current}, not at {seen}")


def check_epoch(current: int, seen: int) -> None:
    """Refuse what was made before something was erased."""
    if seen != current:
        raise Stale(f"the session is at epoch {current}, not at {seen}")
