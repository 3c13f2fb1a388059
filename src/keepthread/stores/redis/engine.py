"""The connection to Redis: clients of the optional driver redis-py, scripts, errors and retries."""

import asyncio
import hashlib
import os
import pkgutil
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, cast
from urllib.parse import urlsplit, urlunsplit

from keepthread.errors import (
    Busy,
    Damaged,
    InvalidInput,
    KeepthreadError,
    ReadOnly,
    StorageFull,
    StoreClosed,
    Unavailable,
)
from keepthread.event_loops import PerLoop

try:
    import redis.asyncio as driver
    from redis import exceptions
    from redis.asyncio.cluster import ClusterNode, PipelineCommand, RedisCluster
    from redis.asyncio.retry import Retry
    from redis.backoff import NoBackoff
except ImportError:  # pragma: no cover - tried by hand, in an environment without it
    raise Unavailable("the Redis store needs redis-py: pip install 'keepthread[redis]'") from None

__all__ = [
    "Client",
    "PipelineCommand",
    "RedisCluster",
    "close_client",
    "drop_idle",
    "exceptions",
    "make_client",
]

Client = Any
"""A client of a server or of a cluster; redis-py does not declare the types of replies."""

_SCHEMES: Final = ("redis", "rediss", "redis+cluster", "rediss+cluster")
_CLUSTER: Final = "+cluster"
_PORT: Final = 6379


def make_client(url: str, *, connect: float, answer: float, connections: int) -> Client:
    """Return a client that is not connected yet; it does not retry, because we do."""
    parts = urlsplit(url)
    if parts.scheme not in _SCHEMES or not parts.hostname:
        known = ", ".join(f"{scheme}://HOST:PORT" for scheme in _SCHEMES)
        raise InvalidInput(f"a Redis URL must have one of the forms {known}")
    options: dict[str, Any] = {
        "socket_connect_timeout": connect,
        "socket_timeout": answer,
        "max_connections": connections,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }
    try:
        if not parts.scheme.endswith(_CLUSTER):
            return cast(Any, driver.Redis).from_url(url, **options)
        first, *others = parts.netloc.rpartition("@")[2].split(",")
        nodes = [_node(host) for host in others]
        user, at, _ = parts.netloc.rpartition("@")
        plain = (parts.scheme.removesuffix(_CLUSTER), user + at + first, *parts[2:])
        if nodes:
            options["startup_nodes"] = nodes
        return RedisCluster.from_url(urlunsplit(plain), **options)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"the Redis URL is invalid: {error}") from error


async def close_client(client: Client) -> None:
    """Close every connection."""
    await client.aclose()
    if isinstance(client, RedisCluster):  # it considers itself closed once a node was lost
        await client.nodes_manager.aclose()
        await client.nodes_manager.aclose("startup_nodes")


async def drop_idle(client: Client) -> None:
    """Close idle connections; a cluster's client looks for its nodes again automatically."""
    if not isinstance(client, RedisCluster):
        await client.connection_pool.disconnect(inuse_connections=False)


def _node(host: str) -> ClusterNode:
    name, _, port = host.rpartition(":")
    return ClusterNode(name or port, int(port) if name else _PORT)


class PeriodOver(Unavailable):
    """The period that was announced for a change is over; only used inside this store."""

    def __init__(self, message: str, period: int = 0) -> None:
        """Keep the earliest period that may be announced."""
        super().__init__(message)
        self.period = period


_BY_CODE: Final = {
    "OOM": (StorageFull, "the server's memory is full"),
    "READONLY": (ReadOnly, "this server is a replica"),
    "MISCONF": (ReadOnly, "the server cannot save to its disk and refuses to write"),
    "NOREPLICAS": (Unavailable, "too few replicas are connected"),
    "LOADING": (Unavailable, "the server is loading its data"),
    "CLUSTERDOWN": (Unavailable, "the cluster is down"),
    "MASTERDOWN": (Unavailable, "the primary is down"),
    "TRYAGAIN": (Unavailable, "the cluster is moving these keys"),
    "UNKILLABLE": (Busy, "the server is busy with a script"),
    "BUSY": (Busy, "the server is busy with a script"),
    "NOAUTH": (Unavailable, "the server requires a password"),
    "WRONGPASS": (Unavailable, "the server rejects this user name and password"),
    "NOPERM": (Unavailable, "the server does not permit this"),
    "WRONGTYPE": (Damaged, "a key holds data of another program"),
}


class TooFewReplicas(exceptions.RedisError):
    """Fewer replicas than required have the write; the write remains."""


_PASSING_CODES: Final = frozenset(("LOADING", "CLUSTERDOWN", "MASTERDOWN", "TRYAGAIN", "BUSY"))
_LASTING: Final = (exceptions.AuthenticationError, exceptions.AuthorizationError)
_LOST: Final = (
    exceptions.ConnectionError,
    exceptions.TimeoutError,
    exceptions.RedisClusterException,
    exceptions.ClusterError,
    TooFewReplicas,
    OSError,
)

KNOWN: Final = (exceptions.RedisError, exceptions.RedisClusterException, OSError, AttributeError)
"""The errors that a client raises; an `AttributeError` only in one case."""
_CLOSED_WRITER: Final = ("writelines", "drain")


def closed_while_sending(error: Exception) -> bool:
    """Return whether another task closed the connection just before this one sent.

    A cluster's client closes all its connections once a node is lost. redis-py then has no writer
    any more, and does not notice.
    """
    return isinstance(error, AttributeError) and error.obj is None and error.name in _CLOSED_WRITER


def passes(error: Exception) -> bool:
    """Return whether a retry may succeed."""
    if isinstance(error, _LASTING):
        return False
    return isinstance(error, _LOST) or closed_while_sending(error) or _code(error) in _PASSING_CODES


def translate(error: Exception) -> KeepthreadError:
    """Return our error for one of the driver's; the text includes the driver's."""
    if _code(error) == "MISCONF" and "No space" in str(error):
        return StorageFull(f"the server's disk is full ({error})")
    if _code(error) == "LATE":
        return PeriodOver("the period is over", int(str(error).split()[-1]))
    kind, meaning = _BY_CODE.get(_code(error), (None, ""))
    if kind:
        return kind(f"Redis: {meaning} ({error})")
    if isinstance(error, _LASTING):
        return Unavailable(f"Redis: the server rejects this user name and password ({error})")
    if isinstance(error, TooFewReplicas):
        return Unavailable(f"Redis: written, but {error}; a retry does not store it twice")
    if isinstance(error, _LOST) or closed_while_sending(error):
        return Unavailable(f"Redis cannot be reached ({error})")
    return Damaged(f"Redis: a script found corrupted data ({error})")


def _code(error: Exception) -> str:
    """Return the first word of a server's error; redis-py removes some of them."""
    for kind, code in _BY_KIND.items():
        if isinstance(error, kind):
            return code
    return str(error).partition(" ")[0]


_BY_KIND: Final = {
    exceptions.OutOfMemoryError: "OOM",
    exceptions.ReadOnlyError: "READONLY",
    exceptions.BusyLoadingError: "LOADING",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.NoPermissionError: "NOPERM",
}


class Script(NamedTuple):
    """A script, and the hash by which a server that has loaded it knows it."""

    text: bytes
    sha: str
    writes: bool


def _read(name: str) -> bytes:
    data = pkgutil.get_data(__package__ or "", f"lua/{name}.lua")
    if data is None:  # pragma: no cover - only loaders without files answer None
        raise FileNotFoundError(name)
    return data


def _script(text: bytes, *, writes: bool) -> Script:
    return Script(text, hashlib.sha1(text, usedforsecurity=False).hexdigest(), writes)


_READING: Final = ("gather", "get", "look", "read", "records", "scan", "tail", "updates")
_WRITING: Final = ("mend", "recount", "settle", "stage")
_CHANGING: Final = ("append", "create", "delete", "drop", "erase", "extend", "put", "update")
_INDEXING: Final = (
    *("announce", "changed", "clear", "enroll", "enter", "feed", "list", "register"),
    *("strike", "sweep", "unlink", "withdraw"),
)
_SERVING: Final = (
    *("audit", "audit_prune", "key_add", "key_drop", "key_replace", "secret"),
    *("request_abandon", "request_begin", "request_end", "request_purge", "request_renew"),
)
_COMMON: Final = _read("common")
_CHANGES: Final = _COMMON + _read("changes")

LUA: Final = (
    {name: _script(_COMMON + _read(name), writes=False) for name in _READING}
    | {name: _script(_COMMON + _read(name), writes=True) for name in _WRITING}
    | {name: _script(_CHANGES + _read(name), writes=True) for name in _CHANGING}
    | {name: _script(_read(f"index/{name}"), writes=True) for name in _INDEXING}
    | {name: _script(_read(f"index/{name}"), writes=False) for name in ("due", "entries")}
    | {name: _script(_read(f"server/{name}"), writes=True) for name in _SERVING}
)


_FIRST_KEY = 3


async def run_and_wait(client: Client, command: Any, replicas: int, seconds: float) -> Any:
    """Run a script and return its answer once `replicas` replicas have its writes."""
    key: str = command[_FIRST_KEY]
    commands = (
        command,
        ("SET", f"{key}:written", "", "PX", 1),
        ("WAIT", replicas, max(1, round(seconds * 1000))),
    )
    if isinstance(client, RedisCluster):
        reply, written, reached = await _on_its_node(client, key, commands)
    else:
        pipeline = client.pipeline(transaction=False)
        for one in commands:
            pipeline.execute_command(*one)
        reply, written, reached = await pipeline.execute(raise_on_error=False)
    for answer in (reply, written, reached):
        if isinstance(answer, Exception):
            raise answer
    if reached < replicas:
        raise TooFewReplicas(f"only {reached} of {replicas} replicas confirmed it")
    return reply


async def _on_its_node(client: Any, key: str, commands: Any) -> list[Any]:
    """Run commands on one connection to the node that has a key."""
    await client.initialize()
    node = client.get_node_from_key(key)
    if node is None:
        raise exceptions.ClusterDownError("no node has this key")
    sent = [PipelineCommand(number, *command) for number, command in enumerate(commands)]
    try:
        await node.execute_pipeline(sent)
    except exceptions.ConnectionError:
        await client.aclose()  # it looks for the nodes again when it is used
        raise
    first = sent[0].result
    if isinstance(first, exceptions.AskError):  # the key has moved, or is moving
        await client.execute_command(*commands[0])  # this makes the client learn the new node
        raise exceptions.TryAgainError("the key has moved")
    if isinstance(first, exceptions.ConnectionError):
        await client.aclose()
    return [one.result for one in sent]


Argument: TypeAlias = str | bytes | int

_FIRST_PAUSE: Final = 0.01
_LONGEST_PAUSE: Final = 0.5
_MOST_TOGETHER: Final = 500  # commands in one round trip, so that others are served in between
_MAX_REPLICAS: Final = 3  # found in place of a primary before we give up


class Timeouts(NamedTuple):
    """Timeouts in seconds: to connect, for one answer, and for all retries."""

    connect: float = 2.0
    answer: float = 5.0
    again: float = 10.0


DEFAULT_TIMEOUTS: Final = Timeouts()


class _Line(NamedTuple):
    """The client of one event loop, and its free connections."""

    client: Client
    room: asyncio.Semaphore

    async def close(self) -> None:
        await close_client(self.client)


class RedisLink:
    """A client for each event loop, shared by every tenant of a store."""

    def __init__(
        self,
        make: Callable[[], Client],
        *,
        timeouts: Timeouts,
        connections: int,
        replicas: int = 0,
    ) -> None:
        """Create clients on first use; a write is acknowledged once `replicas` replicas have it."""
        self.replicas = replicas
        self._timeouts = timeouts
        self._lines = PerLoop(
            lambda: _Line(make(), asyncio.Semaphore(connections)), lambda line: line.close()
        )
        self._pid = os.getpid()
        self._closed = False

    @property
    def client(self) -> Client:
        """Return the client of the running loop."""
        return self._lines.current().client

    async def run(
        self,
        script: Script,
        keys: Sequence[str],
        args: Sequence[Argument],
        *,
        again: Sequence[Argument] | None = None,
    ) -> Any:
        """Run a script that only reads or may be repeated; `again` are the arguments of a retry."""
        send = self._send_and_wait if self.replicas and script.writes else self._send
        now = args

        async def attempt() -> Any:
            nonlocal now
            given, now = now, args if again is None else again
            try:
                return await send("EVALSHA", script.sha, len(keys), *keys, *given)
            except exceptions.NoScriptError:  # the server was restarted, or is a new one
                return await send("EVAL", script.text, len(keys), *keys, *given)

        return await self.insist(attempt)

    async def ask(self, *command: Argument) -> Any:
        """Run a command that only reads."""
        return await self.insist(lambda: self._send(*command))

    async def ask_together(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Run commands that only read: on one server in one round trip, in a cluster concurrently.

        A cluster's client finds the node of each command, and a node that took over.
        """
        if isinstance(self.client, RedisCluster):
            return await asyncio.gather(*(self.ask(*command) for command in commands))
        answers: list[Any] = []
        for start in range(0, len(commands), _MOST_TOGETHER):
            part = commands[start : start + _MOST_TOGETHER]
            answers += await self.insist(partial(self._send_together, part))
        return answers

    async def close(self) -> None:
        """Close every connection."""
        if not self._closed and os.getpid() == self._pid:
            self._closed = True
            await self._lines.close()

    async def _send(self, *command: Argument) -> Any:
        return await self.client.execute_command(*command)

    async def _send_together(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        pipeline = self.client.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        answers: list[Any] = await pipeline.execute(raise_on_error=False)
        for answer in answers:
            if isinstance(answer, Exception):
                raise answer
        return answers

    async def _send_and_wait(self, *command: Argument) -> Any:
        # Shorter than the connection's timeout, so that the server reports it.
        seconds = self._timeouts.answer / 2
        return await run_and_wait(self.client, command, self.replicas, seconds)

    async def insist(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        """Retry until it succeeds, fails permanently, or the time is up."""
        self._check()
        deadline = asyncio.get_running_loop().time() + self._timeouts.again
        room = self._lines.current().room
        await self._enter(room, deadline)
        try:
            return await self._attempt(attempt, deadline)
        finally:
            room.release()

    async def _enter(self, room: asyncio.Semaphore, deadline: float) -> None:
        """Wait for a free connection."""
        if not room.locked():
            await room.acquire()
            return
        try:
            async with asyncio.timeout_at(deadline):
                await room.acquire()
        except TimeoutError:
            raise Busy("no connection to Redis became available in time") from None

    async def _attempt(self, attempt: Callable[[], Awaitable[Any]], deadline: float) -> Any:
        clock = asyncio.get_running_loop().time
        pause = _FIRST_PAUSE
        replicas_met = 0
        while True:
            self._check()
            try:
                return await attempt()
            except exceptions.ReadOnlyError as error:
                # The connection's server is a replica now; a new connection may find the primary.
                replicas_met += 1
                if replicas_met > _MAX_REPLICAS:
                    raise translate(error) from error
                await drop_idle(self.client)
            except KNOWN as error:
                if isinstance(error, AttributeError) and not closed_while_sending(error):
                    raise
                if not passes(error) or clock() + pause > deadline:
                    raise translate(error) from error
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _check(self) -> None:
        if self._closed:
            raise StoreClosed("the store is closed; open it again")
        if os.getpid() != self._pid:
            raise StoreClosed("the store was opened before a fork; open it again in each process")
