"""State of a scripted server: the requests so far, and the next answer. It uses no sockets."""

import threading
from collections.abc import Iterable, Mapping

from keepthread.testing.script import Line, Received, Say, spoken
from keepthread.testing.wires import Refused, asking
from keepthread.testing.wires.openai_responses_kept import KeptResponses


class Play:
    """A script and the current position in it. Several threads may use it at once."""

    def __init__(
        self,
        script: Iterable[Line] = (),
        *,
        key: str | None = None,
        models: Iterable[str] = (),
        otherwise: Line | None = None,
        window: int | None = None,
    ) -> None:
        """Take the script, the required key, and the known models; if None, all are known.

        `window` is the number of tokens that its list says each model takes.
        """
        self.key = key
        self.window = window
        self.models = tuple(models)
        self.requests: list[Received] = []
        """The valid requests."""
        self.refused: list[str] = []
        """The faults of the refused requests."""
        self.dropped = 0
        """How many clients left in the middle of an answer."""
        self.kept = KeptResponses()
        """The responses that OpenAI's Responses API keeps."""
        self.closing = threading.Event()
        self._script = iter(tuple(script))
        self._otherwise = otherwise
        self._news = threading.Condition()

    def wait_for(
        self, requests: int = 0, timeout: float = 10.0, *, refused: int = 0, dropped: int = 0
    ) -> None:
        """Wait until N requests have arrived, were refused, or were left by their client."""

        def there() -> bool:
            return (
                len(self.requests) >= requests
                and len(self.refused) >= refused
                and self.dropped >= dropped
            )

        with self._news:
            if not self._news.wait_for(there, timeout):
                raise TimeoutError(
                    f"after {timeout} s: {len(self.requests)} requests, {self.dropped} dropped, "
                    f"refused: {self.refused}"
                )

    def answer(self, path: str, headers: Mapping[str, str], body: bytes) -> tuple[Received, Say]:
        """Return a request and its answer; raise the provider's error for an invalid one."""
        asked = asking.read(path, headers, body)
        if asked.wire == "openai-responses":
            asked = asked._replace(earlier=self.kept.earlier(asked.body))
        asking.check(asked, self.models)
        with self._news:
            self.requests.append(asked)
            number = len(self.requests)
            line = next(self._script, self._otherwise)
            self._news.notify_all()
        if line is None:
            raise Refused(500, f"the script is at its end; this is request {number}")
        try:
            return asked, spoken(line, asked)
        except Exception as error:
            raise Refused(500, f"a line of the script failed: {error!r}") from error

    def refuse(self, why: str) -> None:
        """Record the faults of a request."""
        with self._news:
            self.refused.append(why)
            self._news.notify_all()

    def drop(self) -> None:
        """Record that a client left."""
        with self._news:
            self.dropped += 1
            self._news.notify_all()
