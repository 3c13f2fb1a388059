"""The word index in SQLite: each function is one job on a connection.

FTS5 stores no text here, so removing a part requires its words exactly as they were added. They are
computed from the message again. If that does not produce the same parts, because the message is
damaged or the analyzer has changed, the whole index is dropped: the next search builds it again
from the log.
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
from keepthread.stores.sqlite import watermarks
from keepthread.stores.sqlite.log import check_session
from keepthread.stores.sqlite.schema import SQL
from keepthread.stores.sqlite.watermarks import IndexScope
from keepthread.text_caches import register_object
from keepthread.types import Found, MessageFilter, Part, Sitting, Unread

_MOST: Final = 100_000
_MOST_PLACES: Final = 200_000
_WORD: Final = 16
"""A word takes about as much memory as this number of places."""


class Words:
    """A cache of the places of recently searched words in one scope."""

    def __init__(self, indexed: list[tuple[int, int]], sittings: Sequence[Sitting]) -> None:
        """Start empty, with the scope's indexed position and segments."""
        self.indexed = indexed
        self.size = 0
        self._sittings = sittings
        self._places: dict[tuple[str, int], array[int]] = {}

    @cached_property
    def stats(self) -> CorpusStats:
        """Return the statistics of the corpus."""
        return CorpusStats.of(self._sittings)

    def get(self, word: str, max_places: int) -> list[int] | None:
        """Return up to `max_places` places of a word, if they are cached."""
        known = self._places.get((word, max_places))
        return None if known is None else known.tolist()

    def keep(self, word: str, max_places: int, places: list[int]) -> None:
        """Cache the places of words."""
        self._places[word, max_places] = array("q", places)
        self.size += len(places) + _WORD


class CachedScope(NamedTuple):
    """The cached data of a scope at one moment."""

    sittings: list[Sitting]
    words: Words


class SegmentCache:
    """A cache of segments and words; only the reader thread uses it."""

    def __init__(self) -> None:
        """Start empty."""
        self._state: tuple[int, int] | None = None
        self._known: dict[int, tuple[int, list[Sitting]]] = {}
        self._words: dict[IndexScope, Words] = {}
        self._size = 0
        register_object(self)

    def clear_texts(self) -> None:
        """Discard the words that were searched for."""
        self._words = {}

    def of(self, db: sqlite3.Connection, scope: IndexScope, view: str) -> CachedScope:
        """Return the segments of a scope, by session and position; read only the new ones."""
        state = db.execute(SQL["view"], (view,)).fetchone()
        if state != self._state or self._size > _MOST:
            self._state, self._known, self._words, self._size = state, {}, {}, 0
        indexed = sorted(_read_sessions(db, scope, state[0]))
        found: list[Sitting] = []
        for sid, until in indexed:
            known = self._known.get(sid)
            if known is None or known[0] != until:
                known = (until, _sittings(db, sid))
                self._known[sid] = known
                self._size += len(known[1])
            found += known[1]
        return CachedScope(found, self._words_of(scope, indexed, found))

    def _words_of(
        self, scope: IndexScope, indexed: list[tuple[int, int]], sittings: Sequence[Sitting]
    ) -> Words:
        if sum([words.size for words in self._words.values()]) > _MOST_PLACES:
            self._words = {}
        words = self._words.get(scope)
        if words is None or words.indexed != indexed:
            words = self._words[scope] = Words(indexed, sittings)
        return words


def _sittings(db: sqlite3.Connection, sid: int) -> list[Sitting]:
    return list(map(Sitting._make, db.execute(SQL["segments"], (sid,))))


def _read_sessions(db: sqlite3.Connection, scope: IndexScope, view: int) -> sqlite3.Cursor:
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
"""The largest number of ranges of a log that are searched one by one."""
_LESS: Final = {"²": "", "³": "²"}
# FTS5 would split a word at these characters, and its rest would lack the scope's number.
_NO_WORD: Final = re.compile("[\0-/:-`{-\x7f\ud800-\udfff]").search


def index(
    db: sqlite3.Connection,
    tenant: str,
    view: str,
    read: Unread,
    sid: int,
    until: int,
    parts: Sequence[Part],
    sittings: Sequence[Sitting],
) -> None:
    """Add parts to the word index; a change of the analyzer's version replaces the whole index."""
    number = watermarks.number_of(db, view)
    if not number:
        drop(db)
        number = watermarks.new_view(db, view, of_words=True)
    own = _scope_to_fill(db, tenant, watermarks.read_on(db, tenant, number, sid, read, until))
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
    """Return the place and the FTS5 text of each part."""
    return [
        (part.place, " ".join([f"{scope}x{word}" for word in words]))
        for part in parts
        if (words := _sound(part.words))
    ]


def _sound(words: Sequence[str]) -> Sequence[str]:
    """Return the words that can be found; the analyzer produces no others."""
    if not _NO_WORD("".join(words)):
        return words
    return [word for word in words if not _NO_WORD(word)]


# --- queries ---


def places(
    db: sqlite3.Connection,
    known: SegmentCache,
    scope: IndexScope,
    view: str,
    words: Sequence[str],
    max_places: int,
) -> Found:
    """Return the places of words in a scope."""
    between = _EVERYWHERE
    if scope.sid is not None:
        check_session(db, scope.tenant, scope.sid)
        between = span(scope.sid)
    if not watermarks.number_of(db, view):
        return Found(dict.fromkeys(words, ()), ())
    sittings, lately = known.of(db, scope, view)
    scopes = _scopes(db, scope)
    found: dict[str, list[int]] = {}
    for word in words:
        places = lately.get(word, max_places)
        if places is None:
            less = found.get(_once_less(word))
            first = first_used(less, lately.stats) if less else between[0]
            # A text that has a word twice also has it once.
            nowhere = less is not None and not less
            places = (
                [] if nowhere else _places_of(db, scopes, word, (first, between[1]), max_places)
            )
            lately.keep(word, max_places, places)
        found[word] = places
    return Found(found, sittings)


def places_within(
    db: sqlite3.Connection,
    known: SegmentCache,
    scope: IndexScope,
    view: str,
    words: Sequence[str],
    only: MessageFilter,
    max_places: int,
) -> Found:
    """Return the newest places of words in messages of some times and roles."""
    if scope.sid is not None:
        check_session(db, scope.tenant, scope.sid)
    if not watermarks.number_of(db, view):
        return Found(dict.fromkeys(words, ()), ())
    sittings = known.of(db, scope, view).sittings
    spans = spans_within(sittings, only.since, only.until)
    if len(spans) > _SPANS:  # then places between two ranges are skipped one by one
        spans = [(spans[0][0], spans[-1][1])]
    scopes = _scopes(db, scope)
    condition = (only.since, only.until, role_bits(only))
    found: dict[str, list[int]] = {}
    for word in words:
        less = found.get(_once_less(word))
        nowhere = less is not None and not less and word[-1:] in _LESS
        found[word] = [] if nowhere else _places_in(db, scopes, word, spans, condition, max_places)
    return Found(found, sittings)


def _places_in(
    db: sqlite3.Connection,
    scopes: Sequence[int],
    word: str,
    spans: Sequence[tuple[int, int]],
    condition: tuple[float, float, int],
    max_places: int,
) -> list[int]:
    if not word or _NO_WORD(word):
        return []
    found: list[int] = []
    for between in reversed(spans):  # newest first, until there are enough
        if len(found) >= max_places:
            break
        for scope in scopes:
            asked = (f'"{scope}x{word}"', *between, *condition, max_places)
            found += loads(db.execute(_PLACES_WITHIN, asked).fetchone()[0])
    found.sort()
    return found[max(0, len(found) - max_places) :]


def _once_less(word: str) -> str:
    """Return the mark of a repeated word for one repetition less."""
    return word[:-1] + _LESS.get(word[-1:], word[-1:])


def _scopes(db: sqlite3.Connection, scope: IndexScope) -> list[int]:
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
    db: sqlite3.Connection,
    scopes: Sequence[int],
    word: str,
    between: tuple[int, int],
    max_places: int,
) -> list[int]:
    if not word or _NO_WORD(word):
        return []
    found: list[int] = []
    for scope in scopes:  # one row for all: a row for each place would take far longer
        row = db.execute(_PLACES, (f'"{scope}x{word}"', *between, max_places)).fetchone()
        found += loads(row[0])
    found.sort()
    return found[max(0, len(found) - max_places) :]


def parts(db: sqlite3.Connection, tenant: str, view: str, places: Iterable[int]) -> list[Part]:
    """Return the indexed parts at places; the length in a place may be wrong."""
    if not watermarks.number_of(db, view):
        return []
    rows = db.execute(SQL["pieces_at"], (dumps(sorted(set(places))), tenant))
    return [
        Part(place, (), tokens, flags, speaker.decode("utf-8", "surrogatepass"))
        for place, tokens, flags, speaker in rows
    ]


# --- removal ---


def forget(db: sqlite3.Connection, sid: int, seqs: Sequence[int] | None) -> None:
    """Remove the parts of some positions of a session, or all, before the messages are removed."""
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
    """Delete the word index of every tenant, and its positions."""
    for view in watermarks.views_of_words(db):
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
    """Remove parts from the index; return False if dropping the index is cheaper or necessary."""
    scope = db.execute(SQL["scope_of_session"], (sid,)).fetchone()
    if scope is None or not watermarks.number_of(db, VIEW) or _are_most(db, len(pieces)):
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
    """Return whether indexing the remaining parts again is less work than removing these."""
    return pieces > _MANY and 2 * pieces > db.execute(SQL["count_pieces"]).fetchone()[0]


def _shrink_sittings(db: sqlite3.Connection, sid: int, pieces: Iterable[tuple[int, int]]) -> None:
    for place, flags in pieces:
        if sitting := watermarks.last_sitting(db, sid, seq_of(place)):
            less = without(sitting, place, flags)
            if less:
                db.execute(SQL["put_segment"], (sid, *less[1:]))
            else:
                db.execute(SQL["delete_segment"], (sid, sitting.first))


def _write_out(db: sqlite3.Connection) -> None:
    """Make FTS5 write its pending data now, so that a failure affects only this job."""
    db.execute("SAVEPOINT words")
    db.execute("RELEASE words")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
