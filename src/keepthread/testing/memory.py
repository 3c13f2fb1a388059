"""The contract of a memory: what programs rely on, on any store or server, as tests.

It goes through `Memory` and what it returns: sessions, turns, facts, blobs. Subclass
`FindingMemoryContract`, or `MemoryContract` if your store has no search, say how to open your
memory, and let pytest collect the class. To see the values of a failed assertion, call
`pytest.register_assert_rewrite` with this module's name.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from keepthread.errors import (
    BudgetTooSmall,
    Conflict,
    InvalidInput,
    KeepthreadError,
    MessageNotFound,
    NotFound,
    SessionExists,
    SessionNotFound,
    Stale,
)
from keepthread.memory.memory import Memory
from keepthread.memory.owner import OwnerMemory
from keepthread.memory.session import Session
from keepthread.stores.codec import new_id
from keepthread.testing.contract import FULL, assistant, refused, said, user
from keepthread.testing.hostile import CASES, Hostile
from keepthread.types import Change, Message, Native, ProactiveTool, ToolCall

M = TypeVar("M", bound="MemoryContract")

LONG: Final = "a long text, " * 90_000
"""A text over 1 MiB, of which the log keeps a part."""
_OF_STORES: Final = (*("1 MiB and a byte", "1 MiB and a byte, in fewer characters", "50 MB"),)
"""Hostile inputs that a memory treats otherwise: it keeps long texts apart."""
_NOT_SENT: Final = ("lone surrogates", "10,000 tool calls")
"""Inputs that JSON cannot carry, and those that a server takes to be too much."""
_KEPT: Final = ("role", "content", "id", "tool_call_id", "name", "author", "origin", "source")


def on_owner(test: Callable[[M, OwnerMemory], Awaitable[None]]) -> Callable[[M, Path], None]:
    """Run a test on the memory of an owner who has nothing yet."""

    def run(self: M, tmp_path: Path) -> None:
        async def program() -> None:
            async with self.opened(tmp_path) as self.memory:
                await test(self, self.memory.for_owner(f"owner {new_id()}"))

        asyncio.run(program())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


class MemoryContract:
    """The tests; a subclass must only define `opened`."""

    memory: Memory
    """The memory of the test that runs."""

    def opened(self, folder: Path) -> AbstractAsyncContextManager[Memory]:
        """Return a memory that keeps explanations (`keep_why`), closed after the test.

        It may hold data of other owners.
        """
        raise NotImplementedError

    # --- sessions ---

    @on_owner
    async def test_a_session_comes_back_as_it_was_made(self, owner: OwnerMemory) -> None:
        given: dict[str, Any] = {
            "system_prompt": "Be brief. \ud800",
            "title": "Ein Titel, 日本",
            "tags": ["a", "b c"],
            "meta": {"n": [1, 2.5, None, {"x": True}]},
        }
        id = "an/odd id? %2F #ü"
        made = await owner.create_session(id, **given)
        found = await owner.get_session(id)
        again = await owner.session(id, title="another")
        for info in (made.info, found.info, again.info, await found.refresh()):
            assert (info.id, info.owner, info.key) == (id, owner.owner, made.key)
            assert {**given, "tags": ("a", "b c")} == {
                "system_prompt": info.system_prompt,
                "title": info.title,
                "tags": tuple(info.tags),
                "meta": dict(info.meta),
            }
        with refused(SessionExists):
            await owner.create_session(id)
        with refused(SessionNotFound):
            await owner.get_session("unknown")
        for bad in ("", "a\nb", "x" * 256):
            with refused(InvalidInput):
                await owner.session(bad)
        assert (await owner.create_session()).id != (await owner.create_session()).id

    @on_owner
    async def test_sessions_are_listed_in_pages(self, owner: OwnerMemory) -> None:
        assert await owner.list_sessions() == []
        for number in range(5):
            tags = ["odd"] if number % 2 else []
            await owner.create_session(f"s{number}", title=f"Number {number}", tags=tags)
        everything = await owner.list_sessions(limit=1000)
        assert sorted(s.id for s in everything) == ["s0", "s1", "s2", "s3", "s4"]
        assert everything.next is None
        first = await owner.list_sessions(limit=2)
        second = await owner.list_sessions(limit=2, cursor=first.next)
        assert [*first, *second] == everything[:4]
        assert sorted(s.id for s in await owner.list_sessions(tag="odd")) == ["s1", "s3"]
        assert [s.id for s in await owner.list_sessions(title="number 2")] == ["s2"]
        assert await owner.list_sessions(limit=0) == []
        with refused(InvalidInput):
            await owner.list_sessions(cursor="nonsense")
        with refused(InvalidInput):
            await owner.list_sessions(limit=-1)

    @on_owner
    async def test_owners_see_nothing_of_each_other(self, owner: OwnerMemory) -> None:
        other = self.memory.for_owner(f"{owner.owner} too")
        mine, theirs = await owner.session("s"), await other.session("s")
        assert mine.key != theirs.key
        await mine.append(user("a quetzal", id="m"))
        assert await theirs.messages() == []
        with refused(MessageNotFound):
            await theirs.pin("m")
        await other.delete_session("s")
        assert said(await mine.messages()) == ["a quetzal"]

    @on_owner
    async def test_an_update_changes_what_it_names(self, owner: OwnerMemory) -> None:
        session = await owner.session("s", title="old", tags=["a"], system_prompt="p")
        await session.append(user("hello", id="m1"))
        before = await session.refresh()
        changed = await session.update(title="new", meta={"a": 1}, version=before.version)
        assert (changed.title, dict(changed.meta), tuple(changed.tags)) == ("new", {"a": 1}, ("a",))
        assert changed.system_prompt == "p"
        with refused(Stale):
            await session.update(title="late", version=before.version)
        with refused(MessageNotFound):
            await session.update(title="from", title_from="unknown")
        await session.update(title="from a message", title_from="m1", tags=[])
        info = (await owner.get_session("s")).info
        assert (info.title, tuple(info.tags)) == ("from a message", ())

    @on_owner
    async def test_a_deleted_session_is_gone(self, owner: OwnerMemory) -> None:
        session = await owner.session("s")
        await session.append(user("hello"))
        await owner.delete_session("s")
        for call in (owner.get_session("s"), owner.delete_session("s")):
            with refused(SessionNotFound):
                await call
        with refused(KeepthreadError):
            await session.append(user("more"))
        assert await owner.list_sessions() == []
        assert await (await owner.session("s")).messages() == []

    # --- messages ---

    @on_owner
    async def test_a_message_comes_back_as_it_was_given(self, owner: OwnerMemory) -> None:
        session = await owner.session("s")
        full = replace(FULL, tokens=0, counter="")
        bare = [Message(role=role) for role in ("system", "user", "assistant")]
        stored = await session.append(full, *bare)
        assert [m.seq for m in stored] == [1, 2, 3, 4]
        assert len({m.id for m in stored}) == 4
        assert all(m.created_at > 0 and m.digest for m in stored)
        for name in (*_KEPT, "created_at"):
            assert getattr(stored[0], name) == getattr(full, name), name
        for name in ("tool_calls", "attachments"):
            assert tuple(getattr(stored[0], name)) == tuple(getattr(full, name))
        assert dict(stored[0].meta) == dict(full.meta)
        assert _native(stored[0].native) == _native(full.native)
        assert await session.messages() == stored
        assert (await session.refresh()).messages == 4

    @on_owner
    async def test_a_known_id_is_answered_and_not_stored_twice(self, owner: OwnerMemory) -> None:
        session, other = await owner.session("s"), await owner.session("t")
        (first,) = await session.append(user("hello", id="m"))
        assert await session.append(user("hello", id="m")) == [first]
        twice = await session.append(user("twice", id="n"), user("twice", id="n"))
        assert twice[0] == twice[1]
        with refused(Conflict):
            await session.append(user("new"), user("another", id="m"))
        assert said(await session.messages()) == ["hello", "twice"]
        await other.append(user("elsewhere", id="m"))
        assert said(await other.messages()) == ["elsewhere"]
        assert await session.append() == []

    @on_owner
    async def test_expect_holds_an_append_to_what_was_seen(self, owner: OwnerMemory) -> None:
        session = await owner.session("s")
        await session.append(user("one", id="m"), expect=0)
        with refused(Stale):
            await session.append(user("two"), expect=0)
        await session.append(user("one", id="m"), expect=0)  # sent again
        await session.append(user("two"), expect=1)
        with refused(InvalidInput):
            await session.append(user("three"), expect=-1)
        assert said(await session.messages()) == ["one", "two"]

    @on_owner
    async def test_one_bad_message_stores_none(self, owner: OwnerMemory) -> None:
        session = await owner.session("s")
        wrong: Any = None
        bad: list[Any] = [
            user("x", id="\n"),
            user("x", meta={"a": float("nan")}),
            user("x", meta={1: "a"}),
            Message(role=wrong),
            user(wrong),
            "text",
        ]
        for message in bad:
            with refused(InvalidInput):
                await session.append(user("fine"), message)
        assert await session.messages() == []

    @on_owner
    async def test_appends_at_once_are_all_stored_in_one_order(self, owner: OwnerMemory) -> None:
        session = await owner.session("s")
        texts = [f"{number}" for number in range(12)]
        pairs = [(user(text), assistant(text)) for text in texts]
        await asyncio.gather(*(session.append(*pair) for pair in pairs))
        stored = await session.messages()
        assert [m.seq for m in stored] == [*range(1, 25)]
        assert sorted(said(stored)[::2]) == sorted(texts)
        assert said(stored)[::2] == said(stored)[1::2]

    @on_owner
    async def test_messages_are_read_from_any_position(self, owner: OwnerMemory) -> None:
        session = await owner.session("s")
        await session.append(*(user(f"{number}") for number in range(1, 231)))

        async def seqs(*args: Any, **kwargs: Any) -> list[int]:
            return [m.seq for m in await session.messages(*args, **kwargs)]

        assert await seqs() == [*range(1, 231)]
        assert [m.seq async for m in session.messages(220)] == [*range(221, 231)]
        assert await seqs(1, 3) == [2, 3, 4]
        assert await seqs(limit=210) == [*range(1, 211)]
        assert await seqs(before=5) == [1, 2, 3, 4]
        assert await seqs(before=225, limit=210) == [*range(15, 225)]
        assert await seqs(3, before=6) == [4, 5]
        assert await seqs(3, 1, before=6) == [5]
        assert await seqs(230) == await seqs(limit=0) == await seqs(before=1) == []
        for bad in ({"after": -1}, {"limit": -1}, {"before": -1}):
            with refused(InvalidInput):
                await session.messages(**bad)

    @on_owner
    async def test_a_loop_over_messages_does_not_see_what_it_appends(
        self, owner: OwnerMemory
    ) -> None:
        session = await owner.session("s")
        await session.append(*(user(f"{number}") for number in range(230)))
        for number, before in ((230, None), (231, 1000)):
            found = 0
            async for _ in session.messages(before=before):
                if not found:
                    await session.append(user("more"))
                found += 1
            assert found == number

    @on_owner
    async def test_a_long_text_is_kept_whole_beside_the_log(self, owner: OwnerMemory) -> None:
        session = await owner.session("s")
        (stored,) = await session.append(user(LONG, id="m"))
        assert len(stored.content) < len(LONG)
        assert await session.full_text(stored) == await session.full_text("m") == LONG
        with refused(MessageNotFound):
            await session.full_text("unknown")

    async def check_hostile(self, session: Session, case: Hostile) -> None:
        """Append a hostile input: it is stored exactly, or refused and nothing is stored."""
        assert case.messages is not None
        before = (await session.refresh()).messages
        outcome = "stored exactly"
        try:
            stored = await session.append(*case.messages(), expect=case.expect)
            assert [*map(_body, case.messages())] == [*map(_body, stored)], case.name
        except KeepthreadError as error:
            outcome = f"refused: {type(error).__name__}"
            assert (await session.refresh()).messages == before, case.name
        if self.sends_json and any(name in case.name for name in _NOT_SENT):
            assert outcome == "refused: InvalidInput", case.name
        else:
            assert outcome == case.verdict, case.name

    hostile_step: int = 1
    """Every how many of the hostile inputs are tried."""
    sends_json: bool = False
    """Whether messages are sent to a server, as JSON."""

    @on_owner
    async def test_hostile_input_is_stored_exactly_or_refused(self, owner: OwnerMemory) -> None:
        for case in CASES[:: self.hostile_step]:
            if case.name not in _OF_STORES and _is_of_messages(case):
                session = await owner.create_session()
                await session.append(user("before"))
                await self.check_hostile(session, case)

    # --- turns and tools ---

    @on_owner
    async def test_a_turn_is_begun_once_and_has_one_answer(self, owner: OwnerMemory) -> None:
        session = await owner.session("s")
        async with session.turn("How are you?", id="q", author="bo") as turn:
            assert said(await session.messages()) == ["How are you?"]
            assert (turn.user.author, turn.number, turn.answer) == ("bo", 1, None)
        async with session.turn("How are you?", id="q", author="bo") as turn:
            answer = await turn.finish("Fine.", usage={"input": 3}, truncated=True)
            assert (await turn.finish("Bad.")).id == answer.id
        async with session.resume_turn("q") as turn:
            assert turn.answer is not None
            assert turn.answer.content == "Fine."
        assert said(await session.messages()) == ["How are you?", "Fine."]
        with refused(Conflict):
            await session.turn("Another question", id="q").__aenter__()
        with refused(MessageNotFound):
            await session.resume_turn("unknown").__aenter__()
        async with session.turn("More?") as turn:
            with refused(InvalidInput):
                await turn.finish(user("not an answer"))
            assert (await turn.finish(assistant("No.", id="a2"))).id == "a2"
        assert (await session.status()).turns == 2

    @on_owner
    async def test_tools_are_recorded_cached_and_closed(self, owner: OwnerMemory) -> None:
        session = await owner.session("s")
        runs: list[str] = []

        def look(place: str) -> dict[str, str]:
            runs.append(place)
            return {"seen": place}

        def fail() -> str:
            raise RuntimeError("no such place")

        call = ToolCall(id="c1", name="look", arguments='{"place": "a"}')
        async with session.turn("Look.") as turn:
            await turn.append(Message(role="assistant", tool_calls=[call]))
            text = await turn.tool("look", {"place": "a"}, look, call_id="c1", cache_turns=2)
            assert json.loads(text) == {"seen": "a"}
            assert await turn.tool("look", {"place": "a"}, look, cache_turns=2) == text
            assert runs == ["a"]
            assert await turn.tool("look", {"place": "b"}, look) == '{"seen":"b"}'
            try:
                await turn.tool("fail", {}, fail)
            except RuntimeError as error:
                assert str(error) == "no such place"
            with refused(InvalidInput):
                await turn.tool("look", {"place": "a"}, look, call_id="unknown")
            await turn.finish("Done.")
        log = await session.messages()
        roles = [m.role for m in log]
        assert roles == ["user", "assistant", "tool", *["assistant", "tool"] * 2, "assistant"]
        assert log[6].content == "(failed: RuntimeError: no such place)"
        assert [m.source for m in log[3:5]] == ["tool:look", "tool:look"]
        assert [tool.name for tool in await session.cached_tools()] == ["look"]
        assert await session.cached_tool("look", {"place": "a"}) == text
        assert await session.cached_tool("look", {"place": "a"}, author="bo") is None
        try:
            async with session.turn("Again.") as turn:
                await turn.append(Message(role="assistant", tool_calls=[replace(call, id="c2")]))
                raise KeyError("left")
        except KeyError:
            pass
        (last,) = (await session.messages())[-1:]
        assert (last.role, last.tool_call_id) == ("tool", "c2")

    @on_owner
    async def test_a_result_with_an_id_is_recorded_once(self, owner: OwnerMemory) -> None:
        session = await owner.session("s")
        for _ in range(2):
            await session.cache_tool("time", {}, "noon", 2, id="t1")
        assert [m.role for m in await session.messages()] == ["assistant", "tool"]
        assert await session.cached_tool("time", {}) == "noon"
        await session.cache_tool("time", {}, "one", 0)
        assert len(await session.messages()) == 4

    # --- notes, contexts, history ---

    @on_owner
    async def test_a_note_is_added_once(self, owner: OwnerMemory) -> None:
        session = await owner.session("s")
        tool = ProactiveTool("weather", "rain", {"city": "Oslo"}, 2)
        assert await session.add_note("file", "line 1", tools=[tool])
        assert not await session.add_note("file", "line 2")
        assert await session.add_note("file", "line 2", once=False, turns=3)
        assert await session.cached_tool("weather", {"city": "Oslo"}) == "rain"
        assert "line 2" in (await session.context(budget=2000)).text
        assert await session.provide({"a": 1}) == []
        with refused(InvalidInput):
            await session.add_note("", "text")

    @on_owner
    async def test_a_context_fits_and_is_explained_and_rebuilt(self, owner: OwnerMemory) -> None:
        session = await owner.session("s", system_prompt="Be brief.")
        await session.append(*(user(f"number {n} " + "word " * 20) for n in range(30)))
        context = await session.context(budget=400)
        assert context.tokens <= 400
        assert context.to_openai_chat()["messages"][0]["content"].startswith("Be brief.")
        assert "number 29" in context.text
        assert "number 0 " not in context.text
        assert "number 29" not in (await session.context(budget=400, newest=False)).text
        assert "number 29" in (await session.context(budget=400, text=True)).text
        with refused(BudgetTooSmall):
            await session.context(budget=1)
        with refused(InvalidInput):
            await session.context("no such view", budget=None)
        await self.settled()
        explained = await session.explanations(1000)
        assert len(explained) >= 3
        rebuilt = await session.rebuild(explained[-1])
        assert rebuilt.matches
        assert rebuilt.context is not None
        assert rebuilt.context.text == context.text
        nobodys = explained[-1]._replace(at=1.0, references=None)
        assert not (await session.rebuild(nobodys)).matches

    async def settled(self) -> None:
        """Wait for work in the background."""
        await self.memory.idle()

    @on_owner
    async def test_history_is_hidden_shown_pinned_and_forked(self, owner: OwnerMemory) -> None:
        session = await owner.session("s", title="One")
        await session.append(*(user(f"m{n}", id=f"m{n}") for n in range(1, 5)))
        await session.pin("m1")
        await session.pin("m1")
        assert said(await session.pins()) == ["m1"]
        with refused(MessageNotFound):
            await session.pin("unknown")
        await session.rewind(2)
        assert [(h.first, h.last, h.reason) for h in await session.hidden()] == [(3, 4, "rewound")]
        assert (await session.status()).visible_messages == 2
        fork = await session.fork(3, id="f")
        assert (fork.id, said(await fork.messages())) == ("f", ["m1", "m2", "m3"])
        with refused(SessionExists):
            await session.fork(id="f")
        shown = await session.unhide()
        assert shown is not None
        assert (shown.first, shown.last) == (3, 4)
        assert await session.unhide() is None
        await session.clear()
        assert "m4" not in (await session.context(budget=500)).text
        assert said(await session.messages()) == ["m1", "m2", "m3", "m4"]
        assert [await session.unpin("m1"), await session.unpin("m1")] == [True, False]
        assert await session.compactions() == []
        with refused(MessageNotFound):
            await session.rewind(99)

    # --- facts, blobs, finding ---

    @on_owner
    async def test_blobs_are_stored_once_and_read_back(self, owner: OwnerMemory) -> None:
        data = bytes(range(256)) * 1000
        blob = await owner.blobs.put(data, name="a b.bin", media_type="application/x-test")
        assert await owner.blobs.put(data) == blob
        assert await owner.blobs.info(blob.digest) == blob
        assert await owner.blobs.read(blob.digest) == data
        empty = await owner.blobs.put(b"")
        assert sorted(b.digest for b in await owner.blobs.list(limit=1000)) == sorted(
            (blob.digest, empty.digest)
        )
        page = await owner.blobs.list(limit=1)
        assert len(await owner.blobs.list(limit=1, cursor=page.next)) == 1
        assert await owner.blobs.delete(blob.digest)
        for call in (owner.blobs.info(blob.digest), owner.blobs.delete(blob.digest)):
            with refused(NotFound):
                await call
        with refused(InvalidInput):
            await owner.blobs.info("not a digest")

    @on_owner
    async def test_a_blob_that_is_put_while_its_owner_is_forgotten_is_whole_or_gone(
        self, owner: OwnerMemory
    ) -> None:
        data = bytes(range(256)) * 1000
        for _ in range(3):
            puts = [owner.blobs.put(data) for _ in range(3)]
            await asyncio.gather(*puts, owner.forget(everything=True))
            for blob in await owner.blobs.list():
                assert await owner.blobs.read(blob.digest) == data
            blob = await owner.blobs.put(data)
            assert await owner.blobs.read(blob.digest) == data

    @on_owner
    async def test_changes_are_followed(self, owner: OwnerMemory) -> None:
        start = await owner.changes(limit=0)
        for name, id in (("one", "m1"), ("two", "m2")):
            await (await owner.session(name)).append(user("hello", id=id))
        seen: list[Change] = []
        page = start
        while len(seen) < 4:  # a store may show changes a moment later
            page = await owner.changes(after=page.next, limit=1000, wait=20)
            assert page, seen
            seen += page
        kinds = [(c.kind, c.ids) for c in seen if c.session == "two"]
        assert kinds == [("session_created", ()), ("messages_added", ("m2",))]
        assert await owner.changes(after=page.next, wait=0.01) == []
        with refused(InvalidInput):
            await owner.changes(after="nonsense")

    # --- forgetting and export ---

    @on_owner
    async def test_what_is_forgotten_is_gone_and_has_a_receipt(self, owner: OwnerMemory) -> None:
        session = await owner.session("s", title="A secret")
        await session.append(
            user("the swordfish", id="m1"), user("stays", id="m2"), user("more", author="bo")
        )
        preview = await owner.forget(session="s", message="m1", dry_run=True)
        assert (preview.dry_run, preview.messages) == (True, 1)
        assert "the swordfish" in said(await session.messages())
        receipt = await owner.forget(session="s", message="m1", id="first")
        assert (receipt.dry_run, receipt.messages) == (False, 1)
        again = await owner.forget(session="s", message="m1", id="first")
        assert (again.messages, again.at) == (1, receipt.at)
        assert (await owner.forget(session="s", message="m1")).messages == 0
        stored = await session.messages()
        assert [m.state for m in stored] == ["erased", "live", "live"]
        assert said(stored) == ["", "stays", "more"]
        (answered,) = await session.append(user("the swordfish", id="m1"))
        assert answered.state == "erased"
        by_author = await owner.forget(author="bo")
        assert (by_author.messages, by_author.asked["author"]) == (1, "bo")
        assert (await owner.forget(session="s")).sessions == 1
        with refused(SessionNotFound):
            await owner.get_session("s")
        assert len(await owner.receipts(limit=1000)) == 4
        page = await owner.receipts(limit=2)
        assert [r.receipt.messages for r in await owner.receipts(cursor=page.next)] == [0, 1]
        assert b"swordfish" not in b"".join([line async for line in owner.export()])
        with refused(InvalidInput):
            await owner.forget()

    @on_owner
    async def test_everything_of_an_owner_is_exported_and_forgotten(
        self, owner: OwnerMemory
    ) -> None:
        for name in ("a", "b"):
            await (await owner.session(name)).append(user(f"text of {name}"))
        lines = [line async for line in owner.export()]
        assert all(json.loads(line) for line in lines)
        assert lines[-1].startswith(b'{"end"')
        assert b"text of a" in b"".join(lines)
        alone = b"".join([line async for line in owner.export(session="b")])
        assert b"text of a" not in alone
        receipt = await owner.forget(everything=True)
        assert receipt.sessions == 2
        assert await owner.list_sessions() == []


class FindingMemoryContract(MemoryContract):
    """The tests of a memory whose store can find: it searches messages, and keeps facts."""

    @on_owner
    async def test_the_tools_of_the_memory_are_run_for_a_model(self, owner: OwnerMemory) -> None:
        session = await owner.session("s")
        await session.append(user("The ferry leaves at noon."))
        async with session.turn("When?") as turn:
            text = await turn.memory_tool("search_memory", {"query": "ferry"})
            assert "noon" in text
            await turn.finish("At noon.")
        assert [m.role for m in await session.messages()][2:4] == ["assistant", "tool"]

    @on_owner
    async def test_facts_are_noted_corrected_and_forgotten(self, owner: OwnerMemory) -> None:
        facts = owner.facts
        fact = await facts.remember("Is vegetarian.", attribute="diet", value="vegetarian")
        assert await facts.remember("Is vegetarian.", attribute="diet", value="vegetarian") == fact
        edited = await facts.edit(fact.key, text="Is vegan.", version=fact.version)
        with refused(Stale):
            await facts.edit(fact.key, text="Eats fish.", version=fact.version)
        assert [f.text for f in await facts.list()] == ["Is vegan."]
        assert [f.text for f in await facts.history(edited.key)] == ["Is vegetarian.", "Is vegan."]
        assert [f.text for f in await facts.search("vegan")] == ["Is vegan."]
        waiting = await facts.remember("Owns a boat.", by="model", source="mcp:x")
        assert (waiting.state, (await facts.confirm(waiting.key)).state) == ("quarantined", "live")
        page = await facts.list(limit=1)
        assert [f.text for f in await facts.list(limit=1, cursor=page.next)] == ["Owns a boat."]
        for call in (facts.edit("unknown", text="x"), facts.confirm("unknown")):
            with refused(InvalidInput):
                await call
        assert (await facts.get("unknown"), await facts.history("unknown")) == (None, [])
        assert [await facts.forget(edited.key), await facts.forget("unknown")] == [1, 0]
        assert (await owner.forget(everything=True)).any
        assert await facts.list() == []
        with refused(InvalidInput):
            await facts.remember("")

    @on_owner
    async def test_facts_are_documents_as_well(self, owner: OwnerMemory) -> None:
        facts = owner.facts
        await facts.remember("Likes tea.")
        text = await facts.to_markdown()
        assert "Likes tea." in text
        loaded = await facts.from_markdown(f"{text}\n- Plays chess.\n")
        assert (len(loaded.added), len(loaded.forgotten)) == (1, 0)
        pruned = await facts.from_markdown(
            "\n".join(line for line in text.splitlines() if "tea" not in line), prune=True
        )
        assert len(pruned.forgotten) == 1
        value = await facts.to_json()
        assert [f.text for f in await facts.list()] == ["Plays chess."]
        assert not (await facts.from_json(value)).added
        assert len((await facts.from_json([{"fact": "Sings."}])).added) == 1
        with refused(InvalidInput):
            await facts.from_json("nonsense")
        with refused(InvalidInput):
            await facts.from_markdown("nothing to load")

    @on_owner
    async def test_messages_are_found_by_their_words(self, owner: OwnerMemory) -> None:
        one, two = await owner.session("one"), await owner.session("two")
        await one.append(user("The ferry to Oslo.", id="m1", created_at=100.0), assistant("Noon."))
        await two.append(user("Another ferry.", id="m2", created_at=200.0))
        hits = await owner.search("ferry")
        assert {(hit.session, hit.message.id) for hit in hits} == {("one", "m1"), ("two", "m2")}
        first = await owner.search("ferry", limit=1)
        second = await owner.search("ferry", limit=1, cursor=first.next)
        assert {hit.message.id for hit in (*first, *second)} == {"m1", "m2"}
        assert [hit.message.id for hit in await owner.search("ferry", since=150.0)] == ["m2"]
        assert [h.message.id for h in await owner.search("ferry", session="one")] == ["m1"]
        assert await owner.search("ferry", roles=["assistant"]) == []
        assert await self.memory.for_owner(f"{owner.owner} too").search("ferry") == []
        assert len(await owner.search("ferry", limit=500)) == 2


def _is_of_messages(case: Hostile) -> bool:
    """Return whether a program could append it: a memory counts the tokens itself."""
    if case.messages is None or case.turn is not None or case.expect is not None:
        return False
    return not any(getattr(m, "tokens", 0) or getattr(m, "counter", "") for m in case.messages())


def _body(message: Message) -> Any:
    """Return what is stored of a message, in a form in which 1, 1.0 and True differ."""
    origin = message.origin or ("operator" if message.role == "system" else message.role)
    parts = (tuple(message.tool_calls), tuple(message.attachments), origin)
    texts = [getattr(message, name) for name in _KEPT if name not in ("id", "origin")]
    return (*texts, *parts, _native(message.native), json.dumps(message.meta, sort_keys=True))


def _native(native: Native | None) -> Any:
    return native and (native.wire, json.dumps(list(native.items)), native.provider)
