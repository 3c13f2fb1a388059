"""What a session and its turns share: the log behind them, the counter, the views."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from keepthread.checks import check_count, show
from keepthread.codec import encode
from keepthread.context.render import Context
from keepthread.context.view import View
from keepthread.errors import InvalidInput
from keepthread.gather import gather
from keepthread.protocols import Store, TokenCounter
from keepthread.types import Message, SessionKey

_LARGE: Final = 32_768  # characters from which on counting would hold up the event loop


@dataclass(frozen=True, slots=True, kw_only=True)
class Thread:
    """One session's log, counted and viewed."""

    store: Store
    key: SessionKey
    counter: TokenCounter
    views: Mapping[str, View]
    ids: Callable[[], str]

    async def append(
        self, messages: Sequence[Message], *, expect: int | None = None, exchange: int | None = None
    ) -> list[Message]:
        """Store messages with their counts."""
        counted = [await self._counted(message) for message in messages]
        return await self.store.append(self.key, counted, expect=expect, exchange=exchange)

    async def _counted(self, message: Message) -> Message:
        """Return a message that has its tokens; a count that the caller gave is kept."""
        if type(message) is not Message:
            raise InvalidInput(f"expected a Message, not {show(message)}")
        try:
            tokens = message.tokens or await self._count(message)
        except (AttributeError, TypeError, ValueError, RecursionError):
            encode(message, message.id)  # says what is wrong with it
            raise
        return replace(message, tokens=tokens, counter=message.counter or self.counter.name)

    async def _count(self, message: Message) -> int:
        if len(message.content) > _LARGE:
            return await asyncio.to_thread(self.counter.count, message)
        return self.counter.count(message)

    async def context(
        self,
        view: str | None,
        *,
        budget: int | None,
        query: str | None,
        newest: bool,
        user_seq: int = 0,
    ) -> Context:
        """Gather, choose, and return what a model should see."""
        chosen = self._view(view)
        tokens = chosen.budget if budget is None else check_count(budget, "budget")
        material = await gather(
            self.store,
            self.key,
            self.counter,
            tokens=tokens,
            user_seq=user_seq,
            newest=newest,
            query=query,
        )
        return Context(chosen.strategy.select(material, tokens))

    def _view(self, name: str | None) -> View:
        found = self.views.get("chat" if name is None else name)
        if found is None:
            known = ", ".join(sorted(self.views))
            raise InvalidInput(f"there is no view {name!r}; there are {known}")
        return found
