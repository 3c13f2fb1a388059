"""One Hypothesis state machine that tells several stores the same and compares their answers."""

import asyncio
import functools
import itertools
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from keepthread.errors import Conflict, KeepthreadError
from keepthread.protocols import Store
from keepthread.stores.url import store_at
from keepthread.testing import ManualClock
from keepthread.types import Gathered, Message, Record, Scope, SessionInfo, SessionKey, Span
from tests.test_codec import messages

few_ids = st.sampled_from(("m1", "m2", "m3", "0" * 32, ""))
few_tokens = st.integers(0, 60).map(lambda n: n if n < 60 else 2**53 - 1)
"""Mostly small counts, so that a log can grow; now and then one that fills it."""
drafts = st.builds(
    lambda m, id, tokens: replace(m, id=id, tokens=tokens), messages, few_ids, few_tokens
)
positions = st.none() | st.integers(0, 12)
names = st.sampled_from(("a", "b"))
spans = st.tuples(st.integers(0, 6), st.integers(0, 8))
CHANGEABLE = st.sampled_from(("title", "tags", "system_prompt", "meta"))
versions = st.sampled_from((None, "current", 0, 999_999))
between = st.fixed_dictionaries(
    {}, optional={"after": st.integers(0, 6), "min_messages": st.integers(0, 3)}
)
bounds = st.fixed_dictionaries(
    {}, optional={"after": names, "before": names, "limit": st.integers(0, 3)}
)


class Stage:
    """Stores that are open side by side; their clock is one, and they make the same ids."""

    def __init__(self, urls: Sequence[str]) -> None:
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        self.numbers: list[Iterator[int]] = [itertools.count() for _ in urls]
        self.used: Counter[str] = Counter()
        """How often each rule was used."""
        self._tenants = itertools.count()
        self._stores = [
            self.run(store_at(url)(clock=self.clock, ids=functools.partial(self._id, index)))
            for index, url in enumerate(urls)
        ]

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def clear(self) -> list[Store]:
        """Return the stores behind walls that nobody was behind before."""
        self.clock.now = ManualClock().now
        self.numbers = [itertools.count() for _ in self._stores]
        name = f"tenant {next(self._tenants)}"
        return [store.tenant(name) for store in self._stores]

    def close(self) -> None:
        for store in self._stores:
            self.run(store.close())
        self.run(self.loop.shutdown_default_executor())
        self.loop.close()

    def _id(self, index: int) -> str:
        return f"made-{next(self.numbers[index])}"


@contextmanager
def staged(*urls: str) -> Iterator[Stage]:
    """Open stores for as long as the block lasts."""
    stage = Stage(urls)
    try:
        yield stage
    finally:
        stage.close()


def step(**given: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make a rule whose uses are counted."""

    def make(method: Callable[..., Any]) -> Any:
        @functools.wraps(method)
        def counted(self: "Stores", **values: Any) -> Any:
            self.stage.used[method.__name__] += 1
            return method(self, **values)

        return rule(**given)(counted)

    return make


class Lengths(NamedTuple):
    """Counts characters, so many to a token."""

    each: int

    @property
    def name(self) -> str:
        return f"lengths-{self.each}"

    def count(self, message: Message) -> int:
        return len(message.content) // self.each


ON_A_SESSION: dict[str, Callable[[Store, SessionKey], Awaitable[Any]]] = {
    "append": lambda s, key: s.append(key, [Message(role="user", content="a")]),
    "append nothing": lambda s, key: s.append(key, []),
    "delete": lambda s, key: s.delete_session(key),
    "delete if idle": lambda s, key: s.delete_session(key, idle_since=0),
    "delete if unready": lambda s, key: s.delete_session(key, unready=True),
    "describe": lambda s, key: s.describe(key),
    "drop": lambda s, key: s.drop(Scope(session=key), "k", "k"),
    "erase": lambda s, key: s.erase(key, [1]),
    "find": lambda s, key: s.find(key, ids=["m1"]),
    "gather": lambda s, key: s.gather(key, tokens=9),
    "get": lambda s, key: s.get(Scope(session=key), "k", "k"),
    "load": lambda s, key: s.load(key, []),
    "put": lambda s, key: s.put(Scope(session=key), "k", "k", 1),
    "read": lambda s, key: s.read(key),
    "recount": lambda s, key: s.recount(key, Lengths(2)),
    "scan": lambda s, key: s.scan(Scope(session=key)),
    "tail": lambda s, key: s.tail(key),
    "update": lambda s, key: s.put_session(SessionInfo(id="x", key=key)),
}


class Stores(RuleBasedStateMachine):
    """Tells all stores of a stage the same; the first is the model of the others."""

    sessions = Bundle("sessions")
    gone = Bundle("gone")

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self.stage = stage
        self.stores = stage.clear()

    @initialize(target=sessions)
    def begin(self) -> Any:
        return self.put_session(id="a", owner="a", kind="main")

    def everywhere(self, call: Callable[[Store, int], Awaitable[Any]]) -> list[Any] | None:
        """Return all answers if all answered; all refused, and alike, otherwise."""
        answers: list[Any] = []
        for index, store in enumerate(self.stores):
            try:
                answers.append(self.stage.run(call(store, index)))
            except KeepthreadError as error:
                answers.append(error)
        if not any(isinstance(a, KeepthreadError) for a in answers):
            return answers
        refusals = [_refusal(answer) for answer in answers]
        assert refusals == refusals[:1] * len(refusals), answers
        return None

    def same(self, call: Callable[[Store, int], Awaitable[Any]]) -> list[Any] | None:
        """Expect equal answers, keys and versions apart, and return them."""
        if answers := self.everywhere(call):
            model, *others = map(_comparable, answers)
            for other in others:
                assert other == model, f"\n{model!r}\n{other!r}"
        return answers

    @step(
        target=sessions, id=names, owner=names, kind=st.sampled_from(("main", "fork", "delegate"))
    )
    def put_session(self, id: str, owner: str, kind: Any) -> Any:
        info = SessionInfo(id=id, owner=owner, kind=kind)
        answers = self.same(lambda store, _: store.put_session(info))
        return multiple() if answers is None else [made.key for made in answers]

    @step(keys=sessions, title=names, ready=st.booleans())
    def update(self, keys: Any, title: str, ready: bool) -> None:
        self.same(
            lambda s, i: s.put_session(SessionInfo(id="x", key=keys[i], title=title, ready=ready))
        )

    @step(target=gone, keys=consumes(sessions))
    def delete(self, keys: Any) -> Any:
        self.same(lambda s, i: s.delete_session(keys[i]))
        return keys

    @step(
        keys=sessions,
        mine=st.dictionaries(CHANGEABLE, names, max_size=2),
        theirs=st.dictionaries(CHANGEABLE, names, max_size=2),
        erased=st.booleans(),
        ready=st.booleans(),
    )
    def update_what_was_seen(
        self, keys: Any, mine: dict[str, str], theirs: dict[str, str], erased: bool, ready: bool
    ) -> None:
        """Change some fields of a session of which another changed some since it was read."""

        async def update(store: Store, index: int) -> SessionInfo:
            seen = await store.describe(keys[index])
            await store.put_session(replace(seen, **_fields(theirs)), seen=seen)
            if erased and seen.messages:
                await store.erase(keys[index], [seen.messages])
            wanted = replace(seen, ready=ready, **_fields(mine))
            return await store.put_session(wanted, seen=seen)

        self.same(update)

    @step(
        target=sessions,
        keys=consumes(sessions),
        unready=st.booleans(),
        seconds=st.none() | st.sampled_from((-3600.0, -1.0, 0.0, 2.0, 60.0)),
    )
    def delete_if(self, keys: Any, unready: bool, seconds: float | None) -> Any:
        """Delete a session under a condition; one that is refused stays, alike everywhere."""
        if not unready and seconds is None:
            return keys  # `delete` does that

        async def delete(store: Store, index: int) -> None:
            # Activity is noted up to a second late, so the time is relative to what was noted.
            at = (await store.describe(keys[index])).updated_at
            since = None if seconds is None else at + seconds
            await store.delete_session(keys[index], unready=unready, idle_since=since)

        return keys if self.same(delete) is None else multiple()

    @step(keys=gone, what=st.sampled_from(sorted(ON_A_SESSION)))
    def disturb(self, keys: Any, what: str) -> None:
        """Ask a session that is gone."""
        assert self.same(lambda s, i: ON_A_SESSION[what](s, keys[i])) is None

    @step(keys=sessions, batch=st.lists(drafts, max_size=4), expect=positions, turn=positions)
    def append(self, keys: Any, batch: list[Message], expect: int | None, turn: int | None) -> None:
        self.same(lambda s, i: s.append(keys[i], batch, expect=expect, turn=turn))

    @step(keys=sessions, batch=st.lists(drafts, min_size=1, max_size=4))
    def append_plainly(self, keys: Any, batch: list[Message]) -> None:
        self.same(lambda s, i: s.append(keys[i], [replace(m, id="") for m in batch]))

    @step(keys=sessions, others=sessions, after=st.integers(0, 4))
    def copy(self, keys: Any, others: Any, after: int) -> None:
        async def copy(store: Store, index: int) -> int:
            return await store.load(others[index], await store.read(keys[index], after=after))

        self.same(copy)

    @step(keys=sessions, tokens=positions, limit=positions, before=positions, between=between)
    def tail(
        self, keys: Any, tokens: int | None, limit: int | None, before: int | None, between: Any
    ) -> None:
        self.same(
            lambda s, i: s.tail(keys[i], tokens=tokens, limit=limit, before=before, **between)
        )

    @step(keys=sessions, after=st.integers(0, 12), until=positions, limit=st.integers(0, 12))
    def read(self, keys: Any, after: int, until: int | None, limit: int) -> None:
        self.same(lambda s, i: s.read(keys[i], after=after, until=until, limit=limit))

    @step(keys=sessions, ids=st.lists(few_ids.filter(bool)), seqs=st.lists(st.integers(0, 12)))
    def find(self, keys: Any, ids: list[str], seqs: list[int]) -> None:
        self.same(lambda s, i: s.find(keys[i], ids=ids, seqs=seqs))

    @step(keys=sessions, seqs=st.lists(st.integers(1, 6), max_size=3))
    def erase(self, keys: Any, seqs: list[int]) -> None:
        self.same(lambda s, i: s.erase(keys[i], seqs))

    @step(
        keys=sessions,
        level=st.sampled_from(("session", "owner", "tenant")),
        kind=names,
        key=names,
        value=st.integers(),
        seen=versions,
        epoch=st.none() | st.integers(0, 2),
        others=sessions,
        own=st.lists(spans, max_size=2),
        strange=st.lists(spans, max_size=1),
    )
    def put(
        self,
        keys: Any,
        level: str,
        kind: str,
        key: str,
        value: int,
        seen: Any,
        epoch: Any,
        others: Any,
        own: list[tuple[int, int]],
        strange: list[tuple[int, int]],
    ) -> None:
        async def put(store: Store, index: int) -> None:
            scope = _scope(level, keys[index])
            version = await _version(store, scope, kind, key) if seen == "current" else seen
            made_of = [Span(session=keys[index], first=a, last=b) for a, b in own]
            made_of += [Span(session=others[index], first=a, last=b) for a, b in strange]
            epochs = None if epoch is None else {keys[index]: epoch}
            await store.put(
                scope, kind, key, value, made_of=made_of, version=version, epochs=epochs
            )

        self.same(put)

    @step(
        keys=sessions,
        level=st.sampled_from(("session", "owner", "tenant")),
        kind=names,
        key=names,
        seen=versions,
    )
    def drop(self, keys: Any, level: str, kind: str, key: str, seen: Any) -> None:
        async def drop(store: Store, index: int) -> bool:
            scope = _scope(level, keys[index])
            version = await _version(store, scope, kind, key) if seen == "current" else seen
            return await store.drop(scope, kind, key, version=version)

        self.same(drop)

    @step(
        keys=sessions, level=st.sampled_from(("session", "owner", "tenant")), kind=names, key=names
    )
    def get(self, keys: Any, level: str, kind: str, key: str) -> None:
        self.same(lambda s, i: s.get(_scope(level, keys[i]), kind, key))

    @step(keys=sessions, level=st.sampled_from(("session", "owner", "tenant")))
    def scan(self, keys: Any, level: str) -> None:
        self.same(lambda s, i: s.scan(_scope(level, keys[i])))

    @step(
        keys=sessions,
        level=st.sampled_from(("session", "owner", "tenant")),
        kind=st.none() | names,
        bounds=bounds,
    )
    def scan_between(self, keys: Any, level: str, kind: str | None, bounds: Any) -> None:
        self.same(lambda s, i: s.scan(_scope(level, keys[i]), kind, **bounds))

    @step(
        keys=sessions,
        tokens=st.integers(0, 40),
        min_messages=st.integers(0, 3),
        kinds=st.lists(names, max_size=2),
        follow=st.lists(names, max_size=2),
    )
    def gather(
        self, keys: Any, tokens: int, min_messages: int, kinds: list[str], follow: list[str]
    ) -> None:
        self.same(
            lambda s, i: s.gather(
                keys[i], tokens=tokens, min_messages=min_messages, kinds=kinds, follow=follow
            )
        )

    @step(
        keys=sessions,
        what=st.sampled_from(("list", "of an owner", "scan", "verify", "owners")),
        name=names,
        limit=st.integers(0, 3),
    )
    def look_around(self, keys: Any, what: str, name: str, limit: int) -> None:
        calls: dict[str, Callable[[Store, int], Awaitable[Any]]] = {
            "list": lambda s, _: s.list_sessions(limit=limit),
            "of an owner": lambda s, _: s.list_sessions(owner=name, limit=limit),
            "scan": lambda s, i: s.scan_sessions(after=keys[i] if limit else None, limit=limit),
            "verify": lambda s, _: s.verify(),
            "owners": lambda s, _: s.owners(),
        }
        self.same(calls[what])

    @step(id=names, owner=names)
    def get_session(self, id: str, owner: str) -> None:
        self.same(lambda s, _: s.get_session(id, owner))

    @step(keys=sessions)
    def describe(self, keys: Any) -> None:
        self.same(lambda s, i: s.describe(keys[i]))

    @step(keys=sessions, counter=st.sampled_from((Lengths(2), Lengths(3))))
    def recount(self, keys: Any, counter: Any) -> None:
        self.same(lambda s, i: s.recount(keys[i], counter))

    @step(seconds=st.sampled_from((2.0, 60.0, -3600.0)))
    def pass_time(self, seconds: float) -> None:
        self.stage.clock.advance(seconds)

    @invariant()
    def lists_are_the_same(self) -> None:
        self.same(lambda s, _: s.list_sessions())


async def _version(store: Store, scope: Scope, kind: str, key: str) -> int:
    """Return the version a careful caller names: of the record there is, or 0."""
    record = await store.get(scope, kind, key)
    return record.version if record else 0


def _fields(values: dict[str, str]) -> dict[str, Any]:
    """Return fields of a session, each with a value of its type."""
    made = {"tags": lambda v: (v,), "meta": lambda v: {"name": v}}
    return {name: made.get(name, str)(value) for name, value in values.items()}


def _scope(level: str, key: SessionKey) -> Scope:
    if level == "session":
        return Scope(session=key)
    return Scope(owner="ana") if level == "owner" else Scope()


def _refusal(answer: Any) -> tuple[type, str]:
    """Return what stores must agree on: the error and its words.

    Which version a record has is a store's own choice, and how much is said of a conflict.
    """
    said = "" if isinstance(answer, Conflict) else re.sub(r"version \d+", "version", str(answer))
    return type(answer), said


def _comparable(answer: Any) -> Any:
    """Return an answer without what each store may choose for itself."""
    if isinstance(answer, list):
        return [_comparable(a) for a in answer]
    if isinstance(answer, Gathered):
        return [_comparable(part) for part in answer]
    if isinstance(answer, SessionInfo):
        return replace(answer, key=SessionKey(""), updated_at=0.0)
    if isinstance(answer, Record):
        spans = tuple(s._replace(session=SessionKey("")) for s in answer.made_of)
        scope = answer.scope._replace(session=SessionKey("x" if answer.scope.session else ""))
        return replace(answer, version=0, made_of=spans, scope=scope)
    return answer
