"""Encode words for the index in PostgreSQL, and decode its answers."""

import struct
from array import array
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from sys import byteorder
from typing import Any, Final

from keepthread.recall.positions import SESSION
from keepthread.text_caches import register_cache
from keepthread.types import Part, SessionKey, Sitting

_LETTERS: Final = 5  # thirty bits: two words of an owner rarely collide
_MAX_WORDS: Final = 50_000  # of a part; PostgreSQL's type holds at most a megabyte
_AT: Final = (1 << SESSION) - 1
_MOST_SID: Final = (1 << 63) - 1

_sittings = struct.Struct(">q2d3q").iter_unpack


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
    """Decode the places of a word in a session."""
    ats = array("q", data)
    if byteorder == "little":
        ats.byteswap()
    head = sid << SESSION
    return [head | at for at in ats]


def sittings_in(sid: int, data: bytes) -> Iterator[Sitting]:
    """Decode the segments of a session."""
    session = SessionKey(str(sid))
    numbers: tuple[Any, ...]
    for numbers in _sittings(data):
        yield Sitting(session, *numbers)


register_cache(letters_of.cache_clear)
