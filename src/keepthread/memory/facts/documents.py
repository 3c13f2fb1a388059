"""Facts as JSON: write all of them, and add those of a document that are missing.

A document is what `to_json` returns, or a plain list: `[{"fact": "…", "updated": "2026-11-16"}]`.
"""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final, cast

from keepthread.context.trust import lowest
from keepthread.errors import InvalidInput, MessageNotFound, SessionNotFound, Stale
from keepthread.memory.facts.records import check_number, checked, from_value, value_of
from keepthread.memory.facts.repository import FactRepository
from keepthread.memory.facts.types import Loaded, Noted
from keepthread.stores.validation import check_date, show
from keepthread.types import JSON

_FORMAT: Final = "keepthread-facts"
_VERSION: Final = 1
_FACT: Final = "fact"


class Changes:
    """Counts what loading a document changed."""

    def __init__(self) -> None:
        """Begin without changes."""
        self.added: list[str] = []
        self.edited: list[str] = []
        self.confirmed: list[str] = []
        self.forgotten: list[str] = []
        self.passed: list[str] = []

    def loaded(self) -> Loaded:
        """Return the changes."""
        return Loaded(**vars(self))


def to_json(owner: str, noted: Sequence[Noted]) -> JSON:
    """Return facts as plain JSON."""
    facts = [{"key": fact.key, **cast(dict[str, JSON], value_of(fact))} for fact in noted]
    return {"format": _FORMAT, "version": _VERSION, "owner": owner, "facts": facts}


async def load_json(repository: FactRepository, value: object) -> Loaded:
    """Add the facts that are missing here."""
    if (listed := _listed(value)) is not None:
        return await _load_list(repository, listed)
    given = [checked(fact, repository.owner) for fact in _from_json(value)]
    changes = Changes()
    for fact in given:
        there = await repository.state(fact.key)
        if there == "gone":
            changes.passed.append(fact.key)
        elif there is None:
            key, new = await _restore(repository, fact)
            if new:
                changes.added.append(key)
            elif not key:
                changes.passed.append(fact.key)
    return changes.loaded()


def _from_json(value: object) -> list[Noted]:
    """Return the facts of a document; raise an error that names the first invalid one."""
    document: dict[str, Any] = cast(dict[str, Any], value) if isinstance(value, dict) else {}
    if (document.get("format"), document.get("version")) != (_FORMAT, _VERSION):
        raise InvalidInput(
            f"this is not a document of facts: it does not name {_FORMAT} {_VERSION},"
            ' and is not a list such as [{"fact": "Likes tea.", "updated": "2026-11-16"}]'
        )
    facts: object = document.get("facts")
    entries = cast(list[Any], facts) if isinstance(facts, list) else []
    check_number(len(entries))
    found: list[Noted] = []
    for number, entry in enumerate(entries):
        given = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
        key = given.get("key")
        fact = from_value(key, given) if isinstance(key, str) else None
        if fact is None:
            raise InvalidInput(f"fact {number + 1} is not a valid fact object; nothing was loaded")
        found.append(fact)
    return found


async def _restore(repository: FactRepository, fact: Noted) -> tuple[str, bool]:
    """Store a fact from a document; the document can only lower its trust."""
    bare = fact._replace(place=None, confirmed_at=None, at=min(fact.at, repository.clock()))
    if not fact.messages:
        return await repository.add(bare._replace(origin="user", trust="user"))
    first = fact.messages[0]
    ids = [each.id for each in fact.messages if each.session == first.session]
    while True:
        try:
            if first.owner:
                raise SessionNotFound("a document cannot refer to another owner's session")
            read = await repository.read(first.session, ids)
            origin, trust = await repository.trust(read, fact.subject)
        except (MessageNotFound, SessionNotFound):
            return await repository.add(bare._replace(origin="import", trust="import"))
        try:
            trust = lowest([trust], fact.trust)
            return await repository.add(bare._replace(origin=origin, trust=trust), read)
        except Stale:
            continue


# --- plain lists ---


def _listed(value: object) -> list[Any] | None:
    """Return the entries of a plain list of facts, or None if it is another document."""
    if isinstance(value, list):
        return cast(list[Any], value) or None
    return [cast(Any, value)] if isinstance(value, dict) and _FACT in value else None


async def _load_list(repository: FactRepository, entries: Sequence[object]) -> Loaded:
    """Remember the facts of a plain list, which its owner wrote, unless they hold already."""
    check_number(len(entries))
    now = repository.clock()
    given = [_from_entry(entry, number, now) for number, entry in enumerate(entries, start=1)]
    given = [checked(fact, repository.owner) for fact in given]
    facts = await repository.facts()
    own = [fact for fact in facts if not fact.subject and not fact.agent]
    known = {fact.text for fact in own if fact.state == "live"}
    changes = Changes()
    for fact in given:
        if fact.text in known:
            continue
        known.add(fact.text)
        key, new = await repository.add(fact)
        if new:
            changes.added.append(key)
    return changes.loaded()


def _from_entry(entry: object, number: int, now: float) -> Noted:
    given = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
    text = given.get(_FACT)
    if not isinstance(text, str):
        raise InvalidInput(
            f'fact {number} has no text: write {{"fact": "Likes tea."}}; nothing was loaded'
        )
    try:
        at = _time_of(given.get("updated"))
    except (ValueError, OverflowError):
        raise InvalidInput(
            f"fact {number} has an invalid time {show(given['updated'])}: write"
            " 2026-11-16T09:30:00Z, 2026-11-16 or seconds since 1970; nothing was loaded"
        ) from None
    return Noted(key="", text=text, at=now if at is None else min(at, now))


def _time_of(value: object) -> float | None:
    """Return a time in seconds since 1970; a text without a time zone is in UTC."""
    if value is None:
        return None
    if not isinstance(value, str):
        return check_date(value, "updated")
    moment = datetime.fromisoformat(value.strip())
    return check_date((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp(), "at")
