"""An embedder that knows the questions beforehand, so that no busy machine is too late for one."""

from collections.abc import Sequence

from keepthread.protocols import Embedder
from keepthread.types import Embedding


class Prepared:
    """Another embedder, and what it said of the questions to come and of the texts so far."""

    def __init__(self, embedder: Embedder) -> None:
        self._embedder = embedder
        self._known: dict[str, Embedding] = {}
        self.name = embedder.name
        self.by_token = embedder.by_token

    async def prepare(self, texts: Sequence[str]) -> None:
        """Embed the questions of a conversation, and forget those of the one before."""
        self._known.clear()
        await self.embed(texts)

    async def embed(self, texts: Sequence[str]) -> Sequence[Embedding]:
        """Return the vectors of each text, made once."""
        new = [text for text in dict.fromkeys(texts) if text not in self._known]
        if new:
            self._known |= dict(zip(new, await self._embedder.embed(new), strict=True))
        return [self._known[text] for text in texts]
