"""`Idempotency-Key`: a request that is sent again is not done again."""

import asyncio
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from keepthread.apps.http.settings import HttpSettings
from keepthread.memory.tool_cache import ToolCache
from keepthread.protocols.server import LEASE
from tests.http_app import Served, served
from tests.http_world import HttpWorld, http_world

KEY = {"Idempotency-Key": "order-66"}


async def post(server: Served, headers: dict[str, str], text: str = "hello") -> httpx2.Response:
    return await server.client.post("/v1/notes/a", json={"text": text}, headers=headers)


@pytest.fixture(params=["ram://", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Any) -> str:
    return request.param if "://" in request.param else f"sqlite:///{tmp_path}/a.db"


async def test_the_second_attempt_gets_the_first_response(url: str) -> None:
    async with served(url=url) as server:
        headers = await server.headers() | KEY
        first, second = await post(server, headers), await post(server, headers)
    assert first.json() == second.json() == {"id": "a", "length": 5, "done": 1}
    assert "Idempotency-Replayed" not in first.headers
    assert second.headers["Idempotency-Replayed"] == "true"
    assert second.headers["Content-Type"] == "application/json"


async def test_another_request_with_the_same_key_is_refused() -> None:
    async with served() as server:
        headers = await server.headers() | KEY
        await post(server, headers)
        other_body = await post(server, headers, "other")
        other_path = await server.client.post(
            "/v1/notes/b", json={"text": "hello"}, headers=headers
        )
    assert other_body.json()["type"] == other_path.json()["type"] == "idempotency_mismatch"
    assert (other_body.status_code, other_path.status_code, server.gate.done) == (422, 422, 1)


async def test_keys_and_owners_do_not_share_requests() -> None:
    async with served() as server:
        program = await server.headers(owner=None) | KEY
        for owner in ("ann", "bob"):
            answer = await post(server, program | {"Keepthread-Owner": owner}, owner)
            assert answer.status_code == 200
        assert (await post(server, await server.headers() | KEY, "third")).status_code == 200
    assert server.gate.done == 3


async def test_an_owner_and_a_key_are_not_taken_for_another_owner_and_key() -> None:
    """Whatever separates the two could be in either of them."""
    pairs = [(f"a{sign}b", "c") for sign in " /:,|"] + [("a", f"b{sign}c") for sign in " /:,|"]
    async with served() as server:
        program = await server.headers(owner=None)
        for owner, key in pairs:
            headers = {"Keepthread-Owner": quote(owner), "Idempotency-Key": key}
            answer = await post(server, program | headers)
            assert answer.status_code == 200
    assert server.gate.done == len(pairs)


async def test_a_request_in_progress_is_not_begun_again() -> None:
    async with served() as server:
        headers = await server.headers() | KEY
        first = asyncio.create_task(post(server, headers, "wait"))
        await server.gate.entered.wait()
        second = await post(server, headers, "wait")
        server.gate.open.set()
        assert (await first).status_code == 200
        third = await post(server, headers, "wait")
    assert (second.status_code, second.json()["type"]) == (409, "request_in_flight")
    assert second.headers["Retry-After"] == "1"
    assert third.json() == (await first).json()
    assert server.gate.done == 1


async def test_a_client_that_gave_up_finds_the_response_later() -> None:
    async with served(HttpSettings(deadline=0.2)) as server:
        headers = await server.headers() | KEY
        late = await post(server, headers, "wait")
        server.gate.open.set()
        await server.app.state.keepthread.finish()
        again = await post(server, headers, "wait")
    assert (late.status_code, again.status_code) == (504, 200)
    assert server.gate.done == 1


async def test_a_request_of_a_worker_that_is_stopped_hard_is_done_at_once_by_another() -> None:
    async with served() as server:
        headers = await server.headers() | KEY
        before = asyncio.all_tasks()
        first = asyncio.create_task(post(server, headers, "wait"))
        await server.gate.entered.wait()
        under_way = asyncio.all_tasks() - before
        for task in under_way:
            task.cancel()
        await asyncio.wait(under_way)
        server.gate.open.set()
        second = await post(server, headers, "wait")
    assert first.cancelled()
    assert (second.status_code, server.gate.done) == (200, 2)


async def test_a_change_of_another_version_is_another_request() -> None:
    async with http_world("ram://") as world:
        ann = await world.of("ann")
        tag = (await ann.put("/sessions/s")).headers["etag"]
        change: dict[str, Any] = {"json": {"title": "x"}}
        first = await ann.patch("/sessions/s", **change, headers=KEY | {"If-Match": tag})
        now = first.headers["etag"]
        second = await ann.patch("/sessions/s", **change, headers=KEY | {"If-Match": now})
        again = await ann.patch("/sessions/s", **change, headers=KEY | {"If-Match": tag})
    assert (second.status_code, second.json()["type"]) == (422, "idempotency_mismatch")
    assert (again.status_code, again.headers["Idempotency-Replayed"]) == (200, "true")


@pytest.mark.parametrize("text", ["invalid", "damaged", "bug"])
async def test_a_request_that_failed_is_tried_again(text: str) -> None:
    async with served() as server:
        headers = await server.headers() | KEY
        first, second = await post(server, headers, text), await post(server, headers, text)
    assert first.status_code == second.status_code >= 400
    assert server.gate.done == 2


async def test_a_worker_that_died_keeps_a_request_for_a_minute_only() -> None:
    async with served() as server:
        headers = await server.headers() | KEY
        state = server.app.state.keepthread
        first = asyncio.create_task(post(server, headers, "wait"))
        await server.gate.entered.wait()
        clock = state.clock
        state.clock = lambda: clock() + LEASE + 1
        server.gate.open.set()
        second = await post(server, headers, "wait")
        await first
    assert second.status_code == 200


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/sessions/s/messages", {"messages": [{"role": "user", "content": "hello"}]}),
        ("/sessions/s/turns", {"text": "hello"}),
        ("/sessions", {"title": "new"}),
    ],
)
async def test_a_request_whose_worker_died_after_storing_is_stored_once(
    path: str, body: dict[str, Any]
) -> None:
    async with http_world("ram://") as world:
        client = await world.of("ann")
        await client.put("/sessions/s")
        first, second = await send_to_worker_that_dies(world, client, path, body)
        assert (first.status_code, second.status_code) == (201, 201)
        assert "Idempotency-Replayed" not in second.headers
        owned = world.memory.for_owner("ann")
        assert len(await (await owned.get_session("s")).messages()) == (path != "/sessions")
        assert len(await owned.list_sessions()) == 1 + (path == "/sessions")


async def send_to_worker_that_dies(
    world: HttpWorld, client: httpx2.AsyncClient, path: str, body: dict[str, Any]
) -> tuple[httpx2.Response, httpx2.Response]:
    """Send a request to a worker that does not note the response, and again when that is known."""
    state, end_request = world.app.state.keepthread, world.tables.end_request

    async def died(*_: Any) -> None:
        """Note no response."""

    setattr(world.tables, "end_request", died)  # noqa: B010 - a protocol's method
    first = await client.post(path, json=body, headers=KEY)
    setattr(world.tables, "end_request", end_request)  # noqa: B010
    state.clock = lambda clock=state.clock: clock() + LEASE + 1
    return first, await client.post(path, json=body, headers=KEY)


@pytest.mark.parametrize("cache_turns", [0, 2])
async def test_a_tools_result_whose_worker_died_after_storing_is_stored_once(
    cache_turns: int,
) -> None:
    async with http_world("ram://") as world:
        client = await world.of("ann")
        await client.put("/sessions/s")
        await client.post("/sessions/s/turns", json={"text": "hello", "id": "t"})
        body = {"name": "look", "arguments": {}, "result": "seen", "cache_turns": cache_turns}
        path = "/sessions/s/turns/t/tools"
        first, second = await send_to_worker_that_dies(world, client, path, body)
        session = await world.memory.for_owner("ann").get_session("s")
        assert first.json() == second.json() == {"text": "seen"}
        assert [m.role for m in await session.messages()] == ["user", "assistant", "tool"]
        assert len(await session.cached_tools()) == (cache_turns > 0)


async def test_a_cached_result_is_not_recorded_again_with_an_idempotency_key() -> None:
    async with http_world("ram://") as world:
        client = await world.of("ann")
        await client.put("/sessions/s")
        await client.post("/sessions/s/turns", json={"text": "hello", "id": "t"})
        body = {"name": "look", "arguments": {}, "result": "seen", "cache_turns": 2}
        path = "/sessions/s/turns/t/tools"
        await client.post(path, json=body)
        again = await client.post(path, json=body | {"result": "new"}, headers=KEY)
        session = await world.memory.for_owner("ann").get_session("s")
        assert again.json() == {"text": "seen"}
        assert len(await session.messages()) == 3


async def test_a_fork_whose_worker_died_is_made_once() -> None:
    async with http_world("ram://") as world:
        client = await world.of("ann")
        await client.put("/sessions/s")
        first, second = await send_to_worker_that_dies(world, client, "/sessions/s/fork", {})
        assert first.json()["id"] == second.json()["id"]
        assert len(await world.memory.for_owner("ann").list_sessions()) == 2


@pytest.mark.parametrize(
    ("path", "body", "messages"),
    [
        ("/turns/q/tools", {"name": "look", "result": "a lake"}, 2),
        ("/turns/q/tools", {"name": "look", "result": "a lake", "cache_turns": 2}, 2),
        ("/turns/q/memory-tools", {"name": "search_memory", "arguments": {"query": "x"}}, 2),
        ("/tools", {"name": "look", "result": "a lake"}, 2),
        ("/notes", {"key": "n", "text": "a note", "once": False}, 1),
        ("/fork", {}, 0),
    ],
)
@pytest.mark.parametrize("moment", ["before its last write", "before its response"])
async def test_what_a_worker_stored_before_it_died_is_not_stored_again(
    path: str, body: dict[str, Any], messages: int, moment: str
) -> None:
    async with http_world("ram://") as world:
        client = await world.of("ann")
        await client.put("/sessions/s")
        await client.post("/sessions/s/turns", json={"text": "hello", "id": "q"})
        state, end_request = world.app.state.keepthread, world.tables.end_request
        with pytest.MonkeyPatch.context() as patch:

            async def died(*_: Any, **__: Any) -> None:
                raise asyncio.CancelledError

            async def silent(*_: Any) -> bool:
                return True

            if moment == "before its last write":
                patch.setattr(ToolCache, "remember", died)
            patch.setattr(world.tables, "abandon_request", silent)
            patch.setattr(world.tables, "end_request", silent)
            with suppress(asyncio.CancelledError):
                await client.post(f"/sessions/s{path}", json=body, headers=KEY)
        assert world.tables.end_request == end_request
        state.clock = lambda clock=state.clock: clock() + LEASE + 1
        second = await client.post(f"/sessions/s{path}", json=body, headers=KEY)
        assert second.is_success, second.text
        assert "Idempotency-Replayed" not in second.headers
        owned = world.memory.for_owner("ann")
        stored = await (await owned.get_session("s")).messages()
        assert len(stored) == 1 + messages
        assert len(await owned.list_sessions()) == 1 + (path == "/fork")


async def test_a_new_key_is_stored_nowhere_also_not_as_a_response() -> None:
    async with served() as server:
        headers = await server.headers("admin", owner=None) | KEY
        first = await server.client.post("/v1/keys/new", headers=headers)
        second = await server.client.post("/v1/keys/new", headers=headers)
    assert first.json() == {"key": "kt_shown_once"}
    assert (second.status_code, second.json()["type"]) == (410, "response_not_kept")


@pytest.mark.parametrize("key", ["", "x" * 256, "a\x7fb"])
async def test_a_key_is_a_short_text(key: str) -> None:
    async with served() as server:
        headers = await server.headers() | {"Idempotency-Key": key}
        answer = await post(server, headers)
        read = await server.client.get("/v1/who", headers=headers)
    assert (answer.status_code, answer.json()["type"]) == (400, "invalid_idempotency_key")
    assert read.status_code == 200
