"""What a scripted server was asked, and what it says next: the part of it that knows no socket."""

import threading
from collections.abc import Iterable, Mapping

from keepthread.testing.script import Line, Received, Say, spoken
from keepthread.testing.wires import asking


class Play:
    """A script, and how far it has come. Several threads may use it at once."""

    def __init__(
        self,
        script: Iterable[Line] = (),
        *,
        key: str | None = None,
        models: Iterable[str] = (),
        otherwise: Line | None = None,
    ) -> None:
        """Take the script, the key to ask for, and the models to know; without any, all are."""
        self.key = key
        self.models = tuple(models)
        self.requests: list[Received] = []
        """What was asked and was in order."""
        self.refused: list[str] = []
        """What was wrong with the rest."""
        self.dropped = 0
        """How many clients went away in the middle of an answer."""
        self.closing = threading.Event()
        self._script = iter(tuple(script))
        self._otherwise = otherwise
        self._news = threading.Condition()

    def wait_for(
        self, requests: int = 0, timeout: float = 10.0, *, refused: int = 0, dropped: int = 0
    ) -> None:
        """Wait until so many requests have arrived, were refused, or were left by their client."""

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
        """Return a request and what to say to it; raise what the provider says to a wrong one."""
        asked = asking.read(path, headers, body)
        asking.check(asked, self.models)
        with self._news:
            self.requests.append(asked)
            number = len(self.requests)
            line = next(self._script, self._otherwise)
            self._news.notify_all()
        if line is None:
            raise asking.Refused(500, f"the script is at its end; this is request {number}")
        try:
            return asked, spoken(line, asked)
        except Exception as error:
            raise asking.Refused(500, f"a line of the script failed: {error!r}") from error

    def refuse(self, why: str) -> None:
        """Note what was wrong with a request."""
        with self._news:
            self.refused.append(why)
            self._news.notify_all()

    def drop(self) -> None:
        """Note that a client went away."""
        with self._news:
            self.dropped += 1
            self._news.notify_all()
