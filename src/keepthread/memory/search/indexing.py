"""Index new messages by their words, a page at a time, in the background."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from keepthread.errors import SessionGone, Stale
from keepthread.protocols import Progress, Searchable, Store
from keepthread.recall.chunks import parts_of, segments_of
from keepthread.recall.positions import VIEW
from keepthread.types import SessionKey, Unread

_PAGE: Final = 200


async def read_on(
    store: Store,
    finder: Searchable,
    *,
    owner: str | None,
    session: SessionKey | None,
    progress: Progress | None = None,
) -> None:
    """Index the messages written since the last time; `progress` counts messages."""
    total = done = 0
    while unread := await finder.unread(VIEW, owner=owner, session=session):
        total = max(total, done + sum(each.last - each.until for each in unread))
        for each in unread:
            done += await _read(store, finder, each, partial(_report, progress, total, done))


async def read_all(store: Store, finder: Searchable, unread: Sequence[Unread]) -> None:
    """Index these sessions up to the ends that were seen, as far as nobody else does."""
    for each in unread:
        await _read(store, finder, each, lambda _: None)


async def _read(
    store: Store, finder: Searchable, read: Unread, report: Callable[[int], None]
) -> int:
    """Index one session up to the end that was seen; another process may do the same."""
    begun = read.until
    try:
        while read.until < read.last:
            read = await _read_page(store, finder, read)
            report(read.until - begun)
    except (Stale, SessionGone):
        pass  # another process indexed it, or it was deleted; the caller asks for the rest
    return read.until - begun


async def _read_page(store: Store, finder: Searchable, read: Unread) -> Unread:
    messages = await store.read(read.session, after=read.until, until=read.last, limit=_PAGE)
    until = messages[-1].seq if messages else read.last
    number = int(read.session)
    parts = [part for message in messages for part in parts_of(number, message)]
    segments = segments_of(read, messages, parts)
    await finder.index(VIEW, read, until, parts, segments)
    return read._replace(until=until, segment=segments[-1] if segments else read.segment)


def _report(progress: Progress | None, total: int, before: int, done: int) -> None:
    if progress is not None:
        progress(min(before + done, total), total)
