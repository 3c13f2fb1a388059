"""One session of `RamStore`: its metadata and its log, in the rows that every store has."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeAlias

from keepthread.errors import Conflict, Stale
from keepthread.protocols import TokenCounter
from keepthread.stores.backend import Append, Tail
from keepthread.stores.codec import PackedId, Row, decode, pack_id
from keepthread.stores.links import node_of
from keepthread.stores.records import (
    Keys,
    check_version,
    decode_details,
    forgotten_session,
    refuses_messages,
)
from keepthread.stores.rows import (
    Head,
    PreparedMessage,
    as_stored,
    check_total,
    check_turn,
    head_after,
    next_copy,
    next_row,
    recounted_row,
    same_body,
    same_place,
)
from keepthread.types import Damage, Message, Scope, SessionInfo, SessionKey, Span


class RamLog:
    """A session's metadata and log."""

    def __init__(self, place: int, tenant: str, info: SessionInfo, details: bytes) -> None:
        """Start with an empty log."""
        self.place = place
        self.tenant = tenant
        self.info = info
        self.details = details
        self.rows: list[Row] = []
        self.seqs: dict[PackedId, int] = {}

    @property
    def head(self) -> Head:
        """Return the end of the log."""
        return head_after(self.rows[-1]) if self.rows else Head()

    def message(self, seq: int) -> Message:
        """Return the message at a position."""
        return decode(self.place, self.rows[seq - 1])

    def described(self) -> SessionInfo:
        """Return the session with its current counts."""
        head = self.head
        counts = {"messages": head.seq, "turns": head.turns, "tokens": head.total}
        return replace(self.info, **counts, **decode_details(self.details))

    def copy(self, drafts: Sequence[PreparedMessage]) -> list[Row]:
        """Add messages that were read from another log, all or none; return the new ones."""
        rows, seqs, head = list(self.rows), dict(self.seqs), self.head
        for one in drafts:
            seq = one.message.seq
            if 0 < seq <= head.seq:
                same_place(one, rows[seq - 1].id, rows[seq - 1].digest)
                continue
            row = next_copy(self.place, head, one)
            if seqs.setdefault(row.id, row.seq) != row.seq:
                raise Conflict(f"message id {one.id!r} is already at another position")
            rows.append(row)
            head = head_after(row)
        new = rows[self.head.seq :]
        self.rows, self.seqs = rows, seqs
        return new

    def append(self, new: Append) -> tuple[list[Row], list[Message]]:
        """Add messages, all or none; return the new rows, and the messages as they are stored."""
        start = head = self.head
        check_turn(new.turn, head)
        forgotten = not self.info.ready and refuses_messages(self.details)
        known: dict[PackedId, Message] = {}
        rows: list[Row] = []
        answers: list[Message] = []
        for one in new.drafts:
            if seq := self.seqs.get(one.packed):
                answers.append(same_body(one, self.message(seq)))
            elif one.packed in known:
                answers.append(same_body(one, known[one.packed]))
            elif forgotten:
                raise forgotten_session()
            else:
                if new.expect is not None and new.expect != start.seq:
                    raise Stale(f"the log ends at {start.seq}, not at {new.expect}")
                row = next_row(self.place, head, one, new.turn)
                head = head_after(row)
                check_total(head.total)
                known[one.packed] = message = as_stored(one, row)
                rows.append(row)
                answers.append(message)
        self.rows.extend(rows)
        self.seqs.update((row.id, row.seq) for row in rows)
        return rows, answers

    def find(self, ids: Sequence[str], seqs: Sequence[int]) -> list[Message]:
        """Return the messages with these ids or positions."""
        found = {self.seqs.get(pack_id(id), 0) for id in ids}
        found.update(seq for seq in seqs if seq <= self.head.seq)
        return [self.message(seq) for seq in sorted(found) if seq]

    def damages(self) -> list[Damage]:
        """Return the rows that are not what was written."""
        what = "the row is corrupted"
        seqs = range(1, self.head.seq + 1)
        damaged = [seq for seq in seqs if self.message(seq).state == "damaged"]
        return [Damage(what=what, session=self.info.id, seq=seq) for seq in damaged]

    def tail(self, wanted: Tail) -> list[Message]:
        """Return the newest messages that fit."""
        tokens, limit, before, after, min_messages = wanted
        found: list[Message] = []
        used = 0
        for seq in range(min(self.head.seq, before - 1), after, -1):
            message = self.message(seq)
            used += message.tokens
            full = tokens is not None and used > tokens and len(found) >= min_messages
            if full or len(found) == limit:
                break
            found.append(message)
        found.reverse()
        return found

    def recount(self, counter: TokenCounter) -> int:
        """Count messages that another counter counted; return how many."""
        rows: list[Row] = []
        total = counted = 0
        for row in self.rows:
            message = decode(self.place, row)
            tokens, name = message.tokens, message.counter
            if message.state == "live" and name != counter.name:
                tokens, name = counter.count(message), counter.name
                counted += 1
            total += tokens
            rows.append(recounted_row(self.place, row, tokens, name.encode(), total))
        self.rows = rows
        return counted


class StoredRecord(NamedTuple):
    """A record as bytes, so that no caller can change the stored value."""

    value: bytes
    version: int
    made_of: bytes | None


RecordsByName: TypeAlias = dict[tuple[str, str], StoredRecord]
"""Records by kind and key."""


def names_between(records: RecordsByName, kind: str | None, keys: Keys) -> list[tuple[str, str]]:
    """Return the kinds and keys of records in a range, in order; a limit takes the last."""
    names = sorted(
        (its_kind, key)
        for its_kind, key in records
        if kind in (None, its_kind) and keys.after < key < keys.before and its_kind != keys.without
    )
    return names[max(0, len(names) - keys.limit) :]


def newest_of(records: RecordsByName, kind: str, limit: int) -> tuple[list[tuple[str, str]], bool]:
    """Return the records of a kind that were put last, by key, and whether there are more."""
    places = [place for place in records if place[0] == kind]
    places.sort(key=lambda place: records[place].version, reverse=True)
    return sorted(places[:limit]), len(places) > limit


def check_record(records: RecordsByName, kind: str, key: str, version: int | None) -> None:
    """Raise `Stale` if a record is not the one the caller read."""
    kept = records.get((kind, key))
    check_version(kept.version if kept else 0, version)


class RecordPlace(NamedTuple):
    """Where a record is."""

    tenant: str
    scope: Scope
    kind: str
    key: str


class RamLinks:
    """Which records are made of which messages, and which sessions name which; see `links`."""

    def __init__(self) -> None:
        """Start empty."""
        self._made: dict[tuple[str, SessionKey], dict[int, dict[RecordPlace, None]]] = {}
        self._nodes: dict[RecordPlace, list[tuple[SessionKey, int]]] = {}
        self._naming: dict[tuple[str, str, str], dict[SessionKey, None]] = {}
        self._names: dict[SessionKey, set[tuple[str, str, str]]] = {}
        self._firsts: dict[tuple[str, str, PackedId, float], dict[SessionKey, None]] = {}

    def put(self, place: RecordPlace, spans: Iterable[Span]) -> None:
        """Note what a record is made of, and nothing else any more."""
        self.drop(place)
        for span in spans:
            if (node := node_of(span)) is not None:
                by_node = self._made.setdefault((place.tenant, span.session), {})
                by_node.setdefault(node, {})[place] = None
                self._nodes.setdefault(place, []).append((span.session, node))

    def drop(self, place: RecordPlace) -> None:
        """Forget a record."""
        for session, node in self._nodes.pop(place, ()):
            by_node = self._made.get((place.tenant, session), {})
            by_node.get(node, {}).pop(place, None)
            if not by_node.get(node):
                by_node.pop(node, None)
            if not by_node:
                self._made.pop((place.tenant, session), None)

    def made_of(
        self, tenant: str, session: SessionKey, nodes: Sequence[int] | None
    ) -> list[RecordPlace]:
        """Return the records at some nodes of a session, or at all."""
        by_node = self._made.get((tenant, session), {})
        wanted = by_node if nodes is None else nodes
        return list(dict.fromkeys(place for node in wanted for place in by_node.get(node, ())))

    def name(self, log: RamLog, names: Iterable[str]) -> None:
        """Note that a session names others of its owner."""
        for id in names:
            named = (log.tenant, log.info.owner, id)
            self._naming.setdefault(named, {})[log.info.key] = None
            self._names.setdefault(log.info.key, set()).add(named)

    def begin(self, log: RamLog) -> None:
        """Note the first message of a session."""
        if log.rows:
            self._firsts.setdefault(_first(log), {})[log.info.key] = None

    def relatives(self, log: RamLog) -> tuple[list[SessionKey], list[SessionKey]]:
        """Return the other sessions with the same first message, and those that name this one."""
        keys = self._firsts.get(_first(log), ()) if log.rows else ()
        naming = self._naming.get((log.tenant, log.info.owner, log.info.id), ())
        return [key for key in keys if key != log.info.key], list(naming)

    def end(self, log: RamLog) -> None:
        """Forget a session that is deleted."""
        for named in self._names.pop(log.info.key, ()):
            self._naming[named].pop(log.info.key, None)
            if not self._naming[named]:
                del self._naming[named]
        if log.rows and (keys := self._firsts.get(_first(log))):
            keys.pop(log.info.key, None)
            if not keys:
                del self._firsts[_first(log)]


def _first(log: RamLog) -> tuple[str, str, PackedId, float]:
    first = log.rows[0]
    return (log.tenant, log.info.owner, first.id, first.created_at)
