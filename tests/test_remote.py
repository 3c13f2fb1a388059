"""The memory of a server: what a program does with it gives what a memory in this process gives."""

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx2
import pytest

from keepthread import Attachment, Memory, Message, OwnerMemory, Session, ToolCall, Turn
from keepthread.errors import (
    Denied,
    InvalidInput,
    MessageNotFound,
    NotFound,
    SessionExists,
    SessionNotFound,
    Stale,
    Unavailable,
    Unsupported,
)
from keepthread.interchange.json_types import to_json
from keepthread.memory.blobs.blobs import Blobs
from keepthread.memory.facts.facts import Facts
from keepthread.memory.remote.connection import ApiRequest, ServerConnection
from keepthread.memory.remote.facts import RemoteFacts
from keepthread.memory.remote.memory import RemoteMemory
from keepthread.memory.remote.owner import RemoteBlobs, RemoteOwner
from keepthread.memory.remote.session import RemoteSession
from keepthread.memory.remote.turn import RemoteTurn
from keepthread.memory.remote.values import from_json
from keepthread.models.tokens import Estimator
from keepthread.sync import Memory as BlockingMemory
from tests.http_world import Served, listening

SAME = ("add_message", "add_turn", "id", "key", "owner", "number", "read")
"""Methods that only call others, or return what is known."""
NOT_REPEATED = ("/export", "/blobs", "/content")
"""Ends of the paths of streams, which the client sends and reads once."""
OF_MEMORY = ("session", "create_session", "get_session", "list_sessions", "delete_session")


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with listening("ram://") as server:
        yield server


@asynccontextmanager
async def remote(server: Served, owner: str | None = "ann", **more: Any) -> AsyncIterator[Memory]:
    async with Memory.open(server.address, key=server.key(owner, **more)) as memory:
        yield memory


@asynccontextmanager
async def local(_: Served, **__: Any) -> AsyncIterator[Memory]:
    async with Memory.open("ram://", counter=Estimator(), keep_why=5) as memory:
        yield memory


@asynccontextmanager
async def lossy(server: Served, **more: Any) -> AsyncIterator[Memory]:
    """Open it over a network that delivers every request, and loses the first response to it."""
    deliver = httpx2.AsyncHTTPTransport.handle_async_request
    delivered = 0

    async def lose(
        transport: httpx2.AsyncHTTPTransport, request: httpx2.Request
    ) -> httpx2.Response:
        nonlocal delivered
        response = await deliver(transport, request)
        if request.url.path.endswith(NOT_REPEATED):
            return response
        delivered += 1
        if delivered % 2:
            await response.aread()
            raise httpx2.ReadError("the response is lost")
        return response

    with (
        patch.object(httpx2.AsyncHTTPTransport, "handle_async_request", lose),
        patch("keepthread.memory.remote.connection._FIRST_PAUSE", 0.0),
    ):
        async with remote(server, tenant="lossy", **more) as memory:
            yield memory


WAYS = pytest.mark.parametrize(
    "opened", [local, remote, lossy], ids=["process", "server", "lossy network"]
)
Opened = Callable[..., Any]


@pytest.mark.parametrize(
    ("here", "there"),
    [
        (Session, RemoteSession),
        (Turn, RemoteTurn),
        (OwnerMemory, RemoteOwner),
        (Facts, RemoteFacts),
        (Blobs, RemoteBlobs),
    ],
)
def test_every_method_is_there_with_the_same_parameters(here: type, there: type) -> None:
    for name, method in inspect.getmembers(here):
        if name.startswith("_") or name in SAME:
            continue
        other = vars(there).get(name)
        assert other is not None, f"{there.__name__} does not have {name}"
        if callable(method):
            of_both = [inspect.signature(each).parameters for each in (method, other)]
            assert [*of_both[0]] == [*of_both[1]], name
            defaults = [[p.default for p in each.values()] for each in of_both]
            assert defaults[0] == defaults[1], name


@WAYS
async def test_a_conversation(opened: Opened, served: Served) -> None:
    async with opened(served) as memory:
        session = await memory.session("trip", system_prompt="Be brief.", title="A trip")
        async with session.turn("I like Oslo.", id="q1") as turn:
            call = ToolCall(id="c1", name="weather", arguments='{"city": "Oslo"}')
            await turn.append(Message(role="assistant", tool_calls=[call]))
            text = await turn.tool("weather", {"city": "Oslo"}, lambda city: f"rain in {city}",
                                   call_id="c1", cache_turns=2)  # fmt: skip
            assert text == "rain in Oslo"
            context = await turn.context(budget=500)
            roles = [m["role"] for m in context.to_openai_chat()["messages"]]
            assert roles == ["system", "user", "assistant", "tool"]
            assert context.tokens <= 500
            assert "I like Oslo." in context.text
            answer = await turn.finish("Take an umbrella.", usage={"input": 3})
        assert (answer.role, answer.content) == ("assistant", "Take an umbrella.")
        assert answer.meta["written_from"]
        async with session.turn("I like Oslo.", id="q1") as again:
            assert again.answer is not None
            assert again.answer.id == answer.id
        read = await session.messages()
        assert [m.role for m in read] == ["user", "assistant", "tool", "assistant"]
        assert [m.seq for m in read] == [1, 2, 3, 4]
        assert [m.seq for m in await session.messages(before=4, limit=2)] == [2, 3]
        assert [m.seq for m in await session.messages(1, 2)] == [2, 3]
        assert await session.cached_tool("weather", {"city": "Oslo"}) == "rain in Oslo"
        assert [tool.name for tool in await session.cached_tools()] == ["weather"]
        info = await session.update(title="Rain", tags=["travel"])
        assert (info.title, [*info.tags]) == ("Rain", ["travel"])
        with pytest.raises(Stale):
            await session.update(title="Sun", version="an older one")
        await session.pin(read[0].id)
        assert [m.id for m in await session.pins()] == ["q1"]
        assert await session.unpin("q1")
        assert not await session.unpin("q1")
        fork = await session.fork(2, id="fork")
        assert [m.seq for m in await fork.messages()] == [1, 2]
        await session.rewind(2)
        assert [(h.first, h.last, h.reason) for h in await session.hidden()] == [(3, 4, "rewound")]
        shown = await session.unhide()
        assert shown is not None
        assert shown.first == 3
        status = await session.status()
        assert (status.messages, status.turns) == (4, 1)
        assert [s.id for s in await memory.list_sessions(tag="travel")] == ["fork", "trip"]
        assert (await memory.get_session("trip")).info.title == "Rain"
        await memory.delete_session("fork")
        with pytest.raises(SessionNotFound):
            await memory.get_session("fork")
        with pytest.raises(SessionExists):
            await memory.create_session("trip")


@WAYS
async def test_messages_come_back_as_they_are_stored(opened: Opened, served: Served) -> None:
    async with opened(served, owner="exact") as memory:
        session = await memory.session("a/b %2F ?#é")
        given = [
            Message(role="user", content="näïve \ud800 \x00 text", author="bo", meta={"n": [1]}),
            Message(role="user", content="see", source="web:x", origin="web",
                    attachments=[Attachment(media_type="image/png", name="a.png", uri="file:a")]),
        ]  # fmt: skip
        stored = await session.append(*given)
        again = await session.append(*stored)
        assert [m.id for m in again] == [m.id for m in stored]
        assert await session.messages() == stored
        for mine, theirs in zip(given, stored, strict=True):
            body = replace(mine, tool_calls=(), attachments=tuple(mine.attachments))
            fields = ("role", "content", "author", "meta", "source")
            assert [getattr(theirs, f) for f in fields] == [getattr(body, f) for f in fields]
            assert tuple(theirs.attachments) == body.attachments
        assert [from_json(Message, to_json(m)) for m in stored] == stored


@WAYS
async def test_facts_search_blobs_changes_and_forgetting(
    opened: Opened, served: Served, tmp_path: Path
) -> None:
    async with opened(served, owner="bea") as memory:
        mine = memory.for_owner("bea")
        session = await mine.session("s")
        await session.append(Message(role="user", content="The ferry leaves at noon.", id="m1"))
        hits = await mine.search("ferry")
        assert [(hit.session, hit.message.id) for hit in hits] == [("s", "m1")]
        fact = await mine.facts.remember("Is vegetarian.", attribute="diet", value="vegetarian")
        assert await mine.facts.get(fact.key) == fact
        edited = await mine.facts.edit(fact.key, text="Is vegan.", version=fact.version)
        assert [f.text for f in await mine.facts.list()] == ["Is vegan."]
        assert [f.text for f in await mine.facts.search("vegan")] == ["Is vegan."]
        waiting = await mine.facts.remember("Owns a boat.", by="model", source="mcp:x")
        assert waiting.state == "quarantined"
        assert (await mine.facts.confirm(waiting.key)).state == "live"
        assert await mine.facts.forget(edited.key) == 1
        assert await mine.facts.get("nobody") is None
        blob = await mine.blobs.put(b"bytes" * 1000, name="a.txt", media_type="text/plain")
        assert await mine.blobs.read(blob.digest) == b"bytes" * 1000
        assert [b.digest for b in await mine.blobs.list()] == [blob.digest]
        assert await mine.blobs.delete(blob.digest)
        path = tmp_path / "large.bin"
        path.write_bytes(bytes(range(256)) * 1000)
        stored = await mine.blobs.put(path)
        assert (stored.name, stored.size) == ("large.bin", 256_000)
        assert await mine.blobs.read(stored.digest) == path.read_bytes()
        with pytest.raises(NotFound):
            await mine.blobs.info(blob.digest)
        page = await mine.changes()
        assert [c.kind for c in page][:2] == ["session_created", "messages_added"]
        assert [c.ids for c in page if c.kind == "messages_added"] == [("m1",)]
        now = await mine.changes(limit=0)
        assert await mine.changes(after=now.next) == []
        lines = [line async for line in mine.export()]
        assert b"ferry" in b"".join(lines)
        assert lines[-1].startswith(b'{"end"')
        preview = await mine.forget(session="s", dry_run=True)
        assert await session.messages()
        receipt = await mine.forget(session="s")
        assert receipt.messages == preview.messages == 1
        assert len(await mine.receipts()) == 1
        with pytest.raises(SessionNotFound):
            await mine.get_session("s")


@WAYS
async def test_tools_and_turns_that_end_early(opened: Opened, served: Served) -> None:
    async with opened(served, owner="cy") as memory:
        session = await memory.for_owner("cy").session("s")
        runs: list[str] = []

        def look(place: str) -> str:
            runs.append(place)
            return f"seen {place}"

        def fail() -> str:
            raise RuntimeError("no such place")

        async with session.turn("Look.") as turn:
            assert await turn.tool("look", {"place": "a"}, look, cache_turns=3) == "seen a"
            assert await turn.tool("look", {"place": "a"}, look, cache_turns=3) == "seen a"
            assert runs == ["a"]
            with pytest.raises(RuntimeError, match="no such place"):
                await turn.tool("fail", {}, fail)
            assert "ferry" not in await turn.memory_tool("search_memory", {"query": "ferry"})
            await turn.finish("Done.")
        with pytest.raises(KeyError):  # noqa: PT012 - the turn ends by it
            async with session.turn("Again.", id="q2") as turn:
                call = ToolCall(id="c9", name="look", arguments="{}")
                await turn.append(Message(role="assistant", tool_calls=[call]))
                raise KeyError("left")
        last = (await session.messages())[-1]
        assert (last.role, last.tool_call_id) == ("tool", "c9")
        assert "interrupted" in last.content
        async with session.resume_turn("q2") as turn:
            assert (await turn.finish("Now.")).content == "Now."
        with pytest.raises(MessageNotFound):
            await session.resume_turn("nobody").__aenter__()
        with pytest.raises(InvalidInput):
            await session.turn("x").append(Message(role="assistant", content="y"))


@WAYS
async def test_each_change_is_made_once(opened: Opened, served: Served) -> None:
    async with opened(served, owner="ida") as memory:
        mine = memory.for_owner("ida")
        session = await mine.create_session(title="one")
        await session.append(*(Message(role="user", content=f"word{n}") for n in range(4)))
        assert await session.add_note("place", "Oslo")
        await session.cache_tool("look", {}, "seen", 3)
        assert len(await session.messages()) == 7
        async with session.turn("Who?") as turn:
            await turn.memory_tool("search_memory", {"query": "word1"})
            await turn.tool("look", {}, lambda: "seen again")
            await turn.finish("Nobody.")
        assert len(await session.messages()) == 13
        await session.fork()
        assert len(await mine.list_sessions()) == 2
        history = [Message(role="user", content="Hi."), Message(role="assistant", content="Ho.")]
        aligned = await mine.create_session()
        assert list((await aligned.align(history)).appended) == await aligned.messages()
        assert (await aligned.align(history)).kept == 2
        assert len((await aligned.align(history[:1])).hidden) == 1
        await session.rewind(3)
        await session.rewind(2)
        assert await session.unhide() is not None
        assert len(await session.hidden()) == 1
        info = await session.refresh()
        info = await session.update(title="two", version=info.version)
        assert info.title == "two"
        await mine.forget(session=session.id)
        assert len(await mine.receipts()) == 1


async def test_a_key_decides_whose_memory_it_is(served: Served) -> None:
    async with remote(served, "dot") as memory:
        await memory.session("mine")  # the key is bound, so `default` is its owner
        assert memory.for_owner("dot").owner == "dot"
        assert [s.owner for s in await memory.list_sessions()] == ["dot"]
        with pytest.raises(Denied):
            await memory.for_owner("eve").list_sessions()
        with pytest.raises(Unsupported):
            memory.tenant("other")
        with pytest.raises(Unsupported, match="store"):
            _ = memory.store
    async with remote(served, None) as memory:  # a key of a program that serves many people
        await memory.for_owner("fay").session("hers")
        assert [s.id for s in await memory.list_sessions(owner="fay")] == ["hers"]
        assert await memory.list_sessions() == []
    async with remote(served, "dot", scopes=frozenset({"read"})) as memory:
        with pytest.raises(Denied, match="write"):
            await memory.session("more")


async def test_what_cannot_be_opened_says_why(served: Served) -> None:
    for url, key, why in (
        (served.address, None, "requires a key"),
        ("http://example.com", "kt_a_b", "https"),
        ("https://user:pass@example.com", "kt_a_b", "password"),
        ("ram://", "kt_a_b", "key"),
    ):
        with pytest.raises(InvalidInput, match=why):
            await Memory.open(url, key=key)
    with pytest.raises(Unsupported, match="keep_why"):
        await Memory.open(served.address, key="kt_a_b", keep_why=3)
    with pytest.raises(Denied):
        await Memory.open(served.address, key="kt_abcdefghijkl_wrong")


async def test_a_request_is_repeated_until_it_is_answered_and_stored_once() -> None:
    seen: list[tuple[str, str]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append((request.url.path, request.headers["Idempotency-Key"]))
        if len(seen) == 1:
            raise httpx2.ConnectError("refused")
        if len(seen) == 2:
            return httpx2.Response(503, json={"type": "unavailable", "detail": "busy"})
        return httpx2.Response(200, json={"done": True})

    transport = httpx2.MockTransport(answer)
    connection = ServerConnection("http://localhost", "kt_a_b", timeout=5, transport=transport)
    assert await connection.json(ApiRequest("POST", "/notes", {}, once=True)) == {"done": True}
    assert len(seen) == 3
    assert len(set(seen)) == 1
    await connection.close()


async def test_a_server_that_stays_away_is_unavailable_and_the_key_is_not_shown() -> None:
    def away(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError("refused")

    connection = ServerConnection(
        "http://localhost", "kt_a_secret", timeout=0.1, transport=httpx2.MockTransport(away)
    )
    with pytest.raises(Unavailable) as raised:
        await connection.json(ApiRequest("GET", "/identity"))
    assert "secret" not in repr(raised.value) + repr(vars(connection))
    await connection.close()


async def test_a_server_that_works_for_long_is_waited_for() -> None:
    seen: list[float] = []

    def answer(_: httpx2.Request) -> httpx2.Response:
        seen.append(time.monotonic())
        return httpx2.Response(200, json={}) if len(seen) == 5 else httpx2.Response(202)

    transport = httpx2.MockTransport(answer)
    connection = ServerConnection("http://localhost", "kt_a_b", timeout=0.1, transport=transport)
    assert await connection.json(ApiRequest("POST", "/erasures", {})) == {}
    assert seen[-2] - seen[0] > 0.1, "it would have been given up"
    await connection.close()


@pytest.mark.parametrize("status", [202, 429, 503])
async def test_a_request_is_repeated_no_earlier_than_the_server_says(status: int) -> None:
    seen: list[float] = []

    def answer(_: httpx2.Request) -> httpx2.Response:
        seen.append(time.monotonic())
        if len(seen) == 1:
            return httpx2.Response(status, headers={"Retry-After": "0.5"}, json={})
        return httpx2.Response(200, json={})

    transport = httpx2.MockTransport(answer)
    connection = ServerConnection("http://localhost", "kt_a_b", timeout=5, transport=transport)
    await connection.json(ApiRequest("GET", "/identity"))
    assert seen[1] - seen[0] > 0.49
    await connection.close()


async def test_a_call_that_may_be_stored_is_closed_when_its_turn_is_left(served: Served) -> None:
    deliver = httpx2.AsyncHTTPTransport.handle_async_request

    async def lose(
        transport: httpx2.AsyncHTTPTransport, request: httpx2.Request
    ) -> httpx2.Response:
        await (await deliver(transport, request)).aread()
        raise httpx2.ReadError("lost")

    opening = Memory.open(served.address, key=served.key("dee"), timeout=0.5)
    async with opening as memory:
        session = await memory.for_owner("dee").session("s")
        call = ToolCall(id="c9", name="look", arguments="{}")
        with pytest.raises(Unavailable):  # noqa: PT012 - the turn ends by it
            async with session.turn("Look.") as turn:
                with patch.object(httpx2.AsyncHTTPTransport, "handle_async_request", lose):
                    await turn.append(Message(role="assistant", tool_calls=[call]))
        last = (await session.messages())[-1]
        assert (last.role, last.tool_call_id) == ("tool", "c9")


def test_a_blocking_program(served: Served) -> None:
    with BlockingMemory.open(served.address, key=served.key("gil")) as memory:
        session = memory.session("s")
        with session.turn("Hello.") as turn:
            turn.finish("Hi.")
        assert [m.content for m in session.messages()] == ["Hello.", "Hi."]
        assert b"".join(memory.for_owner("gil").export())


async def test_writers_in_several_memories_lose_and_double_nothing(served: Served) -> None:
    async def write(memory: Memory, name: str) -> None:
        session = await memory.session("shared")
        for number in range(20):
            async with session.turn(f"{name} {number}", id=f"{name}-{number}") as turn:
                await turn.finish("ok")

    async with remote(served, "hal") as one, remote(served, "hal") as two:
        await asyncio.gather(write(one, "a"), write(two, "b"), write(two, "a"))
        read = await (await one.session("shared")).messages()
    asked = [m.content for m in read if m.role == "user"]
    assert sorted(asked) == sorted(f"{name} {n}" for name in "ab" for n in range(20))
    assert len(read) == 80
    assert isinstance(one, RemoteMemory)
