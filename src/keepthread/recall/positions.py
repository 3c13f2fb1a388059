"""Places: session, position and piece of a message packed into one number.

From the highest bits down: the session's number, the position in its log, the piece of a long
message, and the number of words of the piece. Places sort by session and position, and can be
scored without looking anything up.
"""

from typing import Final

LENGTH_BITS: Final = 8
PART_BITS: Final = 11
SEQ_BITS: Final = 22
MOST_LENGTH: Final = (1 << LENGTH_BITS) - 1
MOST_PARTS: Final = 1 << PART_BITS
MOST_SEQ: Final = (1 << SEQ_BITS) - 1
MESSAGE: Final = LENGTH_BITS + PART_BITS
"""A place shifted right by this number of bits is that of the message: session and position."""
SESSION: Final = MESSAGE + SEQ_BITS


def place(session: int, seq: int, part: int, length: int) -> int:
    """Return the place of a piece; lengths above `MOST_LENGTH` are stored as that."""
    head = (session << SEQ_BITS | seq) << PART_BITS | part
    return head << LENGTH_BITS | min(length, MOST_LENGTH)


def span(session: int, first: int = 0, last: int = MOST_SEQ) -> tuple[int, int]:
    """Return the lowest and the highest place of a session's positions, both ends included."""
    lowest = (session << SEQ_BITS | first) << MESSAGE
    highest = ((session << SEQ_BITS | last) + 1 << MESSAGE) - 1
    return lowest, highest


def session_of(place: int) -> int:
    """Return the session's number."""
    return place >> SESSION


def seq_of(place: int) -> int:
    """Return the position in the log."""
    return place >> MESSAGE & MOST_SEQ


def part_of(place: int) -> int:
    """Return which piece of the message it is, from 0."""
    return place >> LENGTH_BITS & MOST_PARTS - 1


def length_of(place: int) -> int:
    """Return how many words the piece has."""
    return place & MOST_LENGTH


VIEW: Final = "words:2"
"""The name of the word index. A change in how words are split gets another number."""
