"""Search in memory: words and vectors in dictionaries, for `RamStore`."""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import wraps
from operator import mul
from types import CoroutineType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from keepthread.errors import SessionGone
from keepthread.recall.bm25 import newest
from keepthread.recall.positions import LENGTH_BITS, MESSAGE, MOST_SEQ, SEQ_BITS, seq_of, session_of
from keepthread.stores.backend import Backend, Listing
from keepthread.stores.records import (
    ALL_KEYS,
    check_filter,
    check_places,
    check_readable,
    check_reading,
    check_segments,
    is_listed,
    without,
)
from keepthread.stores.validation import MAX_COUNT, check_count, check_id
from keepthread.types import (
    Embedding,
    Found,
    Message,
    MessageFilter,
    Part,
    Placed,
    Record,
    Scope,
    Segment,
    SessionInfo,
    SessionKey,
    Unread,
)


class _View:
    """One index over the logs of every tenant; the keys of parts omit their length."""

    def __init__(self) -> None:
        self.marks: dict[SessionKey, int] = {}
        self.parts: dict[int, Part] = {}
        self.words: dict[str, set[int]] = {}
        self.segments: dict[SessionKey, dict[int, Segment]] = {}
        self.vectors: dict[int, tuple[int, Embedding]] = {}

    def add(self, parts: Iterable[Part], segments: Iterable[Segment]) -> None:
        for part in parts:
            self.parts[part.place >> LENGTH_BITS] = part
            for word in part.words:
                self.words.setdefault(word, set()).add(part.place)
        for segment in segments:
            self.segments.setdefault(segment.session, {})[segment.first] = segment

    def forget(self, session: SessionKey, seqs: Collection[int] | None) -> None:
        for key in _among(self.parts, session, seqs):
            part = self.parts.pop(key)
            self._shrink_segment(session, part)
            for word in part.words:
                self.words[word].discard(part.place)
        for key in _among(self.vectors, session, seqs):
            del self.vectors[key]
        if seqs is None:
            self.marks.pop(session, None)

    def _shrink_segment(self, session: SessionKey, part: Part) -> None:
        segments = self.segments.get(session, {})
        first = max((first for first in segments if first <= seq_of(part.place)), default=0)
        if first and (less := without(segments.pop(first), part.place, part.flags)):
            segments[first] = less


def _among(keys: Iterable[int], session: SessionKey, seqs: Collection[int] | None) -> list[int]:
    """Return the keys of a session's parts, or of those at some positions."""
    places = [(key, key << LENGTH_BITS) for key in keys]
    return [
        key
        for key, place in places
        if session_of(place) == int(session) and (seqs is None or seq_of(place) in seqs)
    ]


class _Locked(Protocol):
    @property
    def lock(self) -> threading.RLock: ...


S = TypeVar("S", bound=_Locked)
P = ParamSpec("P")
T = TypeVar("T")


def exclusive(
    method: "Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]",
) -> "Callable[Concatenate[S, P], CoroutineType[Any, Any, T]]":
    """Run a method under a lock, so that threads call one after another; it never waits."""

    @wraps(method)
    async def locked(self: S, *args: P.args, **kwargs: P.kwargs) -> T:
        with self.lock:
            return await method(self, *args, **kwargs)

    return locked


class RamIndex:
    """The indexes of one store."""

    def __init__(self) -> None:
        """Start with empty indexes."""
        self.views: dict[str, _View] = {}
        self.lock = threading.RLock()
        """Held by each call of the store and its finders: several event loops may share them."""

    def forget(self, session: SessionKey, seqs: Collection[int] | None = None) -> None:
        """Remove some positions of a session from every index, or all of them."""
        for view in self.views.values():
            view.forget(session, seqs)


class RamFinder:
    """The `Searchable` of one tenant."""

    @property
    def lock(self) -> threading.RLock:
        """Return the lock that `exclusive` holds."""
        return self._index.lock

    def __init__(self, backend: Backend, tenant: str, index: RamIndex) -> None:
        """Search the data of one tenant."""
        self._backend = backend
        self._tenant = tenant
        self._index = index

    @exclusive
    async def unread(
        self, view: str, *, owner: str | None = None, session: SessionKey | None = None
    ) -> list[Unread]:
        known = self._view(view)
        found = [_unread(known, info) for info in await self._scope(owner, session)]
        return [each for each in found if each.last > each.until]

    @exclusive
    async def index(
        self,
        view: str,
        read: Unread,
        until: int,
        parts: Sequence[Part],
        segments: Sequence[Segment],
    ) -> None:
        check_segments(read, segments)
        await self._check_reading(view, read, until, [part.place for part in parts])
        known = self._view(view)
        known.marks[read.session] = until
        known.add(parts, segments)

    @exclusive
    async def places(
        self,
        view: str,
        words: Sequence[str],
        *,
        owner: str | None = None,
        session: SessionKey | None = None,
        only: MessageFilter | None = None,
        max_places: int = 5000,
    ) -> Found:
        check_count(max_places, "max_places")
        known = self._view(view)
        scope = await self._scope(owner, session)
        numbers = {int(info.key) for info in scope}
        found: dict[str, list[int]] = {}
        for word in words:
            places = sorted(p for p in known.words.get(word, ()) if session_of(p) in numbers)
            found[word] = places if only is None else await self._admitted(places, only)
        places, older = newest(found, max_places)
        segments = [
            segment
            for info in sorted(scope, key=lambda info: int(info.key))
            for _, segment in sorted(known.segments.get(info.key, {}).items())
        ]
        unread = [each for info in scope if (each := _unread(known, info)).last > each.until]
        return Found(places, segments, unread, older if only is None else {})

    @exclusive
    async def parts(self, view: str, places: Sequence[int]) -> list[Part]:
        known = self._view(view).parts
        keys = sorted({place >> LENGTH_BITS for place in places})
        found = [known[key] for key in keys if key in known]
        numbers = {session_of(part.place) for part in found}
        mine = {number for number in numbers if await self._has(number)}
        return [part._replace(words=()) for part in found if session_of(part.place) in mine]

    @exclusive
    async def fetch(
        self,
        places: Sequence[int],
        *,
        kinds: Sequence[str] = (),
        copies_in: SessionKey | None = None,
    ) -> tuple[list[Placed], list[Record]]:
        scope = {int(info.key): info for info in await self._scope(None, None)}
        messages = sorted({place >> MESSAGE for place in places})
        placed: list[Placed] = []
        for info in (scope[n] for n in sorted({m >> SEQ_BITS for m in messages}) if n in scope):
            seqs = [m & MOST_SEQ for m in messages if m >> SEQ_BITS == int(info.key)]
            found = await self._backend.find(self._tenant, info.key, (), seqs)
            live = [message for message in found if message.state == "live"]
            placed += [_placed(info, message) for message in live]
        keys = dict.fromkeys(each.session for each in placed)
        if copies_in is not None:
            keys[copies_in] = None
        shelves = [(Scope(session=key), kind, ALL_KEYS) for key in keys for kind in kinds]
        scans = [await self._backend.scan(self._tenant, *shelf) for shelf in shelves]
        ids = [each.message.id for each in placed if each.session != copies_in]
        if copies_in is not None and ids:
            info = await self._backend.describe(self._tenant, copies_in)
            copies = await self._backend.find(self._tenant, copies_in, ids, ())
            placed += [_placed(info, message) for message in copies]
        return placed, [record for found in scans for record in found]

    @exclusive
    async def put_vectors(
        self, view: str, read: Unread, until: int, vectors: Mapping[int, Embedding]
    ) -> None:
        await self._check_reading(view, read, until, vectors)
        known = self._view(view)
        known.marks[read.session] = until
        known.vectors.update(
            (place >> LENGTH_BITS, (place, each)) for place, each in vectors.items()
        )

    @exclusive
    async def vectors(self, view: str, places: Sequence[int]) -> dict[int, Embedding]:
        known = self._view(view).vectors
        numbers = {int(info.key) for info in await self._scope(None, None)}
        return {
            place: known[place >> LENGTH_BITS][1]
            for place in places
            if place >> LENGTH_BITS in known and session_of(place) in numbers
        }

    @exclusive
    async def nearest(
        self,
        view: str,
        to: Embedding,
        *,
        owner: str | None = None,
        session: SessionKey | None = None,
        only: MessageFilter | None = None,
        limit: int = 300,
    ) -> list[int]:
        check_count(limit, "limit")
        known = self._view(view).vectors.values()
        numbers = {int(info.key) for info in await self._scope(owner, session)}
        near = [
            (_product(each, to), place)
            for place, each in known
            if session_of(place) in numbers and each.dimensions == to.dimensions and not each.ids
        ]
        nearest = [place for _, place in sorted(near, reverse=True)]
        return (nearest if only is None else await self._admitted(nearest, only))[:limit]

    @exclusive
    async def drop_view(self, view: str) -> None:
        known = self._view(view)
        for info in await self._scope(None, None):
            known.forget(info.key, None)

    async def _admitted(self, places: Sequence[int], only: MessageFilter) -> list[int]:
        """Return the places of messages that match a filter, in order."""
        seqs: dict[int, set[int]] = {}
        for place in places:
            seqs.setdefault(session_of(place), set()).add(seq_of(place))
        admitted: set[int] = set()
        for number, some in seqs.items():
            found = await self._backend.find(self._tenant, SessionKey(str(number)), (), list(some))
            admitted.update(number << SEQ_BITS | m.seq for m in found if only.admits(m))
        return [place for place in places if place >> MESSAGE in admitted]

    async def _has(self, number: int) -> bool:
        """Return whether a session is indexed for this tenant."""
        try:
            return is_listed(await self._backend.describe(self._tenant, SessionKey(str(number))))
        except SessionGone:
            return False

    def _view(self, name: str) -> _View:
        return self._index.views.setdefault(check_id(name, "view"), _View())

    @exclusive
    async def _scope(self, owner: str | None, session: SessionKey | None) -> list[SessionInfo]:
        """Return the indexed sessions of an owner or key, latest activity first."""
        check_filter(owner, "owner")
        if session is None:
            listed = await self._backend.list_sessions(self._tenant, owner, Listing(MAX_COUNT))
            return [info for _, info in listed]
        info = await self._backend.describe(self._tenant, session)
        return [info] if owner in (None, info.owner) and is_listed(info) else []

    @exclusive
    async def _check_reading(
        self, view: str, read: Unread, until: int, places: Iterable[int]
    ) -> None:
        check_count(until, "until")
        info = await self._backend.describe(self._tenant, read.session)
        check_readable(readable=is_listed(info))
        mark = self._view(view).marks.get(read.session, 0)
        check_reading(read, until, epoch=info.epoch, mark=mark, last=info.messages)
        check_places(read, until, places)


def _placed(info: SessionInfo, message: Message) -> Placed:
    return Placed(info.key, info.id, info.owner, message, info.epoch)


def _unread(view: _View, info: SessionInfo) -> Unread:
    segments = view.segments.get(info.key, {})
    last = segments[max(segments)] if segments else None
    return Unread(info.key, view.marks.get(info.key, 0), info.messages, info.epoch, last)


def _product(one: Embedding, other: Embedding) -> int:
    vectors = (memoryview(each.vectors).cast("b") for each in (one, other))
    return sum(map(mul, *vectors))
