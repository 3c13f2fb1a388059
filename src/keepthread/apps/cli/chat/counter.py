"""The counter of a chat: exact where its vocabulary is at hand, and loaded when first needed."""

import hashlib
import threading
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from tempfile import gettempdir
from typing import Final

from keepthread.errors import Unavailable
from keepthread.models.tokens import Estimator, Tiktoken
from keepthread.protocols import TokenCounter
from keepthread.types import Message

_VOCABULARY: Final = "https://openaipublic.blob.core.windows.net/encodings/o200k_base.tiktoken"
_FOLDERS: Final = ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR")


class LateCounter:
    """Loads tiktoken at its first use, which takes a third of a second; else it estimates.

    Which of the two counts is decided once, before anything is counted.
    """

    def __init__(self) -> None:
        """Load nothing yet."""
        self._loading = threading.Lock()
        self._counter: TokenCounter | None = None

    @property
    def name(self) -> str:
        """Name the way of counting."""
        return self.warm().name

    def count(self, message: Message) -> int:
        """Return the tokens a message takes."""
        return self.warm().count(message)

    def warm(self) -> TokenCounter:
        """Return the counter, loaded."""
        with self._loading:
            if self._counter is None:
                try:
                    self._counter = Tiktoken()
                except Unavailable:
                    self._counter = Estimator()
            return self._counter


def chat_counter(environ: Mapping[str, str]) -> TokenCounter:
    """Return the exact counter if it can be had without a download, else the estimator."""
    if find_spec("tiktoken") is None:
        return Estimator()
    folder = next((environ[name] for name in _FOLDERS if name in environ), None)
    cache = Path(gettempdir(), "data-gym-cache") if folder is None else Path(folder)
    name = hashlib.sha1(_VOCABULARY.encode(), usedforsecurity=False).hexdigest()
    return LateCounter() if (cache / name).is_file() else Estimator()
