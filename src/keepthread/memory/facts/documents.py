"""Load documents of facts: a person's changes count as the owner's word."""

from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

from keepthread.context.trust import lowest
from keepthread.errors import InvalidInput, MessageNotFound, SessionNotFound, Stale
from keepthread.memory.facts.markdown import Line, heading_of, line_of, read, without_box
from keepthread.memory.facts.records import checked, from_value, value_of
from keepthread.memory.facts.repository import FactRepository
from keepthread.memory.facts.types import Fact, Found, Loaded, Noted
from keepthread.stores.validation import check_text
from keepthread.types import JSON

_FORMAT: Final = "keepthread-facts"
_VERSION: Final = 1
_CURRENT: Final = ("live", "quarantined")
_NO_TIME: Final = (
    "the document does not say when it was written, so newer facts could be forgotten by mistake;"
    " keep the comment under its title"
)


class EditableFacts(Protocol):
    """The facts of one owner, as far as loading a document needs them."""

    @property
    def owner(self) -> str:
        """Return whose facts they are."""
        ...

    async def list(self, *, all: bool = False, at: float | None = None) -> Found:  # noqa: A002 - as in `Facts`
        """Return current facts, all facts, or those of another time."""
        ...

    async def remember(
        self, text: str, *, subject: str = "", attribute: str = "", value: str = ""
    ) -> Fact:
        """Add a fact."""
        ...

    async def edit(
        self,
        key: str,
        *,
        text: str | None = None,
        subject: str | None = None,
        attribute: str | None = None,
    ) -> Fact:
        """Correct a fact."""
        ...

    async def confirm(self, key: str) -> Fact:
        """Take a fact out of quarantine."""
        ...

    async def forget(self, key: str) -> int:
        """Forget a fact."""
        ...


class _Changes:
    """Counts what loading a document changed."""

    def __init__(self) -> None:
        self.added: list[str] = []
        self.edited: list[str] = []
        self.confirmed: list[str] = []
        self.forgotten: list[str] = []
        self.passed: list[str] = []

    def loaded(self) -> Loaded:
        return Loaded(**vars(self))


# --- Markdown ---


async def load_markdown(facts: EditableFacts, text: str, *, prune: bool) -> Loaded:
    """Apply the changes that a person made in a document."""
    document = read(check_text(text, "a document"), facts.owner)
    if prune and document.at is None:
        raise InvalidInput(_NO_TIME)
    known = {fact.key: fact for fact in await facts.list(all=True)}
    changes = _Changes()
    for line in document.lines:
        if not line.key:
            await _add(facts, line, known, changes)
        elif (fact := known.get(line.key)) is not None:
            await _compare(facts, line, fact, changes)
        else:
            changes.passed.append(line.key)
    if prune and document.at is not None:
        # A fact that became true after the document was written cannot be missing from it.
        then = {fact.key for fact in await facts.list(at=document.at)}
        kept = {line.key for line in document.lines}
        for fact in known.values():
            old = fact.noted_at <= document.at and fact.key in then
            lacking = fact.state in _CURRENT and fact.key not in kept and old
            if lacking and await facts.forget(fact.key):
                changes.forgotten.append(fact.key)
    return changes.loaded()


async def _add(facts: EditableFacts, line: Line, known: dict[str, Fact], changes: _Changes) -> None:
    value = line.text if line.attribute else ""
    fact = await facts.remember(
        line.text, subject=line.subject, attribute=line.attribute, value=value
    )
    if fact.key not in known:
        changes.added.append(fact.key)


async def _compare(facts: EditableFacts, line: Line, fact: Fact, changes: _Changes) -> None:
    """Apply what differs in a line that has a key."""
    given: dict[str, str] = {}
    if without_box(line.raw) != line_of(fact):
        given["text"] = line.text
        given["attribute"] = line.attribute
    if fact.state == "live" and line.heading != heading_of(fact.subject, facts.owner):
        given["subject"] = line.subject
    given = {name: text for name, text in given.items() if text != getattr(fact, name)}
    if given and fact.state not in _CURRENT:
        changes.passed.append(fact.key)
    elif given:
        await facts.edit(fact.key, **given)
        changes.edited.append(fact.key)
    elif line.ticked and fact.state == "quarantined":
        await facts.confirm(fact.key)
        changes.confirmed.append(fact.key)


# --- JSON ---


def to_json(owner: str, noted: Sequence[Noted]) -> JSON:
    """Return facts as plain JSON."""
    facts = [{"key": fact.key, **cast(dict[str, JSON], value_of(fact))} for fact in noted]
    return {"format": _FORMAT, "version": _VERSION, "owner": owner, "facts": facts}


async def load_json(repository: FactRepository, value: object) -> Loaded:
    """Add the facts that are missing here."""
    given = [checked(fact, repository.owner) for fact in _from_json(value)]
    changes = _Changes()
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
