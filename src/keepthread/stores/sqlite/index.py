"""The index of words in SQLite: each function is one piece of work on a connection.

FTS5 keeps no text here, so whoever takes a piece out must say its words as they were put in. They
are made from the message once more; where that does not lead to the same pieces, because the
message is damaged or words were told apart in another way, the whole index goes: it is a view, and
whoever asks next reads the log again.
"""

import re
import sqlite3
from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import groupby
from json import dumps, loads
from typing import Final, NamedTuple

from keepthread.recall.bm25 import first_used
from keepthread.recall.corpus import CorpusStats, spans_within
from keepthread.recall.positions import MESSAGE, MOST_SEQ, VIEW, seq_of, span
from keepthread.stores.codec import decode
from keepthread.stores.records import role_bits, without
from keepthread.stores.sqlite import watermarks as marks
from keepthread.stores.sqlite.log import check_session
from keepthread.stores.sqlite.schema import SQL
from keepthread.stores.sqlite.watermarks import Scope
from keepthread.text_caches import register_object
from keepthread.types import Found, MessageFilter, Part, Sitting, Unread

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
    def stats(self) -> CorpusStats:
        """Return the statistics of the corpus."""
        return CorpusStats.of(self._sittings)

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
    return list(map(Sitting._make, db.execute(SQL["segments"], (sid,))))


def _read_sessions(db: sqlite3.Connection, scope: Scope, view: int) -> sqlite3.Cursor:
    tenant, owner, sid = scope
    if sid is not None:
        return db.execute(SQL["read_of_session"], (view, sid, tenant, owner))
    if owner is None:
        return db.execute(SQL["read_of_tenant"], (view, tenant))
    return db.execute(SQL["read_of_owner"], (view, tenant, owner))


_EVERYWHERE: Final = (0, (1 << 63) - 1)
_MANY: Final = 1000
_PLACES = SQL["places"]
_PLACES_WITHIN = SQL["places_within"]
_SPANS: Final = 200
"""Stretches of a log that a word is looked for in, each by itself."""
_LESS: Final = {"²": "", "³": "²"}
# FTS5 would cut a word where one of these stands, and its rest would have no number before it.
_NO_WORD: Final = re.compile("[\0-/:-`{-\x7f\ud800-\udfff]").search


def index(
    db: sqlite3.Connection,
    tenant: str,
    view: str,
    read: Unread,
    sid: int,
    upto: int,
    parts: Sequence[Part],
    sittings: Sequence[Sitting],
) -> None:
    """Put pieces into the index of words; another way of telling words apart replaces it whole."""
    number = marks.number_of(db, view)
    if not number:
        drop(db)
        number = marks.new_view(db, view, of_words=True)
    own = _scope_to_fill(db, tenant, marks.read_on(db, tenant, number, sid, read, upto))
    db.executemany(SQL["insert_words"], _texts(own, parts))
    db.executemany(SQL["insert_piece"], [(*p[:1], *p[2:4], _bytes(p.speaker)) for p in parts])
    db.executemany(SQL["put_segment"], [(sid, *sitting[1:]) for sitting in sittings])
    _write_out(db)


def _scope_to_fill(db: sqlite3.Connection, tenant: str, owner: str) -> int:
    row = db.execute(SQL["scope"], (tenant, owner)).fetchone()
    number = row[0] if row else db.execute(SQL["insert_scope"], (tenant, owner)).lastrowid
    assert number is not None
    return number


def _texts(scope: int, parts: Iterable[Part]) -> list[tuple[int, str]]:
    """Return the places of pieces and what FTS5 is told of each."""
    return [
        (part.place, " ".join([f"{scope}x{word}" for word in words]))
        for part in parts
        if (words := _sound(part.words))
    ]


def _sound(words: Sequence[str]) -> Sequence[str]:
    """Return the words that can be found; the analyser makes no others."""
    if not _NO_WORD("".join(words)):
        return words
    return [word for word in words if not _NO_WORD(word)]


# --- asking ---


def places(
    db: sqlite3.Connection,
    known: KnownSittings,
    scope: Scope,
    view: str,
    words: Sequence[str],
    most: int,
) -> Found:
    """Return where words stand in a scope."""
    between = _EVERYWHERE
    if scope.sid is not None:
        check_session(db, scope.tenant, scope.sid)
        between = span(scope.sid)
    if not marks.number_of(db, view):
        return Found(dict.fromkeys(words, ()), ())
    sittings, lately = known.of(db, scope, view)
    scopes = _scopes(db, scope)
    found: dict[str, list[int]] = {}
    for word in words:
        places = lately.get(word, most)
        if places is None:
            less = found.get(_once_less(word))
            first = first_used(less, lately.stats) if less else between[0]
            # What stands there twice stands there once.
            nowhere = less is not None and not less
            places = [] if nowhere else _places_of(db, scopes, word, (first, between[1]), most)
            lately.keep(word, most, places)
        found[word] = places
    return Found(found, sittings)


def places_within(
    db: sqlite3.Connection,
    known: KnownSittings,
    scope: Scope,
    view: str,
    words: Sequence[str],
    only: MessageFilter,
    most: int,
) -> Found:
    """Return where words stand in messages of some times and roles, the last places of each."""
    if scope.sid is not None:
        check_session(db, scope.tenant, scope.sid)
    if not marks.number_of(db, view):
        return Found(dict.fromkeys(words, ()), ())
    sittings = known.of(db, scope, view).sittings
    spans = spans_within(sittings, only.since, only.until)
    if len(spans) > _SPANS:  # then what is between two of them is passed over one by one
        spans = [(spans[0][0], spans[-1][1])]
    scopes = _scopes(db, scope)
    condition = (only.since, only.until, role_bits(only))
    found: dict[str, list[int]] = {}
    for word in words:
        less = found.get(_once_less(word))
        nowhere = less is not None and not less and word[-1:] in _LESS
        found[word] = [] if nowhere else _places_in(db, scopes, word, spans, condition, most)
    return Found(found, sittings)


def _places_in(
    db: sqlite3.Connection,
    scopes: Sequence[int],
    word: str,
    spans: Sequence[tuple[int, int]],
    condition: tuple[float, float, int],
    most: int,
) -> list[int]:
    if not word or _NO_WORD(word):
        return []
    found: list[int] = []
    for between in reversed(spans):  # the last first, until there are enough
        if len(found) >= most:
            break
        for scope in scopes:
            asked = (f'"{scope}x{word}"', *between, *condition, most)
            found += loads(db.execute(_PLACES_WITHIN, asked).fetchone()[0])
    found.sort()
    return found[max(0, len(found) - most) :]


def _once_less(word: str) -> str:
    """Return a word that is marked to stand there so often as standing there once less."""
    return word[:-1] + _LESS.get(word[-1:], word[-1:])


def _scopes(db: sqlite3.Connection, scope: Scope) -> list[int]:
    tenant, owner, sid = scope
    if sid is not None:
        own = db.execute(SQL["session_to_read"], (sid, tenant)).fetchone()[0]
        owner = own if owner in (None, own) else ""
    if owner is None:
        rows = db.execute(SQL["scopes"], (tenant,))
    else:
        rows = db.execute(SQL["scope"], (tenant, owner))
    return [number for (number,) in rows]


def _places_of(
    db: sqlite3.Connection, scopes: Sequence[int], word: str, between: tuple[int, int], most: int
) -> list[int]:
    if not word or _NO_WORD(word):
        return []
    found: list[int] = []
    for scope in scopes:  # all in one row: a row for each place would take far longer
        row = db.execute(_PLACES, (f'"{scope}x{word}"', *between, most)).fetchone()
        found += loads(row[0])
    found.sort()
    return found[max(0, len(found) - most) :]


def parts(db: sqlite3.Connection, tenant: str, view: str, places: Iterable[int]) -> list[Part]:
    """Return what is known of pieces; their length need not be right."""
    if not marks.number_of(db, view):
        return []
    rows = db.execute(SQL["pieces_at"], (dumps(sorted(set(places))), tenant))
    return [
        Part(place, (), tokens, flags, speaker.decode("utf-8", "surrogatepass"))
        for place, tokens, flags, speaker in rows
    ]


# --- forgetting ---


def forget(db: sqlite3.Connection, sid: int, seqs: Sequence[int] | None) -> None:
    """Take out the pieces of some positions of a session, or all, before the messages go."""
    pieces = _pieces(db, sid, seqs)
    if not pieces:
        return
    db.execute(SQL["note_forgotten"], (VIEW,))
    if not _take_out(db, sid, pieces):
        drop(db)
    elif seqs is None:
        db.execute(SQL["delete_segments"], (sid,))
    else:
        _shrink_sittings(db, sid, pieces)


def drop(db: sqlite3.Connection) -> None:
    """Forget every word of every tenant, and how far was read for them."""
    for view in marks.views_of_words(db):
        db.execute(SQL["drop_words"])
        db.execute(SQL["drop_pieces"])
        db.execute(SQL["drop_segments"])
        db.execute(SQL["drop_scopes"])
        db.execute(SQL["drop_watermarks"], (view.number,))
        db.execute(SQL["delete_view"], (view.number,))


def _pieces(db: sqlite3.Connection, sid: int, seqs: Sequence[int] | None) -> list[tuple[int, int]]:
    """Return places and flags, in order."""
    spans = [span(sid)] if seqs is None else [span(sid, seq, seq) for seq in seqs]
    return [row for between in spans for row in db.execute(SQL["pieces_between"], between)]


def _take_out(db: sqlite3.Connection, sid: int, pieces: Sequence[tuple[int, int]]) -> bool:
    """Take pieces out of the index; tell if that was worth it, and every word could be said."""
    scope = db.execute(SQL["scope_of_session"], (sid,)).fetchone()
    if scope is None or not marks.number_of(db, VIEW) or _are_most(db, len(pieces)):
        return False
    from keepthread.recall.chunks import parts_of  # noqa: PLC0415 - not with every file: it is slow

    try:
        for message, group in groupby((place for place, _ in pieces), lambda p: p >> MESSAGE):
            row = db.execute(SQL["message_by_seq"], (sid, message & MOST_SEQ)).fetchone()
            parts = parts_of(sid, decode(sid, row)) if row else []
            if [part.place for part in parts] != list(group):
                return False
            db.executemany(SQL["delete_words"], _texts(scope[0], parts))
        db.executemany(SQL["delete_piece"], [(place,) for place, _ in pieces])
        _write_out(db)
    except sqlite3.DatabaseError as error:
        if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_CORRUPT:
            raise
        return False
    return True


def _are_most(db: sqlite3.Connection, pieces: int) -> bool:
    """Tell whether there are so many that reading the others again is less work."""
    return pieces > _MANY and 2 * pieces > db.execute(SQL["count_pieces"]).fetchone()[0]


def _shrink_sittings(db: sqlite3.Connection, sid: int, pieces: Iterable[tuple[int, int]]) -> None:
    for place, flags in pieces:
        if sitting := marks.last_sitting(db, sid, seq_of(place)):
            less = without(sitting, place, flags)
            if less:
                db.execute(SQL["put_segment"], (sid, *less[1:]))
            else:
                db.execute(SQL["delete_segment"], (sid, sitting.first))


def _write_out(db: sqlite3.Connection) -> None:
    """Have FTS5 write what it keeps for the commit: if it cannot, that fails this work alone."""
    db.execute("SAVEPOINT words")
    db.execute("RELEASE words")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
