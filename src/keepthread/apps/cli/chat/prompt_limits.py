"""How long a prompt of a chat may be: history, the newest message, and what the model takes."""

from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeAlias

from keepthread.apps.cli.settings.settings import Settings
from keepthread.apps.cli.wiring import history_tokens
from keepthread.context.window import CONTEXT_FRAME
from keepthread.errors import ModelError
from keepthread.models.context_window import DEFAULT_WINDOW
from keepthread.protocols import ChatModel, TokenCounter
from keepthread.types import Message

_SPARE: Final = 16
"""A sixteenth of the window stays free: a model may count more tokens than we do."""
_AskWindow: TypeAlias = Callable[[], Awaitable[int | None]]


class TooLong(NamedTuple):
    """A question that a model cannot take as a whole, in numbers."""

    tokens: int
    """Tokens of the question."""
    room: int
    """Tokens that are left for it."""
    window: int
    """Tokens that the model takes, prompt and answer together."""
    reserve: int
    """Tokens that are kept for the answer, and for other ways of counting."""
    model: str

    def __str__(self) -> str:
        """Return it for people."""
        return (
            f"the question has {self.tokens:,} tokens, and {self.room:,} fit: the context window "
            f"of {self.model} is {self.window:,}, with {self.reserve:,} reserved for the answer"
        )


class PromptLimits:
    """The limits of the prompts of one chat."""

    def __init__(self, settings: Settings) -> None:
        """Take the settings; the service is asked when a number is needed."""
        self._settings = settings
        self._windows: dict[str, int] = {}

    async def window(self, model: ChatModel) -> int:
        """Return the tokens that a model takes; its service is asked until it answered once."""
        if given := self._settings.model.context_window:
            return given
        if model.name not in self._windows:
            ask: _AskWindow | None = getattr(model, "context_window", None)
            try:
                found = await ask() if ask else None
            except ModelError:  # asking the question itself says what is wrong
                return DEFAULT_WINDOW
            self._windows[model.name] = found or DEFAULT_WINDOW
        return self._windows[model.name]

    async def budget(self, model: ChatModel, question: int) -> int:
        """Return the tokens of a prompt: history and question, as far as the model takes it."""
        window = await self.window(model)
        return min(history_tokens(self._settings, window) + question, self._largest(model, window))

    async def too_long(
        self, model: ChatModel, counter: TokenCounter, text: str, system: str
    ) -> TooLong | None:
        """Return why a question cannot be shown whole, or None if it can."""
        window = await self.window(model)
        tokens = counter.count(Message(role="user", content=text))
        beside = CONTEXT_FRAME
        if system:
            beside += counter.count(Message(role="system", content=system))
        largest = self._largest(model, window)
        if tokens + beside <= largest:
            return None
        return TooLong(tokens, max(0, largest - beside), window, window - largest, model.name)

    def _largest(self, model: ChatModel, window: int) -> int:
        """Return the tokens that are left for a prompt."""
        answer: int = self._settings.model.max_tokens or getattr(model, "answer_tokens", 0)
        return max(1, window - min(answer, window // 2) - window // _SPARE)
