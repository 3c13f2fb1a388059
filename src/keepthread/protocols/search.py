"""The protocol of a store that can look up words and vectors."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from keepthread.types import (
    Embedding,
    Found,
    MessageFilter,
    Part,
    Placed,
    Record,
    Segment,
    SessionKey,
    Unread,
)


class Searchable(Protocol):
    """A store that can look up words and vectors; the caller ranks the results.

    `view` names an index. It remembers up to which position each session is indexed; any caller
    may index more; `erase` and `delete_session` remove their messages from it at once. Delegates
    and sessions that are not ready are not indexed. `owner=None` means every owner.
    """

    async def unread(
        self, view: str, *, owner: str | None = None, session: SessionKey | None = None
    ) -> list[Unread]:
        """Return the sessions that are not fully indexed; new ones are at position 0."""
        ...

    async def index(
        self,
        view: str,
        read: Unread,
        until: int,
        parts: Sequence[Part],
        segments: Sequence[Segment],
    ) -> None:
        """Index the messages after `read.until` up to a position, and remember that position.

        `segments` are the new and changed ones. If another caller has indexed more in the
        meantime, or a message of the session was erased, `Stale` is raised and nothing is added.
        """
        ...

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
        """Return the newest places of these words, up to `max_places` of each, and what is unread.

        Of a word at more places, the earlier ones that also hold a rarer one of these words may be
        returned as `older`. With `only`, the newest places among the matching messages.
        """
        ...

    async def parts(self, view: str, places: Sequence[int]) -> list[Part]:
        """Return the indexed parts at these places, without their words; skip unknown places."""
        ...

    async def fetch(
        self,
        places: Sequence[int],
        *,
        kinds: Sequence[str] = (),
        copies_in: SessionKey | None = None,
    ) -> tuple[list[Placed], list[Record]]:
        """Return the messages at places, each once, and their sessions' records of some kinds.

        Messages that were erased or deleted in the meantime are left out. Messages of the session
        `copies_in` with the id of one that is returned from another session follow, in any state;
        its records are returned, too.
        """
        ...

    async def put_vectors(
        self, view: str, read: Unread, until: int, vectors: Mapping[int, Embedding]
    ) -> None:
        """Store vectors by place, and remember the last indexed position, as `index` does."""
        ...

    async def vectors(self, view: str, places: Sequence[int]) -> dict[int, Embedding]:
        """Return the stored vectors of these places."""
        ...

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
        """Return the places of the nearest vectors, nearest first; may miss a few.

        For views with one vector per text. With `only`, the nearest among the matching messages.
        """
        ...

    async def drop_view(self, view: str) -> None:
        """Delete an index of this tenant, including its positions."""
        ...
