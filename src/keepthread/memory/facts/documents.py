"""Facts as JSON: write all of them, and add those of a document that are missing."""

from collections.abc import Sequence
from typing import Any, Final, cast

from keepthread.context.trust import lowest
from keepthread.errors import InvalidInput, MessageNotFound, SessionNotFound, Stale
from keepthread.memory.facts.records import checked, from_value, value_of
from keepthread.memory.facts.repository import FactRepository
from keepthread.memory.facts.types import Loaded, Noted
from keepthread.types import JSON

_FORMAT: Final = "keepthread-facts"
_VERSION: Final = 1


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
            f"this is not a document of facts: it does not name {_FORMAT} {_VERSION}"
        )
    entries: object = document.get("facts")
    found: list[Noted] = []
    for number, entry in enumerate(cast(list[Any], entries) if isinstance(entries, list) else ()):
        given = cast(dict[str, Any], entry) if isinstance(entry, dict) else {}
        key = given.get("key")
        fact = from_value(key, given) if isinstance(key, str) else None
        if fact is None:
            raise InvalidInput(f"fact {number + 1} is not a valid fact object; nothing was loaded")
        found.append(fact)
    return found


async def _restore(repository: FactRepository, fact: Noted) -> tuple[str, bool]:
    """Note a fact of a document; the document can only lower its trust."""
    bare = fact._replace(place=None, confirmed_at=None, at=min(fact.at, repository.clock()))
    if not fact.messages:
        return await repository.add(bare._replace(origin="user", trust="user"))
    ids = [source.id for source in fact.messages if source.session == fact.messages[0].session]
    while True:
        try:
            read = await repository.read(fact.messages[0].session, ids)
            origin, trust = await repository.trust(read, fact.subject)
        except (MessageNotFound, SessionNotFound):
            return await repository.add(bare._replace(origin="import", trust="import"))
        try:
            trust = lowest([trust], fact.trust)
            return await repository.add(bare._replace(origin=origin, trust=trust), read)
        except Stale:
            continue
