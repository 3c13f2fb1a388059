"""The relay of the proxy: bytes, headers, paths, streams, deadlines and clients that leave."""

import asyncio
import gzip
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread.apps.proxy.app import client_request
from keepthread.apps.proxy.errors import ProxyError
from keepthread.apps.proxy.routes import check_path, destination
from keepthread.apps.proxy.settings import ProxySettings
from keepthread.apps.proxy.types import Prepared, ProviderAnswer
from keepthread.errors import InvalidInput, Unavailable
from tests.proxy_world import (
    TOKEN,
    FixedMemory,
    RawUpstream,
    Sent,
    answering,
    error_of,
    proxy_world,
)

CHAT = "/v1/chat/completions"
KEY = "sk-upstream-key"
SETTINGS = ProxySettings(openai="https://o.example/base/v1", anthropic="https://a.example")


# --- bytes and headers ---


async def test_bodies_are_relayed_byte_by_byte_both_ways() -> None:
    body = b'{ "model" : "m",\r\n"x":1e400, "x":2, "messages":["\xe2\x82\xac Q"] }  \n'
    answer = b'{ "id" : 1.0 , "text":"END" }\n'
    async with proxy_world(answering(answer, "X-Limit: 7")) as world:
        for path in (CHAT, "/v1/responses", "/v1/messages", "/v1/files?purpose=%7B'x'%7D"):
            response = await world.post(path, body)
            sent = world.upstream.requests[-1]
            assert (sent.body, response.content) == (body, answer)
            assert response.headers["x-limit"] == "7"
            assert sent.target == path
        assert len(await world.recorded()) == 3


async def test_with_an_addition_the_difference_is_the_added_text() -> None:
    body = b'{ "messages":["a Q"] }'
    async with proxy_world(answering(b"END"), FixedMemory("<added>")) as world:
        response = await world.post(CHAT, body)
        assert world.upstream.requests[-1].body == b'{ "messages":["a <added>Q"] }'
        shown = {name: response.headers[f"keepthread-{name}"] for name in SHOWN}
        assert shown == {
            "session": "trip",
            "mode": "alongside",
            "tokens-added": "3",
            "why": "why-1",
            "memory": "recorded",
        }


SHOWN = ("session", "mode", "tokens-added", "why", "memory")


async def test_headers_pass_except_those_of_the_connection_and_of_keepthread() -> None:
    async with proxy_world(answering(b"END", "Keepthread-Session: forged")) as world:
        response = await world.client.post(
            f"{world.base}{CHAT}",
            content=b'"Q"',
            headers={
                "Authorization": f"Bearer {KEY}",
                "X-Unknown": "kept",
                "Keepthread-Session": "trip-7",
                "Keepthread-Key": TOKEN,
                "X-Copy": f"a {TOKEN} b",
                "Connection": "keep-alive, x-hop,X-Private ,\tX-TWO",
                "X-Hop": "one",
                "x-private": "two",
                "X-two": "three",
                "TE": "trailers",
            },
        )
        headers = world.upstream.requests[-1].headers
        assert headers["authorization"] == f"Bearer {KEY}"
        assert headers["x-unknown"] == "kept"
        assert headers["host"] == f"127.0.0.1:{world.upstream.port}"
        assert not [name for name in headers if name.startswith("keepthread-")]
        assert not {"x-copy", "x-hop", "x-private", "x-two", "te"} & headers.keys()
        assert TOKEN not in world.upstream.requests[-1].head
        assert response.headers.get_list("keepthread-session") == ["trip"]


@pytest.mark.parametrize("status", ["400 Bad Request", "429 Too Many Requests", "529 Overloaded"])
async def test_errors_of_a_provider_are_unchanged_and_not_recorded(status: str) -> None:
    body = b'{"error": {"type": "x"}}'
    async with proxy_world(answering(body, "Retry-After: 9", status=status)) as world:
        response = await world.post(CHAT)
        assert (f"{response.status_code}", response.content) == (status[:3], body)
        assert response.headers["retry-after"] == "9"
        assert [answer for _, answer in await world.recorded()] == [None]
        assert len(world.upstream.requests) == 1


async def test_redirects_and_cookies_are_the_clients() -> None:
    answer = answering(b"", "Location: http://127.0.0.1:1/x", "Set-Cookie: a=b", status="307 Moved")
    async with proxy_world(answer) as world:
        for _ in range(2):
            response = await world.post(CHAT)
            assert response.status_code == 307
            assert response.headers["set-cookie"] == "a=b"
        world.client.cookies.clear()
        await world.post(CHAT)
        assert "cookie" not in world.upstream.requests[-1].headers


async def test_a_compressed_answer_passes_as_it_is_and_is_read() -> None:
    packed = gzip.compress(b"hello END")
    async with proxy_world(answering(packed, "Content-Encoding: gzip")) as world:
        request = world.client.build_request("POST", f"{world.base}{CHAT}", content=b'"Q"')
        response = await world.client.send(request, stream=True)
        assert b"".join([part async for part in response.aiter_raw()]) == packed
        (_, answer) = (await world.recorded())[0]
        assert answer is not None
        assert answer.messages[0].content == "hello END"


@pytest.mark.parametrize("encoding", ["unheard-of", "gzip"])
async def test_an_answer_that_cannot_be_read_is_relayed(
    encoding: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with proxy_world(answering(b"not packed", f"Content-Encoding: {encoding}")) as world:
        request = world.client.build_request("POST", f"{world.base}{CHAT}", content=b'"Q"')
        response = await world.client.send(request, stream=True)
        assert b"".join([part async for part in response.aiter_raw()]) == b"not packed"
        assert [answer for _, answer in await world.recorded()] == [None]
    assert "is not recorded" in caplog.text


async def test_a_reader_that_fails_does_not_break_the_relay(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with proxy_world(answering(b"a BREAK b")) as world:
        assert (await world.post(CHAT)).content == b"a BREAK b"
        assert [answer for _, answer in await world.recorded()] == [None]
    assert "secret text" not in caplog.text


async def test_what_is_not_understood_is_relayed_as_it_is() -> None:
    async with proxy_world(answering(b"END"), FixedMemory("<added>")) as world:
        for body, reason in ((b"UNKNOWN Q", "form"), (b"BROKEN Q", "form"), (b"OFF Q", "off")):
            response = await world.post(CHAT, body)
            assert world.upstream.requests[-1].body == body
            assert response.headers["keepthread-memory"].startswith("not-recorded; reason=")
            assert reason in response.headers["keepthread-memory"]
        assert await world.recorded() == []


async def test_counting_tokens_counts_the_addition_and_records_nothing() -> None:
    async with proxy_world(answering(b"{}"), FixedMemory("<added>")) as world:
        await world.post("/v1/messages/count_tokens?beta=true")
        assert world.upstream.requests[-1].body == b'"<added>Q"'
        assert world.memory.counted == 1
        assert await world.recorded() == []


# --- paths ---


def test_paths_lead_to_the_upstream_that_they_belong_to() -> None:
    anthropic = {"anthropic-version": "2023-06-01"}
    places = {
        ("/v1/chat/completions", ""): "https://o.example/base/v1/chat/completions",
        ("/chat/completions", ""): "https://o.example/base/v1/chat/completions",
        ("/v1/messages", ""): "https://a.example/v1/messages",
        ("/v1/v1/messages", ""): "https://a.example/v1/messages",
        ("/messages/batches", ""): "https://a.example/v1/messages/batches",
        ("/v1/models", ""): "https://o.example/base/v1/models",
        ("/v1/models", "a"): "https://a.example/v1/models",
        ("/api/hello", "a"): "https://a.example/api/hello",
    }
    for (path, headers), url in places.items():
        assert destination("GET", path, anthropic if headers else {}, SETTINGS).url == url


@given(st.text(alphabet="/.%25eEfF\\:@?#a1v\x00 \n€", max_size=30).map(lambda text: f"/{text}"))
def test_no_path_leaves_its_base_url(path: str) -> None:
    try:
        where = destination("POST", path, {}, SETTINGS)
    except ProxyError:
        return
    assert where.url.startswith(("https://o.example/base/v1", "https://a.example/"))
    url = httpx2.URL(where.url)
    assert url.host in ("o.example", "a.example")
    assert str(url).rstrip("/") == where.url.rstrip("/")
    assert not {".", ".."} & set(httpx2.URL(where.url).path.split("/"))


@pytest.mark.parametrize(
    "path",
    [
        *("/v1/../x", "/v1/%2e%2e/x", "/v1/.%2E", "/..", "//evil.example/x", "/v1//x"),
        *("/v1/a%2fb", "/v1/a%5Cb", "/v1/a\\b", "http://evil.example/v1", "/v1/a%00b", "/v1/a b"),
        *("/v1/%", "/v1/%zz", "/v1/a%20b", "@evil.example/", "", "/v1/x#y", "/v1/é"),
    ],
)
def test_paths_that_can_be_read_differently_are_refused(path: str) -> None:
    with pytest.raises(ProxyError):
        check_path(path)


@pytest.mark.parametrize(
    "url", ["ftp://x", "https://", "host:80", "https://u:p@host", "https://h/?q=1", "https://h/#f"]
)
def test_base_urls_that_are_none_are_refused(url: str) -> None:
    with pytest.raises(InvalidInput):
        ProxySettings(openai=url)


UPGRADE = "Upgrade: websocket\r\nConnection: Upgrade, close\r\nSec-WebSocket-Key: eA=="


async def test_requests_of_other_forms_reach_no_upstream() -> None:
    async with proxy_world(answering(b"END")) as world:
        host = f"Host: 127.0.0.1:{world.port}"
        closing = "Connection: close"
        heads = {
            421: [f"GET /k/{TOKEN}/v1/models HTTP/1.1\r\nHost: evil.example\r\n{closing}"],
            401: [
                f"GET /v1/models HTTP/1.1\r\n{host}\r\n{closing}",
                f"GET /k/{TOKEN}x/v1/models HTTP/1.1\r\n{host}\r\n{closing}",
                f"GET /k//v1/models HTTP/1.1\r\n{host}\r\n{closing}",
                f"GET http://evil.example/k/{TOKEN}/v1/models HTTP/1.1\r\n{host}\r\n{closing}",
                f"GET /v1/models HTTP/1.1\r\n{host}\r\nAuthorization: Bearer {TOKEN}\r\n{closing}",
            ],
            400: [
                f"GET /k/{TOKEN}/v1/%2e%2e/x HTTP/1.1\r\n{host}\r\n{closing}",
                f"GET /k/{TOKEN}//evil.example/x HTTP/1.1\r\n{host}\r\n{closing}",
            ],
            426: [
                f"GET /k/{TOKEN}/v1/responses HTTP/1.1\r\n{host}\r\n{UPGRADE}",
            ],
        }
        for status, several in heads.items():
            for head in several:
                answer = await world.raw(f"{head}\r\n\r\n".encode())
                assert answer.startswith(f"HTTP/1.1 {status}".encode()), (head, answer)
                assert TOKEN.encode() not in answer
        assert world.upstream.requests == []


async def test_own_errors_have_the_envelope_of_the_api() -> None:
    async with proxy_world(answering(b"END")) as world:
        url = f"http://127.0.0.1:{world.port}/k/wrong"
        openai = await world.client.post(f"{url}{CHAT}")
        assert openai.status_code == 401
        assert error_of(openai)["code"] == "invalid_token"
        assert openai.headers["keepthread-error"] == "invalid_token"
        anthropic = await world.client.post(f"{url}/v1/messages")
        assert anthropic.json()["type"] == "error"
        assert error_of(anthropic)["type"] == "authentication_error"


async def test_an_upstream_that_is_away_is_named_and_asked_once() -> None:
    async with proxy_world(answering(b"END")) as world:
        world.upstream.answer = _hang_up
        response = await world.post(CHAT)
        assert (response.status_code, error_of(response)["code"]) == (502, "upstream_unreachable")
        assert len(world.upstream.requests) == 1
        assert [answer for _, answer in await world.recorded()] == [None]


async def _hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: Sent) -> None:
    writer.close()
    raise ConnectionResetError


# --- streams ---

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Paced:
    """An upstream whose chunks are sent when the test says."""

    def __init__(self) -> None:
        self.chunks: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.started = asyncio.Event()
        self.gone = asyncio.Event()
        self.head = HEAD

    async def __call__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: Sent
    ) -> None:
        del sent
        self.started.set()
        writer.write(self.head)
        left = asyncio.create_task(reader.read())
        while True:
            chunk = asyncio.create_task(self.chunks.get())
            await asyncio.wait((left, chunk), return_when=asyncio.FIRST_COMPLETED)
            if left.done():
                chunk.cancel()
                self.gone.set()
                raise ConnectionResetError
            data = chunk.result()
            if data is None:
                left.cancel()
                return
            writer.write(b"%x\r\n%s\r\n" % (len(data), data))


async def test_chunks_are_relayed_as_they_come() -> None:
    paced = Paced()
    async with proxy_world(paced) as world:
        async with world.client.stream("POST", f"{world.base}{CHAT}", content=b'"Q"') as response:
            parts = response.aiter_raw()
            for data in (b"data: one\n\n", b"data: t", b"wo END\n\n"):
                paced.chunks.put_nowait(data)
                assert await anext(parts) == data
            paced.chunks.put_nowait(b"data: [DONE]\n\n")
            assert await anext(parts) == b"data: [DONE]\n\n"
            paced.chunks.put_nowait(b"")
            assert [part async for part in parts] == []
        (_, answer) = (await world.recorded())[0]
        assert answer is not None
        assert answer.complete


async def test_a_cut_stream_is_cut_for_the_client_and_recorded_as_far_as_it_came() -> None:
    async def cut(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: Sent) -> None:
        writer.write(HEAD + b"3\r\none\r\n")
        await writer.drain()
        writer.close()
        raise ConnectionResetError

    async with proxy_world(cut) as world:
        with pytest.raises(httpx2.RemoteProtocolError):
            await world.post(CHAT)
        (_, answer) = (await world.recorded())[0]
        assert answer is not None
        assert (answer.messages[0].content, answer.complete) == ("one", False)


@pytest.mark.parametrize("when", ["before the head", "before the first token", "within"])
async def test_the_upstream_is_closed_when_the_client_leaves(when: str) -> None:
    paced = Paced()
    if when == "before the head":
        paced.head = b""
    async with proxy_world(paced) as world:
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
        path = f"/k/{TOKEN}{CHAT}"
        writer.write(
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n".encode()
            + b'"Q"'
        )
        await paced.started.wait()
        if when == "within":
            paced.chunks.put_nowait(b"some")
            await reader.readuntil(b"some")
        writer.close()
        await asyncio.wait_for(paced.gone.wait(), 20)
        await world.memory.done.wait()
        ((_, answer),) = world.memory.recorded
        assert (answer is None) == (when == "before the head")
        if when == "within":
            assert answer is not None
            assert not answer.complete


async def test_many_streams_run_at_the_same_time() -> None:
    ready = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter, __: Sent) -> None:
        if len(upstream.requests) == 60:
            ready.set()
        await ready.wait()
        writer.write(HEAD + b"3\r\nEND\r\n0\r\n\r\n")

    async with proxy_world(answer) as world:
        upstream: RawUpstream = world.upstream
        limits = httpx2.Limits(max_connections=None)
        async with httpx2.AsyncClient(trust_env=False, timeout=60, limits=limits) as client:
            url = f"{world.base}{CHAT}"
            posts = [client.post(url, content=b'"Q"') for _ in range(60)]
            assert {each.content for each in await asyncio.gather(*posts)} == {b"END"}
        assert len(await world.recorded()) == 60


async def test_a_body_that_streams_in_is_relayed_while_it_arrives() -> None:
    first = asyncio.Event()

    async def parts() -> AsyncIterator[bytes]:
        yield b"one"
        await first.wait()
        yield b"two"

    async with proxy_world(answering(b"{}")) as world:
        sending = asyncio.create_task(world.client.post(f"{world.base}/v1/files", content=parts()))
        await world.upstream.arrived.wait()
        first.set()
        assert (await sending).content == b"{}"
        assert world.upstream.requests[0].body == b"onetwo"


# --- the memory ---


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("kind", ["fails", "late"])
async def test_without_memory_a_request_passes_or_is_refused(kind: str, strict: bool) -> None:
    memory = FixedMemory("<added>")
    settings: dict[str, Any] = {"strict": strict}
    if kind == "fails":
        memory.fails = Unavailable("a secret text")
    else:
        memory.waits, settings["memory_deadline"] = asyncio.Event(), 0.01
    async with proxy_world(answering(b"END"), memory, **settings) as world:
        response = await world.post("/v1/messages")
        assert response.headers["keepthread-memory"] == "unavailable"
        if strict:
            assert (response.status_code, response.json()["type"]) == (503, "error")
            assert response.headers["keepthread-error"] == "memory_unavailable"
            assert world.upstream.requests == []
        else:
            assert world.upstream.requests[0].body == b'"Q"'
        if memory.waits is not None:
            memory.waits.set()
        recorded = await world.recorded()
        assert len(recorded) == (kind == "late" and not strict)
        for prepared, answer in recorded:
            assert (prepared.state, prepared.additions) == ("unavailable", {})
            assert answer is not None


async def test_a_memory_that_hangs_delays_only_some_requests() -> None:
    memory = FixedMemory(waits=asyncio.Event())
    async with proxy_world(answering(b"END"), memory, memory_deadline=0.01) as world:
        for _ in range(20):
            assert (await world.post(CHAT)).headers["keepthread-memory"] == "unavailable"
        assert len(memory.prepared) == 4
        assert memory.waits is not None
        memory.waits.set()
        assert len(await world.recorded()) == 20


async def test_a_credential_whose_memory_hangs_does_not_delay_another() -> None:
    hanging, other = FixedMemory(waits=asyncio.Event()), FixedMemory("<added>")
    async with proxy_world(answering(b"END"), hanging, memory_deadline=0.01) as world:
        for _ in range(9):
            assert (await world.post(CHAT)).headers["keepthread-memory"] == "unavailable"
        sent: list[Any] = []
        parts = [{"type": "http.request", "body": b'"Q"'}]

        async def receive() -> Any:
            if not parts:  # the client stays until it has the answer
                await asyncio.Event().wait()
            return parts.pop()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"method": "POST", "headers": [(b"host", b"localhost")]}
        request = client_request(scope, CHAT, secret="another credential")
        await world.proxy.serve(request, other, receive, send)
        assert dict(sent[0]["headers"])[b"keepthread-memory"] == b"recorded"
        assert b"<added>" in world.upstream.requests[-1].body
        assert hanging.waits is not None
        hanging.waits.set()
        await world.recorded()
        assert world.proxy._queues == {}


async def test_closing_waits_for_recordings_but_not_forever() -> None:
    async with proxy_world(answering(b"END"), drain=0.01) as world:
        memory = world.memory
        never = asyncio.Event()

        async def record(prepared: Prepared, answer: ProviderAnswer | None) -> None:
            del prepared, answer
            await never.wait()

        memory.record = record
        await world.post(CHAT)
        await world.proxy.close()
