"""Facts, blocking: the twin of `keepthread.memory.facts.facts`, on the event loop of its memory."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from keepthread.memory.facts.types import Extracted, Fact, Found, Loaded
from keepthread.sync.loop import Loop
from keepthread.types import JSON, Message

if TYPE_CHECKING:
    from keepthread.memory.facts.facts import Facts as AsyncFacts  # loaded when there are facts


class Facts:
    """See `keepthread.memory.facts.facts.Facts`; get it from `Memory.facts`."""

    def __init__(self, loop: Loop, facts: "AsyncFacts") -> None:
        """Hold asynchronous facts and the loop that runs them."""
        self._loop = loop
        self._facts = facts

    @property
    def owner(self) -> str:
        """Return whose facts they are."""
        return self._facts.owner

    def remember(
        self,
        text: str,
        *,
        subject: str = "",
        attribute: str = "",
        value: str = "",
        many: bool = False,
        session: str | None = None,
        messages: Sequence[Message | str] = (),
        since: float | None = None,
        until: float | None = None,
    ) -> Fact:
        """See `Facts.remember`."""
        return self._loop.run(
            self._facts.remember,
            text,
            subject=subject,
            attribute=attribute,
            value=value,
            many=many,
            session=session,
            messages=messages,
            since=since,
            until=until,
        )

    def list(self, *, all: bool = False, at: float | None = None) -> Found:  # noqa: A002 - as in its twin
        """See `Facts.list`."""
        return self._loop.run(self._facts.list, all=all, at=at)

    def get(self, key: str) -> Fact | None:
        """See `Facts.get`."""
        return self._loop.run(self._facts.get, key)

    def history(self, key: str) -> Found:
        """See `Facts.history`."""
        return self._loop.run(self._facts.history, key)

    def search(self, query: str, *, limit: int = 10) -> Found:
        """See `Facts.search`."""
        return self._loop.run(self._facts.search, query, limit=limit)

    def edit(
        self,
        key: str,
        *,
        text: str | None = None,
        subject: str | None = None,
        attribute: str | None = None,
        value: str | None = None,
        since: float | None = None,
        until: float | None = None,
    ) -> Fact:
        """See `Facts.edit`."""
        return self._loop.run(
            self._facts.edit,
            key,
            text=text,
            subject=subject,
            attribute=attribute,
            value=value,
            since=since,
            until=until,
        )

    def confirm(self, key: str) -> Fact:
        """See `Facts.confirm`."""
        return self._loop.run(self._facts.confirm, key)

    def forget(self, key: str) -> int:
        """See `Facts.forget`."""
        return self._loop.run(self._facts.forget, key)

    def to_markdown(self) -> str:
        """See `Facts.to_markdown`."""
        return self._loop.run(self._facts.to_markdown)

    def from_markdown(self, text: str, *, prune: bool = False) -> Loaded:
        """See `Facts.from_markdown`."""
        return self._loop.run(self._facts.from_markdown, text, prune=prune)

    def to_json(self) -> JSON:
        """See `Facts.to_json`."""
        return self._loop.run(self._facts.to_json)

    def from_json(self, value: JSON) -> Loaded:
        """See `Facts.from_json`."""
        return self._loop.run(self._facts.from_json, value)

    def extract(self, session: str | None = None) -> int:
        """See `Facts.extract`."""
        return self._loop.run(self._facts.extract, session)

    def extracted(self) -> Extracted:
        """See `Facts.extracted`."""
        return self._loop.run(self._facts.extracted)
