"""Token counters: exact with tiktoken, or an estimate without dependencies, never too low."""

import functools
import importlib.util
import warnings
from typing import Final

from keepthread.context.rendering import (
    ATTACHMENT_COST,
    AUTHOR_FRAME,
    CALL_FRAME,
    MESSAGE_FRAME,
    count_message,
)
from keepthread.errors import InvalidInput, Unavailable
from keepthread.models.tokens.estimator import estimate, vocabulary_of
from keepthread.models.tokens.exact import Tiktoken
from keepthread.protocols import TokenCounter
from keepthread.types import Message

__all__ = [
    "ATTACHMENT_COST",
    "AUTHOR_FRAME",
    "CALL_FRAME",
    "MESSAGE_FRAME",
    "VOCABULARIES",
    "Estimator",
    "Tiktoken",
    "counter",
]

VOCABULARIES: Final = ("o200k", "cl100k")
"""The vocabularies that tokens can be counted with."""


class Estimator:
    """Estimates what tiktoken would count, not below it; its name is the vocabulary's with ~."""

    def __init__(self, vocabulary: str = "o200k") -> None:
        """Load the table of a vocabulary."""
        _check(vocabulary)
        # Read it here, once: threads that count at the same time would each read it.
        vocabulary_of(f"{vocabulary}_base")
        self.name = f"~{vocabulary}"
        self.measure = functools.partial(estimate, vocabulary=f"{vocabulary}_base")

    def count(self, message: Message) -> int:
        """Return the tokens a message takes on any wire, including its overhead."""
        return count_message(message, self.measure)


@functools.cache
def counter(vocabulary: str = "o200k") -> TokenCounter:
    """Return the best available counter: exact if tiktoken is installed, else the estimator.

    tiktoken downloads a vocabulary on first use. If that fails or takes more than five seconds,
    this warns once and returns the estimator.
    """
    _check(vocabulary)
    if importlib.util.find_spec("tiktoken"):
        try:
            return Tiktoken(vocabulary)
        except Unavailable as error:
            warnings.warn(f"token counts are estimates: {error}", stacklevel=2)
    return Estimator(vocabulary)


def _check(vocabulary: str) -> None:
    if vocabulary not in VOCABULARIES:
        raise InvalidInput(
            f"the vocabulary must be one of {', '.join(VOCABULARIES)}, not {vocabulary!r}"
        )
