"""A server on this machine that speaks like Discord: its gateway, and its REST interface.

It is as strict as Discord where a bot would notice: tokens, limits of length and of rate, nonces,
replies to what is gone. Text frames serve a client that asks for a compression it does not know.
"""

import asyncio
import json
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable
from typing import Any, Self

from aiohttp import web

from tests.discord_gateway import DIRECT_MESSAGES, GUILD_MESSAGES, GUILDS, Gateway
from tests.discord_world import Channel, User, World, member_of

TOKEN = "a-token-of-a-bot"
LONGEST = 2000
NONCES_LIVE = 300.0


class DiscordServer:
    """Serves while its block runs; `world` is what it knows, `gateway` whom it tells."""

    def __init__(
        self,
        *,
        token: str = TOKEN,
        rate: tuple[int, float] = (1000, 1.0),
        heartbeat: float = 41.25,
        allowed_intents: int = (1 << 26) - 1,
    ) -> None:
        self.world = World()
        self.token = token
        self.gateway = Gateway(
            self.world, token, heartbeat=heartbeat, allowed_intents=allowed_intents
        )
        self.gateway.changed = self._note
        self.rate = rate
        """How many messages may be posted to a channel in how many seconds."""
        self.limited = 0
        """How often a client was told to wait."""
        self.impatient = 0
        """How often one did not."""
        self.commands: list[dict[str, Any]] = []
        self.responses: dict[str, list[dict[str, Any]]] = defaultdict(list)
        """What came of interactions, by their token."""
        self.refused: list[str] = []
        self.unreadable: set[int] = set()
        """Channels whose history the bot may not read; it cannot reply there either."""
        self.hiccups = 0
        """So many of the next posts are taken, but the client hears of an error."""
        self.drops = 0
        """So many of the next posts are taken, but the connection breaks before that is told."""
        self.interruptions = 0
        """So many of the next posts are refused with a 429 out of turn, as a sub-limit does."""
        self._posts: dict[int, deque[float]] = defaultdict(deque)
        self._until: dict[int, float] = {}
        self._nonces: dict[tuple[str, str], tuple[float, dict[str, Any]]] = {}
        self._news = asyncio.Condition()
        self._telling: set[asyncio.Task[None]] = set()

    # --- serving ---

    async def __aenter__(self) -> Self:
        app = web.Application(middlewares=[self._guard])
        app.router.add_get("/gateway/", self.gateway.serve)
        for method, path, answer in self._routes():
            app.router.add_route(method, f"/api/v10{path}", answer)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}/api/v10"
        self.gateway.url = f"ws://{host}:{port}/gateway/"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.gateway.close()
        await self._runner.cleanup()

    def _routes(self) -> list[tuple[str, str, Callable[[web.Request], Awaitable[web.Response]]]]:
        return [
            ("GET", "/users/@me", self._me),
            ("GET", "/gateway/bot", self._gateway_bot),
            ("GET", "/oauth2/applications/@me", self._application),
            ("GET", "/applications/@me", self._application),
            ("PUT", "/applications/{app}/commands", self._put_commands),
            ("GET", "/channels/{channel}/messages", self._history),
            ("POST", "/channels/{channel}/messages", self._post),
            ("POST", "/channels/{channel}/typing", self._type),
            ("POST", "/interactions/{id}/{token}/callback", self._callback),
            ("PATCH", "/webhooks/{app}/{token}/messages/@original", self._edit_response),
            ("POST", "/webhooks/{app}/{token}", self._edit_response),
        ]

    @web.middleware
    async def _guard(self, request: web.Request, handler: Any) -> web.StreamResponse:
        """Let nobody in without the token, but where the address itself is a secret."""
        open_paths = ("/gateway/", "/api/v10/interactions/", "/api/v10/webhooks/")
        known = request.headers.get("Authorization") == f"Bot {self.token}"
        if not known and not request.path.startswith(open_paths):
            return _json({"message": "401: Unauthorized", "code": 0}, 401)
        try:
            return await handler(request)
        except web.HTTPNotFound:
            self.refused.append(f"{request.method} {request.path}")
            return _json({"message": "404: Not Found", "code": 0}, 404)

    # --- who and where ---

    async def _me(self, _: web.Request) -> web.Response:
        return _json(self.world.me.to_json())

    async def _gateway_bot(self, _: web.Request) -> web.Response:
        limit = {"total": 1000, "remaining": 999, "reset_after": 1, "max_concurrency": 1}
        return _json({"url": self.gateway.url, "shards": 1, "session_start_limit": limit})

    async def _application(self, _: web.Request) -> web.Response:
        owner = User(id=1, name="owner").to_json()
        told = {
            "icon": None,
            "description": "",
            "bot_public": True,
            "bot_require_code_grant": False,
        }
        own = {"id": str(self.world.me.id), "name": "keepthread", "verify_key": "", "flags": 0}
        return _json({**told, **own, "summary": "", "owner": owner})

    async def _put_commands(self, request: web.Request) -> web.Response:
        version = {"version": str(self.world.number()), "application_id": str(self.world.me.id)}
        self.commands = [
            {**command, "id": str(self.world.number()), **version}
            for command in await request.json()
        ]
        return _json(self.commands)

    # --- messages ---

    async def _history(self, request: web.Request) -> web.Response:
        channel = self._channel(request)
        if channel.id in self.unreadable:
            return _json({"message": "Missing Access", "code": 50001}, 403)
        after = int(request.query.get("after", 0))
        before = int(request.query.get("before", 1 << 63))
        limit = int(request.query.get("limit", 50))
        found = [m for m in channel.messages if after < int(m["id"]) < before]
        found = found[:limit] if "after" in request.query else found[-limit:]
        return _json(found[::-1])

    async def _post(self, request: web.Request) -> web.Response:
        channel = self._channel(request)
        if limited := self._limited(channel):
            return limited
        said = await request.json()
        if problem := self._problem(channel, said):
            self.refused.append(problem)
            return _json({"message": problem, "code": 50035}, 400, self._rate_headers(channel))
        message = self._known(said) or await self._posted(channel, said)
        if self.drops and request.transport is not None:
            self.drops -= 1
            request.transport.abort()
        if self.hiccups:
            self.hiccups -= 1
            return _json({"message": "Internal Server Error", "code": 0}, 500)
        return _json(message, headers=self._rate_headers(channel))

    def _problem(self, channel: Channel, said: dict[str, Any]) -> str:
        content = said.get("content") or ""
        if not content.strip():
            return "Cannot send an empty message"
        if len(content) > LONGEST:
            return "Must be 2000 or fewer in length."
        if len(str(said.get("nonce", ""))) > 25:
            return "A nonce must be 25 or fewer in length."
        place = said.get("message_reference")
        if place and channel.id in self.unreadable:
            return "Cannot reply without permission to read message history"
        known = {message["id"] for message in channel.messages}
        if (
            place
            and place.get("fail_if_not_exists", True)
            and str(place["message_id"]) not in known
        ):
            return "Unknown message"
        return ""

    def _known(self, said: dict[str, Any]) -> dict[str, Any] | None:
        """Return what was posted under the same nonce in the last minutes."""
        if not said.get("enforce_nonce"):
            return None
        at, message = self._nonces.get((str(self.world.me.id), said["nonce"]), (0.0, None))
        return message if time.monotonic() - at < NONCES_LIVE else None

    async def _posted(self, channel: Channel, said: dict[str, Any]) -> dict[str, Any]:
        place = said.get("message_reference") or {}
        replied = next(
            (m for m in channel.messages if m["id"] == str(place.get("message_id"))), None
        )
        more = {"nonce": said["nonce"]} if "nonce" in said else {}
        message = self.world.message(
            channel, self.world.me, said["content"], replies_to=replied, **more
        )
        message["allowed_mentions"] = said.get("allowed_mentions")
        message["flags"] = said.get("flags", 0)
        if said.get("enforce_nonce"):
            self._nonces[str(self.world.me.id), said["nonce"]] = time.monotonic(), message
        await self._tell_of(message)
        self._note()
        return message

    async def _type(self, request: web.Request) -> web.Response:
        self._channel(request).typed += 1
        self._note()
        return web.Response(status=204)

    def _channel(self, request: web.Request) -> Channel:
        channel = self.world.channels.get(int(request.match_info["channel"]))
        if channel is None:
            raise web.HTTPNotFound
        return channel

    # --- limits of rate ---

    def _limited(self, channel: Channel) -> web.Response | None:
        """Return what tells a client to wait, if it must."""
        now, (most, seconds) = time.monotonic(), self.rate
        if now < self._until.get(channel.id, 0.0):
            self.impatient += 1
        times = self._posts[channel.id]
        while times and times[0] <= now - seconds:
            times.popleft()
        wait = 0.0
        if self.interruptions:
            self.interruptions -= 1
            wait = 0.2
        elif len(times) >= most:
            wait = times[0] + seconds - now
        if not wait:
            times.append(now)
            return None
        self.limited += 1
        self._until[channel.id] = now + wait
        told = {"message": "You are being rate limited.", "retry_after": wait, "global": False}
        headers = {"Retry-After": str(int(wait) + 1), "Via": "1.1 google"}
        return _json(told, 429, self._rate_headers(channel) | headers)

    def forget_nonces(self) -> None:
        """Let the minutes pass in which a nonce is known."""
        self._nonces.clear()

    def pardon(self) -> None:
        """Expect nobody to wait: a client that begins anew knows nothing of what was told."""
        self._until.clear()

    def _rate_headers(self, channel: Channel) -> dict[str, str]:
        most, seconds = self.rate
        times = self._posts[channel.id]
        left = max(0.0, times[0] + seconds - time.monotonic()) if times else 0.0
        return {
            "X-RateLimit-Limit": str(most),
            "X-RateLimit-Remaining": str(max(0, most - len(times))),
            "X-RateLimit-Reset": f"{time.time() + left:.3f}",
            "X-RateLimit-Reset-After": f"{left:.3f}",
            "X-RateLimit-Bucket": "messages",
        }

    # --- interactions ---

    async def _callback(self, request: web.Request) -> web.Response:
        self.responses[request.match_info["token"]].append(await request.json())
        self._note()
        if request.query.get("with_response") not in ("1", "true"):
            return web.Response(status=204)
        told = {"id": request.match_info["id"], "type": 2, "response_message_loading": True}
        told["response_message_id"] = str(self.world.number())
        return _json({"interaction": told})

    async def _edit_response(self, request: web.Request) -> web.Response:
        token = request.match_info["token"]
        if not self.responses[token]:
            raise web.HTTPNotFound
        said = await request.json()
        self.responses[token].append(said)
        self._note()
        (place, *_) = self.world.channels.values()
        unkept = Channel(id=place.id, name=place.name, guild=place.guild)
        return _json(self.world.message(unkept, self.world.me, said["content"] or ""))

    # --- what people do ---

    async def say(self, channel: Channel, author: User, text: str, **more: Any) -> dict[str, Any]:
        """Let somebody write something; who is named by a mention is mentioned."""
        me = self.world.me
        mentions = [me] if me.mention in text and "mentions" not in more else []
        message = self.world.message(channel, author, text, **{"mentions": mentions, **more})
        await self._tell_of(message)
        return message

    async def say_again(self, message: dict[str, Any]) -> None:
        """Deliver a message once more."""
        await self._tell_of(message)

    async def _tell_of(self, message: dict[str, Any]) -> None:
        event = self.world.event(message)
        wanted = GUILD_MESSAGES if "guild_id" in event else DIRECT_MESSAGES
        await self.gateway.tell("MESSAGE_CREATE", event, wanted)

    async def command(self, channel: Channel, user: User, name: str, **given: str) -> str:
        """Let somebody give a slash command; return the token of what comes of it.

        A name may have two words: a group, and a command in it.
        """
        name, _, inner = name.partition(" ")
        (known,) = [each for each in self.commands if each["name"] == name]
        options: list[dict[str, Any]] = [
            {"type": 3, "name": option, "value": value} for option, value in given.items()
        ]
        if inner:
            options = [{"type": 1, "name": inner, "options": options}]
        token = f"token-{self.world.number()}"
        who = {"user": user.to_json()}
        place: dict[str, Any] = {}
        if channel.guild is not None:
            place = {"guild_id": str(channel.guild)}
            who = {"member": {**who, **member_of(permissions=self.world.permissions)}}
        event = {
            "id": str(self.world.number()),
            "application_id": str(self.world.me.id),
            "type": 2,
            "token": token,
            "version": 1,
            "channel": channel.to_json(),
            "channel_id": str(channel.id),
            "attachment_size_limit": 1 << 20,
            "locale": "en-US",
            "entitlements": [],
            "data": {"id": known["id"], "name": name, "type": 1, "options": options},
        }
        await self.gateway.tell("INTERACTION_CREATE", {**event, **who, **place}, GUILDS)
        return token

    async def told(self, channel: Channel, user: User, name: str, **given: str) -> str:
        """Let somebody give a slash command, and return what only they are shown."""
        token = await self.command(channel, user, name, **given)
        await self.until(lambda: len(self.responses[token]) >= 2)
        return self.responses[token][1]["content"]

    # --- waiting ---

    def posted(self, channel: Channel) -> list[str]:
        """Return what the bot has posted in a channel."""
        me = str(self.world.me.id)
        return [m["content"] for m in channel.messages if m["author"]["id"] == me]

    async def until(self, there: Callable[[], object], seconds: float = 30.0) -> None:
        """Wait until something is the case; it is looked at whenever something happens."""
        async with asyncio.timeout(seconds), self._news:
            await self._news.wait_for(lambda: bool(there()))

    def _note(self) -> None:
        async def wake() -> None:
            async with self._news:
                self._news.notify_all()

        task = asyncio.ensure_future(wake())
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    # discord.py takes a body for JSON only if the header says exactly this.
    kind = {"Content-Type": "application/json", **(headers or {})}
    return web.Response(body=json.dumps(value).encode(), status=status, headers=kind)
