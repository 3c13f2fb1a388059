"""The word index in SQLite: each function is one job on a connection.

FTS5 stores no text here, so removing a part requires its words exactly as they were added. They are
computed from the message again. If that does not produce the same parts, because the message is
damaged or the analyzer has changed, the whole index is dropped: the next search builds it again
from the log.
"""

import re
import sqlite3
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from json import dumps, loads
from struct import pack, unpack
from typing import Final, NamedTuple

from keepthread.recall.bm25 import first_used
from keepthread.recall.corpus import CorpusStats
from keepthread.recall.positions import MESSAGE, MOST_SEQ, VIEW, seq_of, span
from keepthread.stores.codec import decode
from keepthread.stores.records import role_bits, without
from keepthread.stores.sqlite import watermarks
from keepthread.stores.sqlite.log import check_session
from keepthread.stores.sqlite.schema import SQL
from keepthread.stores.sqlite.watermarks import IndexScope
from keepthread.text_caches import register_object
from keepthread.types import Found, MessageFilter, Part, Segment, Unread

_MOST: Final = 300_000
"""Segments that a process keeps of recently searched scopes."""
_MOST_PLACES: Final = 200_000
_WORD: Final = 16
"""A word takes about as much memory as this number of places."""
_RECENT: Final = 64
"""Changes of a scope that are known one by one; after more of them its segments are read again."""
_TENANT: Final = ""
"""The owner of a scope that is a whole tenant."""


class CachedScope:
    """The statistics of a scope at one moment, and the places of words that were searched then."""

    def __init__(self, changes: tuple[int, int], stats: CorpusStats) -> None:
        """Start without words; `changes` are the scope's number and its count of changes."""
        self.changes = changes
        self.stats = stats
        self.size = 0
        self._places: dict[tuple[str, int], array[int]] = {}

    def get(self, word: str, max_places: int) -> list[int] | None:
        """Return up to `max_places` places of a word, if they are cached."""
        known = self._places.get((word, max_places))
        return None if known is None else known.tolist()

    def keep(self, word: str, max_places: int, places: list[int]) -> None:
        """Cache the places of words."""
        self._places[word, max_places] = array("q", places)
        self.size += len(places) + _WORD

    def clear(self) -> None:
        """Discard the places of words."""
        self._places.clear()
        self.size = 0


class SegmentCache:
    """A cache of statistics and words of recently searched scopes; only the reader thread uses it.

    A scope's count of changes says whether it is up to date. If a few sessions have changed, their
    segments alone are read again.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._known: OrderedDict[IndexScope, CachedScope] = OrderedDict()
        register_object(self)

    def clear_texts(self) -> None:
        """Discard everything."""
        self._known = OrderedDict()

    def of(self, db: sqlite3.Connection, scope: IndexScope, owner: str) -> CachedScope:
        """Return the statistics of a scope; `owner` is whose row counts its changes."""
        row = db.execute(SQL["scope"], (scope.tenant, owner)).fetchone()
        if row is None:
            return CachedScope((0, 0), CorpusStats())
        number, changes, recent = row
        known = self._known.pop(scope, None)
        if known is None or known.changes != (number, changes):
            stats = _stats(db, scope, (number, changes), recent, known)
            known = CachedScope((number, changes), stats)
        self._known[scope] = known  # the latest again
        self._shrink()
        return known

    def _shrink(self) -> None:
        if sum([known.size for known in self._known.values()]) > _MOST_PLACES:
            for known in self._known.values():
                known.clear()
        segments = sum([len(known.stats) for known in self._known.values()])
        while segments > _MOST and len(self._known) > 1:
            segments -= len(self._known.popitem(last=False)[1].stats)


def _stats(
    db: sqlite3.Connection,
    scope: IndexScope,
    now: tuple[int, int],
    recent: bytes,
    known: CachedScope | None,
) -> CorpusStats:
    """Return the statistics of a scope; of one that is known, read only the changed sessions."""
    tenant, owner, sid = scope
    if sid is not None:
        return CorpusStats.of(_segments(db, sid))
    changed = now[1] - known.changes[1] if known and known.changes[0] == now[0] else -1
    if known and 0 <= changed <= len(recent) // 8:
        sids = set(unpack(f"<{len(recent) // 8}q", recent)[-changed:])
        return known.stats.changed({sid: _segments(db, sid) for sid in sids})
    if owner is None:
        rows = db.execute(SQL["segments_of_tenant"], (tenant,))
    else:
        rows = db.execute(SQL["segments_of_owner"], (tenant, owner))
    return CorpusStats.of(list(map(Segment._make, rows)))


def _segments(db: sqlite3.Connection, sid: int) -> list[Segment]:
    return list(map(Segment._make, db.execute(SQL["segments"], (sid,))))


_EVERYWHERE: Final = (0, (1 << 63) - 1)
_MANY: Final = 1000
_PLACES = SQL["places"]
_PLACES_WITHIN = SQL["places_within"]
_SPANS: Final = 200
"""The largest number of ranges of a log that are searched one by one."""
_FEW_SCOPES: Final = 32
"""The largest number of owners whose words are looked up one by one: more are read together."""
_LESS: Final = {"²": "", "³": "²"}
_END: Final = "·"
"""The end of a word in the index, before the numbers of its tenant and its owner."""
# FTS5 would split a word at these characters, and its rest would lack the scope's numbers.
_NO_WORD: Final = re.compile(f"[\0-/:-`{{-\x7f{_END}\ud800-\udfff]").search


def index(
    db: sqlite3.Connection,
    tenant: str,
    view: str,
    read: Unread,
    sid: int,
    until: int,
    parts: Sequence[Part],
    segments: Sequence[Segment],
) -> None:
    """Add parts to the word index; a change of the analyzer's version replaces the whole index."""
    number = watermarks.number_of(db, view)
    if not number:
        drop(db)
        number = watermarks.new_view(db, view, of_words=True)
    owner = watermarks.read_on(db, tenant, number, sid, read, until)
    end = _note_changed(db, tenant, owner, sid)
    db.executemany(SQL["insert_words"], _texts(end, parts))
    db.executemany(SQL["insert_piece"], [(*p[:1], *p[2:4], _bytes(p.speaker)) for p in parts])
    db.executemany(SQL["put_segment"], [(sid, *segment[1:]) for segment in segments])
    _write_out(db)


def _note_changed(db: sqlite3.Connection, tenant: str, owner: str, sid: int) -> str:
    """Count a change of a session's segments, and return the end of the session's words."""
    whole, own = (_count_change(db, tenant, each, sid) for each in (_TENANT, owner))
    return f"{_END}{whole}x{own}"


def _count_change(db: sqlite3.Connection, tenant: str, owner: str, sid: int) -> int:
    """Count a change of a session in one scope, and return the scope's number."""
    if (row := db.execute(SQL["scope"], (tenant, owner)).fetchone()) is None:
        db.execute(SQL["insert_scope"], (tenant, owner))
        row = db.execute(SQL["scope"], (tenant, owner)).fetchone()
    number, changes, recent = row
    recent = (recent + pack("<q", sid))[-8 * _RECENT :]
    db.execute(SQL["note_scope_changed"], (changes + 1, recent, number))
    return number


def _texts(end: str, parts: Iterable[Part]) -> list[tuple[int, str]]:
    """Return the place and the FTS5 text of each part."""
    return [
        (part.place, " ".join([f"{word}{end}" for word in words]))
        for part in parts
        if (words := _sound(part.words))
    ]


def _sound(words: Sequence[str]) -> Sequence[str]:
    """Return the words that can be found; the analyzer produces no others."""
    if not _NO_WORD("".join(words)):
        return words
    return [word for word in words if not _NO_WORD(word)]


# --- queries ---


class _Terms(NamedTuple):
    """The ends of a word's terms in a scope, as an FTS5 query has them, and the scope's data."""

    ends: Sequence[str]
    known: CachedScope


def _terms(
    db: sqlite3.Connection, cache: SegmentCache, scope: IndexScope, view: str
) -> _Terms | None:
    """Return how to look up words in a scope, or None if nothing is indexed there."""
    tenant, owner, sid = scope
    if sid is not None:
        check_session(db, tenant, sid)
        own = db.execute(SQL["session_to_read"], (sid, tenant)).fetchone()[0]
        if owner not in (None, own):
            return None
        owner = own
    whole = db.execute(SQL["scope"], (tenant, _TENANT)).fetchone()
    if whole is None or not watermarks.number_of(db, view):
        return None
    if owner is None:
        rows = db.execute(SQL["scopes"], (tenant, _FEW_SCOPES + 1)).fetchall()
        if len(rows) > _FEW_SCOPES:
            return _Terms([f'{_END}{whole[0]}x" *'], cache.of(db, scope, _TENANT))
    else:
        rows = db.execute(SQL["scope"], (tenant, owner)).fetchall()
    ends = [f'{_END}{whole[0]}x{number}"' for number, *_ in rows]
    return _Terms(ends, cache.of(db, scope, _TENANT if owner is None else owner))


def places(
    db: sqlite3.Connection,
    cache: SegmentCache,
    scope: IndexScope,
    view: str,
    words: Sequence[str],
    max_places: int,
) -> Found:
    """Return the places of words in a scope."""
    terms = _terms(db, cache, scope, view)
    if terms is None:
        return Found(dict.fromkeys(words, ()), ())
    between = _EVERYWHERE if scope.sid is None else span(scope.sid)
    known = terms.known
    found: dict[str, list[int]] = {}
    for word in words:
        places = known.get(word, max_places)
        if places is None:
            less = found.get(_once_less(word))
            first = first_used(less, known.stats) if less else between[0]
            # A text that has a word twice also has it once.
            nowhere = less is not None and not less
            places = [] if nowhere else _places_of(db, terms, word, (first, between[1]), max_places)
            known.keep(word, max_places, places)
        found[word] = places
    return Found(found, known.stats, older=_older(db, terms, found, between[0], max_places))


def _older(
    db: sqlite3.Connection,
    terms: _Terms,
    found: Mapping[str, Sequence[int]],
    first: int,
    max_places: int,
) -> dict[str, Sequence[int]]:
    """Return earlier places of frequent words: those that also hold a rarer word."""
    plain = {word: each for word, each in found.items() if each and word[-1:] not in _LESS}
    rare = [word for word, each in plain.items() if len(each) < max_places]
    older: dict[str, Sequence[int]] = {}
    if not rare:
        return older
    for word, newest in plain.items():
        if len(newest) < max_places:
            continue
        places: list[int] = []
        for end in terms.ends:
            beside = " OR ".join(f'"{each}{end}' for each in rare)
            asked = (f'"{word}{end} AND ({beside})', first, newest[0] - 1, max_places)
            places += loads(db.execute(_PLACES, asked).fetchone()[0])
        older[word] = sorted(places)[max(0, len(places) - max_places) :]
    return older


def places_within(
    db: sqlite3.Connection,
    cache: SegmentCache,
    scope: IndexScope,
    view: str,
    words: Sequence[str],
    only: MessageFilter,
    max_places: int,
) -> Found:
    """Return the newest places of words in messages of some times and roles."""
    terms = _terms(db, cache, scope, view)
    if terms is None:
        return Found(dict.fromkeys(words, ()), ())
    spans = terms.known.stats.spans_within(only.since, only.until)
    if len(spans) > _SPANS:  # then places between two ranges are skipped one by one
        spans = [(spans[0][0], spans[-1][1])]
    condition = (only.since, only.until, role_bits(only))
    found: dict[str, list[int]] = {}
    for word in words:
        less = found.get(_once_less(word))
        nowhere = less is not None and not less and word[-1:] in _LESS
        found[word] = [] if nowhere else _places_in(db, terms, word, spans, condition, max_places)
    return Found(found, terms.known.stats)


def _places_in(
    db: sqlite3.Connection,
    terms: _Terms,
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
        for end in terms.ends:
            asked = (f'"{word}{end}', *between, *condition, max_places)
            found += loads(db.execute(_PLACES_WITHIN, asked).fetchone()[0])
    found.sort()
    return found[max(0, len(found) - max_places) :]


def _once_less(word: str) -> str:
    """Return the mark of a repeated word for one repetition less."""
    return word[:-1] + _LESS.get(word[-1:], word[-1:])


def _places_of(
    db: sqlite3.Connection,
    terms: _Terms,
    word: str,
    between: tuple[int, int],
    max_places: int,
) -> list[int]:
    if not word or _NO_WORD(word):
        return []
    found: list[int] = []
    for end in terms.ends:  # one row for all: a row for each place would take far longer
        row = db.execute(_PLACES, (f'"{word}{end}', *between, max_places)).fetchone()
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
    if not pieces and seqs is not None:
        return
    if not _take_out(db, sid, pieces):
        drop(db)
    elif seqs is None:
        db.execute(SQL["delete_segments"], (sid,))
    else:
        _shrink_segments(db, sid, pieces)


def drop(db: sqlite3.Connection) -> None:
    """Delete the word index of every tenant, and its positions."""
    for view in watermarks.views_of_words(db):
        db.execute(SQL["drop_words"])
        db.execute(SQL["drop_pieces"])
        db.execute(SQL["drop_segments"])
        db.execute(SQL["drop_scopes"])
        db.execute(SQL["drop_watermarks"], (view.number,))
        db.execute(SQL["drop_unread"], (view.number,))
        db.execute(SQL["delete_view"], (view.number,))


def _pieces(db: sqlite3.Connection, sid: int, seqs: Sequence[int] | None) -> list[tuple[int, int]]:
    """Return places and flags, in order."""
    spans = [span(sid)] if seqs is None else [span(sid, seq, seq) for seq in seqs]
    return [row for between in spans for row in db.execute(SQL["pieces_between"], between)]


def _take_out(db: sqlite3.Connection, sid: int, pieces: Sequence[tuple[int, int]]) -> bool:
    """Remove parts from the index; return False if dropping the index is cheaper or necessary."""
    if not watermarks.number_of(db, VIEW) or _are_most(db, len(pieces)):
        return False
    tenant, owner = db.execute(SQL["owner_of_session"], (sid,)).fetchone()
    end = _note_changed(db, tenant, owner, sid)
    from keepthread.recall.chunks import parts_of  # noqa: PLC0415 - not with every file: it is slow

    try:
        for message, group in groupby((place for place, _ in pieces), lambda p: p >> MESSAGE):
            row = db.execute(SQL["message_by_seq"], (sid, message & MOST_SEQ)).fetchone()
            parts = parts_of(sid, decode(sid, row)) if row else []
            if [part.place for part in parts] != list(group):
                return False
            db.executemany(SQL["delete_words"], _texts(end, parts))
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


def _shrink_segments(db: sqlite3.Connection, sid: int, pieces: Iterable[tuple[int, int]]) -> None:
    for place, flags in pieces:
        if segment := watermarks.last_segment(db, sid, seq_of(place)):
            less = without(segment, place, flags)
            if less:
                db.execute(SQL["put_segment"], (sid, *less[1:]))
            else:
                db.execute(SQL["delete_segment"], (sid, segment.first))


def _write_out(db: sqlite3.Connection) -> None:
    """Make FTS5 write its pending data now, so that a failure affects only this job."""
    db.execute("SAVEPOINT words")
    db.execute("RELEASE words")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
