"""A server for tests: in the process for what is decided there, or on a socket of this machine."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import httpx2
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from keepthread import Memory
from keepthread.apps.http import worker
from keepthread.apps.http.app import create_app
from keepthread.apps.http.caller import Caller, Operator, needs, needs_admin
from keepthread.apps.http.keys import KeyRights, create_key
from keepthread.apps.http.settings import HttpSettings
from keepthread.errors import Damaged, InvalidInput
from keepthread.models.tokens import Estimator
from keepthread.protocols.server import ServerTables

ALL = frozenset({"read", "write", "forget", "admin"})

probe = APIRouter(prefix="/v1")
"""Routes as handlers write them, for what the layers around them do."""


class Note(BaseModel):
    text: str
    tags: list[str] = []


@dataclass
class Gate:
    """Lets a test hold requests, and count those that were done."""

    entered: asyncio.Event = field(default_factory=asyncio.Event)
    open: asyncio.Event = field(default_factory=asyncio.Event)
    done: int = 0


def gate_of(request: Request) -> Gate:
    return request.app.state.gate


@probe.get("/who")
async def who(caller: Annotated[Caller, needs("read")]) -> dict[str, Any]:
    return {"tenant": caller.tenant, "owner": caller.owner, "key": caller.key_id}


@probe.post("/notes/{id}")
async def note(id: str, body: Note, request: Request, _: Annotated[Caller, needs("write")]) -> Any:
    gate = gate_of(request)
    gate.done += 1
    if body.text == "damaged":
        raise Damaged(f"row 7 of /var/lib/secret.db: {id}")
    if body.text == "invalid":
        raise InvalidInput("text must not be 'invalid'")
    if body.text == "bug":
        raise RuntimeError("the person wrote: my password")
    if body.text == "wait":
        gate.entered.set()
        await gate.open.wait()
    return {"id": id, "length": len(body.text), "done": gate.done}


@probe.delete("/notes/{id}")
async def erase(id: str, _: Annotated[Caller, needs("forget")]) -> dict[str, str]:
    return {"id": id}


@probe.put("/blobs/{name}")
async def blob(name: str, request: Request, _: Annotated[Caller, needs("write")]) -> Any:
    return {"name": name, "bytes": len(await request.body())}


@probe.get("/operator")
async def operator(operator: Annotated[Operator, needs_admin()]) -> dict[str, str]:
    return {"tenant": operator.tenant}


@probe.post("/keys/new")
async def new_key(_: Annotated[Operator, needs_admin()]) -> dict[str, str]:
    return {"key": "kt_shown_once"}


@probe.get("/stream")
async def events(request: Request, _: Annotated[Caller, needs("read")]) -> StreamingResponse:
    state = request.app.state.keepthread

    async def lines() -> AsyncGenerator[str]:
        yield "data: begun\n\n"
        await state.stopping.wait()
        yield "data: ended\n\n"

    return StreamingResponse(lines(), media_type="text/event-stream")


@dataclass
class Served:
    """An application, its tables, and a client without a key."""

    app: FastAPI
    memory: Memory
    tables: ServerTables
    client: httpx2.AsyncClient
    gate: Gate

    async def key(
        self,
        *scopes: str,
        owner: str | None = "ann",
        tenant: str = "default",
        expires_at: float | None = None,
    ) -> str:
        """Make a key; all scopes if none is named."""
        rights = KeyRights(tenant, frozenset(scopes) or ALL, "test", owner, expires_at)
        return (await create_key(self.tables, rights, by="test", at=self.now())).text

    def now(self) -> float:
        return self.app.state.keepthread.clock()

    async def headers(self, *scopes: str, **given: Any) -> dict[str, str]:
        return bearer(await self.key(*scopes, **given))


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def make_app(memory: Memory, settings: HttpSettings | None = None) -> FastAPI:
    app = create_app(memory, memory.store.server_tables(), settings)
    app.include_router(probe)
    app.state.gate = Gate()
    return app


@asynccontextmanager
async def served(
    settings: HttpSettings | None = None, *, url: str = "ram://", **client: Any
) -> AsyncGenerator[Served]:
    """Run the application in this process, without a socket."""
    async with Memory.open(url, counter=Estimator()) as memory:
        app = make_app(memory, settings)
        transport = httpx2.ASGITransport(app)
        given = {"base_url": "http://localhost", **client}
        async with httpx2.AsyncClient(transport=transport, **given) as http:
            tables = memory.store.server_tables()
            yield Served(app, memory, tables, http, app.state.gate)


@asynccontextmanager
async def listening(
    settings: HttpSettings | None = None, protocol: Mapping[str, Any] | None = None
) -> AsyncGenerator[Served]:
    """Run the application on a socket of this machine, as a worker does."""
    async with Memory.open("ram://", counter=Estimator()) as memory:
        app = make_app(memory, settings)
        work = worker.Work(open_memory=lambda: memory, settings=settings or HttpSettings())
        config = worker.uvicorn_config(work, app)
        config.http = type("Protocol", (worker.BoundedProtocol,), dict(protocol or {}))
        server = worker.QuietServer(config)
        with socket.create_server(("127.0.0.1", 0), backlog=2048) as listener:
            port = listener.getsockname()[1]
            serving = asyncio.create_task(server.serve([listener]))
            base = f"http://127.0.0.1:{port}"
            async with httpx2.AsyncClient(base_url=base, timeout=30) as http:
                tables = memory.store.server_tables()
                yield Served(app, memory, tables, http, app.state.gate)
            app.state.keepthread.stopping.set()
            server.should_exit = True
            await serving
