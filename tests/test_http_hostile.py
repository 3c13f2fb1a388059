"""Hostile requests over a real socket: the server stays up, and answers others."""

import asyncio
import gzip
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

import h11
import pytest

from keepthread.apps.http.auth import PUBLIC
from keepthread.apps.http.connections import StrictConnection
from keepthread.apps.http.settings import HttpSettings
from tests.http_app import Served, listening

PATIENCE = 30.0
HEAD = b"Host: localhost\r\n"
MAX_HEAD = 32 * 1024


def address_of(server: Served) -> tuple[str, int]:
    url = server.client.base_url
    assert url.port is not None
    return url.host, url.port


@asynccontextmanager
async def connected(
    server: Served,
) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(*address_of(server))
    try:
        yield reader, writer
    finally:
        writer.close()


async def send(server: Served, data: bytes) -> bytes:
    """Send bytes as they are; return all that comes back before the connection is closed."""
    async with asyncio.timeout(PATIENCE), connected(server) as (reader, writer):
        writer.write(data)
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


async def serves(server: Served) -> bool:
    """Return whether another client is answered."""
    async with asyncio.timeout(PATIENCE):
        answer = await server.client.get("/v1/who", headers=await server.headers())
    return answer.status_code == 200


def request(line: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    head = b"".join(header + b"\r\n" for header in headers)
    return line + b" HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n" + head + b"\r\n" + body


async def key_of(server: Served) -> bytes:
    return b"Authorization: Bearer " + (await server.key()).encode()


JSON = b"Content-Type: application/json"

MALFORMED = {
    "not http": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20,
    "a huge header": b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    "a huge path": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: a\r\n" * 20_000 + b"\r\n",
    "a header without a name": request(b"GET /livez", b": value"),
    "a line break in a header": request(b"GET /livez", b"X: a\rb"),
    "a zero byte in a header": request(b"GET /livez", b"X: a\x00b"),
    "a folded header": request(b"GET /livez", b"X: a", b" b\x00"),
    "two lengths": request(b"POST /v1/notes/a", b"Content-Length: 1", b"Content-Length: 2"),
    "a negative length": request(b"POST /v1/notes/a", b"Content-Length: -1"),
    "a length with a sign": request(b"POST /v1/notes/a", b"Content-Length: +5", body=b"12345"),
    "an unknown coding": request(b"POST /v1/notes/a", b"Transfer-Encoding: gzip, chunked"),
    "a chunk without a size": request(
        b"POST /v1/notes/a", b"Transfer-Encoding: chunked", body=b"x\r\n"
    ),
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/who HTTP/1.1\r\nHost: localhost\r\nHost: evil.com\r\n\r\n",
    "a length and chunks": request(
        b"POST /v1/notes/a", b"Content-Length: 5", b"Transfer-Encoding: chunked", body=b"0\r\n\r\n"
    ),
    "chunks in HTTP/1.0": b"POST /livez HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bare line feed": b"GET /livez HTTP/1.1\r\nHost: localhost\nX: a\r\n\r\n",
    "bare line feeds alone": b"GET /livez HTTP/1.1\nHost: localhost\n\n",
    "a bare line feed at the start": b"\nGET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a folded value": request(b"GET /livez", b"X: a\r\n b"),
    "a value that is folded by a tab": request(b"GET /livez", b"X: a\r\n\tb"),
    "a folded coding": request(
        b"POST /v1/notes/a", b"Transfer-Encoding:\r\n chunked", body=b"0\r\n\r\n"
    ),
    "a path with a space": b"GET /liv ez HTTP/1.1\r\nHost: localhost\r\n\r\n",
}


@pytest.mark.parametrize("case", MALFORMED)
async def test_what_is_not_http_is_refused_and_others_are_served(case: str) -> None:
    async with listening(protocol={"head_seconds": 1.0}) as server:
        answer = await send(server, MALFORMED[case])
        status = answer.split(b" ")[1] if answer else b""
        assert status in (b"", b"400", b"401", b"501")
        assert await serves(server)


AMBIGUOUS = ("length and", "1.0", "bare line", "folded")


@pytest.mark.parametrize("case", [each for each in MALFORMED if any(w in each for w in AMBIGUOUS)])
async def test_what_two_servers_could_read_differently_is_refused(case: str) -> None:
    """What comes after it on the connection is not read."""
    async with listening() as server:
        answer = await send(server, MALFORMED[case] + b"GET /livez HTTP/1.1\r\n" + HEAD + b"\r\n")
    assert answer.count(b"HTTP/1.1 ") == 1
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b'"type": "bad_request"' in answer


@pytest.mark.parametrize("case", [each for each in MALFORMED if any(w in each for w in AMBIGUOUS)])
@pytest.mark.parametrize("size", [1, 2, 7])
def test_it_is_refused_however_its_bytes_arrive(case: str, size: int) -> None:
    connection, data = StrictConnection(MAX_HEAD), MALFORMED[case]

    def receive() -> None:
        for start in range(0, len(data), size):
            connection.receive_data(data[start : start + size])
            assert connection.next_event() is h11.NEED_DATA

    with pytest.raises(h11.RemoteProtocolError):
        receive()


async def test_a_body_may_hold_any_line_ends_and_trailers_none_that_are_bare() -> None:
    async with listening() as server:
        head = (await key_of(server), JSON, b"Transfer-Encoding: chunked")
        body = b'{"text":\n "a"}\n\n'
        chunks = b"%x\r\n%s\r\n0\r\n" % (len(body), body)
        sent = request(b"POST /v1/notes/a", *head, body=chunks)
        assert (await send(server, sent + b"X: a\r\n\r\n")).split(b" ")[1] == b"200"
        assert (await send(server, sent + b"X: a\n\r\n")).split(b" ")[1] == b"400"


async def test_paths_with_tricks_lead_nowhere() -> None:
    tricks = [
        b"/v1/../livez/..",
        b"//livez",
        b"/livez/../v1/who",
        b"/%2e%2e/v1/who",
        b"/v1/who%00",
        b"/v1/who%0d%0aSet-Cookie:%20a=b",
        b"/v1%2fwho",
        b"/v1\\who",
        b"/livez;/v1/who",
        b"/LIVEZ",
        b"http://evil.example.com/v1/who",
        b"*",
    ]
    async with listening() as server:
        for path in tricks:
            answer = await send(server, request(b"GET " + path))
            head = answer.partition(b"\r\n\r\n")[0].lower()
            assert head.split(b" ")[1] in (b"400", b"401"), path
            assert b"set-cookie" not in head
        key = await key_of(server)
        for path in sorted({*tricks} - {b"/v1%2fwho"}):  # which may be /v1/who
            answer = await send(server, request(b"GET " + path, key))
            assert answer.split(b" ")[1] in (b"400", b"404"), path
        broken = await send(server, request(b"GET /v1/notes/%ff", key))
        assert b"invalid_path" in broken
        assert await serves(server)


async def test_what_a_client_sends_does_not_become_a_header() -> None:
    async with listening() as server:
        key = await key_of(server)
        evil = b"Keepthread-Owner: ann%0d%0aSet-Cookie: a=b"
        answer = await send(server, request(b"GET /v1/who", key, evil))
        head = answer.partition(b"\r\n\r\n")[0].lower()
        assert b"set-cookie" not in head
        split = b'{"text": "x"}\r\nX-Injected: yes'
        length = b"Content-Length: %d" % len(split)
        answer = await send(server, request(b"POST /v1/notes/a", key, JSON, length, body=split))
        assert b"x-injected" not in answer.lower()
        assert answer.split(b" ")[1] == b"400"


async def test_a_compressed_body_is_not_unpacked() -> None:
    bomb = gzip.compress(b" " * 50_000_000, 9)
    async with listening() as server:
        head = (await key_of(server), JSON, b"Content-Encoding: gzip")
        length = b"Content-Length: %d" % len(bomb)
        answer = await send(server, request(b"POST /v1/notes/a", *head, length, body=bomb))
        assert b"unsupported_encoding" in answer
        assert await serves(server)


async def test_a_second_request_does_not_hide_in_the_first() -> None:
    """Request smuggling: a length and chunks at once, of which one server reads each."""
    hidden = request(b"GET /v1/operator")
    async with listening() as server:
        key = await key_of(server)
        sent = request(
            b"POST /v1/notes/a",
            key,
            JSON,
            b"Content-Length: 4",
            b"Transfer-Encoding: chunked",
            body=b"0\r\n\r\n" + hidden,
        )
        answer = await send(server, sent)
        assert answer.count(b"HTTP/1.1 ") == 1
        assert b"operator" not in answer


async def test_slow_clients_are_given_up_while_others_are_served() -> None:
    settings = HttpSettings(deadline=0.3)
    async with listening(settings, {"head_seconds": 0.3}) as server:
        key = await key_of(server)
        begun = request(b"POST /v1/notes/a", key, JSON, b"Content-Length: 1000", body=b'{"te')
        refused = request(b"POST /v1/notes/a", b"Content-Length: 100000000", body=b"x")
        slow = [send(server, data) for data in (b"", b"GET /liv", begun, refused, b"GET / HT")]
        answers = asyncio.gather(*slow)
        assert await serves(server)
        silent, half, body, early, _ = await answers
        assert silent == half == b""  # closed without an answer
        assert b"request_timeout" in body
        assert early.split(b" ")[1] == b"401"


async def test_a_client_that_sends_a_byte_now_and_then_gains_no_time() -> None:
    async with listening(HttpSettings(deadline=0.3), {"head_seconds": 0.3}) as server:
        async with asyncio.timeout(PATIENCE), connected(server) as (reader, writer):
            writer.write(b"GET /livez HTTP/1.1\r\nX: ")
            closed = asyncio.create_task(reader.read())
            while not closed.done():
                writer.write(b"a")
                await asyncio.wait([closed], timeout=0.05)
        assert await serves(server)


async def test_a_client_that_goes_away_leaves_nothing_behind() -> None:
    async with listening() as server:
        key = await key_of(server)
        begun = request(b"POST /v1/notes/a", key, JSON, b"Content-Length: 1000", body=b'{"te')
        for _ in range(20):
            async with connected(server) as (_, writer):
                writer.write(begun)
                await writer.drain()
        assert await serves(server)
        assert server.gate.done == 0


@pytest.mark.parametrize("path", sorted(PUBLIC))
async def test_a_public_path_takes_no_body(path: str) -> None:
    begun = b"POST %s HTTP/1.1\r\n%s" % (path.encode(), HEAD)
    async with listening() as server:
        for more in (
            b"Content-Length: 4000000\r\n\r\n[",
            b"Transfer-Encoding: chunked\r\n\r\n1\r\n[",
        ):
            answer = await send(server, begun + JSON + b"\r\n" + more)  # it is closed, too
            assert answer.startswith(b"HTTP/1.1 413 ")


async def answer_on(server: Served, data: bytes) -> bytes:
    """Send on a new connection; return the head of the first response, and its body if short."""
    async with asyncio.timeout(PATIENCE), connected(server) as (reader, writer):
        writer.write(data)
        return await reader.read(4000)


FEW = {"max_connections": 8, "spare": 4, "body_seconds": PATIENCE, "head_seconds": PATIENCE}


async def test_a_full_server_answers_503_and_health_checks() -> None:
    async with listening(protocol=FEW) as server:
        key = await key_of(server)
        body = b'{"text": "wait"}'
        length = b"Content-Length: %d" % len(body)
        running = request(b"POST /v1/notes/a", key, JSON, length, body=body)
        opened = [await asyncio.open_connection(*address_of(server)) for _ in range(8)]
        async with asyncio.timeout(PATIENCE):
            for _, writer in opened:
                writer.write(running)
                await server.gate.entered.wait()
                server.gate.entered.clear()
        silent = [await asyncio.open_connection(*address_of(server)) for _ in range(20)]
        for _ in range(3):
            refused = await answer_on(server, request(b"GET /v1/who", key))
            assert refused.startswith(b"HTTP/1.1 503 ")
            assert b'"type": "overloaded"' in refused
            assert b"retry-after: 1" in refused.lower()
            for path in (b"/livez", b"/readyz"):
                assert (await answer_on(server, request(b"GET " + path))).split(b" ")[1] == b"200"
        server.gate.open.set()
        for reader, _ in opened:
            assert (await reader.read(4000)).split(b" ")[1] == b"200"
        assert await serves(server)
        for _, writer in (*opened, *silent):
            writer.close()


async def test_connections_that_proved_nothing_make_room_first() -> None:
    """Then those without a request, and then those whose body does not end."""
    async with listening(protocol={**FEW, "body_seconds": 0.0, "proof_seconds": 0.0}) as server:
        key = await key_of(server)
        idle = b"GET /v1/who HTTP/1.1\r\n" + HEAD + key + b"\r\n\r\n"
        begun = request(b"POST /v1/notes/a", key, JSON, b"Content-Length: 99", body=b"{")
        stream = request(b"GET /v1/stream", key)
        kinds = {"begun": begun, "idle": idle, "stream": stream, "silent": b"GET /"}
        opened: dict[str, list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]] = {}
        for name, data in kinds.items():
            opened[name] = [await asyncio.open_connection(*address_of(server)) for _ in range(2)]
            for reader, writer in opened[name]:
                writer.write(data)
                if name in ("idle", "stream"):
                    assert (await reader.read(4000)).startswith(b"HTTP/1.1 200 ")
        newer: list[asyncio.StreamWriter] = []
        for name in ("silent", "idle", "begun"):
            for reader, _ in opened[name]:
                new = await asyncio.open_connection(*address_of(server))
                newer.append(new[1])
                new[1].write(stream)
                assert (await new[0].read(4000)).startswith(b"HTTP/1.1 200 "), name
                with suppress(ConnectionResetError):
                    async with asyncio.timeout(PATIENCE):
                        assert await reader.read() == b"", name
        assert (await answer_on(server, stream)).startswith(b"HTTP/1.1 503 ")
        for _, writer in (each for kind in opened.values() for each in kind):
            writer.close()
        for writer in newer:
            writer.close()


async def test_silent_connections_do_not_keep_others_out() -> None:
    async with listening(protocol={"max_connections": 20}) as server:
        silent = [await asyncio.open_connection(*address_of(server)) for _ in range(200)]
        assert await serves(server)
        for _, writer in silent:
            writer.close()


async def test_connections_that_come_at_once_make_room_for_each_other() -> None:
    """The bound holds also for those that are taken before any is closed."""
    protocol = {"max_connections": 20, "head_seconds": 2 * PATIENCE}
    async with listening(protocol=protocol) as server:
        address = address_of(server)
        opened = await asyncio.gather(*(asyncio.open_connection(*address) for _ in range(200)))
        waiting = {asyncio.create_task(reader.read()) for reader, _ in opened}
        async with asyncio.timeout(PATIENCE):
            while len(waiting) > 20:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert await serves(server)
        for each in waiting:
            each.cancel()
        for _, writer in opened:
            writer.close()


async def test_many_requests_on_one_connection_are_answered_in_order() -> None:
    async with listening() as server:
        key = await key_of(server)
        one = b"GET /v1/who HTTP/1.1\r\n" + HEAD + key + b"\r\n\r\n"
        answer = await send(server, one * 50 + request(b"GET /livez"))
        assert answer.count(b"HTTP/1.1 200") == 51
        assert answer.endswith(b'{"status":"ok"}')


async def test_websockets_are_refused() -> None:
    upgrade = (b"Upgrade: websocket", b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
    async with listening() as server:
        answer = await send(
            server,
            b"GET /v1/who HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade, close\r\n"
            + b"\r\n".join(upgrade)
            + b"\r\nSec-WebSocket-Version: 13\r\n\r\n",
        )
        assert answer.split(b" ")[1] == b"401"
        assert await serves(server)


async def test_a_large_body_of_valid_json_is_one_request_among_others() -> None:
    body = json.dumps({"text": "a", "tags": ["x"] * 300_000}).encode()
    async with listening() as server:
        head = (await key_of(server), JSON, b"Content-Length: %d" % len(body))
        large = asyncio.create_task(send(server, request(b"POST /v1/notes/a", *head, body=body)))
        assert await serves(server)
        assert (await large).split(b" ")[1] == b"200"
