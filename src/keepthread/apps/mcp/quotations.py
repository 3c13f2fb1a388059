"""Results as quotations: each between random delimiters, with its origin and its date.

Everything that others could have chosen is quoted, including names of sessions, authors and tools.
Outside the quotations are only our own words, numbers and dates. Every answer has a new random
delimiter, so stored text cannot contain it.
"""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote, unquote

from keepthread.apps.mcp.definitions import SESSIONS_URI
from keepthread.context.quoting import delimited, flat
from keepthread.context.rendering import attachment_note, author_name, label
from keepthread.context.trust import origin_of
from keepthread.errors import InvalidInput
from keepthread.memory.facts.types import Fact
from keepthread.memory.search.search import Hit
from keepthread.recall.snippet import snippet
from keepthread.recall.words import words_of
from keepthread.types import Message

MAX_FOUND: Final = 800
"""Characters of a message that a search shows, from where the words of the query are."""
MAX_READ: Final = 4000
"""Characters of a message that a reader of its session is shown."""
_MAX_CALL: Final = 300
_CUT: Final = "…"
_UNKNOWN: Final = "unknown date"


def new_delimiter() -> str:
    """Return an unpredictable delimiter."""
    return secrets.token_hex(8)


def found_messages(hits: Sequence[Hit], query: str) -> list[dict[str, Any]]:
    """Return search results, each with the part that matches the query."""
    delimiter, words = new_delimiter(), frozenset(words_of(query))

    def around(text: str) -> str:
        return text if len(text) <= MAX_FOUND else snippet(text, words, MAX_FOUND)

    return [
        _message(hit.session, hit.message, around(_body(hit.message)), delimiter) for hit in hits
    ]


def read_messages(session: str, messages: Iterable[Message]) -> list[dict[str, Any]]:
    """Return messages of one session, long ones from their beginning."""
    delimiter = new_delimiter()
    return [_message(session, each, _cut(_body(each), MAX_READ), delimiter) for each in messages]


def _message(session: str, message: Message, text: str, delimiter: str) -> dict[str, Any]:
    origin, date, where = origin_of(message), date_of(message.created_at), session_uri(session)
    names = [f"{where}, position {message.seq}"]
    if message.name:
        names.append(f"{'tool' if message.role == 'tool' else 'name'} {label(message.name)}")
    if message.author:
        names.append(f"author {author_name(message.author)}")
    title = f"message of role {message.role}, origin {origin}, {date}"
    return {
        "session": where,
        "position": message.seq,
        "role": message.role,
        "origin": origin,
        "date": date,
        "quote": delimited(f"{', '.join(names)}\n{text}", delimiter, title),
    }


def _body(message: Message) -> str:
    """Return the text of a message; calls of tools and attachments are named."""
    calls = [
        f"(called {label(call.name)} with {_cut(flat(call.arguments), _MAX_CALL)})"
        for call in message.tool_calls
    ]
    parts = [message.content, *calls, *map(attachment_note, message.attachments)]
    return "\n".join(filter(None, parts))


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[:most] + _CUT


def quoted_facts(facts: Iterable[Fact]) -> list[dict[str, Any]]:
    """Return facts, each with its key and as a quotation."""
    delimiter = new_delimiter()
    return [
        {
            "key": fact.key,
            "origin": fact.origin,
            "since": (date := date_of(fact.since)),
            "quote": delimited(
                _statement(fact), delimiter, f"fact, origin {fact.origin}, since {date}"
            ),
        }
        for fact in facts
    ]


def _statement(fact: Fact) -> str:
    return f"about {flat(fact.subject)}: {fact.text}" if fact.subject else fact.text


def as_text(values: Iterable[Mapping[str, Any]], *, empty: str) -> str:
    """Return quotations as one text."""
    return "\n".join([str(each["quote"]) for each in values]) or empty


def date_of(seconds: float) -> str:
    """Return a moment as a date and a time, in UTC."""
    try:
        return f"{datetime.fromtimestamp(seconds, tz=UTC):%Y-%m-%d %H:%M} UTC"
    except (OverflowError, OSError, ValueError):
        return _UNKNOWN


# --- sessions by their address ---


def session_uri(id: str) -> str:
    """Return the address of a session: its id, percent-encoded, so that it can say nothing."""
    return SESSIONS_URI + quote(id, safe="")


def session_id(text: str) -> str:
    """Return the id of a session that a client names by its address, or by the id itself."""
    if not text.startswith(SESSIONS_URI):
        return text
    try:
        return unquote(text.removeprefix(SESSIONS_URI), errors="strict")
    except UnicodeDecodeError:
        raise InvalidInput("the address of a session is UTF-8, encoded as in a URL") from None
