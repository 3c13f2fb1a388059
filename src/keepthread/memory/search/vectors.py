"""Vectors: a view of the log for memories with an embedder, updated in the background.

The view's name holds the embedder's name, the number of its vectors' dimensions, and that of the
index of words, whose positions it shares. Another model is another view, and so is the same name
with another number of dimensions: the new view is built from the beginning, and the older views are
dropped once it is complete.
"""

import asyncio
import logging
from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Final, NamedTuple, cast
from weakref import WeakSet

from keepthread.errors import KeepthreadError, SessionGone, Stale, Unavailable
from keepthread.protocols import Embedder, Progress, Searchable, Store
from keepthread.recall.chunks import parts_of, pieces_of
from keepthread.recall.positions import VIEW
from keepthread.stores.kinds import VECTORS
from keepthread.text_caches import register_object
from keepthread.types import Embedding, Message, Scope, SessionKey, Unread

_KEY: Final = "views"
_PAGE: Final = 64
"""Messages that are embedded between two reads of the store."""
_PIECES: Final = 256
"""Pieces after which a page ends early."""
_MOST_PIECES: Final = 64
"""Pieces of one message that get vectors; the rest of a very long one is found by its words."""
_KNOWN: Final = 128
"""Questions whose vectors are cached."""
_PENDING: Final = 8
"""Questions that may be embedded in the background after their callers stopped waiting."""
_CLOSING: Final = 5.0
"""Seconds that closing waits for questions that it cancelled."""
_LONGEST: Final = 4000
"""Characters of a question that are embedded."""

_log: Final = logging.getLogger("keepthread.vectors")


def view_of(name: str, dimensions: int) -> str:
    """Return the view of an embedder's vectors; 0 dimensions if it has made none yet."""
    return f"vectors:{VIEW.partition(':')[2]}:{name}{f':{dimensions}' if dimensions else ''}"


class Vectors:
    """Stores the vectors of messages, and makes those of questions."""

    def __init__(self, embedder: Embedder) -> None:
        """Use an embedder; its name is stored with the vectors."""
        self.embedder = embedder
        self._dimensions = 0
        """Of the vectors that it made last; 0 if unknown."""
        self._known: OrderedDict[str, Embedding] = OrderedDict()
        self._asking: dict[tuple[asyncio.AbstractEventLoop, str], asyncio.Task[None]] = {}
        self._warned = False
        self._enlisted: WeakSet[Store] = WeakSet()
        self._alone: WeakSet[Store] = WeakSet()
        self._given_up = False
        register_object(self)

    @property
    def view(self) -> str:
        """Return the name of the view, with the dimensions once they are known."""
        return view_of(self.embedder.name, self._dimensions)

    async def expect(self, store: Store) -> None:
        """Assume the dimensions that a store has, until the embedder returns others."""
        if self._dimensions:
            return
        own = f"{self.view}:"
        ends = [view.removeprefix(own) for view in (await _views(store))[1] if view.startswith(own)]
        self._dimensions = next((int(end) for end in reversed(ends) if end.isdecimal()), 0)

    def _learn(self, made: Iterable[Embedding]) -> bool:
        """Learn the dimensions from vectors; return whether they have changed."""
        found = {each.dimensions for each in made if each.vectors}
        if len(found) > 1:
            raise Unavailable(
                f"{self.embedder.name} returned vectors with "
                f"{' and '.join(map(str, sorted(found)))} dimensions in one call; they cannot be "
                "compared"
            )
        before, self._dimensions = self._dimensions, max(found, default=self._dimensions)
        if self._dimensions == before:
            return False
        self._enlisted, self._alone = WeakSet(), WeakSet()
        self._given_up = False
        self._known.clear()
        if before:
            _log.warning(
                "%s now returns vectors with %d dimensions instead of %d: embedding all messages "
                "again",
                self.embedder.name,
                self._dimensions,
                before,
            )
        return before > 0

    def clear_texts(self) -> None:
        """Drop the questions whose vectors are cached."""
        self._known.clear()

    # --- questions ---

    async def asked(self, text: str, within: float = 0.05) -> Embedding | None:
        """Return the vectors of a question, or None if they take longer than `within` seconds.

        A late answer of the embedder is cached for the next caller with the same question. A
        failure is logged, not raised.
        """
        text = text.strip()[:_LONGEST]
        if not text:
            return None
        if text not in self._known:
            await self._wait(text, within)
        found = self._known.pop(text, None)
        if found is not None:
            self._known[text] = found  # the latest again
        return found if found and found.vectors else None

    async def close(self) -> None:
        """Cancel the questions that no caller waits for."""
        loop = asyncio.get_running_loop()
        tasks = [task for (own, _), task in list(self._asking.items()) if own is loop]
        for task in tasks:
            task.cancel()
        if tasks:  # an embedder that ignores the cancellation is left alone
            await asyncio.wait(tasks, timeout=_CLOSING)

    async def _wait(self, text: str, within: float) -> None:
        loop = asyncio.get_running_loop()
        task = self._asking.get((loop, text))
        if task is None:
            if len(self._asking) >= _PENDING:
                return
            task = self._asking[loop, text] = loop.create_task(self._ask(text))
            task.add_done_callback(lambda _: self._asking.pop((loop, text)))
        await asyncio.wait([task], timeout=within)

    async def _ask(self, text: str) -> None:
        try:
            (made,) = await self.embedder.embed([text])
            self._learn([made])
        except Exception as error:  # noqa: BLE001 - the search continues by words
            if not self._warned:
                # Errors of ours hold no text; others may.
                why = str(error) if isinstance(error, KeepthreadError) else type(error).__name__
                _log.warning("%s failed to embed a question: %s", self.embedder.name, why)
            self._warned = True
            return
        self._warned = False
        self._known[text] = made
        while len(self._known) > _KNOWN:
            self._known.popitem(last=False)

    # --- reading on ---

    async def catch_up(
        self,
        store: Store,
        finder: Searchable,
        *,
        owner: str | None = None,
        session: SessionKey | None = None,
        limit: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """Embed new messages, up to `limit` of them; return how many are left.

        It may be interrupted at any moment, and other processes may do the same work: each stored
        page is complete, and the next call resumes after it. An error of the embedder is raised.
        """
        await self.expect(store)
        queue = deque(await finder.unread(self.view, owner=owner, session=session))
        total, done = _messages(queue), 0
        while queue and (limit is None or done < limit):
            view = self.view
            if not await self._enlist(store):
                break
            pages = await _pages(store, queue, _PAGE if limit is None else min(_PAGE, limit - done))
            embedded = await self._embedded(pages)
            if self._learn(chain.from_iterable(each.values() for each in embedded)):
                queue = deque(await finder.unread(self.view, owner=owner, session=session))
                continue
            if view != self.view:
                await self._rename(store, view)
            for page, vectors in zip(pages, embedded, strict=True):
                try:
                    await finder.put_vectors(self.view, page.read, page.until, vectors)
                except (Stale, SessionGone):
                    with suppress(SessionGone):
                        queue += await finder.unread(self.view, session=page.read.session)
                    continue
                done += page.messages
                if page.until < page.read.last:
                    queue.appendleft(page.read._replace(until=page.until))
            if progress:
                progress(done, max(total, done + _messages(queue)))
        if store not in self._alone:
            await self._retire(store, finder)
        return _messages(queue)

    async def _embedded(self, pages: Sequence["_Page"]) -> list[dict[int, Embedding]]:
        """Return the vectors of each page by position, all made in one call."""
        texts = {place: text for page in pages for place, text in page.texts.items()}
        made = await self.embedder.embed(list(texts.values())) if texts else ()
        found = {place: each for place, each in zip(texts, made, strict=True) if each.vectors}
        return [{place: found[place] for place in page.texts if place in found} for page in pages]

    # --- one model after another ---

    async def _enlist(self, store: Store) -> bool:
        """Register this view as the tenant's last when it begins; return whether it is in use.

        It is no longer in use once a later one took over: of two processes with different models
        the one that began later wins, so they do not undo each other's work forever.
        """
        while True:
            version, views = await _views(store)
            if views and store in self._enlisted:
                return self.view in views or self._give_up(store)
            if views[-1:] != [self.view]:
                others = [view for view in views if view != self.view]
                try:
                    await store.put(Scope(), VECTORS, _KEY, [*others, self.view], version=version)
                except Stale:
                    continue
                self._alone.discard(store)
            self._enlisted.add(store)
            return True

    async def _rename(self, store: Store, old: str) -> None:
        """Register this view under its full name, now that the dimensions are known.

        It takes the place of its first name, so views that began later stay later.
        """
        self._enlisted.add(store)
        while True:
            version, views = await _views(store)
            if old not in views:
                return  # another process did it, or a later view took over
            others = [view for view in views if view != self.view]
            renamed = [self.view if view == old else view for view in others]
            with suppress(Stale):
                await store.put(Scope(), VECTORS, _KEY, renamed, version=version)
                return

    def _give_up(self, store: Store) -> bool:
        self._alone.discard(store)
        if not self._given_up:
            _log.warning(
                "another embedding model has replaced %s: open the memory again", self.embedder.name
            )
        self._given_up = True
        return False

    async def _retire(self, store: Store, finder: Searchable) -> None:
        """Drop the views that began before this one, once this one is complete.

        If a later one took over, drop what was added to this one since.
        """
        version, views = await _views(store)
        if views and self.view not in views:
            await finder.drop_view(self.view)
            return
        earlier = views[: views.index(self.view)] if views else []
        if earlier:
            if await finder.unread(self.view):
                return
            for view in earlier:
                await finder.drop_view(view)
            try:
                rest = [view for view in views if view not in earlier]
                await store.put(Scope(), VECTORS, _KEY, rest, version=version)
            except Stale:
                return  # another view has begun; the next call checks again
        self._alone.add(store)


class _Page(NamedTuple):
    """A page of a session's messages that are embedded in one call."""

    read: Unread
    until: int
    messages: int
    texts: Mapping[int, str]


async def _pages(store: Store, queue: deque[Unread], most: int) -> list[_Page]:
    """Take the next pages from a queue, of several sessions if they are short."""
    pages: list[_Page] = []
    pieces = 0
    while queue and most > 0 and pieces < _PIECES:
        read = queue.popleft()
        with suppress(SessionGone):
            messages = await store.read(read.session, after=read.until, until=read.last, limit=most)
            page = _page(read, messages)
            pages.append(page)
            most -= page.messages
            pieces += len(page.texts)
    return pages


def _page(read: Unread, messages: Sequence[Message]) -> _Page:
    texts: dict[int, str] = {}
    for count, message in enumerate(messages, 1):
        texts |= _texts(int(read.session), message)
        if len(texts) >= _PIECES:
            return _Page(read, message.seq, count, texts)
    return _Page(read, messages[-1].seq if messages else read.last, len(messages), texts)


def _texts(session: int, message: Message) -> dict[int, str]:
    """Return the texts to embed of a message, by position: its pieces, with their speaker."""
    both = zip(parts_of(session, message), pieces_of(message), strict=True)
    said = {part.place: f"{part.speaker}: {text}" if part.speaker else text for part, text in both}
    return dict(islice(said.items(), _MOST_PIECES))


def _messages(unread: Iterable[Unread]) -> int:
    return sum(each.last - each.until for each in unread)


async def _views(store: Store) -> tuple[int, list[str]]:
    """Return the views in which a tenant has vectors, by age, and the record's version."""
    record = await store.get(Scope(), VECTORS, _KEY)
    return (record.version, list(cast("Sequence[str]", record.value))) if record else (0, [])
