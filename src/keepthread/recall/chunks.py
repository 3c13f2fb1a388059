"""Chunks: messages split into pieces for the index, each with flags such as "has a digit"."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from keepthread.recall.corpus import PAUSE
from keepthread.recall.positions import MOST_PARTS, length_of, place, seq_of
from keepthread.recall.words import characters_of, marked, words_of
from keepthread.types import Message, Part, Segment, Unread

ASKS: Final = 1
"""It ends in a question mark."""
TIMED: Final = 2
"""It holds an expression of time."""
NUMBERED: Final = 4
"""It has a digit."""
STANDING: Final = 8
"""It is a lasting instruction, such as "always answer in German"."""
USER: Final = 16
ASSISTANT: Final = 32
TOOL: Final = 64
SYSTEM: Final = 128
FIRST: Final = 256
"""It is the first piece of its message."""
FOREIGN: Final = 512
"""It comes from a tool, the web or an import."""


WHOLE: Final = 250
"""Up to this number of tokens, a message of a user is one piece."""
GROUP: Final = 100
"""Tokens of a group of sentences."""

_TOTAL: Final = 10
_MOST_TOTAL: Final = (1 << 20) - 1

_ROLES: Final = {"user": USER, "assistant": ASSISTANT, "tool": TOOL, "system": SYSTEM}
_TIME: Final = re.compile(
    r"\b(?:yesterday|today|tonight|tomorrow|last|next|ago|weeks?|weekend|months?|years?|recently"
    r"|since|earlier|few days|this morning|(?:mon|tues|wednes|thurs|fri|satur|sun)day"
    r"|january|february|march|april|june|july|august|september|october|november|december"
    r"|(?:19|20)\d\d)\b",
    re.IGNORECASE,
).search
_ALWAYS: Final = re.compile(
    r"\b(?:always|never|prefer|from now on|whenever|make sure|i like|i want you to"
    r"|please (?:always|include|use|avoid))\b",
    re.IGNORECASE,
).search
_DIGIT: Final = re.compile(r"\d").search
_QUESTION: Final = re.compile("[?\uff1f\u061f][^\\w?\uff1f\u061f]*$").search
_SENTENCE: Final = re.compile("(?<=[.!?])\\s+|(?<=[\u3002\uff01\uff1f])|\n+")
_SPACE: Final = re.compile(r"\s")


def pieces_of(message: Message) -> list[str]:
    """Return the text of a message in pieces; an empty list if it has no text."""
    text = message.content.strip()
    if not text or message.state not in ("live", "queued"):
        return []
    tokens = _tokens(text)
    if tokens <= (WHOLE if message.role == "user" else GROUP):
        return [text]
    # Two neighboring groups together exceed the limit, and rounding up at most doubles the tokens
    # of sentences; so there are never more than MOST_PARTS groups.
    return _grouped(text, max(GROUP, 4 * tokens // (MOST_PARTS - 1) + 1))


def parts_of(session: int, message: Message) -> list[Part]:
    """Return the pieces of a message for the index; the name of the speaker is among the words."""
    pieces = pieces_of(message)
    speaker = speaker_of(message)
    named = words_of(speaker)
    costs = [_tokens(piece) + len(named) + 1 for piece in pieces]
    common = _flags_of_message(message, sum(costs))
    parts: list[Part] = []
    for number, piece in enumerate(pieces):
        words = named + words_of(piece)
        parts.append(
            Part(
                place=place(session, message.seq, number, len(words)),
                words=_indexed(words, piece),
                tokens=costs[number],
                flags=common | _flags_of_text(piece) | (0 if number else FIRST),
                speaker=speaker,
            )
        )
    return parts


def _indexed(words: Sequence[str], piece: str) -> list[str]:
    """Return the index terms of a piece: its words, and single characters that may be words.

    Characters are not part of the length and repetitions are not marked: they say little, and
    would double the index of a Chinese text.
    """
    found = marked(words)
    characters = characters_of(piece)
    return [*found, *(each for each in characters if each not in found)] if characters else found


def segments_of(
    read: Unread, messages: Sequence[Message], parts: Sequence[Part] | None = None
) -> list[Segment]:
    """Return the segments that these messages begin or extend.

    `parts` are the pieces of the messages; they are made if not given.
    """
    if parts is None:
        number = int(read.session)
        parts = [part for message in messages for part in parts_of(number, message)]
    times = {message.seq: message.created_at for message in messages}
    segments: list[Segment] = []
    now = read.segment
    for part in parts:
        seq = seq_of(part.place)
        at = times[seq]
        if now is None or abs(at - now.ended_at) > PAUSE:
            if now is not None and now is not read.segment:
                segments.append(now)
            now = Segment(read.session, seq, at, at, 0, 0, 0)
        now = now._replace(
            ended_at=max(at, now.ended_at),
            parts=now.parts + 1,
            length=now.length + length_of(part.place),
            answers=now.answers + (part.flags & ASSISTANT > 0),
        )
    if now is not None and now is not read.segment:
        segments.append(now)
    return segments


def speaker_of(message: Message) -> str:
    """Return the name of the speaker; empty for the plain user or assistant."""
    return message.author or message.name or ""


def total_of(flags: int) -> int:
    """Return the approximate tokens of the whole message that a piece belongs to."""
    return flags >> _TOTAL


def _flags_of_message(message: Message, tokens: int) -> int:
    """Return the flags that all pieces share: role, origin and total cost."""
    origin = message.origin or message.role
    foreign = FOREIGN if origin in ("tool", "web", "import") else 0
    return min(tokens, _MOST_TOTAL) << _TOTAL | _ROLES[message.role] | foreign


def _flags_of_text(text: str) -> int:
    """Return the flags of a text: question, time, number, lasting instruction."""
    return (
        (ASKS if _QUESTION(text[-16:]) else 0)
        | (TIMED if _TIME(text) else 0)
        | (NUMBERED if _DIGIT(text) else 0)
        | (STANDING if _ALWAYS(text) else 0)
    )


def _tokens(text: str) -> int:
    """Return the approximate tokens: two ninths per letter, more if it is not Latin."""
    letters = len(text)
    if not text.isascii():
        letters += 3 * (len(text.encode(errors="replace")) - letters) // 4
    return letters * 2 // 9 + 1


def _grouped(text: str, limit: int) -> list[str]:
    """Return groups of sentences of about `limit` tokens, as slices of the text."""
    groups: list[str] = []
    begin = end = tokens = 0
    for first, last in _sentences(text, 9 * limit // 2, least=2 * (limit - GROUP)):
        cost = _tokens(text[first:last])
        if tokens and tokens + cost > limit:
            groups.append(text[begin:end].strip())
            begin, tokens = first, 0
        end, tokens = last, tokens + cost
    return [group for group in (*groups, text[begin:end].strip()) if group]


def _sentences(text: str, longest: int, least: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each sentence or line; a far too long one is cut.

    A sentence of fewer than `least` letters is joined to the next.
    """
    first = 0
    while first < len(text):
        gap = _SENTENCE.search(text, first + max(1, least))
        last, following = gap.span() if gap else (len(text), len(text))
        while last - first > 2 * longest:
            space = _SPACE.search(text, first + longest, first + 2 * longest)
            cut = space.start() if space else first + longest
            yield first, cut
            first = cut
        if last > first:
            yield first, last
        first = following
