"""The clients of P24: they take turns over HTTP, repeat what was not acknowledged, and note it all.

Some use the remote client; others send requests of their own, with an `Idempotency-Key` that other
owners use as well. Every response is held against the OpenAPI document: it has a status and a body
that the operation declares, and an error says that the request may be sent again.
"""

import asyncio
import json
import random
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
from jsonschema import Draft202012Validator

from keepthread import Memory, Message, OwnerMemory, Session, ToolCall, Turn
from keepthread.errors import KeepthreadError, Unavailable
from proofs.http_journal import Journal, Person, Sent

SESSIONS: Final = ("talk", "trip")
"""Sessions that every owner has, under the same ids."""
TURNS_OF_A_SESSION: Final = 10
SHAPES: Final = 20
"""Of so many responses of an operation with a status, the shape of one is checked: it takes as long
as the rest of a request, and a fuzzer checks shapes."""
_PROBLEM: Final = "application/problem+json"
_FAILED: Final = 500


class GaveUp(Exception):
    """A client waited for as long as it may, and nobody knows whether its request was done."""


# --- the document ---


class Documented:
    """Compares responses with the OpenAPI document of the server."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        self._document = document
        self._paths = [
            (re.compile(re.sub(r"\{[^}]+\}", "[^/]+", path)), item)
            for path, item in document["paths"].items()
        ]
        self._known: dict[tuple[str, int], tuple[Any, Draft202012Validator | None]] = {}
        self._seen: Counter[tuple[str, int]] = Counter()

    def fault(self, response: httpx2.Response) -> str | None:
        """Return what is wrong with a response, or None."""
        path = response.request.url.raw_path.decode().partition("?")[0]
        method = response.request.method.lower()
        spec = next(
            item[method]
            for pattern, item in self._paths
            if pattern.fullmatch(path) and method in item
        )
        status, operation = response.status_code, spec["operationId"]
        if str(status) not in spec["responses"]:
            return f"{operation} answered {status}, which is not documented"
        declared, validator = self._declared(spec, status)
        found = response.headers.get("content-type", "").partition(";")[0]
        if found not in (declared.get("content") or {"": None}):
            return f"{operation} answered {status} with a body of {found or 'no type'}"
        if validator is None:
            return None
        body = response.json()
        self._seen[operation, status] += 1
        if self._seen[operation, status] % SHAPES == 1 and not validator.is_valid(body):
            return f"{operation} answered {status} with a body of another shape"
        if found != _PROBLEM:
            return None
        if f"`{body['type']}`" not in declared["description"]:
            return f"{operation} answered {body['type']}, which is not documented for {status}"
        # Requests are valid: what may fail is the server, and only for a while.
        if status == _FAILED or not body["retryable"]:
            return f"{operation} answered {status} {body['type']}: {body['detail']}"
        return None

    def _declared(self, spec: Any, status: int) -> tuple[Any, Draft202012Validator | None]:
        key = (spec["operationId"], status)
        if key not in self._known:
            declared = spec["responses"][str(status)]
            if "$ref" in declared:
                name = declared["$ref"].rpartition("/")[2]
                declared = self._document["components"]["responses"][name]
            schemas = [each["schema"] for each in declared.get("content", {}).values()]
            shape = {**schemas[0], "components": self._document["components"]} if schemas else None
            self._known[key] = (declared, None if shape is None else Draft202012Validator(shape))
        return self._known[key]


# --- what the clients share ---


@dataclass(slots=True)
class Plan:
    """The turns that are to be taken, and what was seen so far."""

    size: int
    journal: Journal
    documented: Documented
    patience: float
    """Seconds for which a client repeats a request."""
    may_give_up: bool
    """Whether a client may go on with another turn after that."""
    taken: int = 0
    done: int = 0
    names: int = 0
    seen: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)

    def take(self) -> str | None:
        """Return the name of the next turn, or None if there are enough."""
        if self.taken >= self.size:
            return None
        self.taken += 1
        self.names += 1
        return str(self.names)

    def failures(self) -> int:
        """Return how many responses said that the server failed, or cannot serve now."""
        return sum(n for status, n in self.statuses.items() if status >= _FAILED)

    async def look(self, response: httpx2.Response) -> None:
        """Check a response of the server, once all of it arrived."""
        await response.aread()
        self.statuses[response.status_code] += 1
        self.seen["replayed"] += "Idempotency-Replayed" in response.headers
        if fault := self.documented.fault(response):
            self.journal.fault(fault)


@dataclass(slots=True)
class Client:
    """One task that takes turns for several owners of a tenant, one turn after the other."""

    plan: Plan
    name: str
    tenant: str
    owners: Sequence[str]
    rng: random.Random
    turns: int = 0

    async def run(self) -> None:
        """Take turns until there are enough."""
        while (number := self.plan.take()) is not None:
            owner = self.rng.choice(self.owners)
            person = Person(self.tenant, owner)
            try:
                await self.turn(person, f"{self.tenant}.{owner}.{self.name}.{number}")
            except (GaveUp, Unavailable) as error:
                if not self.plan.may_give_up:
                    self.plan.journal.fault(f"{self.name} waited in vain: {error!r}")
                self.plan.seen["given up"] += 1
                self.plan.taken -= 1
            except (KeepthreadError, httpx2.HTTPError, KeyError) as error:
                self.plan.journal.fault(f"{self.name} was refused: {error!r}")
                self.plan.done += 1
            else:
                self.plan.done += 1
            self.turns += 1

    async def turn(self, person: Person, name: str) -> None:
        """Take one turn."""
        raise NotImplementedError

    def begin(self, person: Person, session: str, turn: str, what: str) -> Sent:
        """Note that a message of a turn is about to be sent."""
        return self.plan.journal.begin(person, session, turn, f"{turn} {what}")

    def wants_new_session(self) -> bool:
        """Return whether a new session is due."""
        return self.turns % TURNS_OF_A_SESSION == self.turns // TURNS_OF_A_SESSION % 5


def wish(turn: str) -> ToolCall:
    """Return the call of a tool; servers give the same ids again and again."""
    return ToolCall(id="call_0", name="look", arguments=json.dumps({"of": f"{turn} look"}))


# --- with the remote client ---


async def open_memory(plan: Plan, url: str, key: str) -> Memory:
    """Open the memory of the server as any program does, and watch what it receives."""
    memory = await Memory.open(url, key=key, timeout=plan.patience)
    client: httpx2.AsyncClient = getattr(memory, "_connection")._client  # noqa: B009
    client.event_hooks = {"response": [plan.look]}
    return memory


@dataclass(slots=True)
class RemoteClient(Client):
    """Uses `Memory.open("http://…")`; several share one memory, and so its connections."""

    memory: Memory = None  # pyright: ignore[reportAssignmentType]

    async def turn(self, person: Person, name: str) -> None:
        session = await self._session(self.memory.for_owner(person.owner), person, name)
        asked = self.begin(person, session.id, name, "asks")
        id = f"{name} asks" if self.rng.random() < 0.5 else None
        async with session.turn(asked.text, id=id) as turn:
            self._told(asked, turn.user)
            if self.rng.random() < 0.25:
                await self._look(turn, asked)
            await self.rng.choice((self._nothing, self._call, self._tool, self._tool))(turn, asked)
            answer = self.begin(person, session.id, name, "is answered")
            self._told(answer, await turn.finish(answer.text))
        (last,) = await session.messages(after=answer.seq - 1, limit=1)
        if last.content != answer.text:
            self.plan.journal.fault(f"{answer.text!r} was stored, and {last.content!r} is shown")
        if self.rng.random() < 0.25:
            await self._append(session, person, name)

    async def _session(self, memory: OwnerMemory, person: Person, name: str) -> Session:
        id = name if self.wants_new_session() else self.rng.choice(SESSIONS)
        self.plan.journal.sessions.setdefault((person, id), "")
        session = await memory.session(id, title=id)
        self.plan.journal.sessions[(person, id)] = id
        return session

    async def _look(self, turn: Turn, asked: Sent) -> None:
        context = await turn.context(budget=2000)
        if asked.text not in [message.content for message in context.messages]:
            self.plan.journal.fault(f"a context does not show {asked.text!r}")

    async def _nothing(self, turn: Turn, asked: Sent) -> None:
        pass

    async def _call(self, turn: Turn, asked: Sent) -> None:
        """Append a model's call and its result."""
        call, result = (self._of(asked, what) for what in ("calls", "found"))
        said = Message(role="assistant", content=call.text, tool_calls=[wish(asked.turn)])
        self._told(call, *await turn.append(said))
        answer = Message(role="tool", tool_call_id="call_0", content=result.text)
        self._told(result, *await turn.append(answer))

    async def _tool(self, turn: Turn, asked: Sent) -> None:
        """Run a tool here; the server stores its call and its result."""
        call, result = (self._of(asked, what) for what in ("look", "found"))
        text = await turn.tool("look", {"of": call.text}, lambda of: result.text)
        if text != result.text:
            self.plan.journal.fault(f"{result.text!r} was recorded as {text!r}")
        for each in (call, result):
            self.plan.journal.acknowledge(each, None)

    async def _append(self, session: Session, person: Person, name: str) -> None:
        """Append two messages at once that belong to no turn of ours."""
        sent = [self.begin(person, session.id, "", f"{name} adds {n}") for n in range(2)]
        stored = await session.append(
            *(Message(role="assistant", content=each.text) for each in sent)
        )
        for each, message in zip(sent, stored, strict=True):
            self._told(each, message)

    def _of(self, asked: Sent, what: str) -> Sent:
        return self.begin(asked.person, asked.session, asked.turn, what)

    def _told(self, sent: Sent, message: Message) -> None:
        told = {"seq": message.seq, "id": message.id, "content": message.content}
        self.plan.journal.acknowledge(sent, told)


# --- with requests of its own ---


@dataclass(slots=True)
class RawClient(Client):
    """Sends requests with an `Idempotency-Key` and without ids, and repeats them itself."""

    http: httpx2.AsyncClient = None  # pyright: ignore[reportAssignmentType]
    numbers: Counter[Person] = field(default_factory=Counter)
    """How many requests each owner has sent: an `Idempotency-Key` is such a number."""
    bound: bool = False
    """Whether the key itself names the owner."""

    async def turn(self, person: Person, name: str) -> None:
        session = await self._session(person, name)
        path = f"/sessions/{session}/turns"
        asked = self.begin(person, session, name, "asks")
        state = await self.send(person, path, {"text": asked.text})
        self.plan.journal.acknowledge(asked, state["user"])
        path = f"{path}/{state['id']}"
        if self.rng.random() < 0.25:
            built = await self.send(person, f"{path}/context", {"budget": 2000})
            if asked.text not in [message["content"] for message in built["messages"]]:
                self.plan.journal.fault(f"a context does not show {asked.text!r}")
        what = self.rng.randrange(4)
        if what == 1:
            await self._call(person, path, asked)
        elif what > 1:
            await self._tool(person, path, asked)
        answer = self.begin(person, session, name, "is answered")
        told = await self.send(person, f"{path}/finish", {"text": answer.text})
        self.plan.journal.acknowledge(answer, told)

    async def _session(self, person: Person, name: str) -> str:
        """Create a session now and then; the server gives it its id."""
        if not self.wants_new_session():
            return self.rng.choice(SESSIONS)
        self.plan.journal.sessions[(person, name)] = ""
        made = await self.send(person, "/sessions", {"title": name})
        self.plan.journal.sessions[(person, name)] = made["id"]
        return made["id"]

    async def _call(self, person: Person, path: str, asked: Sent) -> None:
        call, result = (
            self.begin(person, asked.session, asked.turn, what) for what in ("calls", "found")
        )
        wanted = wish(asked.turn)
        body = {
            "messages": [
                {
                    "role": "assistant",
                    "content": call.text,
                    "tool_calls": [
                        {"id": wanted.id, "name": wanted.name, "arguments": wanted.arguments}
                    ],
                },
                {"role": "tool", "tool_call_id": wanted.id, "content": result.text},
            ]
        }
        stored = await self.send(person, f"{path}/messages", body)
        for each, told in zip((call, result), stored["items"], strict=True):
            self.plan.journal.acknowledge(each, told)

    async def _tool(self, person: Person, path: str, asked: Sent) -> None:
        call, result = (
            self.begin(person, asked.session, asked.turn, what) for what in ("look", "found")
        )
        body = {
            "name": "look",
            "arguments": {"of": call.text},
            "result": result.text,
            "cache_turns": self.rng.randrange(2),
        }
        told = await self.send(person, f"{path}/tools", body)
        if told["text"] != result.text:
            self.plan.journal.fault(f"{result.text!r} was recorded as {told['text']!r}")
        for each in (call, result):
            self.plan.journal.acknowledge(each, None)

    async def send(self, person: Person, path: str, body: Any) -> Any:
        """Send a request, again and again until it is done; return the JSON of the response."""
        self.numbers[person] += 1
        headers = {"Idempotency-Key": str(self.numbers[person])}
        if not self.bound:
            headers["Keepthread-Owner"] = person.owner
        end = time.monotonic() + self.plan.patience
        while time.monotonic() < end:
            try:
                response = await self.http.post(path, json=body, headers=headers)
                await self.plan.look(response)
            except httpx2.TransportError:
                self.plan.seen["broken off"] += 1
                await asyncio.sleep(self.rng.uniform(0, 0.1))
                continue
            if response.is_success:
                return response.json()
            if not response.json()["retryable"]:
                raise KeyError(response.json()["type"])
            await asyncio.sleep(self.rng.uniform(0.3, 1.0))
        raise GaveUp(f"{path} in {self.plan.patience:g} s")
