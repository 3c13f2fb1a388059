"""The store contract: what every backend must do, as tests that any backend's author can run.

Subclass `StoreContract`, say how to open your store, and let pytest collect the class. To see the
values of a failed assertion, call `pytest.register_assert_rewrite` with this module's name.
"""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from keepthread.errors import (
    Conflict,
    InvalidInput,
    KeepthreadError,
    MessageNotFound,
    NotFound,
    SessionExists,
    SessionGone,
    Stale,
    StoreClosed,
)
from keepthread.protocols import Store
from keepthread.testing import ManualClock
from keepthread.testing.hostile import CASES, try_hostile
from keepthread.types import (
    JSON,
    Attachment,
    Change,
    ForkPoint,
    Message,
    Native,
    Scope,
    SessionInfo,
    SessionKey,
    Span,
    ToolCall,
)

C = TypeVar("C", bound="StoreContract")

FULL = Message(
    role="assistant",
    content="two\nlines, NUL \0 and a lone \ud800",
    tool_calls=(
        ToolCall(id="call_1", name="weather", arguments='{"city": "Jakarta"}'),
        ToolCall(id="call_1", name="broken", arguments='{"city": '),
    ),
    tool_call_id="",
    name="helper",
    author="bea",
    origin="web",
    source="web:https://example.org",
    attachments=(Attachment(media_type="image/png", name="map", uri="file:map.png"),),
    native=Native(wire="anthropic", items=({"type": "thinking", "a": 1, "A": [None, 2.5]},)),
    meta={"b": {"y": True, "x": [1, 2**80]}, "a": "\udc00"},
    id="given-by-the-caller",
    tokens=42,
    counter="o200k",
    created_at=1_600_000_000.123456,
)
"""A message with every field a caller may write."""


class Letters:
    """A counter that takes every character for a token."""

    name = "letters"

    def count(self, message: Message) -> int:
        return len(message.content)


class Fixed(NamedTuple):
    """A counter that takes every message for the same number of tokens."""

    tokens: int

    @property
    def name(self) -> str:
        return f"fixed-{self.tokens}"

    def count(self, message: Message) -> int:  # noqa: ARG002 - every message alike
        return self.tokens


def on_store(test: Callable[[C, Store], Awaitable[None]]) -> Callable[[C, Path], None]:
    """Run a test on a newly opened store."""

    def run(self: C, tmp_path: Path) -> None:
        async def session() -> None:
            self.clock = ManualClock()
            store = await self.open_store(tmp_path, clock=self.clock)
            try:
                await test(self, store)
            finally:
                await store.close()

        asyncio.run(session())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


@contextmanager
def refused(kind: type[KeepthreadError]) -> Generator[None]:
    """Expect an error of ours."""
    try:
        yield
    except kind:
        return
    raise AssertionError(f"nothing raised {kind.__name__}")


def said(messages: list[Message]) -> list[str]:
    """Return the texts of messages."""
    return [message.content for message in messages]


def user(content: str, **fields: Any) -> Message:
    """Return a user's message."""
    return Message(role="user", content=content, **fields)


def assistant(content: str, **fields: Any) -> Message:
    """Return an assistant's message."""
    return Message(role="assistant", content=content, **fields)


def span(session: SessionKey, first: int, last: int | None = None) -> Span:
    """Return a range of positions, or one alone."""
    return Span(session=session, first=first, last=first if last is None else last)


def _from(session: str) -> Message:
    """Return an answer that was written from a message of another session."""
    return assistant("so it is", meta={"recalled_from": {session: [[1, 1]]}})


async def new_session(store: Store, id: str = "s", **fields: Any) -> SessionKey:
    """Make a session and return its key."""
    return (await store.put_session(SessionInfo(id=id, **fields))).key


class StoreContract:
    """Every promise of `Store`, tested; a subclass must only define `open_store`."""

    clock: ManualClock

    async def open_store(self, folder: Path, *, clock: Callable[[], float]) -> Store:
        """Open an empty store whose clock is `clock`."""
        raise NotImplementedError

    # --- sessions ---

    @on_store
    async def test_a_session_comes_back_as_it_was_put(self, store: Store) -> None:
        put = SessionInfo(
            id="discord:42",
            owner="ana",
            title="Trip\0 \ud800",
            tags=["a", "b"],
            system_prompt="Be brief.",
            meta={"z": 1, "a": [None]},
            kind="fork",
            parent="cli:1",
            forked_from=ForkPoint(session="cli:1", seq=7),
        )
        made = await store.put_session(put)
        assert made.key
        assert made.created_at == made.updated_at == self.clock.now
        assert made == await store.get_session("discord:42", "ana")
        expected = replace(
            put,
            tags=("a", "b"),
            key=made.key,
            created_at=made.created_at,
            updated_at=made.updated_at,
            delimiter=made.delimiter,
        )
        assert made == expected

    @on_store
    async def test_a_session_has_a_delimiter_of_its_own_for_life(self, store: Store) -> None:
        made = [await store.put_session(SessionInfo(id=id)) for id in ("a", "b")]
        delimiters = {session.delimiter for session in made}
        assert len(delimiters) == 2
        assert all(len(delimiter) >= 12 for delimiter in delimiters)
        changed = await store.put_session(replace(made[0], title="New", delimiter="guessed"))
        assert changed.delimiter == made[0].delimiter
        assert (await store.gather(made[0].key, tokens=0)).delimiter == made[0].delimiter

    @on_store
    async def test_a_session_names_the_message_its_title_was_made_from(self, store: Store) -> None:
        made = await store.put_session(SessionInfo(id="s", title="Made", title_seq=2))
        assert (made.title, made.title_seq) == ("Made", 2)
        changed = await store.put_session(replace(made, title="Other", title_seq=7))
        assert (await store.describe(made.key)).title_seq == changed.title_seq == 7
        assert (await store.put_session(replace(changed, title_seq=0))).title_seq == 0
        for wrong in (-1, True, "1"):
            with refused(InvalidInput):
                await store.put_session(replace(made, title_seq=cast(Any, wrong)))

    @on_store
    async def test_a_taken_id_is_refused_and_an_unknown_one_is_none(self, store: Store) -> None:
        await new_session(store)
        with refused(SessionExists):
            await new_session(store)
        assert await store.get_session("t") is None

    @on_store
    async def test_owners_may_have_sessions_with_one_id(self, store: Store) -> None:
        keys = {owner: await new_session(store, "s", owner=owner) for owner in ("ana", "bea")}
        with refused(SessionExists):
            await new_session(store, "s", owner="ana")
        await store.append(keys["ana"], [user("hi")])
        for owner, key in keys.items():
            found = await store.get_session("s", owner)
            assert found is not None
            assert (found.key, found.owner, found.messages) == (key, owner, int(owner == "ana"))
            assert [s.key for s in await store.list_sessions(owner=owner)] == [key]
        assert await store.get_session("s") is None
        await store.delete_session(keys["ana"])
        assert await store.get_session("s", "ana") is None
        assert await store.get_session("s", "bea") is not None
        again = await new_session(store, "s", owner="ana")
        assert again not in keys.values()
        with refused(InvalidInput):
            await store.get_session("s", "")

    @on_store
    async def test_sessions_are_listed_page_by_page(self, store: Store) -> None:
        made = [await new_session(store, f"s{n}", owner="ana") for n in range(7)]
        self.clock.advance(5)
        made += [await new_session(store, f"t{n}", owner="ana") for n in range(4)]
        await new_session(store, "other", owner="bea")
        page = await store.list_sessions(owner="ana", limit=3)
        found = [s.key for s in page]
        while page.next:
            page = await store.list_sessions(owner="ana", limit=3, cursor=page.next)
            assert 0 < len(page) <= 3
            found += [s.key for s in page]
        assert found == made[::-1]
        assert (await store.list_sessions(owner="ana", limit=11)).next is None
        assert len(await store.list_sessions(limit=100)) == 12

    @on_store
    async def test_a_session_that_becomes_active_while_pages_are_read_is_not_missed(
        self, store: Store
    ) -> None:
        made: list[SessionKey] = []
        for n in range(6):
            made.append(await new_session(store, f"s{n}"))
            self.clock.advance(1)
        page = await store.list_sessions(limit=2)
        found = [s.key for s in page]
        self.clock.advance(5)
        await store.append(made[0], [user("hi")])  # from the end of the list to its front
        await store.delete_session(made[1])
        late = await new_session(store, "late")
        while page.next:
            page = await store.list_sessions(limit=2, cursor=page.next)
            found += [s.key for s in page]
        assert found == [*made[5:1:-1], made[0], late]

    @on_store
    async def test_sessions_are_filtered_by_tag_and_title(self, store: Store) -> None:
        for n in range(30):
            info = SessionInfo(id=f"s{n}", title=f"Trip {n}", tags=["odd" if n % 2 else "even"])
            await store.put_session(info)
        found: list[str] = []
        page = await store.list_sessions(limit=4, tag="odd", title="trip 1")
        while True:
            found += [s.id for s in page]
            if not page.next:
                break
            page = await store.list_sessions(limit=4, tag="odd", title="TRIP 1", cursor=page.next)
        assert found == ["s19", "s17", "s15", "s13", "s11", "s1"]
        assert not await store.list_sessions(tag="Odd")

    @on_store
    async def test_a_cursor_of_another_list_is_refused(self, store: Store) -> None:
        for owner in ("ana", "bea"):
            for n in range(3):
                await new_session(store, f"s{n}", owner=owner)
        cursor = (await store.list_sessions(owner="ana", limit=1)).next
        assert cursor
        for wrong in (
            store.list_sessions(owner="bea", cursor=cursor),
            store.list_sessions(cursor=cursor),
            store.list_sessions(owner="ana", cursor=cursor, tag="x"),
            store.list_sessions(owner="ana", cursor=cursor[:-3]),
            store.list_sessions(owner="ana", cursor="nonsense"),
            store.list_sessions(owner="ana", cursor=cast(Any, 7)),
        ):
            with refused(InvalidInput):
                await wrong

    @on_store
    async def test_a_change_of_the_whole_is_refused_if_any_field_was_changed(
        self, store: Store
    ) -> None:
        seen = await store.put_session(SessionInfo(id="s", title="T", tags=["a"]))
        await store.append(seen.key, [user("hi")])  # which does not change the session
        titled = replace(seen, title="U")
        first = await store.put_session(titled, seen=seen, whole=True)
        assert (first.title, first.version != seen.version) == ("U", True)
        assert await store.put_session(titled, seen=seen, whole=True) == first  # once more
        with refused(Stale):
            await store.put_session(replace(seen, tags=("b",)), seen=seen, whole=True)
        assert (await store.put_session(replace(seen, tags=("b",)), seen=seen)).tags == ("b",)

    @on_store
    async def test_an_update_changes_what_it_may_and_no_more(self, store: Store) -> None:
        made = await store.put_session(SessionInfo(id="s", owner="ana", ready=False))
        await store.append(made.key, [user("hi", tokens=3)])
        changed = await store.put_session(
            replace(
                made,
                title="T",
                tags=("x",),
                system_prompt="P",
                meta={"a": 1},
                ready=True,
                owner="bea",
                kind="delegate",
                parent="other",
                epoch=9,
            )
        )
        assert (changed.title, changed.tags, changed.system_prompt) == ("T", ("x",), "P")
        assert (changed.meta, changed.ready) == ({"a": 1}, True)
        assert (changed.owner, changed.kind, changed.parent, changed.epoch) == (
            "ana",
            "main",
            None,
            0,
        )
        assert (changed.messages, changed.turns, changed.tokens) == (1, 1, 3)
        assert changed == await store.get_session("s", "ana")

    @on_store
    async def test_sessions_are_listed_by_latest_activity(self, store: Store) -> None:
        keys: dict[str, SessionKey] = {}
        for id in ("a", "b", "c"):
            keys[id] = await new_session(store, id)
            self.clock.advance(10)
        await store.append(keys["a"], [user("hi")])
        listed = await store.list_sessions()
        assert [s.id for s in listed] == ["a", "c", "b"]
        self.clock.advance(10)
        await store.append(keys["b"], [])  # that stores nothing
        assert await store.list_sessions() == listed
        self.clock.advance(-10)
        assert listed[0].updated_at == self.clock.now
        assert [s.id for s in await store.list_sessions(limit=1)] == ["a"]
        assert await store.list_sessions(limit=0) == []

    @on_store
    async def test_the_list_is_by_owner_without_delegates_and_what_is_unready(
        self, store: Store
    ) -> None:
        await new_session(store, "a", owner="ana")
        await new_session(store, "b", owner="bea")
        await new_session(store, "c", owner="ana", kind="delegate")
        await new_session(store, "d", owner="ana", ready=False)
        assert [s.id for s in await store.list_sessions(owner="ana")] == ["a"]
        assert {s.id for s in await store.list_sessions()} == {"a", "b"}
        assert (await store.get_session("d", "ana")) is not None

    @on_store
    async def test_every_session_is_scanned_in_the_order_of_making(self, store: Store) -> None:
        keys = [
            await new_session(store, "a"),
            await new_session(store, "b", kind="delegate"),
            await new_session(store, "c", ready=False),
            await new_session(store, "d"),
        ]
        await new_session(store.tenant("other"), "e")
        assert [s.id for s in await store.scan_sessions()] == ["a", "b", "c", "d"]
        assert await store.scan_sessions(limit=1) == [await store.get_session("a")]
        await store.delete_session(keys[1])
        assert [s.id for s in await store.scan_sessions(after=keys[1], limit=1)] == ["c"]
        assert await store.scan_sessions(after=keys[3]) == []

    @on_store
    async def test_the_sessions_of_one_owner_are_scanned_alone(self, store: Store) -> None:
        ids = [("a", "ana"), ("b", "bea"), ("c", "ana"), ("a", "bea"), ("d", "ana")]
        keys = [await new_session(store, id, owner=owner) for id, owner in ids]
        await new_session(store, "task", owner="ana", kind="delegate")
        await new_session(store, "half", owner="ana", kind="fork", ready=False)
        found = await store.scan_sessions(owner="ana")
        assert [s.id for s in found] == ["a", "c", "d", "task", "half"]
        assert [s.id for s in await store.scan_sessions(owner="ana", limit=1)] == ["a"]
        after = await store.scan_sessions(owner="ana", after=keys[2], limit=2)
        assert [s.id for s in after] == ["d", "task"]
        await store.delete_session(keys[4])
        assert [s.id for s in await store.scan_sessions(owner="ana", after=keys[2])] == [
            "task",
            "half",
        ]
        assert await store.scan_sessions(owner="cay") == []

    @on_store
    async def test_idle_sessions_of_all_kinds_are_found_page_by_page(self, store: Store) -> None:
        for n in range(1, 8):
            times = {"created_at": 10.0 * n, "updated_at": 10.0 * n}
            kind = "delegate" if n % 3 == 0 else "main"
            await new_session(store, f"s{n}", owner=f"o{n}", kind=kind, ready=n != 4, **times)
        assert await store.idle_sessions(10.0) == []
        for limit in (1, 2, 5, 100):
            found: list[str] = []
            page = await store.idle_sessions(65.0, limit=limit)
            while True:
                assert len(page) <= limit
                found += [session.id for session in page]
                if page.next is None:
                    break
                page = await store.idle_sessions(65.0, limit=limit, cursor=page.next)
            assert found == ["s1", "s2", "s5", "s3", "s4", "s6"]
        with refused(InvalidInput):
            await store.idle_sessions(64.0, cursor=(await store.idle_sessions(65.0, limit=1)).next)

    @on_store
    async def test_copies_of_a_session_are_its_relatives(self, store: Store) -> None:
        origin = await new_session(store, "origin", owner="ana")
        said = await store.append(origin, [user("one", id="m1"), user("two", id="m2")])
        copy = await new_session(store, "copy", owner="ana", kind="fork")
        for one in said:
            await store.load(copy, [one])
        foreign = await new_session(store, "foreign", owner="bea")
        await store.load(foreign, said)
        later = await new_session(store, "later", owner="ana")
        await store.append(later, [replace(said[0], seq=0, created_at=said[0].created_at + 1)])
        await new_session(store, "empty", owner="ana")

        async def copies(key: SessionKey) -> list[str]:
            return [info.id for info in (await store.relatives(key)).copies]

        assert await copies(origin) == ["copy"]
        assert await copies(copy) == ["origin"]
        assert await copies(foreign) == await copies(later) == []
        await store.erase(origin, [1])
        assert await copies(copy) == ["origin"]
        await store.delete_session(copy)
        assert await copies(origin) == []
        assert not any(await store.relatives(copy))

    @on_store
    async def test_sessions_that_name_another_are_its_relatives(self, store: Store) -> None:
        named = await new_session(store, "named", owner="ana")
        await new_session(store, "task", owner="ana", kind="delegate", parent="named")
        point = ForkPoint(session="named", seq=0)
        await new_session(store, "half", owner="ana", kind="fork", ready=False, forked_from=point)
        answered = await new_session(store, "answered", owner="ana")
        await store.append(answered, [user("ask"), _from("named"), _from("named")])
        loaded = await new_session(store, "loaded", owner="ana")
        await store.load(loaded, await store.read(answered))
        explained = await new_session(store, "explained", owner="ana")
        choice = {"section": "recalled", "session": "named", "first": 1, "last": 1}
        await store.put(Scope(session=explained), "why", "1", {"choices": [choice]})
        chunked = await new_session(store, "chunked", owner="ana")
        made = {"messages": [[1, 1, "-"], {"how": "recalled", "chunks": [["named", 1, 0, 0.0]]}]}
        await store.put(Scope(session=chunked), "why", "1", {"references": made})
        foreign = await new_session(store, "foreign", owner="bea")
        await store.append(foreign, [_from("named")])
        plain = await new_session(store, "plain", owner="ana")
        await store.append(plain, [_from("other"), user("named", meta={"recalled_from": 7})])
        await store.put(Scope(session=plain), "why", "1", ["named"])
        found = {info.id for info in (await store.relatives(named)).naming}
        assert found == {"task", "half", "answered", "loaded", "explained", "chunked"}
        await store.delete_session(answered)
        found = {info.id for info in (await store.relatives(named)).naming}
        assert found == {"task", "half", "loaded", "explained", "chunked"}

    @on_store
    async def test_nothing_leads_to_another_tenant(self, store: Store) -> None:
        other = store.tenant("other")
        mine = await new_session(store, "s", owner="ana")
        theirs = await new_session(other, "s", owner="ana")
        idle = [await new_session(each, "idle", updated_at=5.0) for each in (store, other)]
        said = await store.append(mine, [user("one", id="m")])
        await other.load(theirs, said)
        for each, key in ((store, mine), (other, theirs)):
            await each.append(await new_session(each, "naming", owner="ana"), [_from("s")])
            spans = [span(mine, 1), span(theirs, 1)]
            await each.put(Scope(owner="ana"), "made", str(key), 1, made_of=spans)
        pairs = ((store, mine, theirs), (other, theirs, mine))
        for number, (each, key, foreign) in enumerate(pairs):
            copies, naming = await each.relatives(key)
            assert (list(copies), [info.id for info in naming]) == ([], ["naming"])
            assert not any(await each.relatives(foreign))
            for named in (key, foreign):
                found = (await each.made_of(named, [1])).records
                assert [record.key for record in found] == [str(key)]
            assert [info.key for info in await each.scan_sessions(owner="ana", limit=1)] == [key]
            assert [info.key for info in await each.idle_sessions(6.0)] == [idle[number]]

    @on_store
    async def test_times_that_a_new_session_brings_are_kept(self, store: Store) -> None:
        brought = SessionInfo(id="s", created_at=10.0, updated_at=20.5, ready=False)
        made = await store.put_session(brought)
        assert (made.created_at, made.updated_at) == (10.0, 20.5)
        ready = await store.put_session(replace(made, ready=True))
        assert (ready.ready, ready.updated_at) == (True, 20.5)
        titled = await store.put_session(replace(ready, title="T"))
        assert titled.updated_at == self.clock.now

    @on_store
    async def test_activity_never_goes_back_with_the_clock(self, store: Store) -> None:
        key = await new_session(store)
        self.clock.advance(-3600)
        await store.append(key, [user("hi")])
        session = await store.get_session("s")
        assert session is not None
        assert session.updated_at == self.clock.now + 3600

    @on_store
    async def test_an_update_with_what_was_seen_writes_only_what_differs(
        self, store: Store
    ) -> None:
        seen = await store.put_session(
            SessionInfo(id="s", title="T", tags=["a"], system_prompt="P", meta={"n": 1})
        )
        await store.put_session(replace(seen, title="", system_prompt=None), seen=seen)
        await store.put_session(replace(seen, tags=["b"]), seen=seen)
        now = await store.put_session(replace(seen, meta={"n": True}), seen=seen)
        assert (now.title, now.tags, now.system_prompt) == ("", ("b",), None)
        assert now.meta["n"] is True
        assert now.ready
        unready = await store.put_session(replace(now, ready=False), seen=now)
        again = await store.put_session(replace(seen, tags=["b"]), seen=seen)
        assert (unready.ready, again.ready, again.tags) == (False, False, ("b",))
        assert again == await store.get_session("s")

    @on_store
    async def test_an_update_of_what_another_changed_is_refused(self, store: Store) -> None:
        seen = await store.put_session(SessionInfo(id="s", title="T", tags=["a"]))
        await store.put_session(replace(seen, title="theirs"), seen=seen)
        with refused(Stale):
            await store.put_session(replace(seen, title="mine", tags=["b"]), seen=seen)
        now = await store.describe(seen.key)
        assert (now.title, now.tags) == ("theirs", ("a",))

    @on_store
    async def test_an_update_from_before_an_erasure_is_refused(self, store: Store) -> None:
        seen = await store.put_session(SessionInfo(id="s"))
        await store.append(seen.key, [user("secret")])
        await store.erase(seen.key, [1])
        with refused(Stale):
            await store.put_session(replace(seen, title="secret"), seen=seen)
        assert (await store.describe(seen.key)).title == ""

    @on_store
    async def test_of_updates_at_once_none_is_lost(self, store: Store) -> None:
        seen = await store.put_session(SessionInfo(id="s"))
        changes: list[dict[str, Any]] = [
            {"title": "T"},
            {"tags": ("a",)},
            {"system_prompt": "P"},
            {"meta": {"n": 1}},
        ]
        await asyncio.gather(*(store.put_session(replace(seen, **c), seen=seen) for c in changes))
        now = await store.describe(seen.key)
        assert (now.title, now.tags, now.system_prompt) == ("T", ("a",), "P")
        assert now.meta == {"n": 1}

    @on_store
    async def test_activity_through_an_update_never_goes_back_with_the_clock(
        self, store: Store
    ) -> None:
        made = await store.put_session(SessionInfo(id="s"))
        self.clock.advance(-3600)
        changed = await store.put_session(replace(made, title="T"))
        assert changed.updated_at == self.clock.now + 3600
        assert (await store.describe(made.key)).updated_at == self.clock.now + 3600

    @on_store
    async def test_a_session_that_is_ready_is_not_deleted_as_unready(self, store: Store) -> None:
        made = await store.put_session(SessionInfo(id="s", kind="fork", ready=False))
        await store.append(made.key, [user("copied")])
        await store.put_session(replace(made, ready=True), seen=made)
        with refused(Stale):
            await store.delete_session(made.key, unready=True)
        assert said(await store.tail(made.key)) == ["copied"]
        await store.put_session(replace(made, ready=False))
        await store.delete_session(made.key, unready=True)
        assert await store.get_session("s") is None
        with refused(SessionGone):
            await store.delete_session(made.key, unready=True)

    @on_store
    async def test_a_forgotten_session_is_not_listed_and_takes_no_new_messages(
        self, store: Store
    ) -> None:
        for given in ([user("mine", id="m")], []):
            id = f"s{len(given)}"
            key = await new_session(store, id, owner="ana")
            await store.append(key, given)
            await store.erase(key, range(1, len(given) + 1))
            seen = await store.describe(key)
            with refused(InvalidInput):
                await store.put_session(replace(seen, forgotten=True), seen=seen)
            closed = await store.put_session(replace(seen, ready=False, forgotten=True), seen=seen)
            assert (closed.ready, closed.forgotten) == (False, True)
            assert await store.get_session(id, "ana") == await store.describe(key) == closed
            assert await store.list_sessions() == await store.list_sessions(owner="ana") == []
            known = await store.append(key, given)  # delivered once more
            assert [message.state for message in known] == ["erased"] * len(given)
            for new in ([user("late")], [*given, user("late"), user("later")]):
                with refused(SessionGone):
                    await store.append(key, new)
            with refused(Stale):  # a fork that ends late does not show it again
                await store.put_session(replace(seen, ready=True), seen=replace(seen, ready=False))
            assert (await store.describe(key)).messages == len(given)
            open_again = replace(closed, ready=True, forgotten=False, title="again")
            again = await store.put_session(open_again, seen=closed)
            assert (again.ready, again.forgotten, again.title) == (True, False, "again")
            assert said(await store.append(key, [user("new")])) == ["new"]
            await store.delete_session(key)

    @on_store
    async def test_a_session_with_activity_is_not_deleted_as_idle(self, store: Store) -> None:
        made = await store.put_session(SessionInfo(id="s"))
        self.clock.advance(100)
        since = self.clock.now
        await store.append(made.key, [user("I am back", id="m")])
        self.clock.advance(100)
        with refused(Stale):
            await store.delete_session(made.key, idle_since=since)
        assert said(await store.tail(made.key)) == ["I am back"]
        for wrong in (-1.0, float("nan"), cast(float, "yesterday")):
            with refused(InvalidInput):
                await store.delete_session(made.key, idle_since=wrong)
        await store.delete_session(made.key, idle_since=since + 1)
        assert await store.get_session("s") is None

    @on_store
    async def test_a_retry_does_not_hide_the_activity_that_follows_it(self, store: Store) -> None:
        made = await store.put_session(SessionInfo(id="s"))
        await store.append(made.key, [user("hi", id="m")])
        self.clock.advance(100)
        since = self.clock.now
        await store.append(made.key, [user("hi", id="m")])
        self.clock.advance(0.5)
        await store.append(made.key, [user("new", id="n")])
        with refused(Stale):
            await store.delete_session(made.key, idle_since=since)

    @on_store
    async def test_a_delete_of_an_idle_session_loses_no_append_at_the_same_moment(
        self, store: Store
    ) -> None:
        for n in range(8):
            key = await new_session(store, f"s{n}")
            self.clock.advance(100)
            append = store.append(key, [user("I am back")])
            delete = store.delete_session(key, idle_since=self.clock.now)
            pair = (append, delete) if n % 2 else (delete, append)
            outcomes = await asyncio.gather(*pair, return_exceptions=True)
            failed = [type(each) for each in outcomes if isinstance(each, BaseException)]
            there = await store.get_session(f"s{n}")
            # Either the append came first and is kept, or it was refused.
            assert failed == ([Stale] if there else [SessionGone])
            assert there is None or there.messages == 1

    @on_store
    async def test_a_deleted_session_is_gone_with_all_it_had(self, store: Store) -> None:
        before = await store.verify()
        key = await new_session(store)
        await store.append(key, [user("hi", id="m")])
        await store.put(Scope(session=key), "pin", "m", 1)
        await store.delete_session(key)
        assert await store.get_session("s") is None
        after = await store.verify()
        assert (after.messages, after.records) == (before.messages, before.records)
        again = await new_session(store)
        assert again != key
        assert await store.tail(again) == []
        assert await store.scan(Scope(session=again)) == []

    @on_store
    async def test_a_handle_of_a_deleted_session_is_refused(self, store: Store) -> None:
        key = await new_session(store)
        await store.delete_session(key)
        await new_session(store)
        for call in (
            store.append(key, [user("hi")]),
            store.load(key, []),
            store.tail(key),
            store.gather(key, tokens=1),
            store.describe(key),
            store.read(key),
            store.find(key, ids=["m"]),
            store.erase(key, [1]),
            store.recount(key, Letters()),
            store.put(Scope(session=key), "k", "k", 1),
            store.get(Scope(session=key), "k", "k"),
            store.scan(Scope(session=key)),
            store.drop(Scope(session=key), "k", "k"),
            store.put_session(SessionInfo(id="s", key=key)),
            store.put_session(SessionInfo(id="s", key=key), seen=SessionInfo(id="s", key=key)),
            store.delete_session(key),
            store.delete_session(key, unready=True),
            store.delete_session(key, idle_since=0),
            store.tail(SessionKey("no key at all")),
        ):
            with refused(SessionGone):
                await call

    # --- appending ---

    @on_store
    async def test_a_message_comes_back_byte_for_byte(self, store: Store) -> None:
        key = await new_session(store)
        (made,) = await store.append(key, [FULL])
        expected = replace(FULL, seq=1, total=42, digest=made.digest)
        assert made == expected
        assert len(made.digest) == 32
        assert await store.tail(key) == [made]
        assert await store.read(key) == [made]
        assert await store.find(key, ids=[FULL.id]) == [made]

    @on_store
    async def test_a_message_gets_what_it_lacks(self, store: Store) -> None:
        key = await new_session(store)
        roles = ("system", "user", "assistant", "tool")
        made = await store.append(key, [Message(role=role) for role in roles])
        assert [m.seq for m in made] == [1, 2, 3, 4]
        assert [m.origin for m in made] == ["operator", "user", "assistant", "tool"]
        assert len({m.id for m in made}) == 4
        assert {m.created_at for m in made} == {self.clock.now}
        assert made == await store.tail(key)

    @on_store
    async def test_turns_and_totals_run_on(self, store: Store) -> None:
        key = await new_session(store)
        made = await store.append(
            key,
            [
                Message(role="system", tokens=1),
                user("a", tokens=2),
                assistant("b", tokens=3),
                user("c", tokens=4),
            ],
        )
        made += await store.append(key, [assistant("d", tokens=5)])
        assert [m.turn for m in made] == [0, 1, 1, 2, 2]
        assert [m.total for m in made] == [1, 3, 6, 10, 15]
        session = await store.get_session("s")
        assert session is not None
        assert (session.messages, session.turns, session.tokens) == (5, 2, 15)

    @on_store
    async def test_tokens_that_no_log_can_count_are_refused(self, store: Store) -> None:
        most = 2**53 - 1
        key = await new_session(store)
        await store.append(key, [user("a", id="a", tokens=most - 5)])
        for batch in (
            [user("b", tokens=6)],
            [user("b", tokens=most)],
            [user("b", tokens=3), user("c", tokens=3)],
            [user("b", tokens=most), user("c", tokens=most), user("d", tokens=most)],
        ):
            with refused(InvalidInput):
                await store.append(key, batch)
        (known,) = await store.append(key, [user("a", id="a", tokens=most - 5)])
        assert known.seq == 1
        await store.append(key, [user("b", tokens=5)])
        assert (await store.describe(key)).tokens == most
        copy = await new_session(store, "copy")
        assert await store.load(copy, await store.read(key)) == 2
        with refused(InvalidInput):
            await store.recount(key, Fixed(2**52))
        assert (await store.describe(key)).tokens == most
        assert await store.recount(key, Fixed(2**51)) == 2

    @on_store
    async def test_a_turn_writes_into_its_own_turn(self, store: Store) -> None:
        key = await new_session(store)
        await store.append(key, [user("a"), user("b")])
        made = await store.append(key, [assistant("to a"), user("more")], turn=1)
        assert [m.turn for m in made] == [1, 1]
        (later,) = await store.append(key, [assistant("to b")])
        assert later.turn == 2
        (opened,) = await store.append(key, [user("c")])
        assert opened.turn == 3
        for wrong in (0, 4, -1):
            with refused(InvalidInput):
                await store.append(key, [user("d")], turn=wrong)

    @on_store
    async def test_a_known_id_is_answered_and_not_stored_twice(self, store: Store) -> None:
        key = await new_session(store)
        first = await store.append(
            key, [user("a", id="1", meta={"x": 1, "y": 2}), user("b", id="2")]
        )
        self.clock.advance(5)
        retry = [
            user("b", id="2", tokens=9),
            user("c", id="3"),
            user("a", id="1", meta={"y": 2, "x": 1}, created_at=5.0),
        ]
        again = await store.append(key, retry)
        assert [again[0], again[2]] == [first[1], first[0]]
        assert again[1].seq == 3
        assert said(await store.tail(key)) == ["a", "b", "c"]

    @on_store
    async def test_another_body_under_a_known_id_is_a_conflict(self, store: Store) -> None:
        key = await new_session(store)
        await store.append(key, [user("a", id="1")])
        for other in (user("b", id="1"), assistant("a", id="1"), user("a", id="1", meta={"x": 1})):
            with refused(Conflict):
                await store.append(key, [user("new"), other])
        assert said(await store.tail(key)) == ["a"]

    @on_store
    async def test_an_id_twice_in_one_append_is_one_message(self, store: Store) -> None:
        key = await new_session(store)
        made = await store.append(key, [user("a", id="1"), user("a", id="1")])
        assert made[0] == made[1]
        with refused(Conflict):
            await store.append(key, [user("b", id="2"), user("c", id="2")])
        assert said(await store.tail(key)) == ["a"]

    @on_store
    async def test_the_same_id_may_be_in_two_sessions(self, store: Store) -> None:
        one, two = await new_session(store, "one"), await new_session(store, "two")
        await store.append(one, [user("a", id="1")])
        await store.append(two, [user("b", id="1")])
        assert said(await store.tail(one)) + said(await store.tail(two)) == ["a", "b"]

    @on_store
    async def test_expect_holds_new_messages_to_what_the_caller_saw(self, store: Store) -> None:
        key = await new_session(store)
        first = await store.append(key, [user("a", id="1")], expect=0)
        with refused(Stale):
            await store.append(key, [user("b")], expect=0)
        await store.append(key, [user("b", id="2")], expect=1)
        assert await store.append(key, [user("a", id="1")], expect=0) == first
        with refused(Stale):
            await store.append(key, [user("a", id="1"), user("c")], expect=1)
        assert said(await store.tail(key)) == ["a", "b"]

    @on_store
    async def test_one_bad_message_stores_none(self, store: Store) -> None:
        key = await new_session(store)
        with refused(InvalidInput):
            await store.append(key, [user("a"), Message(role=cast(Any, "oracle"))])
        assert await store.tail(key) == []

    @on_store
    async def test_appends_at_once_are_all_stored_in_one_order(self, store: Store) -> None:
        key = await new_session(store)
        made = await asyncio.gather(
            *(store.append(key, [user(f"{n}"), assistant(f"{n}!")]) for n in range(40)),
            store.append(key, [user("x", tokens=-1)]),
            return_exceptions=True,
        )
        assert isinstance(made[-1], InvalidInput)
        log = await store.read(key, limit=1000)
        assert [m.seq for m in log] == list(range(1, 81))
        assert sorted(said(log[::2]), key=int) == [str(n) for n in range(40)]
        assert all(b.content == f"{a.content}!" for a, b in zip(log[::2], log[1::2], strict=True))

    @on_store
    async def test_a_failure_in_company_undoes_itself_alone(self, store: Store) -> None:
        key = await new_session(store)
        await store.append(key, [user("known", id="k")])
        made = await asyncio.gather(
            store.append(key, [user("a")]),
            store.append(key, [user("lost"), user("other", id="k")]),
            store.append(key, [user("b")], expect=99),
            store.append(key, [user("c")]),
            return_exceptions=True,
        )
        assert [type(m) for m in made] == [list, Conflict, Stale, list]
        assert sorted(said(await store.tail(key))) == ["a", "c", "known"]

    @on_store
    async def test_hostile_input_is_stored_exactly_or_refused(self, store: Store) -> None:
        for case in CASES:
            assert await try_hostile(store, case) == case.verdict, case.name

    # --- reading ---

    @on_store
    async def test_the_tail_is_the_newest_that_fits(self, store: Store) -> None:
        key = await new_session(store)
        await store.append(key, [user(f"{n}", tokens=10) for n in range(1, 8)])
        assert said(await store.tail(key)) == list("1234567")
        assert said(await store.tail(key, tokens=35)) == list("567")
        assert said(await store.tail(key, tokens=30)) == list("567")
        assert said(await store.tail(key, tokens=9)) == []
        assert said(await store.tail(key, limit=2)) == list("67")
        assert said(await store.tail(key, limit=0)) == []
        assert said(await store.tail(key, tokens=25, before=5)) == list("34")
        assert said(await store.tail(key, before=1)) == []
        assert said(await store.tail(key, after=4)) == list("567")
        assert said(await store.tail(key, tokens=5, min_messages=2)) == list("67")
        assert said(await store.tail(key, tokens=5, min_messages=2, limit=1)) == list("7")
        assert said(await store.tail(key, after=2, before=6, limit=2)) == list("45")

    @on_store
    async def test_a_message_that_does_not_fit_ends_the_tail(self, store: Store) -> None:
        key = await new_session(store)
        await store.append(key, [user("a", tokens=1), user("b", tokens=50), user("c", tokens=1)])
        assert said(await store.tail(key, tokens=10)) == ["c"]

    @on_store
    async def test_reading_goes_forward_from_a_position(self, store: Store) -> None:
        key = await new_session(store)
        await store.append(key, [user(f"{n}") for n in range(1, 8)])
        assert said(await store.read(key, after=2, limit=3)) == list("345")
        assert said(await store.read(key, after=2, until=4)) == list("34")
        assert said(await store.read(key, after=7)) == []
        assert said(await store.read(key, limit=0)) == []

    @on_store
    async def test_messages_are_found_by_id_and_position(self, store: Store) -> None:
        key = await new_session(store)
        await store.append(key, [user(f"{n}", id=f"m{n}") for n in range(1, 8)])
        found = await store.find(key, ids=["m5", "m2", "nobody"], seqs=[7, 2, 0, 99])
        assert said(found) == list("257")
        assert await store.find(key) == []

    @on_store
    async def test_a_session_its_tail_and_its_shelf_are_gathered_at_once(
        self, store: Store
    ) -> None:
        key = await new_session(store, system_prompt="Be brief.")
        await store.append(key, [user(f"{n}", tokens=10) for n in range(1, 8)])
        for kind in ("pin", "marks", "other"):
            await store.put(Scope(session=key), kind, "1", kind)
        found = await store.gather(key, tokens=25, kinds=["marks", "pin"])
        assert found.system_prompt == "Be brief."
        assert await store.describe(key) == await store.get_session("s")
        assert said(list(found.messages)) == ["6", "7"]
        assert [record.value for record in found.records] == ["marks", "pin"]
        assert (await store.gather(key, tokens=0)).records == []

    @on_store
    async def test_a_context_of_four_kinds_is_gathered_kind_by_kind(self, store: Store) -> None:
        key, other = await new_session(store), await new_session(store, "other")
        await store.append(key, [user("a"), user("b")])
        for kind in ("a", "b", "c", "d", "e"):
            for name in ("2", "1"):
                await store.put(Scope(session=key), kind, name, kind + name, made_of=[span(key, 2)])
            await store.put(Scope(session=other), kind, "1", "another session's")
        found = await store.gather(key, tokens=9, kinds=["d", "a"], follow=["c", "b"])
        assert [record.value for record in found.records] == [
            *("d1", "d2", "a1", "a2", "c1", "c2", "b1", "b2"),
        ]
        assert said(list(found.sources)) == ["b"]
        found = await store.gather(key, tokens=9, kinds=["d", "c", "d"], follow=["c", "c"])
        assert [record.value for record in found.records] == ["d1", "d2", "c1", "c2"]

    @on_store
    async def test_what_followed_records_are_made_of_is_gathered_with_them(
        self, store: Store
    ) -> None:
        key, other = await new_session(store), await new_session(store, "other")
        for session in (other, key):
            await store.append(session, [user(f"{n}", tokens=10) for n in range(1, 10)])
        scope = Scope(session=key)
        spans = {
            "a": [span(key, 7)],
            "b": [span(key, 2, 4), span(other, 5)],
            "c": [span(key, 3, 3), span(key, 0, 1), span(key, 9, 99)],
            "d": [span(key, 50), span(key, 6, 5)],
            "e": [],
        }
        for name, made_of in spans.items():
            await store.put(scope, "pin", name, name, made_of=made_of)
        await store.put(scope, "compact", "1", "compact", made_of=[span(key, 8)])
        await store.put(scope, "link", "1", "link", made_of=[span(key, 5)])
        await store.erase(key, [5])
        await store.put(scope, "link", "1", "link", made_of=[span(key, 5)])
        found = await store.gather(key, tokens=10, kinds=["compact"], follow=["pin", "link"])
        assert said(list(found.messages)) == ["9"]
        values = [record.value for record in found.records]
        assert values == ["compact", "a", "b", "c", "d", "e", "link"]
        assert list(found.sources) == await store.find(key, seqs=[1, 2, 3, 4, 5, 7, 9])
        assert [m.seq for m in found.sources if m.state == "erased"] == [5]
        assert list((await store.gather(key, tokens=0, kinds=["pin"])).sources) == []

    @on_store
    async def test_of_followed_records_those_put_last_are_gathered(self, store: Store) -> None:
        key = await new_session(store)
        await store.append(key, [user(f"{n}") for n in range(1, 8)])
        scope = Scope(session=key)
        for n in (5, 1, 4, 2, 3):
            await store.put(scope, "pin", f"{n}", n, made_of=[span(key, n)])
        await store.put(scope, "note", "6", 6, made_of=[span(key, 6)])
        await store.put(scope, "pin", "5", 5, made_of=[span(key, 5)])  # now the last one
        await store.drop(scope, "pin", "2")
        found = await store.gather(key, tokens=0, follow=["pin", "note"], follow_limit=2)
        assert [record.value for record in found.records] == [3, 5, 6]
        assert said(list(found.sources)) == list("356")
        assert list(found.more) == ["pin"]
        await store.erase(key, [3])
        found = await store.gather(key, tokens=0, follow=["note", "pin"], follow_limit=2)
        assert [record.value for record in found.records] == [6, 4, 5]
        assert list(found.more) == ["pin"]
        found = await store.gather(key, tokens=0, follow=["pin"], follow_limit=3)
        assert ([record.value for record in found.records], list(found.more)) == ([1, 4, 5], [])
        found = await store.gather(key, tokens=0, follow=["pin"], follow_limit=0)
        assert (list(found.records), list(found.sources), list(found.more)) == ([], [], ["pin"])

    @on_store
    async def test_a_damaged_source_is_gathered_as_it_is(self, store: Store) -> None:
        one, two = await new_session(store, "one"), await new_session(store, "two")
        await store.append(one, [user("a"), user("b")])
        log = await store.read(one)
        await store.load(two, [replace(log[0], state="damaged"), log[1]])
        await store.put(Scope(session=two), "pin", "1", 1, made_of=[span(two, 1, 2)])
        sources = (await store.gather(two, tokens=0, follow=["pin"])).sources
        assert [(m.seq, m.state) for m in sources] == [(1, "damaged"), (2, "live")]

    # --- copying ---

    @on_store
    async def test_a_copy_is_the_same_but_for_its_session(self, store: Store) -> None:
        one, two = await new_session(store, "one"), await new_session(store, "two")
        await store.append(one, [user("a", tokens=5), FULL, user("b", tokens=2)])
        await store.append(one, [assistant("late")], turn=1)
        await store.erase(one, [1])
        log = await store.read(one)
        assert await store.load(two, log[:2]) == 2
        assert await store.load(two, log) == 4
        assert await store.load(two, log) == 4
        assert await store.read(two) == log
        more = [await store.append(key, [user("next", id="n", tokens=1)]) for key in (one, two)]
        assert more[0] == more[1]

    @on_store
    async def test_a_copy_has_no_gaps_and_no_strangers(self, store: Store) -> None:
        one, two = await new_session(store, "one"), await new_session(store, "two")
        await store.append(one, [user("a"), user("b"), user("c")])
        log = await store.read(one)
        with refused(Stale):
            await store.load(two, log[1:])
        await store.load(two, log[:1])
        with refused(Conflict):
            await store.load(two, [replace(log[1], seq=1)])
        with refused(Conflict):
            await store.load(two, [replace(log[0], seq=2)])
        with refused(InvalidInput):
            await store.load(two, [replace(log[1], tokens=5)])
        assert said(await store.read(two)) == ["a"]

    @on_store
    async def test_a_damaged_message_stays_damaged_in_a_copy(self, store: Store) -> None:
        one, two = await new_session(store, "one"), await new_session(store, "two")
        await store.append(one, [user("a"), user("b")])
        log = await store.read(one)
        log[0] = replace(log[0], state="damaged", total=10**9, turn=10**9)
        await store.load(two, log)
        copied = await store.read(two)
        assert [m.state for m in copied] == ["damaged", "live"]
        assert copied[1] == log[1]

    # --- erasing ---

    @on_store
    async def test_an_erased_message_leaves_a_tombstone(self, store: Store) -> None:
        key = await new_session(store)
        made = await store.append(key, [user("a", tokens=5), FULL, user("c", tokens=2)])
        assert await store.erase(key, [2, 2]) == 1
        log = await store.read(key)
        assert [m.state for m in log] == ["live", "erased", "live"]
        grave = log[1]
        assert (grave.id, grave.seq, grave.turn, grave.total) == (FULL.id, 2, 1, 47)
        assert (grave.content, grave.tool_calls, grave.tokens, grave.meta) == ("", (), 0, {})
        assert [log[0], log[2]] == [made[0], made[2]]
        assert await store.tail(key, tokens=7) == log

    @on_store
    async def test_a_message_without_a_text_is_erased_too(self, store: Store) -> None:
        key = await new_session(store)
        call = ToolCall(id="c", name="pay", arguments='{"to": "Evil"}')
        picture = Attachment(media_type="image/png", name="secret.png")
        said = [
            assistant("", tool_calls=(call,)),
            user("", attachments=(picture,)),
            user("", meta={"of": "secret"}),
            user(""),
        ]
        await store.append(key, said)
        await store.erase(key, range(1, 5))
        log = await store.read(key)
        assert [message.state for message in log] == ["erased"] * 4
        assert not any(each.tool_calls or each.attachments or each.meta for each in log)

    @on_store
    async def test_an_erased_id_is_answered_and_never_stored_again(self, store: Store) -> None:
        key = await new_session(store)
        await store.append(key, [user("a", id="1")])
        await store.erase(key, [1])
        for body in (user("a", id="1"), user("b", id="1")):
            (answer,) = await store.append(key, [body], expect=0)
            assert (answer.state, answer.content, answer.seq) == ("erased", "", 1)
        (next_one,) = await store.append(key, [user("c")])
        assert (next_one.seq, next_one.turn) == (2, 2)

    @on_store
    async def test_erasing_counts_epochs_and_is_all_or_none(self, store: Store) -> None:
        key = await new_session(store)
        await store.append(key, [user("a"), user("b")])
        assert await store.erase(key, [1]) == 1
        assert await store.erase(key, [1]) == 1
        assert await store.erase(key, []) == 1
        for wrong in (0, 3):
            with refused(MessageNotFound):
                await store.erase(key, [2, wrong])
        assert said(await store.read(key)) == ["", "b"]
        session = await store.get_session("s")
        assert session is not None
        assert session.epoch == 1

    @on_store
    async def test_what_was_made_of_an_erased_message_goes_with_it(self, store: Store) -> None:
        key, other = await new_session(store), await new_session(store, "other")
        await store.append(key, [user(f"{n}") for n in range(1, 9)])
        await store.append(other, [user("x") for _ in range(8)])
        scope = Scope(session=key)
        spans = {
            "at": [span(key, 4)],
            "from": [span(key, 1), span(key, 4, 9)],
            "upto": [span(key, 1, 4)],
            "around": [span(other, 4), span(key, 2, 7)],
            "before": [span(key, 1, 3)],
            "behind": [span(key, 5, 9)],
            "strange": [span(other, 1, 9)],
            "nothing": [],
        }
        for name, made_of in spans.items():
            await store.put(scope, "compact", name, name, made_of=made_of)
        elsewhere = (Scope(session=other), Scope(owner="ana"), Scope())
        for shelf in elsewhere:
            await store.put(shelf, "compact", "1", 1, made_of=[span(key, 4)])
        await store.erase(key, [4])
        left = [record.key for record in await store.scan(scope)]
        assert left == ["before", "behind", "nothing", "strange"]
        assert [len(await store.scan(shelf)) for shelf in elsewhere] == [1, 1, 1]
        await store.erase(key, [1, 8])
        assert [record.key for record in await store.scan(scope)] == ["nothing", "strange"]
        assert (await store.verify()).sound

    @on_store
    async def test_a_record_stays_where_nothing_new_was_erased(self, store: Store) -> None:
        key = await new_session(store)
        await store.append(key, [user("a"), user("b")])
        await store.erase(key, [1])
        for position in (1, 2):
            made_of = [span(key, position)]
            await store.put(Scope(session=key), "pin", str(position), None, made_of=made_of)
        await store.erase(key, [1])
        with refused(MessageNotFound):
            await store.erase(key, [2, 3])
        assert [r.key for r in await store.scan(Scope(session=key))] == ["1", "2"]
        await store.erase(key, [1, 2])
        assert [r.key for r in await store.scan(Scope(session=key))] == ["1"]

    @on_store
    async def test_cleaning_lets_go_of_nothing_that_is_there(self, store: Store) -> None:
        key, other = await new_session(store), await new_session(store, "other")
        await store.append(key, [user("a"), FULL, user("c")])
        await store.append(other, [user("x")])
        await store.put(Scope(session=other), "mine", "it", "text", made_of=[span(other, 1)])
        await store.erase(key, [2])
        await store.delete_session(other)
        before = await store.describe(key), await store.read(key)
        for rewrite in (False, True):
            done = await store.clean(sessions=[key, other], rewrite=rewrite, probes=[b"0" * 40])
            assert done.done
            assert (list(done.found), done.again) == ([], False)
            assert all(all(residue) for residue in done.residues)
        assert (await store.describe(key), await store.read(key)) == before
        assert (await store.append(key, [user("d")]))[0].seq == 4
        assert (await store.verify()).sound

    # --- records ---

    @on_store
    async def test_records_come_back_as_they_were_put(self, store: Store) -> None:
        key = await new_session(store)
        scopes = (Scope(session=key), Scope(owner="ana"), Scope(owner="bea"), Scope())
        for n, scope in enumerate(scopes):
            value = {"n": n, "z": [1.5, None, "\ud800\0"], "a": True}
            version = await store.put(
                scope, "compact", "1", value, made_of=[Span(session=key, first=1, last=n)]
            )
            record = await store.get(scope, "compact", "1")
            assert record is not None
            assert (record.value, record.version, record.scope) == (value, version, scope)
            assert record.made_of == (Span(session=key, first=1, last=n),)
            assert await store.scan(scope) == [record]

    @on_store
    async def test_a_shelf_is_scanned_by_kind_and_key(self, store: Store) -> None:
        scope = Scope(owner="ana")
        for kind, key in (("b", "2"), ("a", "9"), ("b", "1")):
            await store.put(scope, kind, key, None)
        assert [(r.kind, r.key) for r in await store.scan(scope)] == [
            ("a", "9"),
            ("b", "1"),
            ("b", "2"),
        ]
        assert [r.key for r in await store.scan(scope, "b")] == ["1", "2"]
        assert await store.scan(Scope(owner="bea")) == []

    @on_store
    async def test_one_kind_is_left_out_of_a_scan_of_all(self, store: Store) -> None:
        session = await new_session(store)
        for scope in (Scope(session=session), Scope(owner="ana"), Scope()):
            for kind in ("b", "a", "ba", "b!", "c"):
                await store.put(scope, kind, "1", kind)
            for kind in ("a", "b", "c", "unknown"):
                left = [k for k in ("a", "b", "b!", "ba", "c") if k != kind]
                assert [r.kind for r in await store.scan(scope, without=kind)] == left
        for wrong in ({"without": ""}, {"without": "b", "kind": "b"}, {"without": "b", "limit": 1}):
            with refused(InvalidInput):
                await store.scan(Scope(), **cast(dict[str, Any], wrong))

    @on_store
    async def test_a_kind_is_scanned_between_two_keys_and_from_the_end(self, store: Store) -> None:
        session = await new_session(store)
        for scope in (Scope(session=session), Scope(owner="ana"), Scope()):
            for key in ("3", "1", "5", "2", "4"):
                await store.put(scope, "k", key, key)
                await store.put(scope, "j", key, None)

            async def keys(scope: Scope = scope, **bounds: Any) -> str:
                return "".join(r.key for r in await store.scan(scope, "k", **bounds))

            assert await keys(after="2") == "345"
            assert await keys(before="4") == "123"
            assert await keys(after="2", before="5") == "34"
            assert await keys(after="25", before="45") == "34"
            assert await keys(after="4", before="2") == await keys(after="3", before="4") == ""
            assert await keys(limit=2) == "45"
            assert await keys(before="4", limit=2) == "23"
            assert await keys(after="1", before="5", limit=9) == "234"
            assert await keys(limit=0) == ""
            (last,) = await store.scan(scope, "k", limit=1)
            assert last == await store.get(scope, "k", "5")

    @on_store
    async def test_keys_are_ordered_by_code_point(self, store: Store) -> None:
        scope = Scope()
        ordered = ["10", "9", "Z", "a", "aa", "é", "～", "😀", "\U0002fa1d"]
        for key in reversed(ordered):
            await store.put(scope, "k", key, None)
        assert [r.key for r in await store.scan(scope)] == ordered
        assert [r.key for r in await store.scan(scope, "k", limit=99)] == ordered
        for n, key in enumerate(ordered):
            assert [r.key for r in await store.scan(scope, "k", before=key)] == ordered[:n]
            assert [r.key for r in await store.scan(scope, "k", after=key)] == ordered[n + 1 :]

    @on_store
    async def test_bounds_are_keys_of_one_kind(self, store: Store) -> None:
        wrong: list[dict[str, Any]] = [
            {"after": "a"},
            {"before": "a"},
            {"limit": 1},
            {"kind": "k", "after": ""},
            {"kind": "k", "before": "a\nb"},
            {"kind": "k", "limit": -1},
            {"kind": "k", "limit": True},
        ]
        for bounds in wrong:
            with refused(InvalidInput):
                await store.scan(Scope(owner="ana"), **bounds)

    @on_store
    async def test_a_put_with_a_version_replaces_only_what_was_seen(self, store: Store) -> None:
        scope = Scope(owner="ana")
        first = await store.put(scope, "k", "k", 1, version=0)
        with refused(Stale):
            await store.put(scope, "k", "k", 2, version=0)
        second = await store.put(scope, "k", "k", 2, version=first)
        with refused(Stale):
            await store.put(scope, "k", "k", 3, version=first)
        with refused(Stale):
            await store.drop(scope, "k", "k", version=first)
        assert await store.drop(scope, "k", "k", version=second)
        assert not await store.drop(scope, "k", "k")
        assert await store.get(scope, "k", "k") is None
        third = await store.put(scope, "k", "k", 4)
        assert len({first, second, third}) == 3

    @on_store
    async def test_of_many_puts_with_one_version_one_wins(self, store: Store) -> None:
        scope = Scope()
        puts = (store.put(scope, "lease", "k", n, version=0) for n in range(20))
        made = await asyncio.gather(*puts, return_exceptions=True)
        assert sum(isinstance(m, int) for m in made) == 1
        assert sum(isinstance(m, Stale) for m in made) == 19

    @on_store
    async def test_what_was_made_before_an_erasure_is_refused(self, store: Store) -> None:
        key = await new_session(store)
        await store.append(key, [user("secret")])
        await store.put(Scope(owner="ana"), "fact", "1", "ok", epochs={key: 0})
        await store.erase(key, [1])
        for scope in (Scope(session=key), Scope(owner="ana")):
            with refused(Stale):
                await store.put(scope, "fact", "2", "secret", epochs={key: 0})
            await store.put(scope, "fact", "3", "fine", epochs={key: 1})

    @on_store
    async def test_records_are_found_by_what_they_are_made_of(self, store: Store) -> None:
        one, two = await new_session(store, "one"), await new_session(store, "two")
        await store.append(one, [user(str(n)) for n in range(1, 10)])
        await store.append(two, [user("a")])
        mine = Scope(session=one)

        async def made(scope: Scope, key: str, *spans: tuple[SessionKey, int, int]) -> None:
            await store.put(scope, "made", key, key, made_of=[span(*each) for each in spans])

        async def found(session: SessionKey, *seqs: int) -> list[str]:
            records = (await store.made_of(session, seqs)).records
            for each in records:
                assert each == await store.get(each.scope, each.kind, each.key)
            return [record.key for record in records]

        await made(mine, "point", (one, 3, 3))
        await made(mine, "range", (one, 2, 5))
        await made(mine, "two", (one, 1, 1), (one, 8, 8))
        await made(Scope(session=two), "abroad", (one, 5, 5))
        await made(Scope(owner="ana"), "fact", (one, 4, 9), (two, 1, 1))
        await made(Scope(owner="ana"), "far", (one, 7, 10**15))
        await made(Scope(), "tenant", (one, 9, 9), (SessionKey("of another store"), 1, 9))
        await made(mine, "none", (one, 5, 4))
        await store.put(mine, "made", "plain", 1)
        assert sorted(await found(one, 3)) == ["point", "range"]
        assert sorted(await found(one, 5)) == ["abroad", "fact", "range"]
        assert sorted(await found(one, 1, 9)) == ["fact", "far", "tenant", "two"]
        assert await found(one, 6) == ["fact"]
        assert await found(one, 10**14) == ["far"]
        assert sorted(await found(one, *range(1, 3000))) == [
            *("abroad", "fact", "far", "point", "range", "tenant", "two")
        ]
        assert await found(two, 1) == ["fact"]
        assert await found(one) == await found(two, 2) == []
        # A record that is written again, or dropped, leads nowhere any more.
        await made(Scope(owner="ana"), "fact", (one, 2, 2))
        assert sorted(await found(one, 2)) == ["fact", "range"]
        assert await found(two, 1) == []
        await store.drop(Scope(owner="ana"), "made", "far")
        assert await found(one, 10**14) == []
        await store.erase(one, [5])
        assert sorted(await found(one, 3, 5)) == ["abroad", "point"]
        await store.delete_session(one)
        assert sorted(await found(one, *range(1, 10))) == ["abroad", "fact", "tenant"]
        await store.delete_session(two)
        assert await found(one, 5) == []

    @on_store
    async def test_a_wrong_record_is_refused(self, store: Store) -> None:
        scope = Scope(owner="ana")
        for kind, key, value in (("", "k", 1), ("k", "\n", 1), ("k", "k", float("nan"))):
            with refused(InvalidInput):
                await store.put(scope, kind, key, value)
        with refused(InvalidInput):
            await store.put(scope, "k", "k", "x" * (1 << 20))
        with refused(InvalidInput):
            await store.get(Scope(session=SessionKey("1"), owner="ana"), "k", "k")
        assert await store.scan(scope) == []

    @on_store
    async def test_a_reader_learns_which_records_changed(self, store: Store) -> None:
        ann, ben = Scope(owner="ann"), Scope(owner="ben")
        kept: dict[str, JSON] = {}
        number = 0

        async def refresh() -> bool:
            nonlocal number
            found = await store.updates(ann, "fact", since=number)
            if found.whole:
                kept.clear()
            kept.update({record.key: record.value for record in found.records})
            for key in found.dropped:
                del kept[key]
            changed, number = found.number != number, found.number
            assert kept == {record.key: record.value for record in await store.scan(ann, "fact")}
            return changed

        await refresh()
        await store.put(ann, "fact", "a", 1)
        await store.put(ann, "fact", "b", 2)
        assert await refresh()
        same = await store.updates(ann, "fact", since=number)
        assert (same.number, same.whole, [*same.records, *same.dropped]) == (number, False, [])
        for change in (
            store.put(ann, "fact", "a", 3),
            store.put(ann, "fact", "c", 4),
            store.drop(ann, "fact", "b"),
        ):
            await change
            assert await refresh()
        await store.put(ann, "fact", "a", 5)
        await store.drop(ann, "fact", "c")
        await store.put(ann, "fact", "c", 6)
        assert await refresh()
        for n in range(40):
            await store.put(ann, "fact", f"{n}", n)
        assert await refresh()
        with refused(Stale):
            await store.put(ann, "fact", "a", 7, version=1)
        assert not await store.drop(ann, "fact", "nobody")
        await store.put(ben, "fact", "a", 8)
        await store.put(Scope(), "receipt", "a", 9)
        assert not await refresh()
        assert kept["a"] == 5
        assert [r.value for r in (await store.updates(ben, "fact")).records] == [8]
        assert [r.value for r in (await store.updates(Scope(), "receipt")).records] == [9]
        unknown = await store.updates(ann, "fact", since=number - 1)
        assert unknown.whole
        assert len(unknown.records) == len(kept)
        for scope, kind in ((ann, "blob"), (Scope(session=await new_session(store)), "fact")):
            with refused(InvalidInput):
                await store.updates(scope, kind)

    @on_store
    async def test_owners_are_those_who_have_something_on_their_shelf(self, store: Store) -> None:
        key = await new_session(store, owner="cay")
        await store.put(Scope(session=key), "pin", "1", 1)
        await store.put(Scope(), "setting", "1", 1)
        await store.put(Scope(owner="bea"), "fact", "1", 1)
        await store.put(Scope(owner="ana"), "fact", "1", 1)
        await store.put(Scope(owner="ana"), "fact", "2", 1)
        await store.tenant("other").put(Scope(owner="dan"), "fact", "1", 1)
        assert await store.owners() == ["ana", "bea"]

    @on_store
    async def test_owners_of_blobs_are_found_without_the_others(self, store: Store) -> None:
        await store.put(Scope(owner="ana"), "fact", "1", 1)
        await store.put(Scope(owner="bea"), "blob_use", "1", 1)
        await store.put(Scope(owner="bea"), "blob_use", "2", 1)
        await store.put(Scope(owner="cay"), "blob_upload", "1", 1)
        await store.put(Scope(owner="cay"), "blob_chunk", "1", 1)
        await store.put(Scope(owner="dan"), "blob", "1", 1)
        key = await new_session(store, owner="eve")
        await store.put(Scope(session=key), "blob_use", "1", 1)
        assert await store.blob_owners() == ["bea", "cay"]
        await store.drop(Scope(owner="cay"), "blob_upload", "1")
        assert await store.blob_owners() == ["bea"]

    # --- recounting ---

    @on_store
    async def test_recounting_counts_what_another_counted(self, store: Store) -> None:
        key = await new_session(store)
        messages = [
            user("one", tokens=9, counter="other"),
            assistant("four", tokens=50, counter="letters"),
            user("gone", tokens=7, counter="other"),
            user("", tokens=0),
            assistant("sixsix", tokens=1, counter="other"),
        ]
        before = await store.append(key, messages)
        await store.erase(key, [3])
        seen: list[tuple[int, int]] = []
        counted = await store.recount(
            key, Letters(), progress=lambda done, of: seen.append((done, of))
        )
        assert counted == 3
        assert seen[-1] == (5, 5)
        after = await store.tail(key)
        assert [m.tokens for m in after] == [3, 50, 0, 0, 6]
        assert [m.total for m in after] == [3, 53, 53, 53, 59]
        assert [m.counter for m in after if m.state == "live"] == ["letters"] * 4
        assert [(m.id, m.turn) for m in after] == [(m.id, m.turn) for m in before]
        assert [m.digest for m in after if m.seq != 3] == [m.digest for m in before if m.seq != 3]
        assert await store.recount(key, Letters()) == 0
        assert await store.tail(key) == after
        session = await store.get_session("s")
        assert session is not None
        assert session.tokens == 59
        assert (await store.append(key, [user("more", tokens=1)]))[0].total == 60
        assert (await store.verify()).sound

    # --- changes ---

    @on_store
    async def test_changes_are_shown_to_their_owner_and_to_the_operator(self, store: Store) -> None:
        present = await store.changes(owner="ana", limit=0)
        key = await new_session(store, owner="ana")
        (message,) = await store.append(key, [user("mine")])
        await store.erase(key, [1])
        expected = [
            ("session_created", ()),
            ("messages_added", (message.id,)),
            ("messages_erased", (message.id,)),
        ]
        found: list[Change] = []
        cursor = present.next
        async with asyncio.timeout(30):
            while len(found) < len(expected):  # a store may show a change a few seconds later
                page = await store.changes(owner="ana", after=cursor, limit=2)
                found += page
                cursor = page.next
                await asyncio.sleep(0 if page else 0.05)
        assert [(change.kind, change.ids) for change in found] == expected
        assert {(change.owner, change.key) for change in found} == {("ana", key)}
        assert not await store.changes(owner="ana", after=cursor)
        assert await store.changes(owner="bo") == []
        assert await store.tenant("other").changes() == []
        assert [change for change in await store.changes() if change.key == key] == found
        last = await store.changes(limit=0)
        assert await store.changes(after=last.next) == []
        with refused(InvalidInput):
            await store.changes(owner="bo", after=cursor)

    # --- walls, integrity, ending ---

    @on_store
    async def test_two_tenants_see_nothing_of_each_other(self, store: Store) -> None:
        other = store.tenant("other")
        key = await new_session(store, owner="ana")
        await store.append(key, [user("mine", id="m")])
        await store.put(Scope(owner="ana"), "fact", "1", "mine")
        await store.put(Scope(), "setting", "1", "mine")
        assert await other.get_session("s") is None
        assert await other.list_sessions() == []
        assert await other.scan(Scope(owner="ana")) == []
        number = (await store.updates(Scope(owner="ana"), "fact")).number
        theirs = await other.updates(Scope(owner="ana"), "fact", since=number)
        assert (theirs.whole, list(theirs.records)) == (True, [])
        assert await other.get(Scope(), "setting", "1") is None
        assert not await other.drop(Scope(), "setting", "1")
        for call in (
            other.append(key, [user("x")]),
            other.load(key, []),
            other.tail(key),
            other.gather(key, tokens=1),
            other.describe(key),
            other.read(key),
            other.find(key, ids=["m"]),
            other.erase(key, [1]),
            other.recount(key, Letters()),
            other.scan(Scope(session=key)),
            other.put(Scope(), "k", "k", 1, epochs={key: 0}),
            other.delete_session(key),
            other.put_session(SessionInfo(id="s", key=key)),
        ):
            with refused(SessionGone):
                await call
        assert await new_session(other) != key
        assert said(await store.tail(key)) == ["mine"]
        assert (await other.verify()).messages == 0

    @on_store
    async def test_a_tenant_must_have_a_name(self, store: Store) -> None:
        for name in ("", "a\nb", "x" * 256):
            with refused(InvalidInput):
                store.tenant(name)

    @on_store
    async def test_tenants_are_listed_by_name_page_by_page(self, store: Store) -> None:
        names = ["a", "B", "ä", "\U0001f600", "z", "default"]
        assert await store.tenants() == []
        for name in names:
            assert await store.tenant(name).list_sessions() == []  # reading makes no tenant
        assert await store.tenants() == []
        for number, name in enumerate(names):
            if number % 3 == 0:
                await new_session(store.tenant(name))
            else:
                scope = Scope(owner="ana") if number % 3 == 1 else Scope()
                await store.tenant(name).put(scope, "fact", "1", 1)
        expected = sorted(names)
        assert await store.tenant("B").tenants() == expected
        assert await store.tenants(limit=0) == []
        found: list[str] = []
        while page := await store.tenants(after=found[-1] if found else None, limit=2):
            found += page
        assert found == expected
        assert await store.tenants(after="C") == [name for name in expected if name > "C"]
        for after, limit in (("", 1), ("\n", 1), ("a", -1)):
            with refused(InvalidInput):
                await store.tenants(after=after, limit=limit)

    @on_store
    async def test_a_dropped_tenant_is_gone_and_begins_from_nothing(self, store: Store) -> None:
        other, third = store.tenant("other"), store.tenant("third")
        keys: list[SessionKey] = []
        for tenant in (store, other, third):
            for number in range(3):
                key = await new_session(tenant, f"s{number}", owner="ana")
                await tenant.append(key, [user("mine", id="m"), user("more")])
                await tenant.put(Scope(session=key), "pin", "1", 1)
                keys.append(key)
            await tenant.put(Scope(owner="ana"), "fact", "1", "mine")
            await tenant.put(Scope(), "setting", "1", "mine")
        before = [await tenant.verify() for tenant in (store, third)]
        await store.drop_tenant("other")
        assert await store.tenants() == ["default", "third"]
        assert [await tenant.verify() for tenant in (store, third)] == before
        assert [said(await store.tail(key)) for key in keys[:3]] == [["mine", "more"]] * 3
        for name in ("other", "unknown"):
            with refused(NotFound):
                await store.drop_tenant(name)
        for name in ("default", "", "a\nb"):
            with refused(InvalidInput):
                await store.drop_tenant(name)

        assert (await other.verify())[:3] == (0, 0, 0)
        assert await other.scan_sessions() == []
        assert await other.owners() == []
        for scope in (Scope(owner="ana"), Scope()):
            assert await other.scan(scope) == []
        for call in (other.append(keys[3], [user("late")]), other.tail(keys[4])):
            with refused(SessionGone):
                await call
        key = await new_session(other, "s0", owner="ana")
        assert key not in keys
        assert await other.tail(key) == []
        assert (await other.append(key, [user("again", id="m")]))[0].seq == 1
        assert await store.tenants() == ["default", "other", "third"]
        assert (await other.verify())[:3] == (1, 1, 0)

    @on_store
    async def test_a_sound_store_is_found_sound(self, store: Store) -> None:
        key = await new_session(store)
        await store.append(key, [user("a"), FULL, user("b")])
        await store.erase(key, [1])
        await store.put(Scope(session=key), "pin", "1", 1)
        seen: list[tuple[int, int]] = []
        report = await store.verify(progress=lambda done, of: seen.append((done, of)))
        assert report.sound, report.damages
        assert (report.sessions, report.messages, report.records) == (1, 3, 1)
        assert seen[-1] == (3, 3)

    @on_store
    async def test_a_sound_store_is_found_sound_while_others_write(self, store: Store) -> None:
        async def write(name: str) -> None:
            for number in range(10):
                key = await new_session(store, f"{name}{number}")
                await store.append(key, [user("a"), user("b")])
                await store.put(Scope(session=key), "pin", "1", 1)
                await store.erase(key, [1])
                if number % 2:
                    await store.delete_session(key)

        writers = [asyncio.create_task(write(name)) for name in "abc"]
        while not all(writer.done() for writer in writers):
            report = await store.verify()
            assert report.sound, report.damages
            await asyncio.sleep(0)  # the store in memory never waits
        await asyncio.gather(*writers)
        assert (await store.verify()).sessions == 15

    @on_store
    async def test_a_closed_store_says_so(self, store: Store) -> None:
        key = await new_session(store)
        twin = store.tenant("other")
        await twin.close()
        await store.append(key, [user("still open")])
        await store.close()
        await store.close()
        for call in (store.tail(key), store.append(key, [user("x")]), twin.list_sessions()):
            with refused(StoreClosed):
                await call
