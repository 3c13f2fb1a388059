"""A gateway like Discord's: hello, identify, heartbeats, events, reconnect, resume."""

import asyncio
import json
import zlib
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from aiohttp import WSMsgType, web

from tests.discord_world import World

if TYPE_CHECKING:
    from collections.abc import Callable

DISPATCH, HEARTBEAT, IDENTIFY, RESUME, RECONNECT = 0, 1, 2, 6, 7
INVALID_SESSION, HELLO, HEARTBEAT_ACK = 9, 10, 11
UNKNOWN_OPCODE, NOT_AUTHENTICATED, AUTHENTICATION_FAILED = 4001, 4003, 4004
SESSION_TIMED_OUT, DISALLOWED_INTENTS = 4009, 4014
GUILDS, GUILD_MESSAGES, DIRECT_MESSAGES, CONTENT = 1 << 0, 1 << 9, 1 << 12, 1 << 15


@dataclass(kw_only=True)
class Session:
    """What one client was told since it identified."""

    id: str
    intents: int
    events: list[dict[str, Any]] = field(default_factory=list)
    line: "Line | None" = None
    """The connection that it is on now."""


class Line:
    """One connection."""

    def __init__(self, socket: web.WebSocketResponse, compression: str | None) -> None:
        self.socket = socket
        self.session: Session | None = None
        self.last_beat = asyncio.get_running_loop().time()
        self.deaf = False
        """Whether it is open, and dead: nothing is sent on it or taken from it."""
        self._zlib = zlib.compressobj() if compression == "zlib-stream" else None

    async def send(self, op: int, data: Any = None, **more: Any) -> None:
        if self.deaf or self.socket.closed:
            return
        text = json.dumps({"op": op, "d": data, "s": None, "t": None} | more)
        with suppress(ConnectionError):
            if self._zlib is None:
                await self.socket.send_str(text)
            else:
                packed = self._zlib.compress(text.encode()) + self._zlib.flush(zlib.Z_SYNC_FLUSH)
                await self.socket.send_bytes(packed)

    def cut(self) -> None:
        """Break the connection without a word."""
        transport = self.socket._req.transport if self.socket._req else None
        if transport is not None:
            transport.abort()


class Gateway:
    """Tells clients what happens, in the order it happened."""

    def __init__(
        self,
        world: World,
        token: str,
        *,
        allowed_intents: int = (1 << 26) - 1,
        heartbeat: float = 41.25,
    ) -> None:
        self.world = world
        self.heartbeat = heartbeat
        self.identified = 0
        self.resumed = 0
        self.begun: list[str] = []
        """How each connection began, in order: `identified` or `resumed`."""
        self.beats = 0
        self.url = ""
        self.changed: Callable[[], object] = lambda: None
        """Called whenever a session begins or goes on, or a heart beats."""
        self._token = token
        self._allowed = allowed_intents
        self._sessions: dict[str, Session] = {}
        self._lines: set[Line] = set()
        self._sending = asyncio.Lock()

    # --- what happens to clients ---

    async def tell(self, event: str, data: dict[str, Any], wanted: int = 0) -> None:
        """Tell everybody who wants to hear it; who is away is told when the session resumes."""
        async with self._sending:
            for session in self._sessions.values():
                if session.intents & wanted == wanted:
                    await self._tell_one(session, event, self._readable(session, event, data))

    async def ask_to_reconnect(self) -> None:
        """Ask every client to come back on another connection."""
        for line in list(self._lines):
            await line.send(RECONNECT)

    async def end_sessions(self) -> None:
        """Let every session be invalid: clients must identify anew, and are told nothing missed."""
        self._sessions.clear()
        for line in list(self._lines):
            await line.send(INVALID_SESSION, False)

    def lose_sessions(self) -> None:
        """Cut every connection, and do not know the sessions any more."""
        self._sessions.clear()
        self.cut()

    def cut(self) -> None:
        """Cut every connection; the sessions can be resumed."""
        for line in list(self._lines):
            line.cut()

    def fall_silent(self) -> None:
        """Say nothing more on the connections that are open now, and take nothing from them."""
        for line in self._lines:
            line.deaf = True
            if line.session:
                line.session.line = None

    async def close(self) -> None:
        for line in list(self._lines):
            await line.socket.close()

    # --- one connection ---

    async def serve(self, request: web.Request) -> web.WebSocketResponse:
        if request.query.get("v") != "10" or request.query.get("encoding") != "json":
            raise web.HTTPBadRequest
        socket = web.WebSocketResponse(max_msg_size=4096)
        await socket.prepare(request)
        line = Line(socket, request.query.get("compress"))
        self._lines.add(line)
        watching = asyncio.create_task(self._watch(line))
        try:
            await line.send(HELLO, {"heartbeat_interval": int(self.heartbeat * 1000)})
            async for message in socket:
                if message.type == WSMsgType.TEXT and not line.deaf:
                    await self._take(line, json.loads(message.data))
        finally:
            watching.cancel()
            self._lines.discard(line)
            if line.session and line.session.line is line:
                line.session.line = None
        return socket

    async def _watch(self, line: Line) -> None:
        """Close a connection on which no heart beats."""
        loop = asyncio.get_running_loop()
        while (left := line.last_beat + 2 * self.heartbeat - loop.time()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left)
        await line.socket.close(code=SESSION_TIMED_OUT)

    async def _take(self, line: Line, said: dict[str, Any]) -> None:
        op, data = said["op"], said["d"]
        if op == HEARTBEAT:
            self.beats += 1
            self.changed()
            line.last_beat = asyncio.get_running_loop().time()
            await line.send(HEARTBEAT_ACK)
        elif op == IDENTIFY:
            await self._identify(line, data)
        elif op == RESUME:
            await self._resume(line, data)
        else:
            await line.socket.close(code=UNKNOWN_OPCODE)

    async def _identify(self, line: Line, data: dict[str, Any]) -> None:
        if data["token"] != self._token:
            await line.socket.close(code=AUTHENTICATION_FAILED)
            return
        if data["intents"] & ~self._allowed:
            await line.socket.close(code=DISALLOWED_INTENTS)
            return
        session = Session(id=f"session-{self.world.number()}", intents=data["intents"], line=line)
        async with self._sending:
            line.session = self._sessions[session.id] = session
            self.identified += 1
            self.begun.append("identified")
            await self._greet(session)
        self.changed()

    async def _greet(self, session: Session) -> None:
        world = self.world
        ready = {
            "v": 10,
            "user": world.me.to_json(),
            "guilds": [{"id": str(id), "unavailable": True} for id in world.guilds],
            "session_id": session.id,
            "resume_gateway_url": self.url,
            "private_channels": [],
            "application": {"id": str(world.me.id), "flags": 0},
        }
        await self._tell_one(session, "READY", ready)
        if session.intents & GUILDS:
            for id in world.guilds:
                guild = {**world.guild_json(id), "unavailable": False}
                await self._tell_one(session, "GUILD_CREATE", guild)

    async def _resume(self, line: Line, data: dict[str, Any]) -> None:
        session = self._sessions.get(data["session_id"])
        if data["token"] != self._token:
            await line.socket.close(code=AUTHENTICATION_FAILED)
        elif session is None or data["seq"] is None or data["seq"] > len(session.events):
            await line.send(INVALID_SESSION, False)
        else:
            async with self._sending:
                line.session, session.line = session, line
                for event in session.events[data["seq"] :]:
                    await line.send(DISPATCH, event["d"], s=event["s"], t=event["t"])
                self.resumed += 1
                self.begun.append("resumed")
                await self._tell_one(session, "RESUMED", {})
            self.changed()

    async def _tell_one(self, session: Session, event: str, data: dict[str, Any]) -> None:
        number = len(session.events) + 1
        session.events.append({"t": event, "s": number, "d": data})
        if session.line is not None:
            await session.line.send(DISPATCH, data, s=number, t=event)

    def _readable(self, session: Session, event: str, data: dict[str, Any]) -> dict[str, Any]:
        """Return a message without its text, if the client may not read it."""
        mentioned = any(user["id"] == str(self.world.me.id) for user in data.get("mentions", ()))
        if event != "MESSAGE_CREATE" or session.intents & CONTENT or mentioned:
            return data
        if "guild_id" not in data:
            return data
        return {**data, "content": "", "attachments": [], "embeds": [], "components": []}
