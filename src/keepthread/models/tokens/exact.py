"""Exact counts with tiktoken (extra `tokens`), for the vocabularies o200k and cl100k."""

from typing import Any, Final

from keepthread.context.rendering import count_message
from keepthread.errors import Unavailable
from keepthread.types import Message

_CHUNK: Final = 32_768


class Tiktoken:
    """Counts exactly as OpenAI's models do; `name` is o200k or cl100k."""

    def __init__(self, name: str = "o200k") -> None:
        """Load the vocabulary, or raise `Unavailable` saying what is missing."""
        self.name = name
        self._encoding = _load(name)

    def measure(self, text: str) -> int:
        """Return the tokens of a text."""
        if len(text) <= _CHUNK:
            return len(self._encoding.encode_ordinary(text))
        # A megabyte of blanks overflows tiktoken's stack; each cut costs one token at most.
        chunks = (text[start : start + _CHUNK] for start in range(0, len(text), _CHUNK))
        return sum(len(self._encoding.encode_ordinary(chunk)) for chunk in chunks)

    def count(self, message: Message) -> int:
        """Return the tokens a message takes on any wire, including its overhead."""
        return count_message(message, self.measure)


def _load(name: str) -> Any:
    try:
        import tiktoken  # noqa: PLC0415 - an optional driver
    except ImportError:
        raise Unavailable(
            "exact token counts need tiktoken: pip install 'keepthread[tokens]'"
        ) from None
    try:
        return tiktoken.get_encoding(f"{name}_base")
    except Exception as error:
        raise Unavailable(
            f"tiktoken cannot load the vocabulary {name}: {error}. It is downloaded once; if "
            "offline, put it into a folder and set TIKTOKEN_CACHE_DIR to it"
        ) from error
