"""Limits of the HTTP server: rates, numbers, sizes, times, and JSON with one meaning."""

import asyncio
import json
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread.apps.http import auth, limits
from keepthread.apps.http.caller import Identity, identify
from keepthread.apps.http.json_input import HeldBodies, check_json
from keepthread.apps.http.limits import Buckets, Deadlines, KeyLimits
from keepthread.apps.http.problems import Problem
from keepthread.apps.http.settings import HttpSettings
from tests.http_app import listening, served

NOTE = {"text": "hello"}


async def test_a_key_that_asks_too_often_waits_and_others_do_not() -> None:
    async with served(HttpSettings(rate=0.001, burst=3)) as server:
        one, two = await server.headers(), await server.headers()
        answers = [await server.client.get("/v1/who", headers=one) for _ in range(4)]
        other = await server.client.get("/v1/who", headers=two)
        health = await server.client.get("/livez")
    assert [each.status_code for each in answers] == [200, 200, 200, 429]
    assert answers[3].json()["type"] == "rate_limited"
    assert int(answers[3].headers["Retry-After"]) >= 1
    assert (other.status_code, health.status_code) == (200, 200)


@pytest.mark.parametrize("rate", [0.3, 3.0, 400.0])
async def test_retry_after_is_not_shorter_than_the_wait(rate: float) -> None:
    now = 0.0
    buckets = Buckets(rate, 1)

    async def nothing(*_: Any) -> Any:
        """Answer nothing."""

    limits = KeyLimits(nothing, HttpSettings(rate=rate, burst=1), clock=lambda: now)
    scope: dict[str, Any] = {"type": "http"}
    identify(scope, Identity(key_id="k", tenant="t", owner=None, bound=False, scopes=frozenset()))
    await limits(scope, nothing, nothing)
    buckets.take("k", now)
    with pytest.raises(Problem) as raised:
        await limits(scope, nothing, nothing)
    assert int(raised.value.headers["Retry-After"]) >= buckets.take("k", now) > 0
    now = float(raised.value.headers["Retry-After"])
    await limits(scope, nothing, nothing)


def test_tidying_gives_no_tokens_back_and_drops_full_buckets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "_MANY", 3)
    buckets = Buckets(1.0, 2)
    for name in ("full", "used", "used"):
        buckets.take(name, 10.0 * (name == "used"))
    for name in ("b", "c", "d"):
        buckets.take(name, 10.0)
    assert "full" not in buckets._left  # pyright: ignore[reportPrivateUsage]
    assert buckets.take("used", 10.0) == 1.0


@given(
    st.floats(0.1, 100),
    st.integers(1, 20),
    st.lists(st.floats(0, 5), min_size=1, max_size=60),
)
def test_no_more_pass_than_the_burst_and_the_rate(
    rate: float, burst: int, pauses: list[float]
) -> None:
    buckets, now, passed = Buckets(rate, burst), 0.0, 0
    for pause in pauses:
        now += pause
        seconds = buckets.take("key", now)
        passed += seconds == 0
        assert 0 <= seconds <= 1 / rate
    assert passed <= burst + rate * now + 1e-6


async def test_a_key_has_so_many_requests_at_once_and_others_their_own() -> None:
    async with served(HttpSettings(concurrency=1)) as server:
        one, two = await server.headers(), await server.headers()
        waiting = asyncio.create_task(
            server.client.post("/v1/notes/a", json={"text": "wait"}, headers=one)
        )
        await server.gate.entered.wait()
        refused = await server.client.get("/v1/who", headers=one)
        other = await server.client.get("/v1/who", headers=two)
        server.gate.open.set()
        assert (await waiting).status_code == 200
        after = await server.client.get("/v1/who", headers=one)
    assert (refused.status_code, refused.json()["type"]) == (429, "too_many_requests")
    assert refused.headers["Retry-After"] == "1"
    assert (other.status_code, after.status_code) == (200, 200)


async def test_a_full_server_says_so() -> None:
    async with served(HttpSettings(max_requests=1)) as server:
        key = await server.headers()
        waiting = asyncio.create_task(
            server.client.post("/v1/notes/a", json={"text": "wait"}, headers=key)
        )
        await server.gate.entered.wait()
        refused = await server.client.get("/v1/who", headers=key)
        server.gate.open.set()
        await waiting
    assert (refused.status_code, refused.json()["type"]) == (503, "overloaded")


async def test_event_streams_have_slots_of_their_own() -> None:
    async with listening(HttpSettings(concurrency=1, max_requests=1, streams=1)) as server:
        key = await server.headers()
        async with server.client.stream("GET", "/v1/stream", headers=key) as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == "data: begun"
            second = await server.client.get("/v1/stream", headers=key)
            beside = await server.client.get("/v1/who", headers=key)
            server.app.state.keepthread.stopping.set()
            rest = [line async for line in lines]
    assert "data: ended" in rest
    assert (second.status_code, second.json()["type"]) == (429, "too_many_requests")
    assert beside.status_code == 200


async def test_the_keys_of_one_tenant_share_slots_and_leave_others_theirs() -> None:
    settings = HttpSettings(concurrency=1, tenant_concurrency=2, max_requests=4)
    async with served(settings) as server:
        keys = [await server.headers() for _ in range(3)]
        other = await server.headers(tenant="acme")
        waiting: list[asyncio.Task[httpx2.Response]] = []
        for key in keys[:2]:
            server.gate.entered.clear()
            sent = server.client.post("/v1/notes/a", json={"text": "wait"}, headers=key)
            waiting.append(asyncio.create_task(sent))
            await server.gate.entered.wait()
        refused = await server.client.get("/v1/who", headers=keys[2])
        beside = await server.client.get("/v1/who", headers=other)
        server.gate.open.set()
        done = [(await each).status_code for each in waiting]
        after = await server.client.get("/v1/who", headers=keys[2])
    assert (refused.status_code, refused.json()["type"]) == (429, "too_many_requests")
    assert "tenant" in refused.json()["detail"]
    assert refused.headers["Retry-After"] == "1"
    assert (beside.status_code, done, after.status_code) == (200, [200, 200], 200)


@pytest.mark.parametrize(
    ("tenant", "total", "status", "code"),
    [(2, 100, 429, "too_many_requests"), (100, 2, 503, "overloaded")],
)
async def test_streams_of_several_keys_are_bounded(
    tenant: int, total: int, status: int, code: str
) -> None:
    settings = HttpSettings(streams=1, tenant_streams=tenant, all_streams=total)
    async with listening(settings) as server, AsyncExitStack() as opened:
        streams: list[AsyncIterator[str]] = []
        for _ in range(2):
            sent = server.client.stream("GET", "/v1/stream", headers=await server.headers())
            streams.append((await opened.enter_async_context(sent)).aiter_lines())
            assert await anext(streams[-1]) == "data: begun"
        refused = await server.client.get("/v1/stream", headers=await server.headers())
        beside = await server.client.get("/v1/who", headers=await server.headers())
        server.app.state.keepthread.stopping.set()
        ends = [[line async for line in stream] for stream in streams]
    assert all("data: ended" in end for end in ends)
    assert (refused.status_code, refused.json()["type"]) == (status, code)
    assert refused.headers["Retry-After"] == "1"
    assert beside.status_code == 200


async def test_health_checks_need_no_slot_of_requests() -> None:
    async with served(HttpSettings(max_requests=1)) as server:
        key = await server.headers()
        waiting = asyncio.create_task(
            server.client.post("/v1/notes/a", json={"text": "wait"}, headers=key)
        )
        await server.gate.entered.wait()
        health = [await server.client.get(path) for path in ("/livez", "/readyz")]
        server.gate.open.set()
        await waiting
    assert [each.status_code for each in health] == [200, 200]


async def test_a_key_that_cannot_be_read_in_time_holds_no_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(auth, "_SECONDS", 0.05)
    async with served() as server:
        key = await server.headers()

        async def hangs(_: str) -> Any:
            await asyncio.Event().wait()

        monkeypatch.setattr(server.app.state.keepthread.tables, "get_key", hangs)
        late = await server.client.get("/v1/who", headers=key)
    assert (late.status_code, late.json()["type"]) == (503, "unavailable")


async def test_bodies_under_way_are_bounded_by_key_and_in_total() -> None:
    """The first 64 KiB of each are free, so that small requests pass beside large ones."""
    settings = HttpSettings(key_bodies=200_000, all_bodies=300_000)
    large = b'{"text": "' + b" " * 200_000
    arrived: list[asyncio.Event] = []
    end = asyncio.Event()

    async def unfinished(event: asyncio.Event) -> AsyncGenerator[bytes]:
        yield large
        event.set()  # the server has asked for more
        await end.wait()
        yield b'"}'

    async with served(settings) as server:
        one, two, three = [await server.headers() for _ in range(3)]
        as_json = {"Content-Type": "application/json"}

        async def begin(key: dict[str, str]) -> asyncio.Task[httpx2.Response]:
            arrived.append(asyncio.Event())
            sent = server.client.post(
                "/v1/notes/a", content=unfinished(arrived[-1]), headers=key | as_json
            )
            task = asyncio.create_task(sent)
            await arrived[-1].wait()
            return task

        first = await begin(one)
        whole = large + b'"}'
        of_key = await server.client.post("/v1/notes/a", content=whole, headers=one | as_json)
        second = await begin(two)
        in_total = await server.client.post("/v1/notes/a", content=whole, headers=three | as_json)
        small = await server.client.post("/v1/notes/a", json=NOTE, headers=one)
        end.set()
        done = [(await each).status_code for each in (first, second)]
        after = await server.client.post("/v1/notes/a", content=whole, headers=one | as_json)
    assert (of_key.status_code, of_key.json()["type"]) == (429, "too_many_requests")
    assert (in_total.status_code, in_total.json()["type"]) == (503, "overloaded")
    assert of_key.headers["Retry-After"] == in_total.headers["Retry-After"] == "1"
    assert (small.status_code, done, after.status_code) == (200, [200, 200], 200)


@pytest.mark.parametrize("part", [1000, 65_536, 200_000])
def test_a_body_counts_in_whatever_parts_it_arrives(part: int) -> None:
    held = HeldBodies(200_000, 10**9)
    with held.of("a key") as hold:
        parts = 200_000 // part
        for _ in range(parts):
            hold(part)
        with pytest.raises(Problem):  # from the first 64 KiB above that on
            any(hold(part) for _ in range(parts))


async def test_json_with_too_many_values_is_refused() -> None:
    async with served(HttpSettings(max_items=1000)) as server:
        key = await server.headers()
        tags = [["x"] * count for count in (990, 1000)]
        answers = [
            await server.client.post("/v1/notes/a", json={"text": "a", "tags": each}, headers=key)
            for each in tags
        ]
        text = await server.client.post("/v1/notes/a", json={"text": "[,{" * 5000}, headers=key)
        quoted = b'{"text": "\\\\\\"' + b",[" * 5000 + b'", "tags": ["' + b"a,[\\\\" * 900 + b'"]}'
        quoted = await server.client.post(
            "/v1/notes/a", content=quoted, headers=key | {"Content-Type": "application/json"}
        )
    assert [each.status_code for each in (*answers, text, quoted)] == [200, 413, 200, 200]
    assert answers[1].json()["type"] == "too_large"


async def test_a_request_that_takes_too_long_is_ended() -> None:
    async with served(HttpSettings(deadline=0.05)) as server:
        key = await server.headers()
        late = await server.client.post("/v1/notes/a", json={"text": "wait"}, headers=key)
        after = await server.client.get("/v1/who", headers=key)
    assert (late.status_code, late.json()["type"]) == (504, "deadline_exceeded")
    assert after.status_code == 200


async def test_a_body_that_never_ends_is_given_up() -> None:
    async def slow() -> AsyncGenerator[bytes]:
        yield b'{"text": "'
        await asyncio.Event().wait()

    async with served(HttpSettings(deadline=0.05)) as server:
        key = await server.headers() | {"Content-Type": "application/json"}
        late = await server.client.post("/v1/notes/a", content=slow(), headers=key)
    assert (late.status_code, late.json()["type"]) == (408, "request_timeout")
    assert server.gate.done == 0


@pytest.mark.parametrize("path", ["/v1/notes/a", "/proxy/v1/messages"])
async def test_many_parts_of_a_body_that_never_ends_do_not_extend_its_deadline(path: str) -> None:
    """The proxy waits for a provider, but not for a client."""
    settings = HttpSettings(deadline=0.05)
    now = asyncio.get_running_loop().time
    began = now()

    async def trickle() -> Any:
        await asyncio.sleep(0)
        is_given_up = now() > began + 100 * settings.deadline
        return {"type": "http.request", "body": b"", "more_body": not is_given_up}

    async def reading(_: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass

    async def nothing(_: Any) -> None:
        """Send nothing."""

    scope = {"type": "http", "path": path, "headers": []}
    with pytest.raises(Problem) as raised:
        await Deadlines(reading, settings)(scope, trickle, nothing)
    assert (raised.value.status, raised.value.code) == (408, "request_timeout")


async def test_bodies_have_a_size() -> None:
    async def parts() -> AsyncGenerator[bytes]:
        for _ in range(3):
            yield b" " * 400

    async with served(HttpSettings(max_json=1000, max_upload=1000)) as server:
        key = await server.headers()
        as_json = key | {"Content-Type": "application/json"}
        raw = key | {"Content-Type": "image/png"}
        answers = [
            await server.client.post("/v1/notes/a", content=b" " * 1001, headers=as_json),
            await server.client.post("/v1/notes/a", content=parts(), headers=as_json),
            await server.client.put("/v1/blobs/a", content=b" " * 1001, headers=raw),
            await server.client.put("/v1/blobs/a", content=parts(), headers=raw),
        ]
        fits = await server.client.put("/v1/blobs/a", content=b" " * 1000, headers=raw)
    assert [each.status_code for each in answers] == [413] * 4
    assert {each.json()["type"] for each in answers} == {"too_large"}
    assert fits.json()["bytes"] == 1000
    assert server.gate.done == 0


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"Content-Type": "text/plain"}, "unsupported_media_type"),
        ({"Content-Type": "application/x-www-form-urlencoded"}, "unsupported_media_type"),
        ({"Content-Type": "application/json; charset=utf-16"}, "unsupported_media_type"),
        ({}, "unsupported_media_type"),
        ({"Content-Type": "application/json", "Content-Encoding": "gzip"}, "unsupported_encoding"),
    ],
)
async def test_a_body_is_plain_json(headers: dict[str, str], code: str) -> None:
    async with served() as server:
        key = await server.headers()
        sent = await server.client.post(
            "/v1/notes/a", content=json.dumps(NOTE), headers=key | headers
        )
    assert (sent.status_code, sent.json()["type"]) == (415, code)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b'{"text": "a", "text": "b"}', "duplicate_key"),
        (b'{"text": "a", "tags": [{"x": 1, "\\u0078": 2}]}', "duplicate_key"),
        (b'{"text": ' + b"[" * 101 + b"]" * 101 + b"}", "too_deep"),
        (b'{"text": ' + b"[" * 1_000_000 + b"]" * 1_000_000 + b"}", "too_deep"),
        (b'{"text": NaN}', "invalid_json"),
        (b'{"text": -Infinity}', "invalid_json"),
        (b'{"text": ' + b"9" * 5000 + b"}", "invalid_json"),
        ('{"text": "a"}'.encode("utf-16"), "invalid_json"),
        (b'\xef\xbb\xbf{"text": "a"}', "invalid_json"),
        (b'{"text": "\xff"}', "invalid_json"),
        (b'{"text": "a"', "invalid_json"),
    ],
)
async def test_json_that_could_be_read_in_two_ways_is_refused(body: bytes, code: str) -> None:
    async with served() as server:
        key = await server.headers() | {"Content-Type": "application/json"}
        sent = await server.client.post("/v1/notes/a", content=body, headers=key)
    assert (sent.status_code, sent.json()["type"]) == (400, code)
    assert server.gate.done == 0


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=30,
)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


@given(VALUES, st.integers(1, 6))
def test_json_is_accepted_up_to_a_depth(value: object, most: int) -> None:
    body = json.dumps(value).encode("utf-8", "surrogatepass")
    if depth_of(value) <= most:
        check_json(body, most, 1000)
    else:
        with pytest.raises(Problem) as raised:
            check_json(body, most, 1000)
        assert raised.value.code == "too_deep"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("markdown", {"text": "- a fact\n" * 10_001}),
        ("markdown", {"text": "- a fact\u2028" * 10_001}),
        ("json", {"facts": [{"fact": "x"}] * 10_001}),
        ("json", {"facts": {"format": "keepthread-facts", "version": 1, "facts": [{}] * 10_001}}),
    ],
)
async def test_a_document_of_facts_has_a_length(path: str, body: dict[str, Any]) -> None:
    async with served() as server:
        key = await server.headers()
        refused = await server.client.post(f"/v1/facts/documents/{path}", json=body, headers=key)
    assert (refused.status_code, refused.json()["type"]) == (422, "invalid_request")


async def test_a_document_of_facts_ends_with_its_deadline_and_others_are_served() -> None:
    """Lines that change nothing wait for nothing, so only a pause between them can end it."""
    async with served(HttpSettings(deadline=0.2)) as server:
        key = await server.headers()
        path = "/v1/facts/documents/markdown"
        body = {"text": "- a fact\n" * 10_000}
        await server.client.post(path, json={"text": "- a fact\n"}, headers=key)
        sent = asyncio.create_task(server.client.post(path, json=body, headers=key))
        beside = 0
        while not sent.done():
            await server.client.get("/v1/who", headers=key)
            beside += 1
        late = await sent
    assert (late.status_code, late.json()["type"]) == (504, "deadline_exceeded")
    assert beside > 2


@pytest.mark.parametrize("pump", [b'"', b"\\", b'\\"', b'"\\', b'","', b'\\\\"', b'"a\\'])
@pytest.mark.parametrize("start", [b"", b'"', b'["'])
def test_counting_values_takes_no_longer_than_reading_a_body(pump: bytes, start: bytes) -> None:
    body = b"[" * 1000 + start + pump * (2_000_000 // len(pump))
    began = time.thread_time()
    with pytest.raises(Problem):
        check_json(body, 100, 2_000_000)
    assert time.thread_time() - began < 5
