"""A server for tests: the whole application over a real store, with keys of several people."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI

from keepthread import Memory
from keepthread.apps.http.app import create_app
from keepthread.apps.http.keys import KeyRights, create_key
from keepthread.apps.http.settings import HttpSettings
from keepthread.models.tokens import Estimator
from keepthread.protocols.server import ServerTables

ALL = frozenset({"read", "write", "forget", "admin"})
SETTINGS = HttpSettings(rate=0)


@dataclass
class HttpWorld:
    """An application in this process, and clients that call it without a network."""

    memory: Memory
    tables: ServerTables
    app: FastAPI
    clients: list[httpx2.AsyncClient] = field(default_factory=list)

    async def key(
        self,
        owner: str | None = "ann",
        scopes: frozenset[str] = ALL,
        *,
        tenant: str = "default",
        expires_at: float | None = None,
        at: float = 1.0,
    ) -> str:
        """Return the text of a new key."""
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

    async def of(self, owner: str, **more: Any) -> httpx2.AsyncClient:
        """Return a client of an owner."""
        return self.client(await self.key(owner, **more))


@asynccontextmanager
async def http_world(url: str) -> AsyncIterator[HttpWorld]:
    """Open a store and an application over it."""
    async with Memory.open(url, counter=Estimator(), keep_why=5) as memory:
        tables = memory.store.server_tables()
        world = HttpWorld(memory, tables, create_app(memory, tables, SETTINGS))
        try:
            yield world
        finally:
            for client in world.clients:
                await client.aclose()


@contextmanager
def listening(url: str) -> Iterator[tuple[str, Callable[..., str]]]:
    """Serve a store by uvicorn in a thread; give its address, and what makes keys."""
    loop = asyncio.new_event_loop()
    listener = socket.create_server(("127.0.0.1", 0))
    ready = threading.Event()
    made: dict[str, Any] = {}

    async def serve() -> None:
        async with http_world(url) as world:
            config = uvicorn.Config(world.app, log_level="critical", lifespan="off")
            made.update(world=world, server=uvicorn.Server(config))
            ready.set()
            await made["server"].serve(sockets=[listener])

    def run() -> None:
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(serve())
        finally:
            ready.set()
            loop.close()

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait()

    def key(*args: Any, **kwargs: Any) -> str:
        return asyncio.run_coroutine_threadsafe(made["world"].key(*args, **kwargs), loop).result()

    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", key
    finally:
        if "server" in made:
            made["world"].app.state.keepthread.stopping.set()
            made["server"].should_exit = True
        thread.join()


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
