"""What goes wrong with a model, in our own words: what happened, whose fault, what to do next."""

import math
import re
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Final, NamedTuple

from keepthread.errors import (
    ModelBusy,
    ModelCut,
    ModelDenied,
    ModelError,
    ModelRefused,
    ModelUnavailable,
)

_MOST_TOLD: Final = 300
_LONGEST_WAIT: Final = 86_400.0
_BUSY: Final = 429
_LATER: Final = (408, 409, _BUSY)
_STATUS_OF_ERRORS: Final = 300
_STATUS_OF_REFUSALS: Final = 400
_STATUS_OF_FAULTS: Final = 500
_FINAL: Final = {
    401: (ModelDenied, "{host} does not take the key", "check the key, or give another"),
    402: (ModelDenied, "{host} wants to be paid first", "look at the account of this key"),
    403: (
        ModelDenied,
        "{host} does not let this key use {model}",
        "check its rights, or ask another model",
    ),
    404: (
        ModelRefused,
        "{host} has no model {model} at this address",
        "check the model's name and base_url",
    ),
    413: (ModelRefused, "{host} finds this request too large", "send less, by a smaller budget"),
}
"""What a status means that stays the same however often one asks, and what to do."""
_ELSEWHERE: Final = (ModelRefused, "{host} points elsewhere", "give that address as base_url")
_REFUSED: Final = (ModelRefused, "{host} will not answer this request", "change what is asked")
_STATUS: Final = {
    "invalid_api_key": 401,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "model_not_found": 404,
    "not_found_error": 404,
    "request_too_large": 413,
    "invalid_request_error": 400,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""What an error is called that comes in the middle of a stream, where no status can."""


class Garbled(Exception):
    """What came is no answer."""


class Exceeded(Exception):
    """An answer is larger or takes longer than any should; it says how, after the host's name."""


class Asked(NamedTuple):
    """Who was asked, and what must never be told."""

    model: str
    host: str
    timeout: float
    key: str | None

    def __repr__(self) -> str:
        return f"Asked({self.model!r} at {self.host})"


class Failure(NamedTuple):
    """Why there is no answer, whether asking again may help, and how long to wait before."""

    kind: type[ModelError]
    what: str
    cure: str
    told: str = ""
    """The provider's own words, all of them but the key."""
    again: bool = False
    after: float = 0.0

    def error(self, tried: int, said: str) -> ModelError:
        """Return what to raise after so many tries, and after so much was said."""
        told = f" (it says: {_short(self.told)})" if self.told else ""
        if said:
            return ModelCut(f"the answer broke off, as {self.what}: ask again{told}", said)
        times = f", asked {tried} times" if tried > 1 else ""
        return self.kind(f"{self.what}{times}: {self.cure}{told}")


def failure_of(error: BaseException, asked: Asked) -> Failure:
    """Return what an error of an SDK, or of what it stands on, means."""
    if isinstance(error, Exceeded):
        return Failure(ModelUnavailable, f"{asked.host} {error}", "ask for less, or ask another")
    if isinstance(error, Garbled | ValueError | RecursionError):
        return _unread(asked)
    status, body = getattr(error, "status_code", 0), getattr(error, "body", None)
    if status < _STATUS_OF_ERRORS and body is None:
        silent = "Timeout" in type(error).__name__
        return _silent(error, asked) if silent else _unreachable(error, asked)
    told = _plain(_words(body), asked.key)
    if status < _STATUS_OF_ERRORS:
        return _answered(_status_in(body), told, asked)
    response: Any = getattr(error, "response", None)
    return _answered(status, told, asked, response.headers)


def ended_early(asked: Asked) -> Failure:
    """Return the failure of a stream that ended in good order, but not with an end."""
    what = f"{asked.host} ended without a last word"
    return Failure(ModelUnavailable, what, "ask again, or check base_url", again=True)


def _answered(
    status: int, told: str, asked: Asked, headers: Mapping[str, str] | None = None
) -> Failure:
    if status in _LATER or status >= _STATUS_OF_FAULTS:
        return _later(status, told, asked, headers or {})
    other = _ELSEWHERE if status < _STATUS_OF_REFUSALS else _REFUSED
    kind, what, cure = _FINAL.get(status, other)
    what = what.format(host=asked.host, model=asked.model)
    return Failure(kind, f"{what} ({status})", cure, told)


def _later(status: int, told: str, asked: Asked, headers: Mapping[str, str]) -> Failure:
    """Return a failure that may be over when it is asked again."""
    after = _wait(headers)
    again = headers.get("x-should-retry") != "false"
    wait = f"wait {math.ceil(after)} seconds" if after else "wait a little"
    if status == _BUSY:
        what, cure = f"{asked.host} is asked too much (429)", f"{wait}, or raise the limit there"
        return Failure(ModelBusy, what, cure, told, again, after)
    what = f"{asked.host} is broken or has too much to do ({status})"
    return Failure(ModelUnavailable, what, f"{wait} and ask again", told, again, after)


def _silent(error: BaseException, asked: Asked) -> Failure:
    if "Connect" in type(error.__cause__ or error).__name__:
        return _unreachable(error, asked)
    what = f"{asked.host} gave no sign of life for {asked.timeout:g} seconds"
    return Failure(ModelUnavailable, what, "ask again, or raise timeout", again=True)


def _unreachable(error: BaseException, asked: Asked) -> Failure:
    cause = error.__cause__ or error
    reason = _short(_plain(str(cause) or type(cause).__name__, asked.key))
    what = f"{asked.host} cannot be reached, or hung up ({reason})"
    return Failure(ModelUnavailable, what, "check that it runs, and base_url", again=True)


def _unread(asked: Asked) -> Failure:
    what = f"{asked.host} answered with something that is no answer"
    return Failure(ModelUnavailable, what, "check that base_url is of a server that speaks so")


def _status_in(body: Any) -> int:
    """Return the status that an error inside a stream stands for."""
    error = _error_in(body)
    code = str(error.get("code") or "")
    if re.fullmatch("[345][0-9][0-9]", code):
        return int(code)
    return _STATUS.get(code) or _STATUS.get(str(error.get("type")), 500)


def _words(body: Any) -> str:
    """Return what a provider says for people, wherever it puts it."""
    if isinstance(body, str):
        return body
    error = _error_in(body)
    return str(error.get("message") or error.get("detail") or error.get("error") or "")


def _error_in(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, Mapping):
        return {}
    inner: Any = body.get("error")  # pyright: ignore[reportUnknownMemberType,reportUnknownVariableType]
    return inner if isinstance(inner, Mapping) else body  # pyright: ignore[reportUnknownVariableType]


def _wait(headers: Mapping[str, str]) -> float:
    """Return the seconds that a server asks to wait for."""
    try:
        if milliseconds := headers.get("retry-after-ms"):
            return _seconds(float(milliseconds) / 1000)
        after = headers.get("retry-after", "0")
        if re.fullmatch(r"[0-9.]+", after):
            return _seconds(float(after))
        return _seconds(parsedate_to_datetime(after).timestamp() - time.time())
    except (ValueError, OverflowError):
        return 0.0


def _seconds(given: float) -> float:
    """Return a time to wait that can be shown: a server may ask for any."""
    return min(max(0.0, given), _LONGEST_WAIT)


def _plain(text: str, key: str | None) -> str:
    """Return a text in one line, without the key."""
    return " ".join((text.replace(key, "…") if key else text).split())


def _short(text: str) -> str:
    return text if len(text) <= _MOST_TOLD else f"{text[: _MOST_TOLD - 1]}…"
