"""Owners are walls: every public operation, called with what is another owner's.

Two owners ask the same: one gives ids, keys, cursors and names of somebody else, the other gives
some that never existed. Both must hear the same, nothing of somebody else's may be in an answer,
and nothing of theirs may change. The operations are found by inspection: a new one joins by itself,
and one with a parameter that is not named here fails the proof.
"""

import inspect
import random
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from keepthread import (
    Explanation,
    Memory,
    Message,
    Options,
    OwnerMemory,
    Reference,
    References,
    Session,
    Turn,
    Why,
)
from keepthread.errors import KeepthreadError
from keepthread.memory.blobs.blobs import Blobs
from keepthread.memory.facts.facts import Facts
from keepthread.models.tokens import Estimator
from keepthread.protocols import Store
from keepthread.references import SIZE
from keepthread.stores.cursors import encode_cursor
from keepthread.types import Selection

SECRET: Final = "quetzal"
"""A word that only the other owner wrote."""
OTHER: Final = "bob"
KINDS: Final = (OwnerMemory, Session, Turn, Facts, Blobs)
SHARED: Final = "shared"
"""An id that a session of every owner has."""


@dataclass
class Asker:
    """An owner who asks, and the names that they give for what is not theirs."""

    handle: OwnerMemory
    names: Mapping[str, str]
    """By kind: session, message, fact, cursor, feed, owner, source; and a text of somebody."""
    share: float = 0.5
    """How many of the optional arguments are given."""


Value = Callable[[Asker, random.Random], Any]


def named(kind: str) -> Value:
    return lambda asker, rng: asker.names[kind]


def always(value: Any) -> Value:
    return lambda asker, rng: value


def maybe(value: Value) -> Value:
    """Return a value for an optional argument, or nothing, so that the default is used."""
    return lambda asker, rng: value(asker, rng) if rng.random() < asker.share else LEFT_OUT


LEFT_OUT: Final = object()
_KEY: Final = "the key of a session: "
_COMMON: Final = "A sentence of somebody that is long enough to be searched for in files."


def session_name(asker: Asker, rng: random.Random) -> str:
    return asker.names["session"] if rng.random() < 0.8 else SHARED


def said(asker: Asker, rng: random.Random) -> Message:
    id = asker.names["message"] if rng.random() < 0.5 else ""
    return Message(role="user", content=asker.names["text"], id=id)


def explained(session: str) -> Explanation:
    """Return an explanation that names the first messages of a session."""
    made = [Reference("whole", (seq,), "0" * SIZE) for seq in range(1, 4)]
    references = References(session, "Window()", "", False, "f", 1, "", made, "0" * SIZE, "0")
    why = Why(Selection(9, 9, "", (), ()))
    return Explanation("chat", 1.0, 1, why, references)


async def run_tool(**_: object) -> str:
    return "42"


VALUES: Final[Mapping[str, Value]] = {
    # ids, keys, cursors and names of somebody else
    "OwnerMemory.id": session_name,
    "OwnerMemory.create_session.id": maybe(session_name),
    "OwnerMemory.forget.id": maybe(session_name),
    "OwnerMemory.session": maybe(session_name),
    "OwnerMemory.message": maybe(named("message")),
    "OwnerMemory.author": maybe(named("owner")),
    "OwnerMemory.source": maybe(named("source")),
    "OwnerMemory.changes.after": maybe(named("feed")),
    "OwnerMemory.changes.limit": always(1000),
    "cursor": maybe(named("cursor")),
    "Session.id": named("message"),
    "Session.full_text.message": named("message"),
    "Session.recall.wait": maybe(always(False)),
    "Session.fork.id": maybe(session_name),
    "Session.turn.id": maybe(named("message")),
    "Session.cache_tool.id": maybe(named("message")),
    "Session.title_from": maybe(named("message")),
    "Session.version": maybe(named("cursor")),
    "Facts.version": maybe(named("cursor")),
    "Session.author": maybe(named("owner")),
    "Session.explanation": lambda asker, rng: explained(
        asker.names["session key"].removeprefix(_KEY)
    ),
    "Turn.id": maybe(named("message")),
    "Turn.call_id": maybe(named("message")),
    "Turn.agent": maybe(named("owner")),
    "Facts.session": maybe(session_name),
    "Facts.messages": maybe(lambda asker, rng: [asker.names["message"]]),
    "Facts.key": named("fact"),
    "Facts.subject": maybe(named("owner")),
    "Facts.agent": maybe(named("owner")),
    "Facts.source": maybe(named("source")),
    "Facts.from_json.value": lambda asker, rng: [{"fact": asker.names["fact"]}],
    "Blobs.digest": named("blob"),
    "Blobs.put.data": lambda asker, rng: asker.names["text"].encode(),
    "Blobs.put.name": always("file"),
    "media_type": always("text/plain"),
    # words that only somebody else wrote
    "query": always(SECRET),
    "OwnerMemory.list_sessions.title": maybe(always(SECRET)),
    "OwnerMemory.list_sessions.limit": always(1000),
    "tag": maybe(always(SECRET)),
    "Turn.memory_tool.name": always("search_memory"),
    "Turn.arguments": always({"query": SECRET}),
    # all else
    "Session.append.messages": said,
    "Session.align.messages": lambda asker, rng: [said(asker, rng)],
    "Session.add_answer.messages": said,
    "Session.add_answer.after": always(1),
    "hide_late": always(LEFT_OUT),
    "Session.recall.key": always("turn"),
    "Session.drop_addition.key": always("turn"),
    "shown_from": maybe(always(1)),
    "Turn.append.messages": said,
    "system_prompt": maybe(always("Be brief.")),
    "title": maybe(always("A title")),
    "tags": maybe(always(["x"])),
    "meta": maybe(always({"a": 1})),
    "since": maybe(always(1.0)),
    "until": maybe(always(1e10)),
    "roles": maybe(always(["user"])),
    "limit": maybe(always(5)),
    "everything": lambda asker, rng: LEFT_OUT if asker.share else True,
    "answers": maybe(always(True)),
    "dry_run": maybe(always(True)),
    "progress": always(LEFT_OUT),
    "expect": always(LEFT_OUT),
    "role": always("user"),
    "content": always("hello"),
    "text": always("a text"),
    "Session.context.text": always(LEFT_OUT),
    "Turn.context.text": always(LEFT_OUT),
    "attachments": always(LEFT_OUT),
    "Session.add_note.key": always("file"),
    "tools": always(LEFT_OUT),
    "once": always(LEFT_OUT),
    "turns": always(LEFT_OUT),
    "data": always({}),
    "after": always(LEFT_OUT),
    "before": maybe(always(3)),
    "view": always(LEFT_OUT),
    "budget": always(2000),
    "newest": always(LEFT_OUT),
    "name": always("weather"),
    "args": always({"city": "Oslo"}),
    "run": always(run_tool),
    "result": always("rain"),
    "cache_turns": always(2),
    "side_effects": always(LEFT_OUT),
    "to": always(1),
    "at": always(LEFT_OUT),
    "task": always("look it up"),
    "snippet": always(LEFT_OUT),
    "facts": always(True),
    "own_facts": always(LEFT_OUT),
    "recorded": always(LEFT_OUT),
    "answer": always("an answer"),
    "usage": always(LEFT_OUT),
    "truncated": always(LEFT_OUT),
    "attribute": maybe(always("city")),
    "value": maybe(always("Oslo")),
    "many": always(LEFT_OUT),
    "by": always(LEFT_OUT),
    "all": maybe(always(True)),
    "prune": maybe(always(True)),
    "wait": maybe(always(0.01)),
}
"""What each parameter is given: by class, method and name, by class and name, or by name."""

NOT_CALLED: Final = {"OwnerMemory.join": "it takes a session, which nobody has of somebody else"}


def operations() -> list[tuple[type, str]]:
    """Return every public method of what an owner can reach."""
    return [
        (kind, name)
        for kind in KINDS
        for name, _ in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and f"{kind.__name__}.{name}" not in NOT_CALLED
    ]


@dataclass(slots=True)
class WallTally:
    """What was seen so far."""

    probes: Counter[str] = field(default_factory=Counter)
    succeeded: Counter[str] = field(default_factory=Counter)
    changed: int = 0
    broken: list[str] = field(default_factory=list)


class OwnerWalls:
    """Two askers and somebody else, in one store."""

    def __init__(self, store: Store) -> None:
        self.memory = Memory(store, Options(counter=Estimator(), recall="owner"))
        self.tally = WallTally()

    async def settle(self) -> None:
        """Give somebody else sessions, messages and facts, and the askers some of their own."""
        other = self.memory.for_owner(OTHER)
        for name in ("bobs-diary", SHARED, "third"):
            session = await other.session(name, title=f"{SECRET} {name}", system_prompt=SECRET)
            await session.update(tags=[SECRET])
            async with session.turn(f"I keep a {SECRET}.", id=f"bobs-message-in-{name}") as turn:
                await turn.tool(f"see_{SECRET}", {"it": SECRET}, run_tool, cache_turns=5)
                await turn.finish(f"A {SECRET}, noted.")
            await session.append(
                Message(role="user", content=SECRET, source="web:bobs", author=OTHER),
                Message(role="user", content=_COMMON),
            )
        self.facts = await self.memory.store.finder() is not None
        fact = await other.facts.remember(f"Has a {SECRET}.") if self.facts else None
        blob = await other.blobs.put(SECRET.encode(), name=SECRET)
        theirs = (await other.list_sessions(limit=1)).next
        assert theirs
        foreign = {
            "session": "bobs-diary",
            "session key": _KEY + (await other.get_session("bobs-diary")).key,
            "message": "bobs-message-in-bobs-diary",
            "fact": fact.key if fact else "f" * 32,
            "cursor": theirs,
            "feed": str((await other.changes()).next),
            "blob": blob.digest,
            "owner": OTHER,
            "source": "web:bobs",
            "text": _COMMON,
        }
        missing = {
            "session": "nobodys-di",
            "session key": f"{_KEY}0",
            "message": "nobodys-message-in-nobodys",
            "fact": "0" * len(foreign["fact"]),
            "cursor": encode_cursor(["nothing"], [1.0, "1", 1.0, "1", False]),
            "feed": encode_cursor(["nothing"], [1]),
            "blob": "0" * len(blob.digest),
            "owner": "nob",
            "source": "web:nobs",
            "text": _COMMON.replace("somebody", "nobodies"),
        }
        self.askers = [
            Asker(self.memory.for_owner("Bob"), foreign),
            Asker(self.memory.for_owner("BOB"), missing),
        ]
        for asker in self.askers:
            await self._furnish(asker)
        self.before = await self._picture()

    async def _furnish(self, asker: Asker) -> None:
        for name in (SHARED, "own"):
            session = await asker.handle.session(name)
            async with session.turn("My own words.") as turn:
                await turn.finish("Your own answer.")

    async def _picture(self) -> str:
        """Return all that somebody else has."""
        other = self.memory.for_owner(OTHER)
        parts: list[Any] = []
        for info in await other.list_sessions(limit=100):
            session = await other.get_session(info.id)
            parts += [info, await session.messages(), await session.cached_tools()]
        parts += [(b, await other.blobs.read(b.digest)) for b in await other.blobs.list()]
        return repr([*parts, await other.facts.list() if self.facts else ()])

    async def probe(
        self, kind: type, name: str, rng: random.Random, share: float | None = None
    ) -> None:
        """Call one operation for both, and compare what they hear.

        `share` is how many of the optional arguments are given: all, some or none.
        """
        chosen = rng.choice([0.0, 0.5, 0.5, 1.0]) if share is None else share
        for asker in self.askers:
            asker.share = chosen
        what = f"{kind.__name__}.{name}"
        if name == "changes":
            await self._show_changes()
        self.tally.probes[what] += 1
        seed = rng.random()
        heard = [await self._heard(asker, kind, name, random.Random(seed)) for asker in self.askers]
        if heard[0] != heard[1]:
            self.tally.broken.append(f"{what}: {heard[0][:300]} | of nobody: {heard[1][:300]}")
        if SECRET in heard[0]:
            self.tally.broken.append(f"{what}: an answer holds another's word: {heard[0][:300]}")
        self.tally.succeeded[what] += not heard[0].startswith("raises ")
        now = await self._picture()
        if now != self.before:
            self.tally.changed += 1
            self.tally.broken.append(f"{what} changed something of another's")
            self.before = now

    async def _show_changes(self) -> None:
        """Wait until the feed shows all that was written: a store may take a second or two."""
        witness = self.memory.for_owner("witness")
        before = await witness.changes(limit=0)
        await witness.create_session()
        assert await witness.changes(after=before.next, wait=20)

    async def _heard(self, asker: Asker, kind: type, name: str, rng: random.Random) -> str:
        """Return what an asker hears, without what differs between any two owners."""
        async with AsyncExitStack() as stack:
            target = await self._target(asker, kind, stack)
            method = getattr(target, name)
            args, kwargs = arguments(kind, name, asker, rng)
            try:
                parts = await told(method(*args, **kwargs), stack)
            except KeepthreadError as error:
                parts = [f"raises {type(error).__name__}: {error}"]
        await self.memory.idle()  # so that the next call does not meet work in the background
        # Facts of one moment are in the order of their keys, which differ between any two owners,
        # and sessions in that of their activity, which is recorded up to a second late.
        heard = [plain(part, asker) for part in parts]
        # Changes are in order in every session, and sessions in any order among each other.
        unordered = kind is Facts or name in ("list_sessions", "changes")
        return "\n".join(sorted(heard) if unordered else heard)

    async def _target(self, asker: Asker, kind: type, stack: AsyncExitStack) -> Any:
        if kind is OwnerMemory:
            return asker.handle
        if kind is Facts:
            return asker.handle.facts
        if kind is Blobs:
            return asker.handle.blobs
        session = await asker.handle.session("own")
        if kind is Session:
            return session
        turn = await stack.enter_async_context(session.turn("What do you know?"))
        if self.facts:
            await turn.context(budget=2000)
        return turn


def arguments(
    kind: type, name: str, asker: Asker, rng: random.Random
) -> tuple[list[Any], dict[str, Any]]:
    """Return what an operation is called with."""
    signature = inspect.signature(getattr(kind, name))
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    for parameter in list(signature.parameters.values())[1:]:
        at = f"{kind.__name__}.{name}.{parameter.name}"
        ways = (at, f"{kind.__name__}.{parameter.name}", parameter.name)
        value = next((VALUES[way] for way in ways if way in VALUES), None)
        if value is None:
            raise AssertionError(f"{at} is not probed: say in VALUES what it is given")
        chosen = value(asker, rng)
        if parameter.kind is parameter.VAR_POSITIONAL:
            args.append(chosen)
        elif chosen is not LEFT_OUT:
            kwargs[parameter.name] = chosen
    return args, kwargs


async def told(answer: Any, stack: AsyncExitStack) -> list[str]:
    """Return all that an answer tells: what it waits for, opens or holds."""
    if isinstance(answer, Awaitable):
        answer = await answer
    if isinstance(answer, AsyncGenerator):
        answer = [part async for part in answer]
    if isinstance(answer, dict):  # a document of facts
        answer = [*answer.keys(), *answer.get("facts", ())]
    if isinstance(answer, Turn):
        turn = await stack.enter_async_context(answer)
        context = await turn.context(budget=2000)
        return [f"Turn {turn.user!r} {turn.answer!r} {context.selection!r}"]
    if isinstance(answer, Session):
        parts = [answer.info, await answer.messages(), await answer.pins()]
        return [f"Session {parts!r} {(await answer.context(budget=2000)).text}"]
    if isinstance(answer, str):
        return answer.splitlines()
    return [repr(each) for each in answer] if isinstance(answer, list) else [repr(answer)]


def plain(text: str, asker: Asker) -> str:
    """Return a text without names, numbers and random ids, which differ between any two owners."""
    for name in sorted({*asker.names.values(), asker.handle.owner}, key=len, reverse=True):
        text = text.replace(repr(name), "NAME").replace(name, "NAME")
    text = re.sub(r"(?:keepthread\.\w+(?:, )?)+", "TABLES", text)  # those that their rows are in
    text = re.sub(r"0x[0-9a-f]+|[0-9a-f]{12,}", "ID", text)
    text = re.sub(r"(?<!\w)b(?:'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")", "BYTES", text)
    return re.sub(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?", "N", text)


async def prove_owners(
    store: Store, size: int, seed: int, progress: Callable[[int, int], None]
) -> WallTally:
    """Probe every operation in turn, `size` times in all, in a random order."""
    walls = OwnerWalls(store)
    await walls.settle()
    rng = random.Random(seed)
    waiting: list[tuple[type, str]] = []
    for number in range(1, size + 1):
        if not waiting:
            waiting = operations()
            rng.shuffle(waiting)
        await walls.probe(*waiting.pop(), rng)
        if number % 20 == 0 or number == size:
            progress(number, size)
    await walls.memory.idle()
    return walls.tally
