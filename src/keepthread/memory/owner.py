"""OwnerMemory: the memory of one owner. It gives no access to other owners' data."""

import logging
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from keepthread.context.ids import derived_id
from keepthread.errors import InvalidInput, SessionExists, SessionNotFound
from keepthread.interchange.export import export_lines
from keepthread.memory.blobs.blobs import Blobs
from keepthread.memory.changes import read_changes
from keepthread.memory.search.search import Filters, Hit
from keepthread.memory.services import Services
from keepthread.memory.session import Session
from keepthread.protocols import Progress
from keepthread.stores.front import begin_again
from keepthread.stores.validation import check_id, seconds_of
from keepthread.types import JSON, Change, Page, Role, SessionInfo

if TYPE_CHECKING:
    # Facts and forgetting are loaded when they are first used: most programs need neither.
    from keepthread.memory.facts.facts import Facts
    from keepthread.memory.forgetting.receipt import Receipt
    from keepthread.memory.forgetting.receipts import StoredReceipt

_log: Final = logging.getLogger("keepthread")


class OwnerMemory:
    """The sessions, messages and facts of one owner; get it from `Memory.for_owner`.

    It has no argument that names an owner. Another owner's session is not found, as if it did not
    exist, and two owners may have sessions with the same id.
    """

    def __init__(self, services: Services, owner: str) -> None:
        """Take the services of a tenant; callers use `Memory.for_owner`."""
        self._services = services
        self._store = services.store
        self._owner = check_id(owner, "owner")

    @property
    def owner(self) -> str:
        """Return the owner's name."""
        return self._owner

    # --- sessions ---

    async def session(
        self,
        id: str,
        *,
        system_prompt: str | None = None,
        title: str | None = None,
        tags: Sequence[str] = (),
        meta: Mapping[str, JSON] | None = None,
    ) -> Session:
        """Return the session of that id; create it if it does not exist.

        All other arguments apply only to a new session.
        """
        found = await self._find(id)
        if found is not None:
            ignored = system_prompt is not None and system_prompt != found.info.system_prompt
            if ignored and self._services.warn_once((self._owner, id)):
                _log.warning(
                    "session %r already exists, so system_prompt is ignored; use "
                    "`session.update(system_prompt=…)` to change it",
                    id,
                )
            return found
        try:
            return await self.create_session(
                id, system_prompt=system_prompt, title=title, tags=tags, meta=meta
            )
        except SessionExists:  # another caller made it in the meantime
            return await self.get_session(id)

    async def create_session(
        self,
        id: str | None = None,
        *,
        system_prompt: str | None = None,
        title: str | None = None,
        tags: Sequence[str] = (),
        meta: Mapping[str, JSON] | None = None,
    ) -> Session:
        """Create a session; raise `SessionExists` if this owner has one with that id.

        Without an id, it gets a new one: `session.id`.
        """
        info = SessionInfo(
            id=self._services.options.ids() if id is None else id,
            owner=self._owner,
            system_prompt=system_prompt,
            title=title or "",
            tags=tags,
            meta=meta or {},
        )
        try:
            made = await self._store.put_session(info)
        except SessionExists:
            known = await self._store.get_session(info.id, self._owner)
            if known is None or not known.forgotten:
                raise
            if await self._services.forgetting().complete():  # else it would be closed again
                known = await self._store.describe(known.key)
            made = await begin_again(self._store, known, info)
        return self._services.session(made)

    async def get_session(self, id: str) -> Session:
        """Return the session of that id; raise `SessionNotFound` if it does not exist."""
        found = await self._find(id)
        if found is None:
            raise SessionNotFound(f"there is no session {id!r}")
        return found

    async def list_sessions(
        self,
        *,
        limit: int = 10,
        cursor: str | None = None,
        tag: str | None = None,
        title: str | None = None,
    ) -> Page[SessionInfo]:
        """Return information about sessions, latest activity first, without delegated tasks.

        The page is a list; its `next` is the `cursor` of the next page, or None. `tag` is one of
        the tags, `title` a part of the title, in any case; with them a page may be short although
        there is a next one.
        """
        return await self._store.list_sessions(
            owner=self._owner, limit=limit, cursor=cursor, tag=tag, title=title
        )

    async def delete_session(self, id: str) -> None:
        """Remove a session with its messages and its records; facts and forks stay.

        `forget` also erases what was made from the messages, and their bytes.
        """
        # Also a fork that was never completed.
        info = await self._store.get_session(id, self._owner)
        if info is None or info.forgotten:
            raise SessionNotFound(f"there is no session {id!r}")
        await self._services.delete_session(info)

    def join(self, session: Session) -> Session:
        """Return a shared session as this owner sees it: its contexts show this owner's facts.

        For a conversation of several people, which has an owner of its own. If a model calls
        `remember`, the fact is noted for this owner. Everything else stays shared.
        """
        return self._services.session(session.info, person=self._owner)

    # --- finding ---

    async def search(
        self,
        query: str,
        *,
        session: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        roles: Collection[Role] | None = None,
        limit: int = 10,
        cursor: str | None = None,
        progress: Progress | None = None,
    ) -> Page[Hit]:
        """Return the messages most relevant to a question, best first, each with the reason.

        `since` and `until` are seconds since 1970, or datetimes with a time zone. The search covers
        the whole log, including messages that contexts hide, but not delegated tasks. `cursor` is
        the `next` of an earlier page. `progress` reports the indexing of new messages.
        """
        began, ended = seconds_of(since, "since"), seconds_of(until, "until")
        filters = Filters(self._owner, session, began, ended, roles)
        return await self._services.searching.search(
            query, filters, limit=limit, cursor=cursor, progress=progress
        )

    async def index(self, *, progress: Progress | None = None) -> None:
        """Index the messages written since the last time, by words and by vectors.

        Searching does so automatically; with an embedder it may take long.
        """
        await self._services.searching.catch_up(owner=self._owner, progress=progress)

    # --- changes ---

    async def changes(
        self, *, after: str | None = None, limit: int = 100, wait: float = 0
    ) -> Page[Change]:
        """Return this owner's changes after a cursor, without texts.

        Every change is delivered at least once, and those of one session in order. `next` is the
        cursor to continue with, also of an empty page; without `after` it begins with the oldest
        change that is kept, and `limit=0` returns the current cursor. `wait` is how many seconds to
        wait for a change if there is none. Changes are kept for seven days; a cursor after which
        some were deleted raises `CursorExpired`.
        """
        return await read_changes(self._store, self._owner, after, limit, wait)

    # --- export ---

    def export(self, *, session: str | None = None) -> AsyncGenerator[bytes]:
        """Yield all data of this owner, or of one session, as lossless JSON Lines.

        `async for line in memory.export(): file.write(line)`; `keepthread import` reads the file.
        The last line says how much was exported: without it, the export is incomplete.
        """
        names = () if session is None else (check_id(session, "session"),)
        return export_lines(self._store, self._owner, sessions=names)

    # --- blobs ---

    @property
    def blobs(self) -> Blobs:
        """Return the owner's blobs: bytes and long texts, stored beside the log."""
        return Blobs(self._services.blobs(self._owner))

    # --- facts ---

    @property
    def facts(self) -> "Facts":
        """Return the facts about the owner, which hold beyond one session."""
        return self._services.facts(self._owner)

    # --- forgetting ---

    async def forget(  # noqa: PLR0913 - each names one way to choose
        self,
        *,
        session: str | None = None,
        message: str | None = None,
        author: str | None = None,
        source: str | None = None,
        since: float | datetime | None = None,
        until: float | datetime | None = None,
        everything: bool = False,
        answers: bool = False,
        dry_run: bool = False,
        id: str | None = None,
        progress: Progress | None = None,
    ) -> "Receipt":
        """Erase messages, their copies and everything that was made from them, permanently.

        A message is erased if it matches every given argument; `since` and `until` are seconds
        since 1970, or datetimes with a time zone. If only a session is given, all of it is erased,
        including title and prompt; such a session then no longer exists for any other call.
        `everything` erases all sessions of the owner, and the owner's facts. `answers` also erases
        answers known to have been written from the messages. `dry_run` only reports what would be
        erased. An `id` makes retries safe: a completed erasure with that id returns its receipt,
        and an interrupted one is completed. `progress` counts the messages read to find matches,
        then from zero the messages erased.
        """
        given = (session, message, author, source, since, until)
        if everything == any(value is not None for value in given):
            raise InvalidInput(
                "specify what to forget: a session, a message in a session, an author, a source, a "
                "time range (since, until), or everything=True"
            )
        return await self._services.forget(
            *given,
            owner=self._owner,
            reader=self._owner,
            answers=answers,
            dry_run=dry_run,
            progress=progress,
            # Another owner may have an erasure of that id.
            id=None if id is None else derived_id("forget", self._owner, check_id(id, "id")),
        )

    async def receipts(
        self, *, limit: int = 10, cursor: str | None = None
    ) -> Page["StoredReceipt"]:
        """Return the receipts of this handle's `forget`, latest first; they hold no erased text.

        The page is a list; its `next` is the `cursor` of the next page, or None.
        """
        return await self._services.receipts(self._owner, limit=limit, cursor=cursor)

    # --- inside ---

    async def _find(self, id: str) -> Session | None:
        await self._services.settle()
        info = await self._store.get_session(id, self._owner)
        return self._services.session(info) if info and info.ready else None
