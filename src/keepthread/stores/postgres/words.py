"""Encode words for the index in PostgreSQL, and decode its answers."""

import struct
from array import array
from base64 import b64encode
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from sys import byteorder
from threading import Lock
from typing import Any, Final, TypeAlias

from keepthread.recall.corpus import CorpusStats
from keepthread.recall.positions import SESSION
from keepthread.text_caches import register_cache, register_object
from keepthread.types import Part, Segment, SessionKey, Unread

_LETTERS: Final = 5  # thirty bits: two words of an owner rarely collide
_MAX_WORDS: Final = 50_000  # of a part; PostgreSQL's type holds at most a megabyte
_AT: Final = (1 << SESSION) - 1
_MOST_SID: Final = (1 << 63) - 1

_MOST_SEGMENTS: Final = 300_000  # that a process keeps
_UNKNOWN: Final = -1

_segments = struct.Struct(">q2d3q").iter_unpack
_unread = struct.Struct(">3q").unpack


def split(places: Iterable[int]) -> tuple[list[int], list[int]]:
    """Return places as two columns, sessions and offsets; each place once, in order."""
    sound = [place for place in sorted(set(places)) if 0 < place >> SESSION <= _MOST_SID]
    return [place >> SESSION for place in sound], [place & _AT for place in sound]


def at_of(place: int) -> int:
    """Return a place without its session."""
    return place & _AT


def place_of(sid: int, at: int) -> int:
    """Return a place from its session and offset."""
    return sid << SESSION | at


@lru_cache(maxsize=1 << 16)
def letters_of(view: tuple[int, str], word: str) -> str:
    """Return the code of a word in a tenant's index; the server adds the owner's letters."""
    key = f"{view[0]} {view[1]}".encode()[:64]
    digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=6, key=key).digest()
    return b64encode(digest)[:_LETTERS].decode()


def text_of(view: tuple[int, str], part: Part) -> str:
    """Return the codes of all words of a part, each followed by a space."""
    return "".join([f"{letters_of(view, word)} " for word in part.words[:_MAX_WORDS]])


def plain_ones(words: Sequence[str]) -> list[int]:
    """Return for each word the number of its form without a repetition mark, 0 without mark."""
    numbers = {word: number for number, word in enumerate(words, 1)}
    return [numbers.get(word[:-1], 0) if word.endswith(("²", "³")) else 0 for word in words]


def places_in(sid: int, data: bytes) -> list[int]:
    """Decode the places of a word in a session, or in several if its number is 0."""
    numbers = array("q", data)
    if byteorder == "little":
        numbers.byteswap()
    if sid:
        head = sid << SESSION
        return [head | at for at in numbers]
    return [each << SESSION | at for each, at in zip(numbers[::2], numbers[1::2], strict=True)]


def segments_in(sid: int, data: bytes) -> Iterator[Segment]:
    """Decode the segments of a session."""
    session = SessionKey(str(sid))
    numbers: tuple[Any, ...]
    for numbers in _segments(data):
        yield Segment(session, *numbers)


def unread_in(sid: int, data: bytes) -> Unread:
    """Decode a session that is not fully indexed."""
    until, last, epoch = _unread(data[:24])
    segments = list(segments_in(sid, data[24:]))
    return Unread(SessionKey(str(sid)), until, last, epoch, segments[0] if segments else None)


_Key: TypeAlias = tuple[int, str, str]
"""A tenant, a view and an owner."""


class StatsCache:
    """The corpus statistics of owners that were searched lately, by their count of changes."""

    def __init__(self) -> None:
        """Start empty."""
        self._known: OrderedDict[_Key, tuple[int, CorpusStats]] = OrderedDict()
        self._size = 0
        self._lock = Lock()  # several event loops may share it
        register_object(self)

    def clear_texts(self) -> None:
        """Discard everything."""
        with self._lock:
            self._known.clear()
            self._size = 0

    def get(self, key: _Key) -> tuple[int, CorpusStats]:
        """Return the count of changes and the statistics of an owner; -1 if they are not known."""
        with self._lock:
            known = self._known.get(key)
            if known is None:
                return _UNKNOWN, CorpusStats()
            self._known.move_to_end(key)
            return known

    def keep(self, key: _Key, changes: int, stats: CorpusStats) -> None:
        """Remember an owner's statistics, unless newer ones are known."""
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                if known[0] > changes:
                    return
                self._size -= len(known[1])
            self._known[key] = changes, stats
            self._size += len(stats)
            while self._size > _MOST_SEGMENTS and len(self._known) > 1:
                self._size -= len(self._known.popitem(last=False)[1][1])


register_cache(letters_of.cache_clear)
