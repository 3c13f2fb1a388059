"""Exact counts with tiktoken (extra `tokens`), for the vocabularies o200k and cl100k."""

import functools
import hashlib
import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Final

from keepthread.context.rendering import count_message
from keepthread.errors import Unavailable
from keepthread.types import Message

_CHUNK: Final = 32_768
_URL: Final = "https://openaipublic.blob.core.windows.net/encodings/{}_base.tiktoken"
_FOLDERS: Final = ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR")
_TIMEOUT: Final = 5.0
"""Seconds that a program waits for the download of a vocabulary."""


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


def is_cached(name: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether tiktoken has a vocabulary on disk, so that it loads without a network."""
    folder = next((environ[each] for each in _FOLDERS if each in environ), None)
    cache = Path(gettempdir(), "data-gym-cache") if folder is None else Path(folder)
    url = _URL.format(name)
    file = cache / hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
    return file.is_file()


def _load(name: str) -> Any:
    try:
        import tiktoken  # noqa: PLC0415 - an optional driver
    except ImportError:
        raise Unavailable(
            "exact token counts need tiktoken: pip install 'keepthread[tokens]'"
        ) from None
    load = functools.partial(tiktoken.get_encoding, f"{name}_base")
    try:
        return load() if is_cached(name) else _downloaded(load)
    except Exception as error:
        raise Unavailable(
            f"tiktoken cannot download its vocabulary {name} ({type(error).__name__}); connect to"
            " the network once, or put the file into a folder and set TIKTOKEN_CACHE_DIR to it"
        ) from error


def _downloaded(load: Callable[[], Any]) -> Any:
    """Return what `load` returns, unless the network takes too long: tiktoken has no timeout.

    A download that is only slow continues in its thread, so that the next program has the file.
    """
    result: Future[Any] = Future()

    def run() -> None:
        try:
            result.set_result(load())
        except BaseException as error:  # noqa: BLE001 - raised by the caller
            result.set_exception(error)

    threading.Thread(target=run, name="keepthread-vocabulary", daemon=True).start()
    return result.result(_TIMEOUT)
