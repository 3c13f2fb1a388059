"""Live text that repeats forgotten text: in messages, records, titles, tags and metadata.

A title that was made from a message is erased with it. A title that a person set stays; where it
repeats forgotten text, the receipt names it.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

from keepthread.errors import Damaged, SessionGone
from keepthread.memory.forgetting.follow import ReadCount
from keepthread.memory.forgetting.probes import held_by, pieces_of, texts_of
from keepthread.memory.forgetting.receipts import MAX_PLACES
from keepthread.protocols import Progress, Store
from keepthread.stores.codec import dumps
from keepthread.stores.front import every_session
from keepthread.stores.kinds import BLOB_CHUNK
from keepthread.types import JSON, Message, Scope, SessionInfo

_LEAST: Final = 8
"""Characters of the shortest text that counts as a quotation."""
_PAGE: Final = 500


class Detail(NamedTuple):
    """A text that a session's record holds."""

    session: str
    name: str
    text: str

    @property
    def where(self) -> str:
        """Return where it is, without its text."""
        return f"the {self.name} of session {self.session!r}"


def details_of(info: SessionInfo) -> list[Detail]:
    """Return the texts of a session's record."""
    texts = [
        ("title", info.title),
        *(("tags", tag) for tag in info.tags),
        ("system prompt", info.system_prompt or ""),
        ("metadata", _json(dict(info.meta)) if info.meta else ""),
    ]
    return [Detail(info.id, name, text) for name, text in texts if text]


def repeated_by(details: Sequence[Detail], message: Message) -> set[Detail]:
    """Return the texts that repeat a message, in whole or in part."""
    if not details:
        return set()
    said = [text for text in texts_of(message) if len(text) >= _LEAST]
    said += [piece.decode() for piece in pieces_of(message)]
    return {detail for detail in details if _quotes(detail.text, said)}


def _quotes(text: str, said: Iterable[str]) -> bool:
    short = text.rstrip("…").rstrip()
    whole = len(short) >= _LEAST
    return any(each in text or (whole and short in each) for each in said)


class Living:
    """Searches everything that a tenant stores for probes.

    An owner who reads the receipt learns of places of their own, and nothing of the text of others.
    """

    def __init__(
        self, store: Store, owners: Iterable[str], probes: Sequence[bytes], reader: str | None
    ) -> None:
        """Take the store and the probes; without a reader, every place that is found is shown.

        The data of these owners, and of the reader, is searched first, until enough is found.
        """
        self._store = store
        readers = [] if reader is None else [reader]
        self._owners = list(dict.fromkeys((*owners, *readers)))
        self._probes = probes
        self._wanted: Sequence[bytes] = ()
        self._reader = reader
        self.shown: set[bytes] = set()
        """The probes that were found where the reader may look."""
        self.held: set[bytes] = set()
        """The probes that were found anywhere."""
        self.places: dict[str, None] = {}
        """Where they were found, without text."""
        self.is_cut = False
        """Whether the search ended with enough places, so that there may be more."""
        self._reading = ReadCount(None)

    async def search(self, wanted: Sequence[bytes], progress: Progress | None = None) -> None:
        """Read what the owners have, then what others have until the wanted probes are found.

        So a common phrase such as a greeting does not make the search read everything.
        `progress` is called with the messages read so far, and all that may have to be read.
        """
        self._wanted = wanted
        if progress:
            total = sum([info.messages async for info in every_session(self._store)])
            self._reading = ReadCount(progress, total)
        for owner in self._owners:
            await self._search_owner(owner)
        if self._all_held():
            return
        async for info in every_session(self._store):
            if info.owner not in self._owners:
                await self._search_session(info)
                if self._is_done(info.owner):
                    return
        for owner in await self._store.owners():
            if owner not in self._owners:
                await self._search_records(Scope(owner=owner), owner, owner)
        await self._search_records(Scope(), "", "the tenant")

    def _all_held(self) -> bool:
        return self.held.issuperset(self._wanted)

    async def _search_owner(self, owner: str) -> None:
        async for info in every_session(self._store, owner):
            if self._is_done(owner):
                return
            await self._search_session(info)
        await self._search_records(Scope(owner=owner), owner, owner)

    def _is_done(self, owner: str) -> bool:
        """Return whether the rest of an owner's data needs no reading, and note if it is cut."""
        if owner not in self._owners:
            return self._all_held()
        is_enough = len(self.places) >= MAX_PLACES and self.shown.issuperset(self._wanted)
        self.is_cut |= is_enough
        return is_enough

    async def _search_session(self, info: SessionInfo) -> None:
        for detail in details_of(info):
            self._note(self._in(detail), info.owner, detail.where)
        with suppress(SessionGone):
            await self._search_log(info)
        if self._is_done(info.owner):
            return
        whose = f"session {info.id!r}"
        await self._search_records(Scope(session=info.key), info.owner, whose)

    async def _search_records(self, scope: Scope, owner: str, whose: str) -> None:
        with suppress(SessionGone, Damaged):
            for record in await self._store.scan(scope, without=BLOB_CHUNK):
                data = dumps(record.value, "the value")
                found = {probe for probe in self._probes if probe in data}
                self._note(found, owner, f"a record of kind {record.kind!r} of {whose}")

    def has(self, detail: Detail) -> bool:
        """Return whether a session's record has a probe, without reading the store."""
        return bool(self._in(detail))

    def _in(self, detail: Detail) -> set[bytes]:
        data = detail.text.encode("utf-8", "surrogatepass")
        return {probe for probe in self._probes if probe in data}

    async def _search_log(self, info: SessionInfo) -> None:
        after = 0
        while page := await self._store.read(info.key, after=after, limit=_PAGE):
            self._reading.add(len(page))
            for message in page:
                found = held_by(message, self._probes)
                self._note(found, info.owner, f"session {info.id!r} at {message.seq}")
            after = page[-1].seq
            if self._is_done(info.owner):
                return

    def _note(self, found: set[bytes], owner: str, where: str) -> None:
        self.held |= found
        if found and self._reader in (None, owner):
            self.shown |= found
            self.places[where] = None


def _json(value: JSON) -> str:
    return dumps(value, "a value").decode("utf-8", "surrogatepass")
