"""A server for tests: the whole application over a real store, with keys of several people."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI
from jsonschema import Draft202012Validator

from keepthread import Memory, Message
from keepthread.apps.http.app import create_app
from keepthread.apps.http.caller import Caller
from keepthread.apps.http.keys import KeyRights, create_key
from keepthread.apps.http.settings import HttpSettings
from keepthread.models.tokens import Estimator
from keepthread.protocols.server import ServerTables

ALL = frozenset({"read", "write", "forget", "admin"})
SETTINGS = HttpSettings(rate=0, deadline=300.0)
"""A slow machine is not a mistake of the server; tests of deadlines have settings of their own."""


@dataclass
class HttpWorld:
    """An application in this process, and clients that call it without a network."""

    memory: Memory
    tables: ServerTables
    app: FastAPI
    clients: list[httpx2.AsyncClient] = field(default_factory=list)
    keys: int = 0
    """How many keys were made."""

    async def key(
        self,
        owner: str | None = "ann",
        scopes: frozenset[str] = ALL,
        *,
        tenant: str = "default",
        expires_at: float | None = None,
        at: float | None = None,
    ) -> str:
        """Return the text of a new key, made some seconds after the last: ids sort by time."""
        self.keys += 1
        at = 10.0 * self.keys if at is None else at
        rights = KeyRights(tenant, scopes, "a test", owner, expires_at)
        return (await create_key(self.tables, rights, by="test", at=at)).text

    def client(self, key: str | None, **headers: str) -> httpx2.AsyncClient:
        """Return a client that sends a key."""
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        made = httpx2.AsyncClient(
            transport=httpx2.ASGITransport(self.app),
            base_url="http://localhost/v1",
            headers=headers,
        )
        self.clients.append(made)
        return made

    def caller(self, owner: str) -> Caller:
        """Return the caller that handlers get."""
        state = self.app.state.keepthread
        memory = self.memory.for_owner(owner)
        return Caller(memory, "default", owner, "test", ALL, cursor_key=state.cursor_key)

    async def of(self, owner: str, **more: Any) -> httpx2.AsyncClient:
        """Return a client of an owner."""
        return self.client(await self.key(owner, **more))


async def furnished(world: HttpWorld, owner: str, name: str, words: str) -> dict[str, str]:
    """Give an owner one of each thing; return their ids by the names of parameters."""
    memory = world.memory.for_owner(owner)
    ids = {"session": name, "message": f"{name}-message", "turn": f"{name}-turn"}
    session = await memory.session(ids["session"], title=words, tags=[words] if words else [])
    await session.append(Message(role="user", content=f"I keep {words}.", id=ids["message"]))
    await session.turn(f"{words}?", id=ids["turn"]).__aenter__()
    await session.pin(ids["message"])
    fact = await memory.facts.remember(f"Has {words}.")
    blob = await memory.blobs.put(f"bytes {words}".encode())
    key = await world.key(owner, frozenset({"read"}))
    return {**ids, "fact": fact.key, "digest": blob.digest, "key": key.split("_")[1]}


@asynccontextmanager
async def http_world(url: str) -> AsyncIterator[HttpWorld]:
    """Open a store and an application over it."""
    async with Memory.open(url, counter=Estimator(), keep_why=20) as memory:
        tables = memory.store.server_tables()
        world = HttpWorld(memory, tables, create_app(memory, tables, SETTINGS))
        try:
            yield world
        finally:
            for client in world.clients:
                await client.aclose()


class Served:
    """A store that uvicorn serves in a thread."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self._ready.wait()

    @property
    def address(self) -> str:
        """Return where it listens."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def key(self, owner: str | None = "ann", **more: Any) -> str:
        """Return the text of a new key."""
        making = self.world.key(owner, **more)
        return asyncio.run_coroutine_threadsafe(making, self._loop).result()

    def client(self, owner: str, **more: Any) -> httpx2.Client:
        """Return a client of an owner."""
        headers = {"Authorization": f"Bearer {self.key(owner, **more)}"}
        return httpx2.Client(base_url=f"{self.address}/v1", headers=headers, timeout=60)

    def settle(self) -> None:
        """Wait for the work of the memory in the background."""
        asyncio.run_coroutine_threadsafe(self.world.memory.idle(), self._loop).result()

    def furnish(self, owner: str) -> dict[str, str]:
        """Give an owner one of each thing; return their ids by the names of parameters."""
        made = furnished(self.world, owner, "trip", "")
        return asyncio.run_coroutine_threadsafe(made, self._loop).result()

    def stop(self) -> None:
        """Stop as `keepthread serve` does: event streams end, then the server."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.world.app.state.keepthread.stopping.set)
            self._server.should_exit = True
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        async with http_world(self._url) as self.world:
            config = uvicorn.Config(self.world.app, log_level="critical", lifespan="off")
            self._server = uvicorn.Server(config)
            self._ready.set()
            await self._server.serve(sockets=[self._listener])


@contextmanager
def listening(url: str) -> Iterator[Served]:
    """Serve a store until the block ends."""
    served = Served(url)
    try:
        yield served
    finally:
        served.stop()


# --- requests made from the OpenAPI document ---


@dataclass(frozen=True)
class Operation:
    """One operation of the document."""

    id: str
    method: str
    path: str
    scope: str
    spec: Mapping[str, Any]
    document: Mapping[str, Any]

    def parameters(self, place: str) -> list[str]:
        """Return the names of the parameters in a path, a query or the headers."""
        return [each["name"] for each in self.spec.get("parameters", ()) if each["in"] == place]

    def body(self, values: Mapping[str, Any], *, full: bool = False) -> Any:
        """Return a body: fields that are required or have examples, or all; None without one."""
        content = self.spec.get("requestBody", {}).get("content", {})
        if "application/json" not in content:
            return b"some bytes" if content else None
        return self._value(content["application/json"]["schema"], "", values, full)

    def check(self, response: httpx2.Response) -> None:
        """Check that a response is one that the document declares."""
        declared = self.spec["responses"][str(response.status_code)].get("content", {})
        assert bool(declared) == bool(response.content), self.id
        for media_type, content in declared.items():
            assert response.headers["content-type"].partition(";")[0] == media_type, self.id
            if media_type in ("application/json", "application/problem+json"):
                schema = {**content["schema"], "components": self.document["components"]}
                Draft202012Validator(schema).validate(response.json())

    def _value(self, schema: Any, name: str, values: Mapping[str, Any], full: bool) -> Any:
        if "$ref" in schema:
            schema = self._schema(schema)
        for each in schema.get("anyOf", ()):
            if each.get("type") != "null":
                return self._value({**schema, **each, "anyOf": ()}, name, values, full)
        if schema.get("type") == "string" and name in values:
            return values[name]
        if schema.get("type") == "object" and "properties" in schema:
            return {
                field: self._value(each, field, values, full)
                for field, each in schema["properties"].items()
                if full or field in schema.get("required", ()) or "examples" in each
            }
        if schema.get("type") == "array" and (full or schema.get("minItems")):
            items = schema["items"]
            return schema.get("examples", [[self._value(items, name[:-1], values, full)]])[0]
        if "examples" in schema:
            return schema["examples"][0]
        if "enum" in schema:
            return schema["enum"][0]
        if "default" in schema and schema["default"] is not None:
            return schema["default"]
        return {"string": "a text", "integer": 1, "number": 1.0, "boolean": True, "array": []}.get(
            schema.get("type", ""), {}
        )

    def _schema(self, schema: Mapping[str, Any]) -> Any:
        name = schema["$ref"].rpartition("/")[2]
        return self.document["components"]["schemas"][name]


def operations(document: Mapping[str, Any]) -> list[Operation]:
    """Return all operations of a document that need a scope."""
    return [
        Operation(spec["operationId"], method.upper(), path, spec["x-scope"], spec, document)
        for path, item in document["paths"].items()
        for method, spec in item.items()
        if "x-scope" in spec
    ]


def text_of(value: Any) -> str:
    """Return JSON as text."""
    return json.dumps(value, sort_keys=True)


def url_of(path: Path) -> str:
    """Return the URL of a new SQLite file in a folder."""
    return f"sqlite:///{path}/http.db"
