"""Errors of the HTTP server: RFC 9457, a stable code, and nothing of the inside."""

import json
import logging

import pytest

from keepthread import errors
from keepthread.apps.http.access import JsonLines
from keepthread.apps.http.problems import STATUS, problem_of
from keepthread.errors import KeepthreadError
from tests.http_app import served

ERRORS = [
    each
    for each in vars(errors).values()
    if isinstance(each, type) and issubclass(each, KeepthreadError)
]


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.code)
def test_every_error_of_the_library_has_a_status_and_its_code(kind: type[KeepthreadError]) -> None:
    problem = problem_of(kind("row 7 of /var/lib/a.db holds 'my password'"))
    body = problem.body()
    assert body["type"] == kind.code
    assert body["status"] == problem.status == STATUS[next(k for k in kind.__mro__ if k in STATUS)]
    assert body["retryable"] is kind.retryable
    assert ("Retry-After" in problem.headers) is kind.retryable
    if problem.status >= 500:
        assert "password" not in json.dumps(body)
        assert "/var" not in json.dumps(body)


async def test_what_fails_inside_is_neither_sent_nor_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    async with served() as server:
        key = await server.headers()
        damaged = await server.client.post("/v1/notes/a", json={"text": "damaged"}, headers=key)
        bug = await server.client.post("/v1/notes/a", json={"text": "bug"}, headers=key)
        wrong = await server.client.post("/v1/notes/a", json={"text": "invalid"}, headers=key)
    assert (damaged.status_code, damaged.json()["type"]) == (500, "damaged")
    assert (bug.status_code, bug.json()["type"]) == (500, "internal_error")
    assert (wrong.status_code, wrong.json()["detail"]) == (422, "text must not be 'invalid'")
    assert "secret.db" not in damaged.text
    assert "password" not in bug.text
    written = [JsonLines().format(each) for each in caplog.records]
    assert any('"RuntimeError"' in line and "http_app.py:" in line for line in written)
    assert not any("password" in line or "secret.db" in line for line in written)
    request = bug.headers["Keepthread-Request-Id"]
    assert sum(request in line for line in written) == 2  # the request, and where it failed


async def test_a_wrong_body_is_described_without_being_repeated() -> None:
    async with served() as server:
        key = await server.headers()
        sent = {"text": 7, "tags": ["a", {"my": "password"}]}
        answer = await server.client.post("/v1/notes/a", json=sent, headers=key)
    body = answer.json()
    assert (answer.status_code, body["type"]) == (422, "invalid_request")
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert [each["pointer"] for each in body["errors"]] == ["/text", "/tags/1"]
    assert "password" not in answer.text


async def test_paths_and_methods_that_do_not_exist_are_problems_too() -> None:
    async with served() as server:
        key = await server.headers()
        missing = await server.client.get("/v1/nothing", headers=key)
        method = await server.client.put("/v1/who", headers=key)
    assert (missing.status_code, missing.json()["type"]) == (404, "no_such_path")
    assert (method.status_code, method.json()["type"]) == (405, "method_not_allowed")
    assert method.headers["Allow"] == "GET"


async def test_log_lines_name_the_route_and_not_the_path(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with served() as server:
        key = await server.headers(owner="ann")
        await server.client.post("/v1/notes/my-id?q=private", json={"text": "hello"}, headers=key)
        record = next(each for each in caplog.records if each.name == "keepthread.http")
        line = json.loads(JsonLines().format(record))
    assert line["route"] == "/v1/notes/{id}"
    assert (line["status"], line["method"], line["tenant"]) == (200, "POST", "default")
    assert line["key"] == key["Authorization"].split("_")[1]
    for text in ("my-id", "private", "hello", "ann", key["Authorization"].split("_", 2)[2]):
        assert text not in JsonLines().format(record)


async def test_log_lines_name_routes_without_a_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with served() as server:
        for path in ("/readyz", "/livez", "/v1/nothing"):
            await server.client.get(path, headers=await server.headers())
        records = [each for each in caplog.records if each.name == "keepthread.http"]
    routes = [json.loads(JsonLines().format(record))["route"] for record in records]
    assert routes == ["/readyz", "/livez", "unknown"]


def test_log_lines_of_others_are_withheld() -> None:
    record = logging.LogRecord("asyncio", logging.ERROR, "", 0, "said: %s", ("secret",), None)
    record.exc_info = (ValueError, ValueError("secret"), None)
    line = JsonLines().format(record)
    assert "secret" not in line
    assert json.loads(line)["error"] == "ValueError"


async def test_readiness_follows_the_store_and_the_shutdown() -> None:
    async with served() as server:
        ready = await server.client.get("/readyz")
        server.app.state.keepthread.stopping.set()
        stopping = await server.client.get("/readyz")
        living = await server.client.get("/livez")
        server.app.state.keepthread.stopping.clear()
        await server.memory.store.close()
        closed = await server.client.get("/readyz")
    assert (ready.status_code, stopping.status_code, living.status_code) == (200, 503, 200)
    assert stopping.json()["type"] == "stopping"
    assert (closed.status_code, closed.json()["type"]) == (503, "store_closed")
