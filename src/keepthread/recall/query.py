"""Queries: the words of a question, the time it names, and whether it asks when."""

import math
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Final, NamedTuple

from keepthread.recall.words import (
    ends_of,
    holds_grammar,
    query_forms,
    query_spelled,
    significant_characters,
    words_of,
)

_NAMES: Final = (
    "january february march april may june july august september october november december"
)
_MONTHS: Final = {name: number for number, name in enumerate(_NAMES.split(" "), 1)}
_NAMED: Final = re.compile(
    r"\b(January|February|March|April|May|June|July|August|September|October|November|December"
    r"|january|february|april|june|july|august|september|october|november|december"
    r"|(?<=in )(?:march|may)|(?<=of )(?:march|may)|(?<=\d )(?:march|may)|(?:march|may)(?= \d))\b"
)
_DAY_BEFORE: Final = re.compile(r"\b(\d{1,2})(?:st|nd|rd|th)?,? (?:of )?$")
_DAY_AFTER: Final = re.compile(r" (?:the )?(\d{1,2})(?:st|nd|rd|th)?\b(?!\d)")
_YEAR: Final = re.compile(r"\b(?:19|20)\d\d\b")
_ISO: Final = re.compile(r"\b((?:19|20)\d\d)-(\d\d)(?:-(\d\d))?\b")
_WHEN: Final = re.compile(
    r"\s*(?:when|how long|what (?:date|day|month|year|time)|(?:in|on) (?:which|what) "
    r"(?:date|day|month|year))\b",
    re.IGNORECASE,
)
FAINT: Final = 0.25
"""Weight of a single character, or of a pair that holds grammar, relative to a word."""
_MOST_CHARACTERS: Final = 32
"""Maximum number of single characters to search for."""
_READ: Final = 2000
"""Characters of a question that are searched for dates."""
_FADE: Final = 10.0
"""Days after which a segment is much less related to a named day."""
_MONTH: Final = 31
_AFTERWARDS: Final = 20
"""Days after a named month in which people still talk about it."""


class Named(NamedTuple):
    """A time that a question names; 0 means not named."""

    year: int = 0
    month: int = 0
    day: int = 0


class Query(NamedTuple):
    """A parsed question."""

    text: str
    words: Sequence[str]
    """The words to search for, as stems of the index."""
    spelled: Mapping[str, str]
    """By stem, the word as it is written."""
    forms: Mapping[str, Sequence[str]]
    """By word, other stems of the index that count as the same word."""
    faint: Mapping[str, float]
    """By word, its weight relative to the others, where that is less than 1."""
    spoken: frozenset[str]
    """All its words, to find names of speakers."""
    named: Named | None
    when: bool
    """Whether it asks when something happened."""


def query_of(text: str) -> Query:
    """Parse a question."""
    short = text[:_READ]
    words = query_spelled(text)
    single = [each for each in significant_characters(ends_of(text)) if each not in words]
    characters = single[:_MOST_CHARACTERS]
    faint = [*characters, *filter(holds_grammar, words)]
    return Query(
        text,
        [*words, *characters],
        {**words, **dict(zip(characters, characters, strict=True))},
        query_forms(text, words),
        dict.fromkeys(faint, FAINT),
        frozenset(words_of(short)),
        _named(short),
        _WHEN.match(short) is not None,
    )


def _named(text: str) -> Named | None:
    """Return the time that a text names first."""
    if iso := _ISO.search(text):
        year, month, day = (int(number or 0) for number in iso.groups())
        return Named(year, month, day) if 1 <= month <= 12 and day <= 31 else None
    years = _YEAR.search(text)
    year = int(years.group()) if years else 0
    found = _NAMED.search(text)
    if not found:
        return Named(year) if year else None
    before = _DAY_BEFORE.search(text, 0, found.start())
    day = before or _DAY_AFTER.match(text, found.end())
    number = int(day.group(1)) if day else 0
    return Named(year, _MONTHS[found.group().lower()], number if number <= 31 else 0)


def nearness(named: Named, started_at: float) -> float:
    """Return how near a segment is to the named time, from 0 to 1.

    People talk about a day on it and in the days after it, about a month until shortly after it.
    """
    try:
        at = datetime.fromtimestamp(started_at, UTC).date()
        if not named.month:
            return 1.0 if at.year == named.year else 0.0
        years = (named.year,) if named.year else (at.year, at.year - 1)
        return max(_near(named, year, at) for year in years)
    except (OverflowError, ValueError, OSError):  # outside the range of datetime
        return 0.0


def _near(named: Named, year: int, at: date) -> float:
    in_month = (at.year, at.month) == (year, named.month)
    if named.day:
        day = date(year, named.month, min(named.day, 28)) + timedelta(max(0, named.day - 28))
        after = (at - day).days
        if -1 <= after <= _MONTH:
            return math.exp(-max(after, 0) / _FADE)
        return 0.3 if in_month else 0.0
    if in_month:
        return 1.0
    end = date(year + (named.month == 12), named.month % 12 + 1, 1)
    return 0.5 if 0 <= (at - end).days <= _AFTERWARDS else 0.0
