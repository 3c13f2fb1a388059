"""The messages of a log, read page by page or as a list."""

from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING, Any, Final, NoReturn

from keepthread.protocols import Store
from keepthread.stores.rows import check_positions
from keepthread.types import Message, SessionKey

_PAGE: Final = 200
"""Messages that are read at a time."""


class Messages:
    """The messages of a log: `async for message in …` reads pages, `await …` returns a list."""

    def __init__(
        self,
        store: Store,
        session: SessionKey,
        after: int,
        limit: int | None,
        before: int | None = None,
    ) -> None:
        """Take what `Session.messages` was called with; nothing is read yet."""
        check_positions(after=after, before=before, limit=limit)
        self._store = store
        self._session = session
        self._after = after
        self._limit = limit
        self._before = before

    def __await__(self) -> Generator[Any, None, list[Message]]:
        """Return them as a list."""
        return self.read().__await__()

    if not TYPE_CHECKING:  # otherwise a type checker would accept a plain loop

        def __iter__(self) -> NoReturn:
            """Say how to read them."""
            raise TypeError(
                "messages are read from the store: write `async for message in"
                " session.messages():` or `await session.messages()`"
            )

    async def __aiter__(self) -> AsyncGenerator[Message]:
        """Yield them, reading a page at a time."""
        # Messages that the body of the loop appends are left out: it would never end.
        end = (await self._store.describe(self._session)).messages
        after, left = self._after, self._limit
        if self._before is not None:
            end = min(end, self._before - 1)
            if left is not None:  # a log has every position
                after = max(after, end - left)
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            page = await self._store.read(self._session, after=after, until=end, limit=size)
            for message in page:
                yield message
            if len(page) < size:
                return
            after = page[-1].seq
            left = None if left is None else left - size

    async def read(self) -> list[Message]:
        """Return them as a list."""
        if self._limit is None:
            return [message async for message in self]
        if self._before is None:
            return await self._store.read(self._session, after=self._after, limit=self._limit)
        return await self._store.tail(
            self._session, limit=self._limit, before=self._before, after=self._after
        )
