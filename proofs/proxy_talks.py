"""The conversations of P26: clients that know nothing of a memory, and all that they do.

They ask, ask again, edit earlier questions, have answers generated again, branch, put a summary in
the place of old messages, and send a request twice at the same time. Each text is unique and names
its conversation.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, Final, Literal, NamedTuple, TypeAlias
from zlib import crc32

import httpx2

from keepthread.apps.proxy.types import WireName
from proofs.proxy_provider import PATHS, PROOF_ID, Provider, Reply, Wire, heard
from tests.proxy_documents import CLIENT_DOCUMENTS, ClientDocument

Naming: TypeAlias = Literal["header", "opening", "thread"]
Said: TypeAlias = tuple[str, str]
"""Role and text."""
OWNERS: Final = ("ann", "bob")
_WORDS: Final = ("tide", "harbor", "violin", "glacier", "cedar", "saffron", "comet", "quarry")
_MOST_TRIALS: Final = 600
_GIVE_UP: Final = 0.3
_PAUSE: Final = 0.1
_SOON: Final = 5.0
"""Seconds in which a proxy records an answer, also while the store is busy."""


class Sent(NamedTuple):
    """A request, and its fate."""

    id: str
    body: bytes
    texts: Sequence[str]
    """The texts in it."""
    state: str = ""
    """The header `Keepthread-Memory`; empty if no response came."""
    session: str = ""
    status: int = 0
    answer: str = ""
    complete: bool = False
    life: int = 0
    """Which process of the proxy got it."""


@dataclass
class World:
    """The provider, the addresses of the proxies, and what was seen."""

    provider: Provider
    rng: random.Random
    http: httpx2.AsyncClient
    addresses: dict[str, str] = field(default_factory=dict[str, str])
    """By owner."""
    lives: Counter[str] = field(default_factory=Counter[str])
    """How often each proxy was started."""
    calm: bool = False
    """Whether providers answer every request completely from now on."""
    seen: Counter[str] = field(default_factory=Counter[str])
    broken: list[str] = field(default_factory=list[str])
    numbers: int = 0
    recent: dict[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]])
    """Owner and end of each request, as long as its answer may not be recorded yet."""
    at_kills: set[str] = field(default_factory=set[str])
    """Requests that a proxy which was killed had under way, or had just answered."""

    def note_kill(self, owner: str) -> None:
        """Note the requests that the proxy of an owner may not have recorded."""
        now = time.monotonic()
        found = [id for id, (who, at) in self.recent.items() if who == owner and at > now - _SOON]
        self.at_kills.update(found)

    def next_id(self) -> str:
        """Return an id that no request had."""
        self.numbers += 1
        return f"{self.numbers:06}"


@dataclass
class Talk:
    """One conversation of a client."""

    world: World
    name: str
    owner: str
    wire: Wire
    naming: Naming
    rng: random.Random
    history: list[Said] = field(default_factory=list[Said])
    known: set[str] = field(default_factory=set[str])
    """All texts that its session may hold."""
    summarized: set[str] = field(default_factory=set[str])
    """Those that the client put a summary in the place of."""
    uncertain: set[str] = field(default_factory=set[str])
    """Texts of a thread that may be missing: the response said so."""
    requests: list[Sent] = field(default_factory=list[Sent])
    branches: "list[Talk]" = field(default_factory=list["Talk"])
    written: int = 0
    least: int = 1
    """Messages at the beginning that stay, so that the rest can be found in the log."""

    # --- acting ---

    async def run(self, steps: int) -> None:
        """Do some things that clients do."""
        await self.ask()
        for _ in range(steps):
            await self.act()

    async def act(self) -> None:
        """Do one of them."""
        doing = [self.ask]
        if self.naming != "thread" and self.history[-1][0] == "assistant":
            doing += [self.ask, self.ask, self.regenerate, self.edit, self.twice]
        if self.naming == "header" and len(self.history) > 5:
            doing += [self.branch, self.summarize]
        chosen = self.rng.choice(doing)
        self.world.seen[chosen.__name__] += 1
        await chosen()

    async def ask(self) -> None:
        """Ask a new question."""
        self.history.append(("user", self.text("question")))
        await self.deliver()

    async def regenerate(self) -> None:
        """Have the newest answer generated again."""
        if len(self.history) > self.least + 1:
            self.history.pop()
            await self.deliver()

    async def edit(self) -> None:
        """Change an earlier question; the client drops what came after it."""
        users = [n for n, said in enumerate(self.history) if said[0] == "user"]
        later = [n for n in users if n >= self.least]
        if later:
            del self.history[self.rng.choice(later) :]
            await self.ask()

    async def twice(self) -> None:
        """Send a question twice at the same time, and take one of the answers."""
        self.history.append(("user", self.text("question")))
        both = await asyncio.gather(self.send(), self.send())
        done = [each for each in both if each.complete and each.status == 200]
        if done:
            self.history.append(("assistant", self.rng.choice(done).answer))
        else:
            await self.deliver()

    async def branch(self) -> None:
        """Continue an earlier point of the conversation in another one."""
        ends = [n + 1 for n, said in enumerate(self.history) if said[0] == "assistant"]
        at = self.rng.choice([end for end in ends if end >= self.least] or ends[-1:])
        made = Talk(
            self.world,
            f"{self.name}b{len(self.branches)}",
            self.owner,
            self.wire,
            "header",
            random.Random(self.rng.getrandbits(32)),
            history=self.history[:at],
            known=set(self.known),
            summarized=set(self.summarized),
            least=self.least,
        )
        self.branches.append(made)
        await made.ask()

    async def summarize(self) -> None:
        """Put a summary in the place of the oldest messages, and ask.

        The log has the messages that stay: otherwise nothing shows where they continue it.
        """
        await self.ask()
        if self.requests[-1].state == "recorded" and self.history[-1][0] == "assistant":
            users = [n for n, said in enumerate(self.history) if said[0] == "user"]
            first = self.rng.choice(users[1:-1])
            self.summarized |= {text for _, text in self.history[:first]}
            self.history = [("user", self.text("summary")), *self.history[first:]]
            self.least = 3
        await self.ask()

    def text(self, what: str) -> str:
        """Return a text that nothing else has, with words that others have."""
        self.written += 1
        words = " ".join(self.rng.sample(_WORDS, 2))
        text = f"{what} <{self.owner}:{self.name}:{self.written}> about the {words}"
        self.known.add(text)
        return text

    # --- sending ---

    async def deliver(self) -> None:
        """Send the history until it is answered; sometimes the question is dropped instead."""
        for trial in range(_MOST_TRIALS):
            sent = await self.send()
            if sent.complete and sent.status == 200:
                self.history.append(("assistant", sent.answer))
                return
            if sent.answer and self.naming != "thread" and self.rng.random() < 0.5:
                self.history.append(("assistant", sent.answer))  # as far as it came
                self.known.add(sent.answer)
                self.world.seen["cut answers kept"] += 1
                return
            if not sent.status:
                await asyncio.sleep(_PAUSE)
            elif (
                trial
                and self.naming != "thread"
                and len(self.history) > self.least
                and self.gives_up()
            ):
                self.history.pop()
                return
        self.world.broken.append(f"{self.name}: no answer after {_MOST_TRIALS} attempts")

    def gives_up(self) -> bool:
        """Return whether the user deletes a question that was not answered."""
        may_be = self.naming != "thread" and len(self.history) > self.least
        is_so = may_be and self.rng.random() < _GIVE_UP
        self.world.seen["questions dropped"] += is_so
        return is_so

    async def send(self) -> Sent:
        """Send the history once, and compare the response with what the provider gave."""
        world, id = self.world, self.world.next_id()
        reply = self.reply()
        world.provider.replies[id] = reply
        self.known.add(reply.text)
        shown = self.history[-1:] if self.naming == "thread" else self.history
        streams = reply.kind in ("stream", "cut")
        with_documents = self.naming != "thread"  # its history is sent as it is built
        body = body_of(self.wire, shown, streams=streams, with_documents=with_documents)
        sent = Sent(id, body, [text for _, text in shown], life=world.lives[self.owner])
        url = f"{world.addresses[self.owner]}{PATHS[self.wire]}"
        received = bytearray()
        world.recent[id] = (self.owner, inf)
        try:
            async with world.http.stream(
                "POST", url, content=body, headers=self.headers(id)
            ) as response:
                sent = sent._replace(
                    status=response.status_code,
                    state=response.headers.get("keepthread-memory", ""),
                    session=response.headers.get("keepthread-session", ""),
                )
                async for data in response.aiter_raw():
                    received += data
            sent = sent._replace(complete=True, answer=reply.text)
        except httpx2.HTTPError:
            world.seen["responses cut"] += 1
            sent = sent._replace(answer=heard(self.wire, bytes(received)) if streams else "")
        world.recent[id] = (self.owner, time.monotonic())
        self.note(sent, reply, bytes(received))
        return sent

    def note(self, sent: Sent, reply: Reply, received: bytes) -> None:
        """Keep a request, and check that its response is the provider's."""
        world = self.world
        self.requests.append(sent)
        world.seen["requests"] += 1
        world.seen[f"memory {sent.state.partition(';')[0] or 'unknown'}"] += bool(sent.status)
        given = world.provider.given.get(sent.id)
        if sent.complete and (given is None or received != given):
            world.broken.append(f"{self.name}: the body of {sent.id} was changed")
        expected = 429 if reply.kind == "error" else 200
        if sent.complete and sent.status != expected:
            world.broken.append(f"{self.name}: {sent.id} had status {sent.status}")
        if self.naming == "thread" and sent.state == "unavailable":
            self.uncertain |= {*sent.texts, reply.text}

    def reply(self) -> Reply:
        """Decide how the provider answers the next request."""
        text = self.text("answer")
        if self.world.calm:
            return Reply("whole", text)
        kinds: list[Literal["whole", "stream", "cut", "error"]] = [
            "whole",
            "stream",
            "cut",
            "error",
        ]
        (kind,) = self.rng.choices(kinds, [6, 6, 1, 1])
        return Reply(kind, text, self.rng.choice((0.0, 0.0, 0.05)))

    def headers(self, id: str) -> dict[str, str]:
        """Return the headers of a request."""
        named = {"header": "x-session-id", "thread": "keepthread-session"}.get(self.naming)
        given = {PROOF_ID: id, "authorization": "Bearer sk-of-the-user"}
        given["content-type"] = "application/json"
        return given | ({named: self.name} if named else {})


def body_of(
    wire: Wire, history: Sequence[Said], *, streams: bool, with_documents: bool = False
) -> bytes:
    """Return the body of a request, with fields and white space that programs rarely write."""
    messages = [
        {"role": role, "content": _content(wire, text) if with_documents else text}
        if role == "user"
        else {"role": role, "content": text}
        for role, text in history
    ]
    fields: Mapping[str, Any]
    if wire == "chat":
        system = {"role": "system", "content": "Be brief."}
        fields = {"messages": [system, *messages]}
    elif wire == "anthropic":
        fields = {"system": "Be brief.", "max_tokens": 100, "messages": messages}
    else:
        fields = {"instructions": "Be brief.", "input": messages, "store": False}
    body = {"model": "m", "x_unknown": 1.50, **fields, "stream": streams}
    return json.dumps(body, indent=1, ensure_ascii=False).encode()


def _content(wire: Wire, question: str) -> Any:
    """Return a user's message; every second has a document of others, in the form of a client."""
    chance = crc32(question.encode())
    forms = _DOCUMENTS[wire]
    if chance % 2 or not question.startswith("question"):
        return question
    return forms[chance // 2 % len(forms)].content(f"{DOCUMENT} {question[8:]}", question)


def _documents(wire: WireName) -> list[ClientDocument]:
    """Return the forms in which the user's own words are the question alone."""
    return [
        document
        for document in CLIENT_DOCUMENTS.values()
        if document.wire == wire
        and document.has_question
        and not any("<task>" in part for part in document.parts)
    ]


DOCUMENT: Final = "document: I always want order"
"""The beginning of what others wrote; the names of the conversation follow."""
_DOCUMENTS: Final[Mapping[Wire, list[ClientDocument]]] = {
    "chat": _documents("openai-chat"),
    "responses": _documents("openai-responses"),
    "anthropic": _documents("anthropic"),
}
