"""Intents: what a forgetting will do, stored before it begins, without any of the text.

If its process dies, the next one that opens the memory finds the intent and completes it. An intent
says what it may erase: positions, and the owner's records up to a version. So what is stored after
it began stays, however late it is completed.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from keepthread.context.ranges import Range, merged
from keepthread.errors import Damaged, InvalidInput
from keepthread.memory.forgetting.receipt import Receipt
from keepthread.memory.forgetting.receipts import MAX_PLACES, receipt_from_json, without_text
from keepthread.protocols import Store
from keepthread.stores.codec import new_id
from keepthread.stores.kinds import FORGET
from keepthread.stores.validation import check_id, check_time
from keepthread.types import JSON, Message, Record, Scope, SessionInfo, SessionKey, Span

Reason: TypeAlias = Literal["chosen", "copy", "delegate", "made", "answer"]
"""Why a message is erased: it matched, is a copy, belongs to a delegated task, was made from
others, or is an answer."""


class ErasurePlan:
    """Positions to erase, by session; it grows as chosen messages are followed."""

    def __init__(self) -> None:
        """Begin empty."""
        self.whole: dict[SessionKey, Reason] = {}
        """Sessions that are erased completely; their tombstones stay, and nothing shows them."""
        self.halves: set[SessionKey] = set()
        """Forks that are not yet complete, and must be made again."""
        self.twins: dict[SessionKey, set[SessionKey]] = {}
        """Copies of whole sessions, and of which; they may have the same title or prompt."""
        self.owner: str | None = None
        """The owner whose own records are dropped as well."""
        self.newest: int | None = None
        """The newest version of the owner's records that may be dropped; None: all of them."""
        self.facts: set[tuple[str, str]] = set()
        """Facts to drop that no message states, by owner and key."""
        self._why: dict[SessionKey, dict[int, Reason]] = {}
        self._fresh: dict[SessionKey, list[int]] = {}
        self._sorted: dict[SessionKey, list[int]] = {}

    def __bool__(self) -> bool:
        """Return whether there is anything to do."""
        return bool(self._why or self.whole or self.owner or self.facts)

    @property
    def sessions(self) -> list[SessionKey]:
        """Return the sessions with something to erase."""
        return list(dict.fromkeys([*self._why, *self.whole]))

    def add(self, session: SessionKey, seqs: Iterable[int], reason: Reason) -> None:
        """Add positions; the first reason stays."""
        known = self._why.get(session, {})
        new = [seq for seq in seqs if seq not in known]
        if not new:
            return
        self._why.setdefault(session, {}).update(dict.fromkeys(new, reason))
        self._fresh.setdefault(session, []).extend(new)
        self._sorted.pop(session, None)

    def add_whole(self, session: SessionKey, messages: int, reason: Reason) -> None:
        """Add a whole session."""
        self.whole.setdefault(session, reason)
        self.add(session, range(1, messages + 1), reason)

    def take_fresh(self) -> dict[SessionKey, list[int]]:
        """Return what was added since the last call."""
        fresh, self._fresh = self._fresh, {}
        return fresh

    def refresh(self) -> None:
        """Return everything again with the next `take_fresh`."""
        self._fresh = {session: list(why) for session, why in self._why.items()}

    def positions(self, session: SessionKey) -> Sequence[int]:
        """Return the positions of a session, ascending."""
        if session not in self._sorted:
            self._sorted[session] = sorted(self._why.get(session, ()))
        return self._sorted[session]

    def reasons(self, session: SessionKey) -> Mapping[int, Reason]:
        """Return why each position of a session is erased."""
        return self._why.get(session, {})

    def covers(self, session: SessionKey, first: int, last: int) -> bool:
        """Return whether a range holds a position to erase."""
        seqs = self.positions(session)
        place = bisect_left(seqs, first)
        return place < len(seqs) and seqs[place] <= last

    def takes(self, version: int) -> bool:
        """Return whether a record of the owner has its version since before the erasure began."""
        return self.newest is None or version <= self.newest

    def touches(self, spans: Sequence[Span]) -> bool:
        """Return whether a span holds a position to erase."""
        return any(self.covers(*span) for span in spans)

    def takes_title(self, info: SessionInfo) -> bool:
        """Return whether a session's title was made from a message to erase."""
        return info.title_seq > 0 and self.covers(info.key, info.title_seq, info.title_seq)

    def size(self) -> int:
        """Return how many positions there are."""
        return sum(map(len, self._why.values()))

    # --- as JSON, without any text ---

    def entries(self) -> Iterator[JSON]:
        """Yield the plan in small parts."""
        if self.owner is not None:
            yield {"owner": self.owner, "newest": self.newest}
        for owner, key in sorted(self.facts):
            yield {"fact": key, "of": owner}
        for session, reason in self.whole.items():
            yield {"whole": session, "as": reason}
        for session, why in self._why.items():
            for reason in dict.fromkeys(why.values()):
                for first, last in ranges(seq for seq, its in why.items() if its == reason):
                    yield [session, first, last, reason]

    def take(self, entry: JSON) -> None:
        """Add a part that `entries` returned."""
        if isinstance(entry, Mapping):
            part = cast(Mapping[str, Any], entry)
            if "fact" in part:
                self.facts.add((part["of"], part["fact"]))
            elif "owner" in part:
                self.owner, self.newest = part["owner"], part["newest"]
            else:
                self.whole[SessionKey(part["whole"])] = part["as"]
            return
        session, first, last, reason = cast(tuple[str, int, int, Reason], entry)
        self.add(SessionKey(session), range(first, last + 1), reason)


def ranges(seqs: Iterable[int]) -> list[Range]:
    """Return positions as ranges."""
    return merged((seq, seq) for seq in seqs)


class ForgetQuery(NamedTuple):
    """Selects messages: a message matches if it matches every field that is given."""

    session: str | None = None
    message: str | None = None
    """A message's id; it needs the session's."""
    owner: str | None = None
    author: str | None = None
    source: str | None = None
    since: float | None = None
    until: float | None = None

    def check(self) -> "ForgetQuery":
        """Refuse a query without a field, or with contradicting ones."""
        if all(value is None for value in self):
            raise InvalidInput(
                "specify what to forget: a session, a message in a session, an owner, an author, a "
                "source, or a time range (since, until)"
            )
        if self.message is not None and self.session is None:
            raise InvalidInput(
                "a message id is only unique within its session: give the session as well"
            )
        for name in ("session", "message", "owner", "author", "source"):
            value = getattr(self, name)
            if value is not None and not (name == "source" and type(value) is str and value):
                check_id(value, name)
        for name, at in (("since", self.since), ("until", self.until)):
            if at is not None:
                check_time(at, name)
        return self

    @property
    def is_whole(self) -> bool:
        """Return whether it selects whole sessions, with their titles and prompts."""
        others = (self.message, self.author, self.source, self.since, self.until)
        return all(value is None for value in others)

    @property
    def can_match_facts(self) -> bool:
        """Return whether it selects facts by where they came from."""
        others = (self.session, self.message, self.author)
        return self.source is not None and all(value is None for value in others)

    def matches_session(self, session: SessionInfo) -> bool:
        """Return whether messages of a session can match."""
        return self.session in (None, session.id) and self.owner in (None, session.owner)

    def matches(self, owner: str, message: Message) -> bool:
        """Return whether a message of such a session matches."""
        at = message.created_at
        return (
            self.message in (None, message.id)
            and self.author in (None, _author_of(owner, message))
            and self.source in (None, message.source)
            and (self.since is None or at >= self.since)
            and (self.until is None or at < self.until)
        )

    def to_json(self) -> dict[str, JSON]:
        """Return the fields that are given."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def __str__(self) -> str:
        """Return a readable description."""
        return ", ".join(f"{name} {value!r}" for name, value in self.to_json().items())


def _author_of(owner: str, message: Message) -> str | None:
    """Return who wrote a message; a user's message without an author is the owner's."""
    if message.author is None and message.role == "user":
        return owner
    return message.author


ENTRIES = 4000
"""Entries of a plan that one record holds; tests and proofs set it."""


class Intent(NamedTuple):
    """A forgetting that has begun: its plan and its options."""

    id: str
    query: ForgetQuery
    plan: ErasurePlan
    answers: bool = False
    rewrite: bool = False
    done: bool = False
    """Whether all is erased, and only bytes are left to be removed."""
    reader: str | None = None
    """The owner who gets the receipt; None is the tenant."""
    planned: Receipt | None = None
    """The receipt with the counts before anything was erased."""
    version: int = 0
    """The version of its record, by which processes notice each other; 0: it is not stored."""

    async def store(self, store: Store) -> "Intent":
        """Store it as records of the tenant, and return it with its new version.

        A large plan has parts, which are written before the record names them: the stored intent is
        complete at every moment. Raises `Stale` if another process changed or ended it.
        """
        entries = list(self.plan.entries())
        value: dict[str, JSON] = {
            "asked": self.query.to_json(),
            "answers": self.answers,
            "rewrite": self.rewrite,
            "done": self.done,
            "reader": self.reader,
            "planned": _planned(self.planned) if self.planned else None,
            "entries": entries,
        }
        version = self.version
        if len(entries) > ENTRIES:
            if not version:
                planning = value | {"entries": None}
                version = await store.put(Scope(), FORGET, self.id, planning, version=0)
            starts = range(0, len(entries), ENTRIES)
            parts = {new_id(): entries[n : n + ENTRIES] for n in starts}
            for key, part in parts.items():
                await store.put(Scope(), FORGET, key, {"of": self.id, "entries": part})
            value |= {"entries": [], "parts": [*parts]}
        version = await store.put(Scope(), FORGET, self.id, value, version=version)
        return self._replace(version=version)

    async def drop(self, store: Store, *, version: int | None = None) -> None:
        """Drop it with its parts, older ones included; `version` as in `Store.drop`."""
        await store.drop(Scope(), FORGET, self.id, version=version)
        for record in await store.scan(Scope(), FORGET):
            if _value(record).get("of") == self.id:
                await store.drop(Scope(), FORGET, record.key)


async def open_intents(store: Store) -> list[Intent]:
    """Return the erasures that have begun and not ended.

    One without a plan has erased nothing: its process is still storing the plan, or has died.
    """
    records = {record.key: record for record in await store.scan(Scope(), FORGET)}
    intents: list[Intent] = []
    for record in records.values():
        value = _value(record)
        if "of" in value:
            if value["of"] not in records:  # its process died while it dropped the intent
                await store.drop(Scope(), FORGET, record.key)
            continue
        plan = ErasurePlan()
        for entry in value["entries"] or ():
            plan.take(entry)
        for key in value.get("parts", ()):
            if key not in records:
                raise Damaged(f"the erasure {record.key} lacks a part of its plan")
            for entry in _value(records[key])["entries"]:
                plan.take(entry)
        options = (value["answers"], value["rewrite"], value["done"], value["reader"])
        planned = value["planned"] and receipt_from_json(value["planned"])
        query = ForgetQuery(**value["asked"])
        intents.append(Intent(record.key, query, plan, *options, planned, record.version))
    return intents


def _value(record: Record) -> Mapping[str, Any]:
    return cast(Mapping[str, Any], record.value)


def _planned(receipt: Receipt) -> JSON:
    """Return a receipt as JSON, with one place more than are kept: so it is known to be longer."""
    return without_text(receipt, places=MAX_PLACES + 1).to_json()
