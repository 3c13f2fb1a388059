"""Upkeep: what follows a turn, off the caller's path: folding, drawing facts, letting go."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from keepthread.background import Background
from keepthread.context.blocks import is_answer
from keepthread.protocols import Store
from keepthread.summaries import Folder
from keepthread.toolcache import drop_ended
from keepthread.types import Message, SessionKey

if TYPE_CHECKING:
    from keepthread.facts.extracting import Extractor  # loaded when there is one

_MOST_KNOWN = 10_000


class Upkeep:
    """Looks after the sessions of one store."""

    def __init__(
        self,
        *,
        store: Store,
        folder: Folder,
        folds: bool,
        background: Background,
        extractor: "Extractor | None" = None,
    ) -> None:
        """Know who folds and who draws facts; `folds` tells whether any view wants summaries."""
        self.store = store
        self.folder = folder
        self.folds = folds
        self.background = background
        self.extractor = extractor
        self.without_tools: set[SessionKey] = set()
        """Sessions of which it is known that they remember no results."""

    def after(self, session: SessionKey, exchange: int) -> None:
        """Do soon what is due after an exchange was closed."""
        extractor = self.extractor
        if extractor is not None and extractor.may_be_due(session, exchange):
            self.background.soon(("facts", session), lambda: extractor.extract(session))
        folds = self.folds and self.folder.may_be_due(session, exchange)
        if not folds and session in self.without_tools:
            return

        async def work() -> None:
            await self._let_go(session, exchange)
            if folds:
                await self.folder.fold(session)

        self.background.soon(session, work)

    def after_append(self, session: SessionKey, messages: Sequence[Message]) -> None:
        """Do soon what is due if an answer was appended without a turn."""
        if self.folds or self.extractor is not None:
            answered = [m.exchange for m in messages if is_answer(m) and m.exchange]
            if answered:
                self.after(session, max(answered))

    def remembers(self, session: SessionKey) -> None:
        """Take note that a session remembers results."""
        self.without_tools.discard(session)

    async def _let_go(self, session: SessionKey, exchange: int) -> None:
        if session in self.without_tools or await drop_ended(self.store, session, exchange):
            return
        if len(self.without_tools) >= _MOST_KNOWN:
            self.without_tools.clear()
        self.without_tools.add(session)
