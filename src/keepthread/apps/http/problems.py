"""Errors as the wire shows them: `application/problem+json` (RFC 9457), `type` is the error's code.

A client learns what went wrong and what to do. It never learns internal details: server errors
(5xx) have a fixed text, without paths, addresses or stored text.
"""

import inspect
import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from keepthread import errors
from keepthread.errors import KeepthreadError

if TYPE_CHECKING:
    from fastapi import FastAPI
    from starlette.requests import Request

MEDIA_TYPE: Final = "application/problem+json"

STATUS: Final[Mapping[type[KeepthreadError], int]] = {
    errors.InvalidInput: 422,
    errors.TooLarge: 413,
    errors.NotFound: 404,
    errors.SessionExists: 409,
    errors.SessionGone: 410,
    errors.Conflict: 409,
    errors.Stale: 412,
    errors.CursorExpired: 410,
    errors.BudgetTooSmall: 422,
    errors.Unavailable: 503,
    errors.StorageFull: 507,
    errors.StoreClosed: 503,
    errors.Unsupported: 501,
    errors.ModelError: 502,
    errors.ModelUnavailable: 503,
    errors.ToolError: 502,
    errors.ToolUnavailable: 503,
    errors.KeepthreadError: 500,
}
"""The status of each error and of those derived from it."""

_CODES: Final = {
    400: "bad_request",
    404: "no_such_path",
    405: "method_not_allowed",
    413: "too_large",
    415: "unsupported_media_type",
}
_SERVER_ERROR: Final = 500
_RETRY_SECONDS: Final = 1


class Problem(Exception):
    """An error of the server itself, sent to the client as raised."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        retryable: bool = False,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        """Take the status, a stable code, and a sentence that says what to do."""
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.retryable = retryable
        self.more = dict(more or {})

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the response."""
        return {
            "type": self.code,
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "retryable": self.retryable,
            **self.more,
        }

    def response(self) -> Response:
        """Return the response."""
        return Response(
            json.dumps(self.body()), self.status, headers=self.headers, media_type=MEDIA_TYPE
        )


def problem_of(error: Exception) -> Problem:
    """Return the problem that an error becomes."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, KeepthreadError):
        return _of_keepthread(error)
    if isinstance(error, RequestValidationError):
        return _of_validation(error.errors())
    if isinstance(error, HTTPException):
        return _of_http(error)
    return Problem(500, "internal_error", "Internal server error; the server's log has details.")


def _of_keepthread(error: KeepthreadError) -> Problem:
    kind = next(each for each in type(error).__mro__ if each in STATUS)
    status = STATUS[kind]
    detail = str(error) if status < _SERVER_ERROR else (inspect.getdoc(type(error)) or "")
    if isinstance(error, errors.SessionNotFound):
        detail += "; PUT /v1/sessions/{session} creates it, GET /v1/sessions lists those that exist"
    headers = {"Retry-After": str(_RETRY_SECONDS)} if error.retryable else {}
    return Problem(status, error.code, detail, headers=headers, retryable=error.retryable)


def _of_validation(found: Sequence[Any]) -> Problem:
    """Name each field that is wrong and what is expected, but not what was sent."""
    places = [{**_place(each.get("loc", ())), "detail": str(each.get("msg", ""))} for each in found]
    detail = "The request does not match the documented schema; `errors` lists each problem."
    return Problem(422, "invalid_request", detail, more={"errors": places})


def _place(location: Sequence[str | int]) -> dict[str, str]:
    where, *path = [str(each) for each in location] or ["body"]
    if where == "body":
        steps = (each.replace("~", "~0").replace("/", "~1") for each in path)
        return {"pointer": "".join(f"/{each}" for each in steps)}
    return {"parameter": ".".join(path), "in": where}


def _of_http(error: HTTPException) -> Problem:
    code = _CODES.get(error.status_code, "error")
    details = {
        404: "This path does not exist; the OpenAPI document lists all paths.",
        405: "This path does not support the method; the header Allow lists the supported ones.",
    }
    detail = details.get(error.status_code, HTTPStatus(error.status_code).phrase)
    return Problem(error.status_code, code, detail, headers=error.headers)


def install(app: "FastAPI") -> None:
    """Let the application answer every error with a problem."""

    async def answer(_: "Request", error: Exception) -> Response:
        return problem_of(error).response()

    for kind in (Problem, KeepthreadError, RequestValidationError, HTTPException):
        app.add_exception_handler(kind, answer)
