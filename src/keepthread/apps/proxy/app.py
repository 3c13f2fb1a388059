"""The proxy as an ASGI application: it asks the memory, relays, and has answers recorded."""

import asyncio
import re
import traceback
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol
from urllib.parse import quote, unquote

from keepthread.apps.proxy.errors import ClientLeft, ProxyError, send_error
from keepthread.apps.proxy.identity import is_off
from keepthread.apps.proxy.leaks import check_for_keys
from keepthread.apps.proxy.relay import (
    HeaderList,
    UpstreamClient,
    UpstreamCut,
    body_parts,
    client_headers,
    read_body,
    relay_body,
    upstream_headers,
    while_connected,
)
from keepthread.apps.proxy.routes import Destination, check_query, destination, provider_of
from keepthread.apps.proxy.settings import MIB, ProxySettings
from keepthread.apps.proxy.tee import LOG, AnswerTee
from keepthread.apps.proxy.types import (
    AnswerReader,
    MemoryOfProxy,
    Prepared,
    ProviderAnswer,
    ReadRequest,
    WireName,
)

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

SESSION: Final = "keepthread-session"
MODE: Final = "keepthread-mode"
TOKENS_ADDED: Final = "keepthread-tokens-added"
WHY: Final = "keepthread-why"
MEMORY: Final = "keepthread-memory"

_AT_ONCE: Final = 4
"""Requests of a credential that ask the memory at the same time.

If as many are late, its others are relayed without it at once.
"""
_MAX_LATE: Final = 64 * MIB
"""Bytes of requests of a credential that a late memory may still record; others are not."""
_MAX_LATE_OF_ALL: Final = 256 * MIB
_SESSION_IN_PATH: Final = re.compile(r"/s/([^/]+)(/.*)?")
_LARGE: Final = 32 * 1024
"""Bytes of a request that is read in a thread, so that others continue."""
_SUCCESS: Final = range(200, 300)
_JSON_ENCODING: Final = frozenset({b"content-encoding"})


class ReadsRequest(Protocol):
    """Reads a request; None if it is to be relayed as it is."""

    def __call__(
        self, wire: WireName, body: bytes, headers: Mapping[str, str], addition_key: bytes, /
    ) -> ReadRequest | None:
        """Return the request as far as it is understood, without additions signed with a key."""
        ...


class Splices(Protocol):
    """Adds texts to the JSON of a request."""

    def __call__(
        self, request: ReadRequest, additions: Mapping[str, str], history: str | None = None
    ) -> bytes:
        """Return the body that goes upstream."""
        ...


@dataclass(frozen=True)
class Wires:
    """Functions that read and write the texts of the APIs."""

    read: ReadsRequest
    splice: Splices
    reader: Callable[[WireName, bool], AnswerReader]
    decoded: Callable[[bytes, str], bytes | None]


class ClientRequest(NamedTuple):
    """A request after its credential was taken out of it."""

    method: str
    path: str
    query: str
    raw_headers: HeaderList
    headers: Mapping[str, str]
    """By names in lower case."""
    secret: str = ""
    """The credential, which must not go upstream."""


class Decided(NamedTuple):
    """The decision about a request: the text that is added, and whether it is recorded."""

    prepared: Prepared
    request: ReadRequest | None = None
    late: "asyncio.Task[Prepared] | None" = None
    """The memory's decision, which came too late to add anything."""


class _Queue:
    """The requests of one credential that use the memory: they wait for each other only."""

    def __init__(self) -> None:
        self.requests = 0
        self.reading = asyncio.Semaphore(1)
        self.asking = asyncio.Semaphore(_AT_ONCE)
        self.late: list[int] = []


class Proxy:
    """Relays requests of any client; the credential determines the memory."""

    def __init__(self, settings: ProxySettings, wires: Wires) -> None:
        """Initialize without opening connections."""
        self._settings = settings
        self._wires = wires
        self._upstream = UpstreamClient(settings)
        self._queues: dict[str, _Queue] = {}
        """By credential, while it has requests."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._running: set[asyncio.Event] = set()

    async def idle(self) -> None:
        """Wait until no request runs, and all answers are recorded."""
        while self._running or self._tasks:
            for each in [*self._running]:
                await each.wait()
            if self._tasks:
                await asyncio.wait({*self._tasks})

    async def close(self) -> None:
        """Wait until answers are recorded, up to the configured time, then close connections."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.drain)
        if self._tasks:
            LOG.error("%d answers may not be recorded: the memory is too slow", len(self._tasks))
        for task in self._tasks:
            task.cancel()
        await self._upstream.close()

    async def serve(
        self,
        request: ClientRequest,
        memory: MemoryOfProxy | None,
        receive: "Receive",
        send: "Send",
    ) -> None:
        """Relay one request; without a `memory`, as it is."""
        running, answered = asyncio.Event(), False
        self._running.add(running)

        async def noting(message: Any) -> None:
            nonlocal answered
            answered = True
            await send(message)

        try:
            check_query(request.query)
            line = (request.method, request.path, request.query, request.headers.get(SESSION, ""))
            check_for_keys(line, request.raw_headers, request.secret)
            where = destination(request.method, request.path, request.headers, self._settings)
            _check_upgrade(request.headers)
            if memory is None or where.wire is None:
                await self._pass(request, where, receive, noting)
            else:
                await self._remember(request, where, where.wire, memory, receive, noting)
        except ProxyError as error:
            await send_error(send, provider_of(request.path, request.headers), error)
        except (ClientLeft, UpstreamCut):
            pass  # the server closes a connection whose response is not complete
        except Exception as error:  # noqa: BLE001 - of this request only
            LOG.error("a request failed: %s", _place(error))
            if not answered:
                await send_error(send, provider_of(request.path, request.headers), _FAILED)
        finally:
            self._running.discard(running)
            running.set()

    async def _pass(
        self, request: ClientRequest, where: Destination, receive: "Receive", send: "Send"
    ) -> None:
        """Relay a request that has nothing to do with memory, while its body arrives."""
        headers = upstream_headers(request.raw_headers, secret=request.secret)
        complete = asyncio.Event()
        parts = _until_complete(body_parts(receive, self._settings.max_body), complete)
        has_body = "content-length" in request.headers or "transfer-encoding" in request.headers
        if not has_body:
            complete.set()

        async def work() -> None:
            async with self._upstream.response(
                request.method, where.url, request.query, headers, parts if has_body else b""
            ) as response:
                await send(_start(response.status_code, client_headers(response)))
                await relay_body(response, send, AnswerTee(None, ""))

        await while_connected(_after(complete, receive), asyncio.create_task(work()))

    async def _remember(
        self,
        request: ClientRequest,
        where: Destination,
        wire: WireName,
        memory: MemoryOfProxy,
        receive: "Receive",
        send: "Send",
    ) -> None:
        """Relay a request of a conversation, with what the memory adds to it."""
        body = await read_body(receive, self._settings.max_body)
        with self._queue(request.secret) as queue:
            decided = await self._decide(request, wire, body, memory, queue, records=where.records)
        prepared = decided.prepared
        if prepared.state == "unavailable" and self._settings.strict:
            raise _unavailable()
        exchange = _Exchange(AnswerTee(None, ""))

        async def work() -> None:
            sent, without = body, frozenset[bytes]()
            if decided.request and (prepared.additions or prepared.history is not None):
                sent = self._wires.splice(decided.request, prepared.additions, prepared.history)
                without = _JSON_ENCODING  # a body with an addition is sent uncompressed
            headers = upstream_headers(
                request.raw_headers, secret=request.secret, without=without, length=len(sent)
            )
            async with self._upstream.response(
                request.method, where.url, request.query, headers, sent
            ) as response:
                exchange.tee = self._tee(decided, wire, response) if where.records else exchange.tee
                shown = [*client_headers(response), *_memory_headers(prepared)]
                await send(_start(response.status_code, shown))
                await relay_body(response, send, exchange.tee)

        try:
            await while_connected(receive, asyncio.create_task(work()))
        finally:
            if where.records and decided.request is not None:
                self._spawn(_record(memory, decided, exchange.tee.finish()))

    def _tee(self, decided: Decided, wire: WireName, response: Any) -> AnswerTee:
        if decided.request is None or response.status_code not in _SUCCESS:
            return AnswerTee(None, "")
        kind = response.headers.get("content-type", "")
        streams = kind.startswith("text/event-stream")
        reader = self._wires.reader(wire, streams)
        return AnswerTee(reader, response.headers.get("content-encoding", ""))

    # --- the memory, within its time ---

    async def _decide(
        self,
        request: ClientRequest,
        wire: WireName,
        body: bytes,
        memory: MemoryOfProxy,
        queue: _Queue,
        *,
        records: bool,
    ) -> Decided:
        """Ask the memory what to add; if it fails or is late, nothing is."""
        if is_off(request.headers):
            return Decided(_OFF)
        key = await self._addition_key(memory)
        if key is None:
            return Decided(_UNAVAILABLE)
        read = await self._read(request, wire, body, key, queue)
        if read is None:
            return Decided(_not_recorded("the request has an unknown form"))
        if read.mode == "off":
            return Decided(_OFF)
        is_late = len(queue.late) >= _AT_ONCE
        late_of_all = sum(size for each in self._queues.values() for size in each.late)
        if is_late and (sum(queue.late) > _MAX_LATE or late_of_all > _MAX_LATE_OF_ALL):
            return Decided(_UNAVAILABLE)
        patience = 0 if is_late else self._settings.memory_deadline
        asking = asyncio.create_task(self._ask(memory, read, queue, records, patience))
        done, _ = await asyncio.wait((asking,), timeout=patience)
        if not done:
            self._wait_for(asking, len(read.text), request.secret)
            LOG.warning("the memory timed out: a request is relayed without it")
            return Decided(_UNAVAILABLE, read, asking)
        if error := asking.exception():
            LOG.warning("the memory failed: %s; a request is relayed without it", _kind(error))
            return Decided(_UNAVAILABLE)
        return Decided(asking.result(), read)

    async def _addition_key(self, memory: MemoryOfProxy) -> bytes | None:
        """Return what signs additions; None if the memory fails or is late."""
        loading = asyncio.create_task(memory.addition_key())
        done, _ = await asyncio.wait((loading,), timeout=self._settings.memory_deadline)
        if not done:
            self._keep(loading)
            LOG.warning("the memory timed out: a request is relayed without it")
            return None
        if error := loading.exception():
            LOG.warning("the memory failed: %s; a request is relayed without it", _kind(error))
            return None
        return loading.result()

    async def _read(
        self, request: ClientRequest, wire: WireName, body: bytes, key: bytes, queue: _Queue
    ) -> ReadRequest | None:
        """Return what a request says; None if it cannot be read: then it is relayed as it is."""
        encoding = request.headers.get("content-encoding", "")

        def read() -> ReadRequest | None:
            plain = self._wires.decoded(body, encoding)
            return plain if plain is None else self._wires.read(wire, plain, request.headers, key)

        try:
            if len(body) < _LARGE and not encoding:
                return read()
            async with queue.reading:  # in threads, so that others continue
                return await asyncio.to_thread(read)
        except ProxyError:
            raise
        except Exception as error:  # noqa: BLE001 - the request is relayed as it is
            LOG.error("a request cannot be read: %s", _place(error))
            return None

    async def _ask(
        self,
        memory: MemoryOfProxy,
        request: ReadRequest,
        queue: _Queue,
        records: bool,
        patience: float,
    ) -> Prepared:
        """Ask the memory; a request that was relayed before its turn came is only recorded."""
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        async with queue.asking:
            if loop.time() >= until:
                request = replace(request, ends_with_user=False, is_late=True)
            return await memory.prepare(request, records=records)

    @contextmanager
    def _queue(self, credential: str) -> Generator[_Queue]:
        """Yield the queue of a credential; it is dropped when nothing uses it."""
        queue = self._queues.setdefault(credential, _Queue())
        queue.requests += 1
        try:
            yield queue
        finally:
            self._leave(queue, credential)

    def _leave(self, queue: _Queue, credential: str) -> None:
        queue.requests -= 1
        if not queue.requests:
            del self._queues[credential]

    def _wait_for(self, asking: "asyncio.Task[Prepared]", size: int, credential: str) -> None:
        """Let a late memory operation finish, so that it can still record."""
        queue = self._queues[credential]
        queue.requests += 1
        queue.late.append(size)

        def end(_: object) -> None:
            queue.late.remove(size)
            self._leave(queue, credential)

        self._keep(asking)
        asking.add_done_callback(end)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._keep(asyncio.create_task(work))

    def _keep(self, task: "asyncio.Task[Any]") -> None:
        """Let work outlive its request; `close` waits for it."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            LOG.warning("the memory failed: %s", _kind(error))


@dataclass
class _Exchange:
    tee: AnswerTee


_UNAVAILABLE: Final = Prepared(mode="off", state="unavailable", reason="memory unavailable")


_OFF: Final = Prepared(mode="off", state="not-recorded", reason="off")


def _not_recorded(reason: str) -> Prepared:
    return Prepared(mode="off", state="not-recorded", reason=reason)


async def _record(memory: MemoryOfProxy, decided: Decided, answer: ProviderAnswer | None) -> None:
    prepared = decided.prepared
    if decided.late is not None:
        made = await decided.late
        prepared = replace(made, state="unavailable", additions={}, history=None)
    await memory.record(prepared, answer)


def _unavailable() -> ProxyError:
    return ProxyError(
        503,
        "memory_unavailable",
        "the memory is unavailable, and --strict does not relay requests without it; retry later.",
        headers={"Retry-After": "1", MEMORY: "unavailable"},
    )


_FAILED: Final = ProxyError(500, "internal_error", "the proxy failed; its log has details.")


def _place(error: BaseException) -> str:
    """Return the kind of an error and the line it came from, without its text."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{_kind(error)}{where}"


def _kind(error: BaseException) -> str:
    return type(error).__name__  # its text may hold what a person wrote


# --- heads of requests and responses ---


def client_request(scope: "Scope", path: str, *, secret: str = "") -> ClientRequest:
    """Return a request, given the path below the credential.

    A path that begins with `/s/NAME` names the session, as the header `Keepthread-Session` does.
    """
    raw: HeaderList = [(name.lower(), value) for name, value in scope["headers"]]
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in raw}
    if found := _SESSION_IN_PATH.fullmatch(path):
        path = found[2] or "/"
        headers.setdefault(SESSION, unquote(found[1]))
    query = scope.get("query_string", b"").decode("latin-1")
    return ClientRequest(scope["method"], path, query, raw, headers, secret)


def _check_upgrade(headers: Mapping[str, str]) -> None:
    if "upgrade" in headers and "upgrade" in headers.get("connection", "").lower():
        raise ProxyError(
            426, "no_websockets", "WebSockets are not supported; use HTTP with streaming."
        )


def _start(status: int, headers: HeaderList) -> dict[str, Any]:
    return {"type": "http.response.start", "status": status, "headers": headers}


def _memory_headers(prepared: Prepared) -> HeaderList:
    state = prepared.state
    if prepared.reason and state != "unavailable":
        state = f'{state}; reason="{quote(prepared.reason, safe=_PRINTABLE)}"'
    found = {MODE: prepared.mode, MEMORY: state, TOKENS_ADDED: str(prepared.tokens_added)}
    if prepared.session is not None:
        found[SESSION] = quote(prepared.session, safe=_PRINTABLE)
    if prepared.why is not None:
        found[WHY] = quote(prepared.why, safe=_PRINTABLE)
    return [(name.encode(), value.encode()) for name, value in found.items()]


_PRINTABLE: Final = " !#$&'()*+,-./:;<=>?@[]^_`{|}~"


# --- a body that arrives while it is relayed ---


async def _until_complete(
    parts: AsyncIterator[bytes], complete: asyncio.Event
) -> AsyncIterator[bytes]:
    async for part in parts:
        yield part
    complete.set()


def _after(complete: asyncio.Event, receive: "Receive") -> "Receive":
    """Return `receive` for waiting until the client leaves: not before its body was read."""

    async def receive_after() -> Any:
        await complete.wait()
        return await receive()

    return receive_after
