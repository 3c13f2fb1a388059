"""Facts as records of their owner, and back; a forgotten fact leaves its key, but no text."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

from keepthread.context.ids import derived_id
from keepthread.context.rendering import author_name
from keepthread.context.trust import TRUST
from keepthread.errors import InvalidInput
from keepthread.memory.facts.resolution import said, slot_of
from keepthread.memory.facts.types import Noted, Source, Wording
from keepthread.stores.kinds import FACT
from keepthread.stores.validation import (
    MAX_ID,
    check_count,
    check_id,
    check_text,
    check_time,
    show,
)
from keepthread.types import JSON, Message, Record

MOST_TEXT: Final = 1000
"""Characters of a fact's text."""
MOST_NAME: Final = 120
"""Characters of a subject or an attribute."""
MOST_VALUE: Final = 300
MOST_FACTS: Final = 20_000
"""Facts in one document."""
_GONE: Final = "gone"
_TIME: Final = 12
"""Digits of a key that are its time."""
_BROKEN: Final = re.compile("[\ud800-\udfff]")
_ITSELF: Final = frozenset(("i", "me", "myself", "user", "the user", "owner", "the owner"))


# --- what may be stored ---


def one_line(value: object, what: str, most: int) -> str:
    """Return a text in one line; refuse one that is too long for a fact."""
    text = " ".join(check_text(value, what).split())
    if "\0" in text or (not text.isascii() and _BROKEN.search(text)):
        raise InvalidInput(f"{what} contains a NUL character or a lone surrogate")
    if len(text) > most:
        raise InvalidInput(f"{what} has {len(text)} characters; the limit is {most}")
    return text


def check_number(number: int) -> None:
    """Refuse a document with too many facts: to store them takes a long time."""
    if number > MOST_FACTS:
        raise InvalidInput(
            f"the document has more than {MOST_FACTS:,} facts, the limit for one document; load it "
            "in parts, without prune"
        )


def subject_of(value: object, owner: str, speaker: str | None = None) -> str:
    """Return the subject of a fact; empty if it is the owner.

    "I", "the user" and the name that models read mean the speaker, or the owner if no speaker is
    named. Only the owner's exact name means the owner: in a shared channel people choose their own
    names, so a speaker whose name would be read as the owner's is refused.
    """
    subject = one_line(value, "subject", MOST_NAME)
    if subject.casefold() not in _ITSELF:
        if subject == owner:
            return ""
        if not speaker or subject != author_name(speaker):
            return subject
    if not speaker or speaker == owner:
        return ""
    name = one_line(speaker, "author", MAX_ID)
    if name == owner or name.casefold() in _ITSELF:
        raise InvalidInput(f"the author name {show(speaker)} could be mistaken for the owner")
    return name


def checked(fact: Noted, owner: str) -> Noted:
    """Return a fact in the form in which it is stored; raise an error if it is invalid."""
    text = one_line(fact.text, "a fact's text", MOST_TEXT)
    if not text:
        raise InvalidInput("a fact's text is empty; state the fact in one sentence")
    if type(fact.many) is not bool:
        raise InvalidInput(f"many must be True or False, not {show(fact.many)}")
    attribute = one_line(fact.attribute, "attribute", MOST_NAME)
    value = one_line(fact.value, "value", MOST_VALUE)
    if fact.many and not (attribute and value):
        raise InvalidInput("with many=True, give both attribute and value")
    for name in ("since", "until"):
        if getattr(fact, name) is not None:
            check_time(getattr(fact, name), name)
    for name in ("agent", "source"):
        if getattr(fact, name) != "":
            check_id(getattr(fact, name), name)
    return fact._replace(
        text=text, subject=subject_of(fact.subject, owner), attribute=attribute, value=value
    )


# --- keys ---


def key_of(fact: Noted, owner: str, messages: Sequence[Message]) -> str:
    """Return the permanent key of a fact; keys sort by when the fact was said.

    The same fact from the same messages has one key, however it is worded and whichever copy of the
    messages it was read in.
    """
    millis = min(int(fact.at * 1000), (1 << 48) - 1)
    if messages:
        sources = [part for m in messages for part in (m.id, m.digest.hex())]
        statement = said(fact) if fact.attribute else ""
    else:
        sources, statement = [repr(fact.at)], said(fact)
    kind = f"{FACT}:{fact.agent}" if fact.agent else FACT
    id = derived_id(kind, owner, *slot_of(fact)[1:], statement, *sources)
    return f"{millis:0{_TIME}x}{id[_TIME:]}"


# --- values ---


def value_of(fact: Noted) -> JSON:
    """Return the stored value of a fact."""
    value: dict[str, Any] = fact._asdict()
    del value["key"]
    for name in ("agent", "source"):  # most facts have neither
        if not value[name]:
            del value[name]
    value["messages"] = [[*source[:3], *filter(None, source[3:])] for source in fact.messages]
    value["place"] = None if fact.place is None else list(fact.place)
    value["wordings"] = [list(wording) for wording in fact.wordings]
    return value


def gone(at: float) -> JSON:
    """Return the remainder of a forgotten fact, which prevents it from being proposed again."""
    return {_GONE: at}


def is_gone(record: Record) -> bool:
    """Return whether a record is the remainder of a forgotten fact."""
    return isinstance(record.value, Mapping) and _GONE in record.value


def noted_of(record: Record) -> Noted | None:
    """Return the fact in a record; None if it was forgotten, or is not in our format."""
    return None if is_gone(record) else from_value(record.key, record.value)


def all_noted(records: Iterable[Record]) -> list[Noted]:
    """Return the facts in records."""
    return [fact for record in records if (fact := noted_of(record)) is not None]


def from_value(key: str, value: object) -> Noted | None:
    """Return the fact in a value, or None if it is not a fact."""
    try:
        return _noted(key, cast(dict[str, Any], value))
    except (AttributeError, InvalidInput, KeyError, TypeError, ValueError):
        return None


_TEXT: Final = {str}


def _noted(key: str, value: dict[str, Any]) -> Noted:
    place = value["place"]
    texts = [value["text"], value["subject"], value["attribute"], value["value"], value["by"]]
    if {*map(type, texts)} != _TEXT:
        raise TypeError
    text, subject, attribute, stated, by = texts
    return Noted(
        key=key,
        text=text,
        at=check_time(value["at"], "at"),
        subject=subject,
        attribute=attribute,
        value=stated,
        many=value["many"] is True,
        messages=[
            Source(*_place(source), *(check_text(each, "a source") for each in source[2:]))
            for source in value["messages"]
        ],
        place=None if place is None else _place(place),
        origin=TRUST[TRUST.index(value["origin"])],
        trust=TRUST[TRUST.index(value["trust"])],
        since=_optional_time(value["since"], "since"),
        until=_optional_time(value["until"], "until"),
        noted_at=check_time(value["noted_at"], "noted_at"),
        by=by,
        confirmed_at=_optional_time(value["confirmed_at"], "confirmed_at"),
        wordings=[_wording(*wording) for wording in value["wordings"]],
        offset=check_count(value.get("offset", 0), "offset"),
        end_added=value.get("end_added") is True,
        agent=check_text(value.get("agent", ""), "agent"),
        source=check_text(value.get("source", ""), "source"),
    )


def _wording(text: str, value: str, since: float, until: float) -> Wording:
    times = check_time(since, "since"), check_time(until, "until")
    return Wording(check_text(text, "text"), check_text(value, "value"), *times)


def _place(value: Sequence[Any]) -> tuple[str, int]:
    return check_text(value[0], "session"), check_count(value[1], "seq")


def _optional_time(value: object, what: str) -> float | None:
    return None if value is None else check_time(value, what)
