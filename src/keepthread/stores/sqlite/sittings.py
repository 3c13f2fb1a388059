"""What every search needs of a SQLite file, kept in memory: sittings, and where words stand.

A session's sittings and places change when it is read on, which its mark tells, and when something
is forgotten, which the view tells. Both are looked up each time, in the transaction that reads.
"""

import sqlite3
from array import array
from collections.abc import Sequence
from functools import cached_property
from typing import Final, NamedTuple

from keepthread.recall.ground import Ground
from keepthread.stores.sqlite.marks import Scope
from keepthread.stores.sqlite.statements import SQL
from keepthread.text_caches import register_object
from keepthread.types import Sitting

_MOST: Final = 100_000
_MOST_PLACES: Final = 200_000
_WORD: Final = 16
"""A word takes about as much room as so many places."""


class Words:
    """Where words stand in a scope, as far as it was asked for lately."""

    def __init__(self, marks: list[tuple[int, int]], sittings: Sequence[Sitting]) -> None:
        """Begin with nothing known, when a scope is read so far and has these sittings."""
        self.marks = marks
        self.size = 0
        self._sittings = sittings
        self._places: dict[tuple[str, int], array[int]] = {}

    @cached_property
    def ground(self) -> Ground:
        """Return the ground that words stand on."""
        return Ground.of(self._sittings)

    def get(self, word: str, most: int) -> list[int] | None:
        """Return at most so many places of a word, if they are known."""
        known = self._places.get((word, most))
        return None if known is None else known.tolist()

    def keep(self, word: str, most: int, places: list[int]) -> None:
        """Know them from now on."""
        self._places[word, most] = array("q", places)
        self.size += len(places) + _WORD


class Known(NamedTuple):
    """What is known of a scope at a moment."""

    sittings: list[Sitting]
    words: Words


class KnownSittings:
    """What was read of sittings and words lately; used by the thread that reads alone."""

    def __init__(self) -> None:
        """Begin with nothing known."""
        self._state: tuple[int, int] | None = None
        self._known: dict[int, tuple[int, list[Sitting]]] = {}
        self._words: dict[Scope, Words] = {}
        self._size = 0
        register_object(self)

    def clear_texts(self) -> None:
        """Let go of the words that were looked for."""
        self._words = {}

    def of(self, db: sqlite3.Connection, scope: Scope, view: str) -> Known:
        """Return the sittings of a scope, by session and position; read what is new of them."""
        state = db.execute(SQL["view"], (view,)).fetchone()
        if state != self._state or self._size > _MOST:
            self._state, self._known, self._words, self._size = state, {}, {}, 0
        marks = sorted(_read_sessions(db, scope, state[0]))
        found: list[Sitting] = []
        for sid, upto in marks:
            known = self._known.get(sid)
            if known is None or known[0] != upto:
                known = (upto, _sittings(db, sid))
                self._known[sid] = known
                self._size += len(known[1])
            found += known[1]
        return Known(found, self._words_of(scope, marks, found))

    def _words_of(
        self, scope: Scope, marks: list[tuple[int, int]], sittings: Sequence[Sitting]
    ) -> Words:
        if sum([words.size for words in self._words.values()]) > _MOST_PLACES:
            self._words = {}
        words = self._words.get(scope)
        if words is None or words.marks != marks:
            words = self._words[scope] = Words(marks, sittings)
        return words


def _sittings(db: sqlite3.Connection, sid: int) -> list[Sitting]:
    return list(map(Sitting._make, db.execute(SQL["sittings"], (sid,))))


def _read_sessions(db: sqlite3.Connection, scope: Scope, view: int) -> sqlite3.Cursor:
    tenant, owner, sid = scope
    if sid is not None:
        return db.execute(SQL["read_of_session"], (view, sid, tenant, owner))
    if owner is None:
        return db.execute(SQL["read_of_tenant"], (view, tenant))
    return db.execute(SQL["read_of_owner"], (view, tenant, owner))
