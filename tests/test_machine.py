"""One Hypothesis state machine: every store does what the RAM store does, error for error."""

import asyncio
import itertools
import shutil
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from keepthread import Message, RamStore, Record, Scope, SessionInfo, SessionKey, Span, SQLiteStore
from keepthread.errors import KeepthreadError
from keepthread.protocols import Store
from keepthread.testing.clock import ManualClock
from keepthread.types import Gathered
from tests.test_codec import messages

few_ids = st.sampled_from(("m1", "m2", "m3", "0" * 32, ""))
drafts = st.builds(lambda m, id: replace(m, id=id), messages, few_ids)
positions = st.none() | st.integers(0, 12)
names = st.sampled_from(("a", "b"))
spans = st.tuples(st.integers(0, 6), st.integers(0, 8))
bounds = st.fixed_dictionaries(
    {}, optional={"after": names, "before": names, "limit": st.integers(0, 3)}
)


class Stores(RuleBasedStateMachine):
    """Tells two stores the same and compares what they answer."""

    sessions = Bundle("sessions")

    @initialize()
    def open_both(self) -> None:
        self.folder = Path(tempfile.mkdtemp())
        self.loop = asyncio.new_event_loop()
        self.clock = ManualClock()
        numbers = [itertools.count(1), itertools.count(1)]
        made = [lambda n=n: f"made-{next(n)}" for n in numbers]
        ram: Store = RamStore(clock=self.clock, ids=made[0])
        self.stores = (ram, self.run(self.open_other(made[1])))
        self.versions: dict[tuple[int, int], int] = {(0, 0): 0, (1, 0): 0}

    async def open_other(self, ids: Callable[[], str]) -> Store:
        """Open the store that is held against the one in memory; other machines open others."""
        return await SQLiteStore.open(self.folder / "s.db", clock=self.clock, ids=ids)

    def run(self, work: Awaitable[Any]) -> Any:
        return self.loop.run_until_complete(work)

    def both(self, call: Callable[[Store, int], Awaitable[Any]]) -> tuple[Any, Any] | None:
        """Return both answers if both answered; both refused, and alike, otherwise."""
        answers: list[Any] = []
        for index, store in enumerate(self.stores):
            try:
                answers.append(self.run(call(store, index)))
            except KeepthreadError as error:
                answers.append(error)
        if any(isinstance(a, KeepthreadError) for a in answers):
            assert [type(a) for a in answers] == [type(answers[0])] * 2, answers
            return None
        return answers[0], answers[1]

    def same(self, call: Callable[[Store, int], Awaitable[Any]]) -> None:
        """Expect equal answers, keys and versions apart."""
        if answers := self.both(call):
            assert _comparable(answers[0]) == _comparable(answers[1])

    @rule(
        target=sessions, id=names, owner=names, kind=st.sampled_from(("main", "fork", "delegate"))
    )
    def put_session(self, id: str, owner: str, kind: Any) -> Any:
        info = SessionInfo(id=id, owner=owner, kind=kind)
        answers = self.both(lambda store, _: store.put_session(info))
        if answers is None:
            return multiple()
        assert _comparable(answers[0]) == _comparable(answers[1])
        return (answers[0].key, answers[1].key)

    @rule(keys=sessions, title=names, ready=st.booleans())
    def update(self, keys: Any, title: str, ready: bool) -> None:
        self.same(
            lambda s, i: s.put_session(SessionInfo(id="x", key=keys[i], title=title, ready=ready))
        )

    @rule(keys=consumes(sessions))
    def delete(self, keys: Any) -> None:
        self.same(lambda s, i: s.delete_session(keys[i]))

    @rule(keys=sessions, batch=st.lists(drafts, max_size=4), expect=positions, exchange=positions)
    def append(
        self, keys: Any, batch: list[Message], expect: int | None, exchange: int | None
    ) -> None:
        self.same(lambda s, i: s.append(keys[i], batch, expect=expect, exchange=exchange))

    @rule(keys=sessions, batch=st.lists(drafts, min_size=1, max_size=4))
    def append_plainly(self, keys: Any, batch: list[Message]) -> None:
        self.same(lambda s, i: s.append(keys[i], [replace(m, id="") for m in batch]))

    @rule(keys=sessions, others=sessions, after=st.integers(0, 4))
    def copy(self, keys: Any, others: Any, after: int) -> None:
        async def copy(store: Store, index: int) -> int:
            return await store.load(others[index], await store.read(keys[index], after=after))

        self.same(copy)

    @rule(keys=sessions, tokens=positions, limit=positions, before=positions)
    def tail(self, keys: Any, tokens: int | None, limit: int | None, before: int | None) -> None:
        self.same(lambda s, i: s.tail(keys[i], tokens=tokens, limit=limit, before=before))

    @rule(keys=sessions, after=st.integers(0, 12), upto=positions, limit=st.integers(0, 12))
    def read(self, keys: Any, after: int, upto: int | None, limit: int) -> None:
        self.same(lambda s, i: s.read(keys[i], after=after, upto=upto, limit=limit))

    @rule(keys=sessions, ids=st.lists(few_ids.filter(bool)), seqs=st.lists(st.integers(0, 12)))
    def find(self, keys: Any, ids: list[str], seqs: list[int]) -> None:
        self.same(lambda s, i: s.find(keys[i], ids=ids, seqs=seqs))

    @rule(keys=sessions, seqs=st.lists(st.integers(1, 6), max_size=3))
    def erase(self, keys: Any, seqs: list[int]) -> None:
        self.same(lambda s, i: s.erase(keys[i], seqs))

    @rule(
        keys=sessions,
        level=st.sampled_from(("session", "owner", "tenant")),
        kind=names,
        key=names,
        value=st.integers(),
        seen=st.sampled_from((None, "current", 0, 999_999)),
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
            version = seen
            if seen == "current":
                record = await store.get(scope, kind, key)
                version = record.version if record else 0
            made_of = [Span(session=keys[index], first=a, last=b) for a, b in own]
            made_of += [Span(session=others[index], first=a, last=b) for a, b in strange]
            epochs = None if epoch is None else {keys[index]: epoch}
            await store.put(
                scope, kind, key, value, made_of=made_of, version=version, epochs=epochs
            )

        self.same(put)

    @rule(
        keys=sessions, level=st.sampled_from(("session", "owner", "tenant")), kind=names, key=names
    )
    def drop(self, keys: Any, level: str, kind: str, key: str) -> None:
        self.same(lambda s, i: s.drop(_scope(level, keys[i]), kind, key))

    @rule(keys=sessions, level=st.sampled_from(("session", "owner", "tenant")))
    def scan(self, keys: Any, level: str) -> None:
        self.same(lambda s, i: s.scan(_scope(level, keys[i])))

    @rule(
        keys=sessions,
        level=st.sampled_from(("session", "owner", "tenant")),
        kind=st.none() | names,
        bounds=bounds,
    )
    def scan_between(self, keys: Any, level: str, kind: str | None, bounds: Any) -> None:
        self.same(lambda s, i: s.scan(_scope(level, keys[i]), kind, **bounds))

    @rule(
        keys=sessions,
        tokens=st.integers(0, 40),
        least=st.integers(0, 3),
        kinds=st.lists(names, max_size=2),
        follow=st.lists(names, max_size=2),
    )
    def gather(
        self, keys: Any, tokens: int, least: int, kinds: list[str], follow: list[str]
    ) -> None:
        self.same(
            lambda s, i: s.gather(keys[i], tokens=tokens, least=least, kinds=kinds, follow=follow)
        )

    @rule(seconds=st.sampled_from((2.0, 60.0, -3600.0)))
    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    @rule()
    def verify(self) -> None:
        self.same(lambda s, _: s.verify())

    @invariant()
    def lists_are_the_same(self) -> None:
        if hasattr(self, "stores"):
            self.same(lambda s, _: s.list_sessions())

    def teardown(self) -> None:
        if hasattr(self, "stores"):
            for store in self.stores:
                self.run(store.close())
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
            self.loop.close()
            shutil.rmtree(self.folder)


def _scope(level: str, key: SessionKey) -> Scope:
    if level == "session":
        return Scope(session=key)
    return Scope(owner="ana") if level == "owner" else Scope()


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


def test_sqlite_answers_as_ram_does() -> None:
    run_state_machine_as_test(
        Stores, settings=settings(max_examples=60, stateful_step_count=40, deadline=None)
    )
