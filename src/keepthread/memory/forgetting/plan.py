"""Intents: what a forgetting is about to do, stored before it begins, without a word of it.

Should its process die, the next one that opens the memory finds the intent and completes it. A
large one is several records; until all of them are there, nothing was begun.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeAlias, cast

from keepthread.context.ranges import Range, merged
from keepthread.errors import InvalidInput
from keepthread.protocols import Store
from keepthread.stores.kinds import FORGET
from keepthread.stores.validation import check_id, check_time
from keepthread.types import JSON, Message, Record, Scope, SessionInfo, SessionKey, Span

Reason: TypeAlias = Literal["chosen", "copy", "delegate", "made", "answer"]
"""Why a message goes: it was meant, or is a copy, a delegate's, made from others, an answer."""


class Plan:
    """Positions by session; it grows as what is meant is followed to what was made of it."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.whole: dict[SessionKey, Reason] = {}
        """Sessions of which nothing stays but tombstones."""
        self.halves: set[SessionKey] = set()
        """Forks that are being made, and must be made again."""
        self.twins: dict[SessionKey, set[SessionKey]] = {}
        """Copies of whole sessions, and of which; they may say the same of themselves."""
        self.owner: str | None = None
        """Whose own shelf goes as well."""
        self._why: dict[SessionKey, dict[int, Reason]] = {}
        self._fresh: dict[SessionKey, list[int]] = {}
        self._sorted: dict[SessionKey, list[int]] = {}

    def __bool__(self) -> bool:
        """Return whether there is anything to do."""
        return bool(self._why or self.whole or self.owner)

    @property
    def sessions(self) -> list[SessionKey]:
        """Return the sessions that are touched."""
        return list(dict.fromkeys([*self._why, *self.whole]))

    def add(self, session: SessionKey, seqs: Iterable[int], reason: Reason) -> None:
        """Take in positions; the first reason stays."""
        known = self._why.get(session, {})
        new = [seq for seq in seqs if seq not in known]
        if not new:
            return
        self._why.setdefault(session, {}).update(dict.fromkeys(new, reason))
        self._fresh.setdefault(session, []).extend(new)
        self._sorted.pop(session, None)

    def add_whole(self, session: SessionKey, messages: int, reason: Reason) -> None:
        """Take in all of a session."""
        self.whole.setdefault(session, reason)
        self.add(session, range(1, messages + 1), reason)

    def take_fresh(self) -> dict[SessionKey, list[int]]:
        """Return what was taken in since this was asked last."""
        fresh, self._fresh = self._fresh, {}
        return fresh

    def refresh(self) -> None:
        """Let everything be looked at anew."""
        self._fresh = {session: list(why) for session, why in self._why.items()}

    def positions(self, session: SessionKey) -> Sequence[int]:
        """Return the positions of a session, ascending."""
        if session not in self._sorted:
            self._sorted[session] = sorted(self._why.get(session, ()))
        return self._sorted[session]

    def reasons(self, session: SessionKey) -> Mapping[int, Reason]:
        """Return why each position of a session goes."""
        return self._why.get(session, {})

    def covers(self, session: SessionKey, first: int, last: int) -> bool:
        """Return whether a range holds a position that goes."""
        seqs = self.positions(session)
        place = bisect_left(seqs, first)
        return place < len(seqs) and seqs[place] <= last

    def touches(self, spans: Sequence[Span]) -> bool:
        """Return whether something is made of what goes."""
        return any(self.covers(*span) for span in spans)

    def takes_title(self, info: SessionInfo) -> bool:
        """Return whether a session's title was made from a message that goes."""
        return info.title_seq > 0 and self.covers(info.key, info.title_seq, info.title_seq)

    def size(self) -> int:
        """Return how many positions there are."""
        return sum(map(len, self._why.values()))

    # --- as JSON, without a word of what goes ---

    def entries(self) -> Iterator[JSON]:
        """Yield the plan in small parts."""
        if self.owner is not None:
            yield {"owner": self.owner}
        for session, reason in self.whole.items():
            yield {"whole": session, "as": reason}
        for session, why in self._why.items():
            for reason in dict.fromkeys(why.values()):
                for first, last in ranges(seq for seq, its in why.items() if its == reason):
                    yield [session, first, last, reason]

    def take(self, entry: JSON) -> None:
        """Take in a part that `entries` gave."""
        if isinstance(entry, Mapping):
            part = cast(Mapping[str, Any], entry)
            if "owner" in part:
                self.owner = part["owner"]
            else:
                self.whole[SessionKey(part["whole"])] = part["as"]
            return
        session, first, last, reason = cast(tuple[str, int, int, Reason], entry)
        self.add(SessionKey(session), range(first, last + 1), reason)


def ranges(seqs: Iterable[int]) -> list[Range]:
    """Return positions as ranges."""
    return merged((seq, seq) for seq in seqs)


class Wish(NamedTuple):
    """What to look for; a message is meant if everything that is given holds for it."""

    session: str | None = None
    message: str | None = None
    """A message's id; it needs the session's."""
    owner: str | None = None
    author: str | None = None
    source: str | None = None
    since: float | None = None
    until: float | None = None

    def check(self) -> "Wish":
        """Refuse what means nothing, or everything."""
        if all(value is None for value in self):
            raise InvalidInput(
                "say what to forget: a session, a message of one, an owner, an author, a source,"
                " or a time by since and until"
            )
        if self.message is not None and self.session is None:
            raise InvalidInput("an id names a message within its session: name the session too")
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
        """Return whether all of a session is meant, and so what is said of it as well."""
        others = (self.message, self.author, self.source, self.since, self.until)
        return all(value is None for value in others)

    def admits(self, session: SessionInfo) -> bool:
        """Return whether messages of a session may be meant."""
        return self.session in (None, session.id) and self.owner in (None, session.owner)

    def means(self, owner: str, message: Message) -> bool:
        """Return whether a message of a session that may be meant is."""
        at = message.created_at
        return (
            self.message in (None, message.id)
            and self.author in (None, _author_of(owner, message))
            and self.source in (None, message.source)
            and (self.since is None or at >= self.since)
            and (self.until is None or at < self.until)
        )

    def to_json(self) -> dict[str, JSON]:
        """Return what was given."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def __str__(self) -> str:
        """Return it for people."""
        return ", ".join(f"{name} {value!r}" for name, value in self.to_json().items())


def _author_of(owner: str, message: Message) -> str | None:
    """Return who wrote a message: where nobody is named, the owner wrote what a user says."""
    if message.author is None and message.role == "user":
        return owner
    return message.author


_ENTRIES: Final = 4000


class Intent(NamedTuple):
    """What was begun, and how."""

    id: str
    wish: Wish
    plan: Plan
    answers: bool = False
    rewrite: bool = False

    async def store(self, store: Store) -> None:
        """Put it on the tenant's shelf."""
        entries = self.plan.entries()
        parts = [list(islice(entries, _ENTRIES))]
        while more := list(islice(entries, _ENTRIES)):
            parts.append(more)
        for number, part in enumerate(parts):
            value: JSON = {
                "parts": len(parts),
                "asked": self.wish.to_json(),
                "answers": self.answers,
                "rewrite": self.rewrite,
                "entries": part,
            }
            await store.put(Scope(), FORGET, f"{self.id}:{number:06}", value)
        await self._drop(store, after=len(parts) - 1)

    async def drop(self, store: Store) -> None:
        """Take it off: it is done."""
        await self._drop(store)

    async def _drop(self, store: Store, *, after: int = -1) -> None:
        for record in await store.scan(Scope(), FORGET):
            id, _, number = record.key.rpartition(":")
            if id == self.id and int(number) > after:
                await store.drop(Scope(), FORGET, record.key)


async def intents(store: Store) -> list[Intent]:
    """Return what was begun and is not done."""
    begun: dict[str, list[Record]] = {}
    for record in await store.scan(Scope(), FORGET):
        begun.setdefault(record.key.rpartition(":")[0], []).append(record)
    return [_intent(id, records) for id, records in begun.items() if _is_whole(records)]


def _is_whole(records: list[Record]) -> bool:
    return len(records) >= cast(Mapping[str, Any], records[0].value)["parts"]


def _intent(id: str, records: list[Record]) -> Intent:
    plan = Plan()
    for record in records:
        for entry in cast(Mapping[str, Any], record.value)["entries"]:
            plan.take(entry)
    head = cast(Mapping[str, Any], records[0].value)
    return Intent(id, Wish(**head["asked"]), plan, head["answers"], head["rewrite"])
