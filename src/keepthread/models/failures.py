"""Errors of models in our own words: what happened, why, and what to do."""

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

_MAX_QUOTED: Final = 300
_LONGEST_WAIT: Final = 86_400.0
_BUSY: Final = 429
_NO_KEY: Final = 401
_LATER: Final = (408, 409, _BUSY)
_STATUS_OF_ERRORS: Final = 300
_STATUS_OF_REFUSALS: Final = 400
_STATUS_OF_FAULTS: Final = 500
_FINAL: Final = {
    401: (ModelDenied, "{host} rejects the key", "check the key, or use another"),
    402: (ModelDenied, "{host} requires payment", "check the account of this key"),
    403: (
        ModelDenied,
        "this key may not use {model} on {host}",
        "check its permissions, or use another model",
    ),
    404: (
        ModelRefused,
        "{host} has no model {model} at this URL",
        "check the model's name and base_url",
    ),
    413: (ModelRefused, "{host} says the request is too large", "send less: use a smaller budget"),
}
"""HTTP statuses for which a retry is pointless: the error, its meaning, and what to do."""
_ELSEWHERE: Final = (ModelRefused, "{host} redirects elsewhere", "set base_url to its target")
_REJECTS: Final = "rejects the request"
_REFUSED: Final = (ModelRefused, f"{{host}} {_REJECTS}", "change the request")
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
"""The HTTP status for each type of error inside a stream, where no status can be sent."""


class MalformedAnswer(Exception):
    """The response cannot be parsed."""


class LimitExceeded(Exception):
    """An answer is too large or takes too long; its text continues a sentence about the host."""


class Endpoint(NamedTuple):
    """The model and host of a request, and the key, which must never be shown."""

    model: str
    host: str
    timeout: float
    key: str | None

    def __repr__(self) -> str:
        return f"Endpoint({self.model!r} at {self.host})"


class Failure(NamedTuple):
    """Why there is no answer, whether a retry may help, and how long to wait first."""

    kind: type[ModelError]
    what: str
    cure: str
    provider_text: str = ""
    """The provider's own error text, without the key."""
    again: bool = False
    after: float = 0.0

    def error(self, tried: int, said: str) -> ModelError:
        """Return the error to raise after `tried` tries, if the text `said` had arrived."""
        quoted = f" (it says: {_short(self.provider_text)})" if self.provider_text else ""
        if said:
            return ModelCut(f"the answer was cut off because {self.what}: ask again{quoted}", said)
        times = f", after {tried} attempts" if tried > 1 else ""
        return self.kind(f"{self.what}{times}: {self.cure}{quoted}")


def failure_of(error: BaseException, endpoint: Endpoint) -> Failure:
    """Return the meaning of an error of an SDK or of its HTTP client."""
    if isinstance(error, LimitExceeded):
        return Failure(
            ModelUnavailable,
            f"{endpoint.host} {error}",
            "ask for a shorter answer, or use another model",
        )
    if isinstance(error, MalformedAnswer | ValueError | RecursionError):
        return _unread(endpoint)
    status, body = getattr(error, "status_code", 0), getattr(error, "body", None)
    if status < _STATUS_OF_ERRORS and body is None:
        silent = "Timeout" in type(error).__name__
        return _silent(error, endpoint) if silent else _unreachable(error, endpoint)
    provider_text = _plain(_words(body), endpoint.key)
    if status < _STATUS_OF_ERRORS:
        return _answered(_status_in(body), provider_text, endpoint)
    response: Any = getattr(error, "response", None)
    return _answered(status, provider_text, endpoint, response.headers)


def may_refuse_tools(error: ModelError) -> bool:
    """Return whether a service may have rejected a request because it offered tools.

    Few services say so in the same words; many only say that the request is invalid.
    """
    if type(error) not in (ModelRefused, ModelUnavailable):
        return False
    return _REJECTS in str(error) or bool(re.search("tool|function", str(error), re.IGNORECASE))


def ended_early(endpoint: Endpoint) -> Failure:
    """Return the failure of a stream that was closed normally but without an end event."""
    what = f"{endpoint.host} ended the answer before it was complete"
    return Failure(ModelUnavailable, what, "ask again, or check base_url", again=True)


def _answered(
    status: int, provider_text: str, endpoint: Endpoint, headers: Mapping[str, str] | None = None
) -> Failure:
    if status in _LATER or status >= _STATUS_OF_FAULTS:
        return _later(status, provider_text, endpoint, headers or {})
    other = _ELSEWHERE if status < _STATUS_OF_REFUSALS else _REFUSED
    kind, what, cure = _FINAL.get(status, other)
    if status == _NO_KEY and endpoint.key is None:
        what, cure = "{host} requires a key, but none was sent", "pass its key"
    what = what.format(host=endpoint.host, model=endpoint.model)
    return Failure(kind, f"{what} ({status})", cure, provider_text)


def _later(
    status: int, provider_text: str, endpoint: Endpoint, headers: Mapping[str, str]
) -> Failure:
    """Return a failure that a later retry may not meet again."""
    after = _wait(headers)
    again = headers.get("x-should-retry") != "false"
    wait = f"wait {math.ceil(after)} seconds" if after else "wait a little"
    if status == _BUSY:
        what, cure = (
            f"{endpoint.host} is rate-limiting requests (429)",
            f"{wait}, or raise the limit there",
        )
        return Failure(ModelBusy, what, cure, provider_text, again, after)
    what = f"{endpoint.host} failed or is overloaded ({status})"
    return Failure(ModelUnavailable, what, f"{wait} and ask again", provider_text, again, after)


def _silent(error: BaseException, endpoint: Endpoint) -> Failure:
    if "Connect" in type(error.__cause__ or error).__name__:
        return _unreachable(error, endpoint)
    what = f"{endpoint.host} sent no data for {endpoint.timeout:g} seconds"
    return Failure(ModelUnavailable, what, "ask again, or raise timeout", again=True)


def _unreachable(error: BaseException, endpoint: Endpoint) -> Failure:
    cause = error.__cause__ or error
    reason = _short(_plain(str(cause) or type(cause).__name__, endpoint.key))
    what = f"{endpoint.host} cannot be reached or closed the connection ({reason})"
    return Failure(
        ModelUnavailable, what, "check that it is running, and check base_url", again=True
    )


def _unread(endpoint: Endpoint) -> Failure:
    what = f"{endpoint.host} sent something that is not a valid answer"
    return Failure(
        ModelUnavailable, what, "check that base_url is the URL of a server with this API"
    )


def _status_in(body: Any) -> int:
    """Return the HTTP status that corresponds to an error inside a stream."""
    error = _error_in(body)
    code = str(error.get("code") or "")
    if re.fullmatch("[345][0-9][0-9]", code):
        return int(code)
    return _STATUS.get(code) or _STATUS.get(str(error.get("type")), 500)


def _words(body: Any) -> str:
    """Return the provider's error text, wherever the body has it."""
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
    """Return the seconds that the server asks to wait."""
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
    """Return a time to wait within sensible limits: a server may send any number."""
    return min(max(0.0, given), _LONGEST_WAIT)


def _plain(text: str, key: str | None) -> str:
    """Return a text in one line, without the key."""
    return " ".join((text.replace(key, "…") if key else text).split())


def _short(text: str) -> str:
    return text if len(text) <= _MAX_QUOTED else f"{text[: _MAX_QUOTED - 1]}…"
