"""P25: what reaches a coding agent's memory is shown quoted, holds only if confirmed, and can go.

Attacks come in by everything that others can write: messages of every origin, names of sessions,
authors and tools, arguments, attachments, titles, facts of a client, the client's own name, and
session files and hooks of agents, and documents that clients of the proxy put into the user's
role, which an honest model reads for facts. Then a client calls every tool, reads every resource
and the prompt, and hooks recall for prompts. The attack's codeword may appear inside quotations
alone, no fact with it may hold, and after `forget` nothing of it may be left.
"""

import asyncio
import io
import json
import random
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeAlias

from keepthread import Attachment, Memory, Message, Options, RamStore, ToolCall
from keepthread.apps.hooks.client import RECALLS, STORES
from keepthread.apps.hooks.events import HookMemories, HookRequest
from keepthread.apps.mcp.actions import ClientMemory
from keepthread.apps.mcp.definitions import FACTS_URI
from keepthread.apps.mcp.quotations import session_uri
from keepthread.apps.proxy.memory import ProxyMemory
from keepthread.apps.proxy.request import read_request
from keepthread.apps.proxy.types import ProviderAnswer
from keepthread.context.chat_templates import read
from keepthread.errors import InvalidInput
from keepthread.interchange.agents import import_agents
from keepthread.interchange.conversations import source_of
from keepthread.memory.facts.extraction import Extraction
from keepthread.memory.owner import OwnerMemory
from keepthread.models.tokens import Estimator
from keepthread.testing.model import ScriptedModel
from keepthread.types import Origin
from proofs import Outcome, Progress, Proof
from proofs.attacks import DRESSES, Attack, Known, attack
from tests.proxy_documents import CLIENT_DOCUMENTS, ClientDocument

TOPIC: Final = "lighthouse"
SOURCE: Final = "web:https://evil.example"
_HEAD: Final = re.compile(r"\[[^\n]*, quoted, delimiter ([0-9a-f]{16})\]")
_ADDRESS: Final = re.compile(r"keepthread://sessions/[A-Za-z0-9%._~-]+")


def outside_quotations(text: str) -> str:
    """Return what a text says in its own voice; raise `ValueError` if a quotation is broken."""
    rest: list[str] = []
    delimiter = ""
    for line in text.split("\n"):
        head = _HEAD.fullmatch(line)
        if delimiter and line == f"[end of quote, delimiter {delimiter}]":
            delimiter = ""
        elif delimiter:
            if not line.startswith(">") or delimiter in line:
                raise ValueError("a line leaves its quotation")
        elif head:
            delimiter = head[1]
            rest.append(line.replace(delimiter, "DELIMITER"))
        else:
            rest.append(line)
    if delimiter:
        raise ValueError("a quotation is open")
    return "\n".join(rest)


@dataclass
class AgentScene:
    """One owner's memory, an attack upon it, and how it is undone."""

    whole: Memory
    memory: OwnerMemory
    attack: Attack
    rng: random.Random
    undo: dict[str, Any]

    def client(self, name: str = "an agent") -> ClientMemory:
        """Return the memory as a client may use it."""
        return ClientMemory(memory=self.memory, client=name)

    async def say(self, message: Message, session: str = "talk", **about: Any) -> None:
        """Store a message from somewhere else."""
        talk = await self.memory.session(session, **about)
        await talk.append(message)


Way: TypeAlias = Callable[[AgentScene], Awaitable[None]]


def _by_message(origin: Origin, **fields: Callable[[Attack], Any]) -> Way:
    async def way(scene: AgentScene) -> None:
        role = origin if origin in ("user", "assistant", "tool") else "user"
        given = {name: make(scene.attack) for name, make in fields.items()}
        given.setdefault("content", f"The {TOPIC} is closed.")
        await scene.say(Message(role=role, origin=origin, source=SOURCE, **given))

    return way


async def _session_name(scene: AgentScene) -> None:
    name = "".join(c for c in scene.attack.name if c.isprintable())[:200]
    scene.undo = {"session": name}
    await scene.say(Message(role="user", content=f"The {TOPIC} is open."), name)


async def _title(scene: AgentScene) -> None:
    scene.undo = {"session": "talk"}
    title = " ".join(scene.attack.text.split())[:100]
    await scene.say(Message(role="user", content=f"The {TOPIC} is open."), title=title)


async def _fact(scene: AgentScene) -> None:
    scene.undo = {"source": "mcp:an_agent"}
    await scene.client().call("remember", {"text": scene.attack.text[:1000]})
    await scene.client().call("remember", {"text": f"{TOPIC}: {scene.attack.brief}"})


async def _client_name(scene: AgentScene) -> None:
    client = scene.client(scene.attack.name)
    scene.undo = {"source": client.source}
    await client.call("remember", {"text": f"The {TOPIC} is red. {scene.attack.codeword}"})


async def _tool_fact(scene: AgentScene) -> None:
    message = Message(role="tool", content=scene.attack.text, id="m", source=SOURCE)
    await scene.say(message)
    text = f"The {TOPIC}: {scene.attack.codeword}"
    await scene.memory.facts.remember(text, session="talk", messages=["m"])


async def _session_file(scene: AgentScene) -> None:
    about = {"sessionId": "s", "cwd": scene.attack.name, "timestamp": "2026-11-01T10:00:00Z"}
    text = {"type": "text", "text": scene.attack.text}
    call = {"type": "tool_use", "id": "t", "name": scene.attack.name, "input": scene.attack.text}
    lines = [
        {"type": "user", "uuid": "1", "message": {"content": [text]}, **about},
        {"type": "assistant", "uuid": "2", "message": {"content": [text, call]}, **about},
    ]
    data = "".join(json.dumps(each) + "\n" for each in lines).encode()
    owner = scene.memory.owner
    await import_agents(scene.whole.store, [io.BytesIO(data)], owner=owner)
    scene.undo = {"session": "claude-code:s"}


class _SceneMemories(HookMemories):
    """What hooks use, over the memory of a scene."""

    def __init__(self, scene: AgentScene, folder: str = "") -> None:
        super().__init__({"CLAUDE_CONFIG_DIR": folder})
        self._scene = scene
        self._counters[scene.whole] = Estimator()

    async def _memory(self, request: HookRequest, *, create: bool) -> tuple[Memory, str]:
        return self._scene.whole, self._scene.memory.owner


def _hook(scene: AgentScene, event: str, folder: str, path: Path, **more: Any) -> HookRequest:
    """Return a request in which everything that a payload may name is the attack."""
    name, text = scene.attack.name, scene.attack.text
    payload = {"session_id": name, "cwd": text, "project": name, "prompt": text, **more}
    place = {"agent": "claude-code", "event": event, "folder": folder}
    return HookRequest.of({**payload, **place, "transcript_path": str(path)})


async def _hook_payload(scene: AgentScene) -> None:
    await _by_hook(scene, {"sessionId": "s", "cwd": "/shop"})
    scene.undo = {"source": source_of("claude-code", "s")}


async def _hook_of_sub_agent(scene: AgentScene) -> None:
    name, text = scene.attack.name, scene.attack.text
    await _by_hook(scene, {"sessionId": name, "agentId": name, "isSidechain": True, "cwd": text})
    (session,) = await scene.memory.list_sessions(limit=2)
    scene.undo = {"session": session.id}


async def _by_hook(scene: AgentScene, about: Mapping[str, Any]) -> None:
    """Store a session file at each event: what people, the model and tools write is the attack."""
    text = {"type": "text", "text": f"{TOPIC}: {scene.attack.text}"}
    call = {"type": "tool_use", "id": "t", "name": scene.attack.name, "input": scene.attack.text}
    result = {"type": "tool_result", "tool_use_id": "t", "content": scene.attack.text}
    lines = [
        {"type": kind, "uuid": str(n), "message": {"content": [block]}, **about}
        for n, (kind, block) in enumerate(
            [("user", text), ("assistant", text), ("assistant", call), ("user", result)]
        )
    ]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "projects" / "p" / "s.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(json.dumps(each) + "\n" for each in lines))
        for event in STORES:
            await _SceneMemories(scene, folder).store(_hook(scene, event, folder, path))


def _by_client(document: ClientDocument) -> Way:
    """Return a way through the proxy: a client puts the attack into the user's role."""

    async def way(scene: AgentScene) -> None:
        headers = {"x-session-id": "talk"}
        text = f"The {TOPIC}: {scene.attack.text}"
        body = document.body(text, f"Is the {TOPIC} open?")
        request = read_request(document.wire, body, headers)
        assert request is not None
        proxy = ProxyMemory(scene.memory, "key")
        prepared = await proxy.prepare(request)
        answer = Message(role="assistant", content=f"It says: {scene.attack.codeword}")
        await proxy.record(prepared, ProviderAnswer([answer], complete=True))
        # An honest model extracts what the document says; nothing of it may hold.
        fact = {
            "source": 1,
            "subject": "user",
            "attribute": "order",
            "value": scene.attack.codeword,
            "many": False,
            "ended": False,
            "text": f"The user's standing order about the {TOPIC} is {scene.attack.codeword}.",
        }
        extraction = Extraction(ScriptedModel([json.dumps({"facts": [fact]})] * 8), turns=1)
        reader = Memory(scene.whole.store, Options(extraction=extraction, counter=Estimator()))
        await reader.for_owner(scene.memory.owner).facts.extract()
        if prepared.session:
            scene.undo = {"session": prepared.session}

    return way


WAYS: Final[Mapping[str, Way]] = {
    "a user's message": _by_message("user", content=lambda a: a.text),
    "an answer": _by_message("assistant", content=lambda a: a.text),
    "a tool's result": _by_message("tool", content=lambda a: a.text),
    "a web page": _by_message("web", content=lambda a: a.text),
    "an import": _by_message("import", content=lambda a: a.text),
    "an author": _by_message("web", author=lambda a: a.name),
    "a tool's name": _by_message("tool", name=lambda a: a.name),
    "an attachment": _by_message(
        "web",
        attachments=lambda a: (Attachment(media_type="image/png", uri="x:y", name=a.name),),
    ),
    "a call": _by_message(
        "assistant", tool_calls=lambda a: (ToolCall(id="c", name=a.name, arguments=a.text),)
    ),
    "a session's name": _session_name,
    "a title": _title,
    "a client's fact": _fact,
    "a client's name": _client_name,
    "a fact of a tool": _tool_fact,
    "a session file": _session_file,
    "a hook": _hook_payload,
    "a hook of a sub-agent": _hook_of_sub_agent,
    **{f"a document of {name}": _by_client(each) for name, each in CLIENT_DOCUMENTS.items()},
}


def run(size: int, seed: int, progress: Progress) -> Outcome:
    """Try `size` attacks, each way in turn."""
    broken: list[str] = []
    tally = {"attacks": size, "shown in quotations": 0, "refused at the door": 0}
    for number in range(size):
        way = sorted(WAYS)[number % len(WAYS)]
        dress = sorted(DRESSES)[(number // len(WAYS) + number) % len(DRESSES)]
        rng = random.Random(f"{seed} {number}")
        found, shown = asyncio.run(_play(way, dress, rng))
        tally["shown in quotations"] += shown > 0
        tally["refused at the door"] += shown < 0
        broken += [f"attack {number}, {way}, {dress}: {what}" for what in found]
        progress(number + 1, size)
    return Outcome(figures={"ways": len(WAYS), **tally}, broken=tuple(broken))


async def _play(way: str, dress: str, rng: random.Random) -> tuple[list[str], int]:
    """Return what went wrong, and how many quotations showed the attack; -1 if it was refused."""
    async with Memory(RamStore()) as memory:
        made = attack(rng, Known(own="0123456789abcdef", others=("f" * 16,)), TOPIC, dress)
        scene = AgentScene(memory, memory.for_owner("ann"), made, rng, {"source": SOURCE})
        try:
            await WAYS[way](scene)
        except InvalidInput:
            return [], -1
        texts = [each async for each in _shown(scene)]
        broken = [what for text in texts for what in _faults(text, made)]
        broken += await _live_facts(scene)
        seen = sum(made.codeword in text for text in texts)
        await scene.memory.forget(**scene.undo)
        broken += await _traces(scene)
        return broken, seen


async def _shown(scene: AgentScene) -> AsyncIterator[str]:
    """Yield everything that a client is shown: texts, and quotations of structured results."""
    client = scene.client()
    sessions = [each.id for each in await scene.memory.list_sessions(limit=50)]
    calls: list[tuple[str, dict[str, Any]]] = [
        ("search_memory", {"query": TOPIC, "limit": 20}),
        ("search_memory", {"query": scene.attack.codeword}),
        ("list_facts", {}),
        ("list_facts", {"query": TOPIC}),
        *(("read_session", {"session": session_uri(id), "limit": 50}) for id in sessions),
        ("read_session", {"session": "nothing"}),
    ]
    for name, arguments in calls:
        answer = await client.call(name, arguments)
        yield answer.text
        for text in _strings(answer.value):
            yield text
    for uri in (FACTS_URI, *map(session_uri, sessions)):
        yield await client.resource(uri) or ""
    yield await client.recall(TOPIC)
    for prompt in (TOPIC, scene.attack.codeword, scene.attack.text):
        asked = HookRequest("codex", RECALLS, "/", prompt=prompt, all_projects=True)
        yield await _SceneMemories(scene).recall(asked)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield "" if _ADDRESS.fullmatch(value) else value
    elif isinstance(value, Mapping):
        for each in value.values():
            yield from _strings(each)
    elif isinstance(value, list):
        for each in value:
            yield from _strings(each)


def _faults(text: str, made: Attack) -> list[str]:
    try:
        rest = outside_quotations(text)
    except ValueError as error:
        return [str(error)]
    seen = re.sub(r"[\W_]+", "", read(rest))
    found = ["the codeword is outside a quotation"] if made.codeword in seen else []
    marks = ("<|", "<system-reminder", "</system-reminder")
    return [*found, *(["a template's mark is shown"] if any(m in text for m in marks) else [])]


async def _live_facts(scene: AgentScene) -> list[str]:
    facts = await scene.memory.facts.list(all=True)
    return [f"a fact holds: {each.state}" for each in facts if each.state == "live"]


async def _traces(scene: AgentScene) -> list[str]:
    data = b"".join([line async for line in scene.memory.export()]).decode(errors="replace")
    hits = await scene.memory.search(scene.attack.codeword)
    places = {"the export": scene.attack.codeword in data, "the search": bool(hits)}
    return [f"{where} still has it" for where, found in places.items() if found]


PROOF: Final = Proof(
    name="P25",
    promise="a coding agent's memory cannot be poisoned silently",
    unit="attacks",
    small=40,
    closing=200,
    long=5_000,
    run=run,
)
