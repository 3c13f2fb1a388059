"""Forgetting: what is meant goes, with its copies and all that was made from it; the rest stays."""

import asyncio
import json
import random
import re
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

import keepthread
from keepthread import (
    ForkPoint,
    Memory,
    Message,
    Options,
    Scope,
    Session,
    SessionInfo,
    Span,
    Summarized,
    ToolCall,
    View,
    sync,
)
from keepthread.apps.cli import main
from keepthread.context.summary import IN_SHORT
from keepthread.errors import (
    InvalidInput,
    MessageNotFound,
    SessionGone,
    SessionNotFound,
    Unavailable,
)
from keepthread.interchange.copy import Copying
from keepthread.interchange.export import export
from keepthread.interchange.import_ import import_lines
from keepthread.memory.forgetting.plan import ErasurePlan, ForgetQuery, Intent
from keepthread.memory.forgetting.probes import Probes
from keepthread.stores.kinds import FORGET, RECEIPT
from keepthread.stores.outbox.store import OutboxStore
from keepthread.stores.ram import RamStore
from keepthread.stores.redis import RedisStore
from keepthread.stores.sqlite import SQLiteStore
from keepthread.testing.contract import Letters
from keepthread.testing.embeddings import ScriptedEmbedder
from keepthread.text_caches import clear_text_caches
from keepthread.types import SessionKey
from proofs.marked import new_markers
from proofs.p09_forget import reading
from proofs.process_memory import Masked, held_by_objects
from servers.postgres import PostgresServer
from servers.redis import RedisServer, new_server
from tests.conftest import started

SOURCE = Path(keepthread.__file__).parent
WITHOUT_TEXT = {
    "apps/cli/app.py:_loaded",
    "apps/cli/chat/startup.py:arguments",
    "apps/cli/settings/secrets.py:_printed_by",  # a key, and no text of messages
    "context/context.py:text_counter",
    "context/recall.py:_bare",
    "context/recall.py:_day_tokens",
    "models/embedders/http.py:_opener",
    "orchestrator/prompts/__init__.py:prompt",
    "recall/bm25.py:_rises",
    "interchange/json_types.py:_descriptions",
    "interchange/json_types.py:_form",  # by type
    "interchange/json_types.py:_hints",
    "stores/postgres/log.py:_array",
    "memory/remote/values.py:_fields",
    "stores/redis/keys.py:index_of",
    "stores/redis/keys.py:requests_of",
    "stores/redis/keys.py:session_place",
    "stores/redis/keys.py:records_place",
    "stores/sqlite/schema.py:_expected",
    "context/chat_templates.py:_read_sign",  # single characters
    "context/chat_templates.py:_table",
    "models/tokens/__init__.py:counter",
}
"""Caches whose keys and values hold no text of messages: names, positions, settings."""
VIEWS = {"chat": View(1000, Summarized())}
SECRET = "the number is 555-0199, and nobody else has it"
NOON = 1_790_000_000.0


@pytest.fixture
async def memory() -> AsyncIterator[Memory]:
    async with Memory.open("ram://", counter=Letters(), keep_why=3) as memory:
        yield memory


async def on_file(path: Path, **settings: Any) -> Memory:
    return await Memory.open(
        f"sqlite:///{path}", counter=Letters(), durability="process", **settings
    )


async def texts(session: Session) -> list[str | None]:
    """Return what a session says, None for tombstones."""
    found = await session.messages(limit=1000)
    return [None if message.state == "erased" else message.content for message in found]


async def shared_channel(memory: Memory) -> Session:
    """Make a session in which different people, a page and a tool speak, at different times."""
    session = await memory.session("shared", owner="ana")
    at = [NOON + 60 * minute for minute in range(5)]
    await session.append(
        Message(role="user", content="mine", created_at=at[0]),
        Message(role="user", content="bob's", author="bob", created_at=at[1]),
        Message(role="tool", content="a page", source="web:https://x.org", created_at=at[2]),
        Message(role="tool", content="found", source="tool:look", created_at=at[3]),
        Message(role="user", content="named", author="ana", id="it", created_at=at[4]),
    )
    return session


async def test_facts_of_a_source_go_from_since_on_and_until_then(tmp_path: Path) -> None:
    now = NOON

    async with await on_file(tmp_path / "a.db", clock=lambda: now) as memory:
        facts = memory.for_owner("ana").facts
        for minute in range(4):
            now = NOON + 60 * minute
            await facts.remember(f"Fact {minute}.", source="web:https://x.org")
        told = await memory.forget(
            owner="ana", source="web:https://x.org", since=NOON + 60, until=NOON + 180
        )
        assert told.records == {"fact": 2}
        assert sorted(fact.text for fact in await facts.list()) == ["Fact 0.", "Fact 3."]


@pytest.mark.parametrize(
    ("query", "gone"),
    [
        ({"session": "shared", "owner": "ana", "message": "it"}, {"named"}),
        ({"author": "bob"}, {"bob's"}),
        ({"author": "ana"}, {"mine", "named", "other"}),
        ({"author": "ana", "owner": "bea"}, set[str]()),
        ({"source": "web:https://x.org"}, {"a page"}),
        ({"source": "tool:look", "session": "shared", "owner": "ana"}, {"found"}),
        ({"source": "tool:look", "owner": "ana"}, {"found"}),
        ({"author": "bea", "owner": "bea", "since": NOON}, {"hers"}),
        ({"since": NOON + 60, "until": NOON + 180}, {"bob's", "a page"}),
        ({"since": NOON + 60, "author": "ana"}, {"named", "other"}),
        ({"owner": "bea"}, {"hers"}),
        ({"session": "shared", "owner": "ana"}, {"mine", "bob's", "a page", "found", "named"}),
        ({"owner": "ana"}, {"mine", "bob's", "a page", "found", "named", "other"}),
    ],
)
async def test_what_all_selectors_agree_on_goes_and_nothing_else(
    memory: Memory, query: dict[str, Any], gone: set[str]
) -> None:
    shared = await shared_channel(memory)
    other = await memory.session("other", owner="ana")
    await other.append(Message(role="user", content="other", created_at=NOON + 600))
    hers = await memory.session("hers", owner="bea")
    await hers.append(Message(role="user", content="hers", created_at=NOON + 900))
    sessions = [shared, other, hers]
    before = {text for session in sessions for text in await texts(session)}

    forget = memory.forget if "owner" in query else memory.admin.forget
    planned = await forget(**query, dry_run=True)
    assert {text for session in sessions for text in await texts(session)} == before
    told = await forget(**query)

    left = {text for session in sessions for text in await texts(session)}
    assert left - {None} == before - gone
    assert planned.messages == told.messages == len(gone)
    assert planned.dry_run
    assert not told.dry_run
    assert told.asked == query


@pytest.mark.parametrize("query", [{"author": "ana"}, {"source": "tool:look"}, {"since": NOON}])
async def test_without_an_owner_only_the_default_owners_messages_are_forgotten(
    memory: Memory, query: dict[str, Any]
) -> None:
    shared = await shared_channel(memory)
    before = await texts(shared)
    own = await memory.session("shared")
    await own.append(
        Message(role="user", content="own", author="ana", source="tool:look", created_at=NOON)
    )
    told = await memory.forget(**query)
    assert (told.messages, told.asked) == (1, {**query, "owner": "default"})
    assert (await texts(shared), await texts(own)) == (before, [None])


async def test_it_must_be_said_what_to_forget(memory: Memory) -> None:
    await shared_channel(memory)
    with pytest.raises(InvalidInput, match="specify what to forget"):
        await memory.forget()
    with pytest.raises(InvalidInput, match="give the session as well"):
        await memory.forget(message="it")
    with pytest.raises(InvalidInput, match="specify what to forget"):
        await memory.admin.forget()
    with pytest.raises(InvalidInput, match="specify what to forget"):
        await memory.for_owner("ana").forget()
    with pytest.raises(InvalidInput, match="since"):
        await memory.forget(since=-1.0)
    with pytest.raises(TypeError):
        await memory.forget(person="bob")  # pyright: ignore[reportCallIssue]
    with pytest.raises(SessionNotFound):
        await memory.forget(session="nowhere")
    with pytest.raises(SessionNotFound):
        await memory.forget(session="shared")
    with pytest.raises(SessionNotFound):
        await memory.forget(session="shared", owner="bea")
    with pytest.raises(MessageNotFound):
        await memory.forget(session="shared", owner="ana", message="none")


# --- gone from sight ---


async def test_a_forgotten_session_exists_for_no_call(memory: Memory) -> None:
    session = await memory.session("s", owner="ana", title=SECRET)
    await session.append(Message(role="user", content=SECRET, id="it"))
    other = await memory.session("other", owner="ana")
    assert (await memory.forget(session="s", owner="ana")).sessions == 1

    assert [info.id for info in await memory.admin.list_sessions()] == ["other"]
    assert [info.id for info in await memory.list_sessions(owner="ana")] == ["other"]
    for call in (
        memory.get_session("s", owner="ana"),
        memory.delete_session("s", owner="ana"),
        memory.search("secret", owner="ana", session="s"),
        memory.for_owner("ana").facts.remember("Likes tea", session="s", messages=["it"]),
        export(memory.store, lambda _: None, sessions=["s"], owner="ana"),
    ):
        with pytest.raises(SessionNotFound):
            await call
    lines: list[bytes] = []
    await export(memory.store, lines.append)
    assert not any(b'"id": "s"' in line or b'"id":"s"' in line for line in lines)
    assert (await memory.admin.verify()).sound
    again = await memory.forget(session="s", owner="ana")
    assert (again.sessions, again.messages, again.any) == (0, 0, False)
    assert (await memory.forget(owner="ana")).sessions == 1
    assert await memory.admin.list_sessions() == []
    with pytest.raises(SessionGone):
        await other.append(Message(role="user", content="late"))


async def test_a_late_writer_does_not_bring_a_forgotten_session_back(memory: Memory) -> None:
    session = await memory.session("s", owner="ana")
    async with session.turn("My number is 1", id="it") as turn:
        await memory.forget(session="s", owner="ana")
        with pytest.raises(SessionGone, match="forgotten"):
            await turn.finish("It is 1")  # written from what is forgotten
    with pytest.raises(SessionGone, match="forgotten"):
        await session.append(Message(role="user", content="late"))
    with pytest.raises(SessionGone, match="forgotten"):
        await session.fork(id="f")
    with pytest.raises(SessionGone, match="forgotten"):
        await session.update(title="late")
    (known,) = await session.append(Message(role="user", content="My number is 1", id="it"))
    assert known.state == "erased"
    assert await memory.admin.list_sessions() == []
    assert [m.state for m in await memory.store.read(session.key)] == ["erased"]


async def test_messages_that_arrive_while_a_session_is_forgotten_go_too() -> None:
    store = Interposing()
    memory = Memory(store, Options(counter=Letters()))
    session = await memory.session("s")
    await session.append(Message(role="user", content=SECRET))
    late = Message(role="user", content="late")
    store.before_erase = lambda: session.append(late)
    await memory.forget(session="s")
    assert [m.state for m in await store.read(session.key)] == ["erased", "erased"]


async def test_a_delegate_of_a_forgotten_session_takes_no_late_answer(memory: Memory) -> None:
    session = await memory.session("s")

    async def delegate() -> None:
        async with session.turn("Ask") as turn, turn.delegate("Find my number") as child:
            await memory.forget(session="s")
            await child.finish("It is 1")

    with pytest.raises(SessionGone, match="forgotten"):
        await delegate()
    for info in await memory.store.scan_sessions():
        assert {m.state for m in await memory.store.read(info.key)} == {"erased"}


async def test_all_delegates_below_a_forgotten_session_are_closed(memory: Memory) -> None:
    session = await memory.session("s")
    async with (
        session.turn("Ask") as turn,
        turn.delegate("Task") as child,
        child.delegate("Its task") as grandchild,
        grandchild.delegate("The task of that one") as last,
    ):
        for each in (last, grandchild, child, turn):
            await each.finish("It is 1")
    ids = [info.id for info in await memory.store.scan_sessions() if info.kind == "delegate"]
    handles = [await memory.get_session(id) for id in ids]
    assert len(handles) == 3
    await memory.forget(session="s")
    for handle in handles:
        assert (await memory.store.describe(handle.key)).forgotten
        with pytest.raises(SessionGone, match="forgotten"):
            await handle.append(Message(role="user", content="late"))


@pytest.mark.parametrize("owner", ["ana", "bea"])
async def test_a_session_begins_again_under_the_id_of_a_forgotten_one(
    memory: Memory, owner: str
) -> None:
    session = await memory.session("s", owner="ana", title=SECRET, system_prompt=SECRET)
    said = Message(role="user", content=SECRET, id="it")
    await session.append(said)
    await memory.forget(session="s", owner="ana")

    again = await memory.session("s", owner=owner, system_prompt="Be brief.")
    assert (again.info.title, again.info.system_prompt, again.owner) == ("", "Be brief.", owner)
    await again.append(Message(role="user", content="Hello"))
    assert [info.id for info in await memory.list_sessions(owner=owner)] == ["s"]
    assert [m.content for m in (await again.context()).messages] == ["Hello"]
    if owner == "ana":  # tombstones stay: a late delivery is still known
        (known,) = await again.append(said)
        assert known.state == "erased"
    told = await memory.forget(session="s", owner=owner)
    assert (told.sessions, told.messages) == (1, 1)
    assert await memory.admin.list_sessions() == []


async def test_a_fork_may_take_the_id_of_a_forgotten_session(memory: Memory) -> None:
    session = await memory.session("s")
    await session.append(Message(role="user", content="Hello"))
    await session.fork(id="f")
    other = await memory.session("g")
    await other.append(Message(role="user", content=SECRET))
    await memory.forget(session="g")
    assert await texts(await session.fork(id="g")) == ["Hello"]
    await memory.forget(session="g")
    assert (await texts(session), await texts(await memory.get_session("f"))) == ([None], [None])


async def test_a_session_that_began_again_is_not_closed_by_an_unfinished_cleaning(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    async with await on_file(path) as memory:
        session = await memory.session("s")
        await session.append(Message(role="user", content=SECRET))
        with reading(path):
            assert (await memory.forget(session="s")).found == 1
            again = await memory.session("s", title="Again")
            await again.append(Message(role="user", content="Hello"))
    async with await on_file(path) as memory:
        assert await memory.store.scan(Scope(), FORGET) == []
        assert found_in(tmp_path, SECRET) == []
        again = await memory.get_session("s")
        assert (again.info.title, await texts(again)) == ("Again", [None, "Hello"])


async def test_prune_removes_tombstones_and_does_not_count_them(memory: Memory) -> None:
    await (await memory.session("s")).append(Message(role="user", content=SECRET))
    await memory.session("other")
    await memory.forget(session="s")
    seen: list[tuple[int, int]] = []
    assert await memory.admin.prune(0, progress=lambda *counts: seen.append(counts)) == 1
    assert seen[-1] == (1, 1)
    assert await memory.store.scan_sessions() == []


async def test_neither_an_import_nor_a_copy_brings_a_forgotten_session_back(
    memory: Memory,
) -> None:
    session = await memory.session("s", title=SECRET)
    await session.append(Message(role="user", content=SECRET))
    lines: list[bytes] = []
    await export(memory.store, lines.append)
    other = RamStore()
    await Copying(memory.store, other).run()
    await memory.forget(session="s")

    await import_lines(memory.store, lines)
    await Copying(other, memory.store).run()
    info = await memory.store.get_session("s")
    assert info is not None
    assert (info.forgotten, info.title) == (True, "")
    assert set(await texts(session)) == {None}
    third = RamStore()
    await Copying(memory.store, third).run()
    copied = await third.get_session("s")
    assert copied is not None
    assert (copied.forgotten, copied.messages) == (True, 1)
    assert await third.list_sessions() == []


# --- copies and what was made ---


@pytest.mark.parametrize("at", ["the original", "the fork", "a fork of it"])
async def test_copies_in_forks_go_from_wherever_one_begins(memory: Memory, at: str) -> None:
    session = await memory.session("s", owner="ana", title=SECRET)
    await session.append(Message(role="user", content=SECRET, id="it"))
    await session.append(Message(role="assistant", content="Fine."))
    fork = await session.fork(id="f")
    second = await fork.fork(id="g")
    await second.append(Message(role="user", content="mine alone"))
    stranger = await memory.session("x", owner="ana")
    await stranger.append(Message(role="user", content=SECRET, id="it"))
    begun = {"the original": "s", "the fork": "f", "a fork of it": "g"}[at]

    told = await memory.forget(session=begun, owner="ana", message="it")

    for each in (session, fork, second):
        assert (await texts(each))[0] is None
    assert (await texts(second))[2] == "mine alone"
    assert await texts(stranger) == [SECRET]  # the same id and words, and no copy
    assert (told.messages, told.copies) == (1, 2)


async def test_a_forgotten_session_keeps_its_id_and_tombstones_and_nothing_else(
    memory: Memory,
) -> None:
    session = await memory.session(
        "s", owner="ana", title=SECRET, tags=[SECRET], system_prompt=SECRET, meta={"a": SECRET}
    )
    message = Message(role="user", content=SECRET, id="it")
    await session.append(message)
    await session.pin("it")
    await session.add_note("screen", SECRET)
    fork = await session.fork(id="f")

    told = await memory.forget(session="s", owner="ana")

    info = await session.refresh()
    assert (info.title, list(info.tags), info.system_prompt, info.meta) == ("", [], None, {})
    assert await memory.store.scan(Scope(session=session.key)) == []
    forked = await fork.refresh()
    assert (forked.title, forked.system_prompt) == ("", None)
    assert told.sessions == 1
    (again,) = await session.append(message)  # delivered once more
    assert again.state == "erased"
    assert set(await texts(session)) == {None}


async def test_a_subagent_goes_with_what_it_was_sent_for_and_its_report_with_it(
    memory: Memory,
) -> None:
    session = await memory.session("s", owner="ana")
    for number in range(2):
        async with session.turn(f"Ask {number}") as turn:
            async with turn.delegate(f"Task {number}", snippet=f"Snippet {number}") as child:
                await child.finish(f"Answer {number}")
            await turn.finish(f"Said {number}")
    first = (await session.messages())[0]
    children = [i for i in await memory.store.scan_sessions() if i.kind == "delegate"]

    told = await memory.forget(session="s", owner="ana", message=first.id)

    assert await texts(session) == [None, None, None, "Said 0", "Ask 1", "", "Answer 1", "Said 1"]
    assert told.delegates == 1
    logs = [await memory.store.read(child.key) for child in children]
    assert [{m.state for m in log} for log in logs] == [{"erased"}, {"live"}]

    kept = children[1]
    # The other way: its own words are in the report.
    await memory.forget(session=kept.id, owner="ana")
    assert await texts(session) == [None, None, None, "Said 0", "Ask 1", None, None, "Said 1"]


async def test_results_go_with_their_calls(memory: Memory) -> None:
    session = await memory.session("s")
    call = ToolCall(id="c", name="look", arguments=SECRET)
    async with session.turn("Look") as turn:
        (asked,) = await turn.append(Message(role="assistant", tool_calls=[call]))
        await turn.append(Message(role="tool", tool_call_id="c", content=SECRET))
        await turn.finish("Done")
    await memory.forget(session="s", message=asked.id)
    assert await texts(session) == ["Look", None, None, "Done"]


async def test_what_was_made_of_it_goes_from_every_shelf(memory: Memory) -> None:
    session = await shared_channel(memory)
    other = await memory.session("other", owner="bea")
    store = memory.store
    shelves = [Scope(session=session.key), Scope(session=other.key), Scope(owner="bea"), Scope()]
    for scope in shelves:
        for last in (1, 4):
            span = Span(session=session.key, first=1, last=last)
            await store.put(scope, "made", str(last), SECRET, made_of=[span])
        await store.put(scope, "free", "it", "made of nothing")

    told = await memory.forget(author="bob", owner="ana")

    for scope in shelves:
        left = [r for r in await store.scan(scope) if r.kind != RECEIPT]
        assert [(r.kind, r.key) for r in left] == [("free", "it"), ("made", "1")]
    assert told.records == {"made": 4}


async def test_facts_go_with_their_messages_and_their_predecessors_hold_again(
    tmp_path: Path,
) -> None:
    async with await on_file(tmp_path / "a.db") as memory:
        session = await memory.session("s", owner="ana")
        for id, city in (("one", "Oslo"), ("two", "Bergen")):
            await session.append(Message(role="user", content=f"I live in {city}", id=id))
            await memory.for_owner("ana").facts.remember(
                f"Lives in {city}", attribute="city", value=city, session="s", messages=[id]
            )
        await memory.for_owner("ana").facts.remember("Likes tea", attribute="drink", value="tea")

        told = await memory.forget(session="s", owner="ana", message="two")

        known = [fact.value for fact in await memory.for_owner("ana").facts.list()]
        assert sorted(known) == ["Oslo", "tea"]
        assert told.records == {"fact": 1}
        await memory.forget(owner="ana")
        assert await memory.for_owner("ana").facts.list() == []


async def test_answers_written_from_it_are_named_and_erased_on_request(memory: Memory) -> None:
    session = await memory.session("s", owner="ana")
    async with session.turn("My number is 1") as turn:
        await turn.context()
        await turn.finish("I see")  # the same turn
    for text in ("And now?", "So?"):
        async with session.turn(text) as turn:
            await turn.context()  # shows the number, or an answer made from it
            await turn.finish("Still 1")
    async with session.turn("Unrelated") as turn:
        await turn.finish("It was asked without a context")
    first = (await session.messages())[0].id

    told = await memory.forget(session="s", owner="ana", message=first, dry_run=True)
    assert [tuple(answer) for answer in told.answers] == [("s", 2), ("s", 4), ("s", 6)]
    assert "answers" in str(told)

    told = await memory.forget(session="s", owner="ana", message=first, answers=True)
    assert [answer.seq for answer in told.answers] == [2, 4, 6]
    assert await texts(session) == [
        *(None, None, "And now?", None, "So?", None, "Unrelated"),
        "It was asked without a context",
    ]


async def test_an_answer_given_again_after_a_rewind_goes_with_its_question(memory: Memory) -> None:
    session = await memory.session("s", owner="ana")
    for text in ("My number is 1", "Thanks"):
        await session.append(
            Message(role="user", content=text), Message(role="assistant", content="I see")
        )
    await session.rewind(1)
    await session.append(Message(role="assistant", content="It is 1"))
    await session.clear()
    first = (await session.messages())[0].id
    report = await memory.forget(session="s", owner="ana", message=first, answers=True)
    assert [answer.seq for answer in report.answers] == [2, 5]


async def test_answers_in_other_sessions_that_recalled_it_are_known(memory: Memory) -> None:
    session = await shared_channel(memory)
    other = await memory.session("other", owner="ana")
    recalled = {"recalled_from": {"shared": [[2, 3]]}}
    await other.append(Message(role="user", content="Hm"))
    await other.append(Message(role="assistant", content="It was bob's", meta=recalled))
    await memory.forget(session=session.id, owner="ana", message="it", answers=True)
    assert await texts(other) == ["Hm", "It was bob's"]
    told = await memory.forget(author="bob", owner="ana", answers=True)
    assert ("other", 2) in told.answers
    assert await texts(other) == ["Hm", None]


async def test_an_answer_that_was_shown_it_in_short_is_known_from_the_explanation() -> None:
    views = {"chat": View(700, Summarized(step=0, verbatim_messages=0))}
    async with Memory.open("ram://", counter=Letters(), keep_why=1, views=views) as memory:
        session = await memory.session("s", owner="ana")
        for number in range(60):
            await session.append(
                Message(role="user", content=f"Question {number}?"),
                Message(role="assistant", content=f"Answer {number}"),
            )
        async with session.turn("So?") as turn:
            context = await turn.context()
            # The program stores the answer, so its meta does not name what it was written from.
            (answer,) = await session.append(Message(role="assistant", content="Still 1"))
        await memory.idle()
        (in_short,) = [each for each in context.why.choices if each.reason == IN_SHORT]
        for seq, is_shown in ((in_short.first - 1, False), (in_short.first, True)):
            (message,) = await session.messages(after=seq - 1, limit=1)
            told = await memory.forget(
                owner="ana", session="s", message=message.id, answers=True, dry_run=True
            )
            assert (("s", answer.seq) in told.answers) == is_shown


async def test_an_answer_before_it_that_recalled_another_forgotten_message_is_known(
    memory: Memory,
) -> None:
    diary = await memory.session("diary", owner="ana")
    await diary.append(Message(role="user", content="a secret", author="bob"))
    session = await memory.session("s", owner="ana")
    recalled = {"recalled_from": {"diary": [[1, 1]]}}
    await session.append(
        Message(role="user", content="Hm"),
        Message(role="assistant", content="It was bob's", meta=recalled),
        Message(role="user", content="another secret", author="bob"),
    )
    told = await memory.forget(author="bob", owner="ana", answers=True)
    assert told.messages == 2
    assert ("s", 2) in told.answers


async def test_an_interrupted_fork_is_deleted(memory: Memory) -> None:
    session = await shared_channel(memory)
    point = ForkPoint(session="shared", seq=4)
    half = SessionInfo(id="half", owner="ana", kind="fork", ready=False, forked_from=point)
    made = await memory.store.put_session(half)
    page = (await session.messages())[:2]  # read before, and loaded behind
    await memory.forget(session="shared", owner="ana")
    assert await memory.store.get_session("half", "ana") is None
    with pytest.raises(SessionGone):
        await memory.store.load(made.key, page)


class Interposing(RamStore):
    """Does something just before a session is written or deleted, or before an erasure, once."""

    meanwhile: Callable[[], Awaitable[object]] | None = None
    before_erase: Callable[[], Awaitable[object]] | None = None

    async def erase(self, session: SessionKey, seqs: Iterable[int]) -> int:
        before, self.before_erase = self.before_erase, None
        if before:
            await before()
        return await super().erase(session, seqs)

    async def _interpose(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile:
            await meanwhile()

    async def put_session(self, session: SessionInfo, **conditions: Any) -> SessionInfo:
        await self._interpose()
        return await super().put_session(session, **conditions)

    async def delete_session(self, session: SessionKey, **conditions: Any) -> None:
        await self._interpose()
        await super().delete_session(session, **conditions)


async def test_a_fork_that_was_finished_in_the_meantime_loses_its_copies_alone() -> None:
    store = Interposing()
    memory = Memory(store, Options(counter=Letters()))
    session = await shared_channel(memory)
    point = ForkPoint(session="shared", seq=5)
    half = SessionInfo(id="fork", owner="ana", kind="fork", ready=False, forked_from=point)
    await store.put_session(half)

    async def finish() -> None:
        fork = await session.fork(id="fork")
        await fork.append(Message(role="user", content="new in the fork"))

    store.meanwhile = finish
    told = await memory.forget(author="bob", owner="ana")
    assert (told.messages, told.copies) == (1, 1)
    fork = await memory.get_session("fork", owner="ana")
    assert await texts(fork) == ["mine", None, "a page", "found", "named", "new in the fork"]
    assert await texts(session) == ["mine", None, "a page", "found", "named"]


async def test_a_fork_whose_copy_was_deleted_is_begun_again_without_what_was_erased() -> None:
    store = Interposing()
    memory = Memory(store, Options(counter=Letters()))
    session = await shared_channel(memory)
    await session.update(title="bob's", title_from=(await session.messages())[1].id)

    async def before_the_fork_exists() -> None:
        store.meanwhile = lambda: memory.forget(author="bob", owner="ana")  # before it is ready

    store.meanwhile = before_the_fork_exists
    fork = await session.fork(id="fork")
    assert await texts(fork) == ["mine", None, "a page", "found", "named"]
    assert (await fork.refresh()).title == ""


async def test_an_update_does_not_bring_back_what_was_forgotten_in_the_meantime() -> None:
    store = Interposing()
    memory = Memory(store, Options(counter=Letters()))
    session = await memory.session("s", title=SECRET, system_prompt=SECRET)
    await session.append(Message(role="user", content=SECRET))
    store.meanwhile = lambda: memory.forget(session="s")
    with pytest.raises(SessionGone, match="forgotten"):
        await session.update(tags=["kept"])
    info = await session.refresh()
    assert (info.title, info.system_prompt, info.tags) == ("", None, ())


async def test_forgetting_takes_a_title_that_was_given_in_the_meantime() -> None:
    store = Interposing()
    memory = Memory(store, Options(counter=Letters()))
    session = await memory.session("s", title="Trip")
    await session.append(Message(role="user", content=SECRET))
    store.meanwhile = lambda: session.update(title=SECRET)
    await memory.forget(session="s")
    assert (await session.refresh()).title == ""


async def test_a_fork_that_is_made_while_messages_are_erased_loses_its_copies_too() -> None:
    store = Interposing()
    memory = Memory(store, Options(counter=Letters()))
    session = await shared_channel(memory)
    await session.update(title="bob's", title_from=(await session.messages())[1].id)
    store.before_erase = lambda: session.fork(id="fork")
    told = await memory.forget(author="bob", owner="ana")
    assert (told.messages, told.copies, told.titles) == (1, 1, 2)
    fork = await memory.get_session("fork", owner="ana")
    assert await texts(fork) == ["mine", None, "a page", "found", "named"]
    assert fork.info.title == ""


async def test_a_title_is_not_stored_if_its_message_is_forgotten_in_the_meantime() -> None:
    store = Interposing()
    memory = Memory(store, Options(counter=Letters()))
    session = await memory.session("s")
    await session.append(Message(role="user", content=SECRET, id="it"))
    store.meanwhile = lambda: memory.forget(session="s", message="it")
    with pytest.raises(MessageNotFound):
        await session.update(title=SECRET, title_from="it")
    assert (await session.refresh()).title == ""


async def test_explanations_stay_without_the_digests_of_what_is_forgotten(memory: Memory) -> None:
    sessions = [await memory.session(id) for id in ("s", "other")]
    for session in sessions:
        async with session.turn("plain", id=f"{session.id} 1") as turn:
            await turn.context()
            await turn.finish("Noted")
    await memory.idle()
    assert [len(await session.explanations()) for session in sessions] == [1, 1]
    await memory.forget(session="s", message="s 1")
    assert [len(await session.explanations()) for session in sessions] == [1, 1]
    kept = [(await session.explanations())[0].references for session in sessions]
    assert [bool(each and each.digest) for each in kept] == [False, True]
    assert kept[0] is not None
    assert [each.digest for each in kept[0].messages] == [""]


# --- interrupted ---


@pytest.mark.parametrize("tenant", ["default", "another"])
async def test_what_was_begun_is_completed_by_whoever_opens_next(
    tmp_path: Path, tenant: str
) -> None:
    async with await on_file(tmp_path / "a.db") as memory:
        session = await shared_channel(memory.tenant(tenant))
        fork = await session.fork(id="f")
        plan = ErasurePlan()
        plan.add(session.key, [2, 3], "chosen")
        await Intent("begun", ForgetQuery(author="bob"), plan).store(memory.tenant(tenant).store)
    async with await on_file(tmp_path / "a.db") as memory:
        here = memory if tenant == "default" else memory.tenant(tenant)
        for id in (session.id, fork.id):
            found = await here.get_session(id, owner="ana")
            assert await texts(found) == ["mine", None, None, "found", "named"]
        assert await here.store.scan(Scope(), FORGET) == []


async def test_a_large_intent_is_several_records_and_none_before_all_are_there(
    memory: Memory,
) -> None:
    session = await memory.session("s")
    await session.append(*[Message(role="user", content=str(n)) for n in range(9_001)])
    plan = ErasurePlan()
    plan.add(session.key, range(1, 9_002, 2), "chosen")
    intent = Intent("begun", ForgetQuery(session="s"), plan)
    await intent.store(memory.store)
    records = await memory.store.scan(Scope(), FORGET)
    assert len(records) > 1
    await memory.store.drop(Scope(), FORGET, records[-1].key)
    await memory._services.forgetting().complete()
    assert (await texts(session))[0] == "0"
    await intent.store(memory.store)
    await memory._services.forgetting().complete()
    assert (await memory.store.find(session.key, seqs=[1, 2, 9_001]))[0].state == "erased"
    assert (await memory.store.find(session.key, seqs=[2]))[0].state == "live"
    assert await memory.store.scan(Scope(), FORGET) == []


async def test_no_import_makes_us_forget(memory: Memory) -> None:
    session = await shared_channel(memory)
    plan = ErasurePlan()
    plan.add(session.key, [1], "chosen")
    await Intent("begun", ForgetQuery(author="bob"), plan).store(memory.store)
    lines: list[bytes] = []
    await export(memory.store, lines.append)
    assert not any(b'"forget"' in line for line in lines)
    record = {"scope": {}, "kind": FORGET, "key": "x:000000", "value": {}, "made_of": []}
    lines.insert(-1, json.dumps({"record": record}).encode() + b"\n")
    async with Memory.open("ram://", counter=Letters()) as other:
        with pytest.raises(InvalidInput, match="cannot be imported"):
            await import_lines(other.store, lines)


async def test_an_import_brings_nothing_back(tmp_path: Path) -> None:
    async with await on_file(tmp_path / "a.db") as memory:
        session = await shared_channel(memory)
        span = Span(session=session.key, first=2, last=2)
        await memory.store.put(Scope(owner="ana"), "made", "of bob's", SECRET, made_of=[span])
        await memory.store.put(Scope(owner="ana"), "made", "of nothing", "free")
        lines: list[bytes] = []
        await export(memory.store, lines.append)
        await memory.forget(author="bob", owner="ana")
        await import_lines(memory.store, lines)
        assert (await texts(session))[1] is None
        assert [r.key for r in await memory.store.scan(Scope(owner="ana"))] == ["of nothing"]


# --- bytes ---


def found_in(folder: Path, text: str) -> list[str]:
    return [path.name for path in folder.iterdir() if text.encode() in path.read_bytes()]


@pytest.mark.parametrize("seed", [13, 32, 40])  # each leaves a copy that only a rewrite takes away
async def test_no_copy_is_left_in_the_unused_space_of_a_page(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    async with await on_file(tmp_path / "a.db") as memory:
        store, session = memory.store, await memory.session("s")
        marks = [rng.randbytes(8).hex() for _ in range(100)]
        stored = await session.append(*[Message(role="user", content=str(n)) for n in range(100)])
        shelf = Scope(session=session.key)
        for n, mark in enumerate(marks):
            span = Span(session=session.key, first=n + 1, last=n + 1)
            text = mark * rng.choice((1, 3, 9, 20))
            await store.put(shelf, "made", f"{n:04}", text, made_of=[span])
        order = rng.sample(range(100), 100)
        for n in order[:50]:  # one by one: pages are merged, and rows of others move
            await store.drop(shelf, "made", f"{n:04}")
        await store.erase(session.key, [n + 1 for n in order[50:61]])
        await memory.forget(session="s", message=stored[order[61]].id)
    data = (tmp_path / "a.db").read_bytes()
    assert not [n for n in order[:62] if marks[n].encode() in data], f"seed {seed}"


async def test_a_reader_that_holds_the_log_is_named_and_the_next_open_completes(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    async with await on_file(path) as memory:
        session = await memory.session("s")
        await session.append(Message(role="user", content=SECRET))
        with reading(path):
            told = await memory.forget(session="s")
            assert told.found == 1
            assert told.residues[0].where == "a.db, a.db-wal"
            assert "opened again" in told.residues[0].until
    async with await on_file(path) as memory:
        assert await memory.store.scan(Scope(), FORGET) == []
        assert found_in(tmp_path, SECRET) == []


async def test_text_that_a_living_message_has_is_not_taken_for_a_rest(tmp_path: Path) -> None:
    async with await on_file(tmp_path / "a.db") as memory:
        session = await memory.session("s")
        await session.append(Message(role="user", content=SECRET, id="it"))
        await session.append(Message(role="user", content=f"As I said: {SECRET}"))
        told = await memory.forget(session="s", message="it")
        assert (told.probes, told.found, told.excluded) == (0, 0, 1)
        assert told.repeated == ["session 's' at 2"]
        assert "Files searched: none, because other text also contains 1 piece of it" in str(told)
        assert "none found" not in str(told)


async def test_a_text_too_short_to_be_searched_for_is_never_called_gone(tmp_path: Path) -> None:
    async with await on_file(tmp_path / "a.db") as memory:
        session = await memory.session("s")
        await session.append(Message(role="user", content="pin 4711", id="it"))
        told = await memory.forget(session="s", message="it")
    assert told.probes == 0
    assert "Files searched: none, because the erased text is too short to search for" in str(told)
    assert "none found" not in str(told)


async def test_a_tools_result_that_names_a_session_does_not_take_it_along(memory: Memory) -> None:
    """Only a sub-agent's session belongs to the result that names it."""
    diary = await memory.session("diary")
    await diary.append(Message(role="user", content="Dear diary"))
    session = await memory.session("s")
    async with session.turn("Where did I write it?") as turn:
        call = ToolCall(id="c", name="find_session", arguments="{}")
        found = Message(
            role="tool", tool_call_id="c", content="In the diary.", meta={"session": "diary"}
        )
        await turn.append(Message(role="assistant", tool_calls=(call,)), found)
        await turn.finish("In the diary.")
    assert (await memory.forget(session="s")).messages == 4
    assert [message.content for message in await diary.messages()] == ["Dear diary"]


# --- titles ---


async def test_a_title_made_from_a_message_goes_with_it_and_from_its_forks(tmp_path: Path) -> None:
    async with await on_file(tmp_path / "a.db") as memory:
        session = await memory.session("s")
        await session.append(Message(role="user", content="hello", id="hello"))
        await session.append(Message(role="user", content=SECRET, id="it"))
        await session.update(title=SECRET[:20], title_from="it")
        fork, early = await session.fork(id="f"), await session.fork(1, id="early")
        assert (fork.info.title, early.info.title) == (SECRET[:20], "")
        planned = await memory.forget(session="s", message="it", dry_run=True)
        told = await memory.forget(session="s", message="it")
        assert planned.titles == told.titles == 2
        assert "2 titles made from them" in str(told)
        assert (told.excluded, told.repeated) == (0, [])
        for each in (session, fork):
            assert (await each.refresh()).title == ""
            assert each.info.title_seq == 0
    assert found_in(tmp_path, SECRET[:16]) == []


async def test_a_title_made_from_another_message_stays(memory: Memory) -> None:
    session = await memory.session("s")
    await session.append(Message(role="user", content="About the trip", id="first"))
    await session.append(Message(role="user", content=SECRET, id="it"))
    await session.update(title="About the trip", title_from="first")
    assert (await memory.forget(session="s", message="it")).titles == 0
    assert (await session.refresh()).title == "About the trip"


async def test_what_a_user_wrote_about_a_session_stays_and_the_receipt_names_it(
    tmp_path: Path,
) -> None:
    async with await on_file(tmp_path / "a.db") as memory:
        session = await memory.session("s", tags=[f"{SECRET}!"], meta={"note": f"So: {SECRET}"})
        await memory.session("other", system_prompt=f"Remember: {SECRET}")
        await session.append(Message(role="user", content=SECRET, id="it"))
        await session.append(Message(role="user", content="pin 4711", id="pin"))
        await session.update(title="the number is…", title_from="it")
        await session.update(title="the number is…")  # by hand: no longer made from the message
        told = await memory.forget(session="s", message="it")
        assert (told.titles, told.probes, told.excluded) == (0, 0, 1)
        assert told.repeated == [
            "the metadata of session 's'",
            "the system prompt of session 'other'",
            "the tags of session 's'",
            "the title of session 's'",
        ]
        assert SECRET not in str(told)
        assert "none found" not in str(told)
        assert (await session.refresh()).title == "the number is…"
        await session.update(title="My pin 4711 again")
        told = await memory.forget(session="s", message="pin")
        assert told.repeated == ["the title of session 's'"]


async def test_no_title_is_made_from_a_message_that_is_forgotten(memory: Memory) -> None:
    session = await memory.session("s")
    await session.append(Message(role="user", content=SECRET, id="it"))
    await memory.forget(session="s", message="it")
    with pytest.raises(MessageNotFound):
        await session.update(title=SECRET, title_from="it")
    assert (await session.refresh()).title == ""


async def test_an_export_keeps_which_message_a_title_was_made_from(memory: Memory) -> None:
    session = await memory.session("s")
    await session.append(Message(role="user", content=SECRET, id="it"))
    await session.update(title=SECRET, title_from="it")
    lines: list[bytes] = []
    await export(memory.store, lines.append)
    async with Memory.open("ram://", counter=Letters()) as other:
        await import_lines(other.store, lines)
        assert (await other.get_session("s")).info.title_seq == 1
        await other.forget(session="s", message="it")
        assert (await other.get_session("s")).info.title == ""


def test_probes_are_telling_pieces_that_stand_in_json_as_in_a_message() -> None:
    probes = Probes()
    probes.offer(Message(role="user", content="short"))
    probes.offer(Message(role="user", content='"quoted"\nand\\so on'))
    assert probes.chosen() == []
    probes.offer(Message(role="user", content=f'x"{SECRET}"\n鑄鐵鑄鐵鑄鐵'))
    assert probes.chosen() == [SECRET.encode()]
    call = ToolCall(id="c", name="n", arguments="a" * 40 + "é" * 20)
    probes.offer(Message(role="assistant", tool_calls=[call]))
    assert all(len(piece) >= 16 and piece.decode() for piece in probes.chosen())


@pytest.mark.parametrize(
    ("query", "queued"),
    [
        ({"session": "s"}, 1),
        ({"author": "bob"}, 1),
        ({"since": NOON, "until": NOON + 1}, 1),
        ({"author": "eve"}, 0),
    ],
)
async def test_what_a_outbox_set_aside_goes_as_well(
    tmp_path: Path, query: dict[str, Any], queued: int
) -> None:
    async with await on_file(tmp_path / "a.db") as memory:
        session = await memory.session("s", owner="ana")
        await session.append(Message(role="user", content="plain", id="clash"))

    async def away() -> SQLiteStore:
        raise Unavailable("not now")

    async def there() -> SQLiteStore:
        return await SQLiteStore.open(tmp_path / "a.db", durability="process")

    outbox = tmp_path / "chat.outbox"
    store = await OutboxStore.open(outbox, away, target="t", durability="process")
    for id in ("clash", "late"):
        said = Message(role="user", content=f"{id} {SECRET}", id=id, author="bob", created_at=NOON)
        await store.append(session.key, [said])
    await store.close()
    assert found_in(tmp_path, SECRET)
    store = await OutboxStore.open(outbox, there, target="t", durability="process")
    async with Memory(store, Options(counter=Letters())) as memory:
        told = await memory.forget(**query, owner="ana")
        assert told.queued == queued
        assert len((await store.outbox.survey()).set_aside) == 1 - queued
        if queued:
            assert told.messages == (2 if "session" in query else 1)
            assert {"chat.outbox", "a.db"} <= set(told.searched)
    assert bool(found_in(tmp_path, SECRET)) == (not queued)


async def test_an_outbox_that_another_program_reads_is_cleaned_at_the_next_open(
    tmp_path: Path,
) -> None:
    async def there() -> SQLiteStore:
        return await SQLiteStore.open(tmp_path / "a.db", durability="process")

    outbox = tmp_path / "chat.outbox"
    store = await OutboxStore.open(outbox, there, target="t", durability="process")
    async with Memory(store, Options(counter=Letters())) as memory:
        session = await memory.session("s")
        await session.append(Message(role="user", content=SECRET))
        with reading(outbox):
            told = await memory.forget(session="s")
        assert any(each.where.startswith("chat.outbox") for each in told.residues)
        assert len(await store.scan(Scope(), FORGET)) == 1
    store = await OutboxStore.open(outbox, there, target="t", durability="process")
    async with Memory(store, Options(counter=Letters())) as memory:
        await memory.for_owner("default").list_sessions()
        assert await store.scan(Scope(), FORGET) == []


def tables_with(text: str, postgres: PostgresServer) -> list[Path]:
    """Return the files of the database `forgetting` that hold a text; other tests write it, too."""
    postgres.execute("CHECKPOINT")
    asked = "SELECT oid FROM pg_database WHERE datname = 'forgetting'"
    ((number,),) = postgres.execute(asked)
    files = [path for path in (postgres.data / "base" / str(number)).iterdir() if path.is_file()]
    assert files
    return [path for path in files if text.encode() in path.read_bytes()]


async def test_postgres_says_what_it_keeps_unless_it_rewrites(postgres: PostgresServer) -> None:
    url = postgres.create_database("forgetting")
    async with Memory.open(url, counter=Letters()) as memory:
        session = await memory.session("s", owner="ana", title=SECRET)
        await session.append(Message(role="user", content=SECRET, id="it"))
        told = await memory.forget(session="s", owner="ana", message="it")
        assert any("rewrite=True" in residue.until for residue in told.residues)
        told = await memory.forget(session="s", owner="ana", rewrite=True)
        assert any("rewritten" in what for what in told.cleaned)
        assert not any("tables" in residue.where for residue in told.residues)
        assert (told.searched, told.found) == ((), 0)
        assert "Files searched: none, because this program cannot read the engine's files" in str(
            told
        )
    assert not tables_with(SECRET, postgres)


async def test_a_role_that_may_not_rewrite_is_told_so(postgres: PostgresServer) -> None:
    postgres.create_database("forgetting")
    async with Memory.open(postgres.url("forgetting"), counter=Letters()):
        pass
    postgres.execute("DROP ROLE IF EXISTS guest", database="forgetting")
    postgres.execute("CREATE ROLE guest LOGIN IN ROLE keepthread_app", database="forgetting")
    try:
        async with Memory.open(postgres.url("forgetting", "guest"), counter=Letters()) as memory:
            session = await memory.session("s")
            await session.append(Message(role="user", content=SECRET))
            told = await memory.forget(session="s", rewrite=True)
        why = [residue.why for residue in told.residues]
        assert any("does not own" in each for each in why)
        assert any("denied" in each for each in why)
    finally:
        postgres.execute("DROP OWNED BY guest; DROP ROLE guest", database="forgetting")


@pytest.mark.parametrize(
    ("looks_at", "why"),
    [
        (b"SELECT count(*) FROM keepthread.sessions", "other sessions have locked them"),
        (b"SELECT count(*) FROM pg_class", "may still see erased rows"),
    ],
    ids=["a lock", "a snapshot"],
)
async def test_what_open_transactions_hold_up_is_done_another_time(
    postgres: PostgresServer, looks_at: bytes, why: str
) -> None:
    url = postgres.create_database("forgetting")
    async with Memory.open(url, counter=Letters()) as memory:
        session = await memory.session("s")
        await session.append(Message(role="user", content=SECRET))
        with psycopg.connect(url) as reader:
            reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            reader.execute(looks_at)
            told = await memory.forget(session="s", rewrite=True)
        assert any(why in residue.why for residue in told.residues)
        assert await memory.store.scan(Scope(), FORGET)
    async with Memory.open(url, counter=Letters()) as memory:
        assert not await memory.store.scan(Scope(), FORGET)
    assert not tables_with(SECRET, postgres)


async def test_redis_writes_its_files_anew_or_says_that_it_may_not() -> None:
    server = started(lambda: new_server(appendonly="yes", appendfsync="always"))
    try:
        replica = server.replica()
        try:
            told = await forget_on(server, server.url)
        finally:
            replica.close()
        assert [residue.where for residue in told.residues] == ["replicas", "backups of the server"]
        assert len(told.cleaned) == 2
        files = [path for path in server.folder.rglob("*") if path.is_file()]
        assert not [path for path in files if SECRET.encode() in path.read_bytes()]
        rights = ("-config", "-info", "-bgsave", "-bgrewriteaof")
        server.ask("ACL", "SETUSER", "eve", "on", ">secret", "~*", "+@all", *rights)
        told = await forget_on(server, server.url.replace("//", "//eve:secret@"))
        assert {"the server's log", "the server's snapshot"} <= {r.where for r in told.residues}
        assert told.cleaned == ()
    finally:
        server.close()


async def forget_on(server: RedisServer, url: str) -> Any:
    server.ask("FLUSHALL")
    async with Memory(await RedisStore.open(url), Options(counter=Letters())) as memory:
        session = await memory.session("s")
        await session.append(Message(role="user", content=SECRET))
        return await memory.forget(session="s")


# --- in the memory of the process ---


async def test_no_object_of_the_process_holds_what_was_forgotten(tmp_path: Path) -> None:
    async with await on_file(tmp_path / "a.db", embedder=ScriptedEmbedder(), views=VIEWS) as memory:
        markers = await remembered_and_forgotten(memory)
        assert held_by_objects(markers) == []


async def test_the_search_of_the_process_sees_a_cache_that_is_not_emptied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("keepthread.memory.forgetting.forget.clear_text_caches", lambda: None)
    async with await on_file(tmp_path / "a.db", embedder=ScriptedEmbedder(), views=VIEWS) as memory:
        markers = await remembered_and_forgotten(memory)
        assert held_by_objects(markers) != []
        clear_text_caches()
        assert held_by_objects(markers) == []


async def remembered_and_forgotten(memory: Memory) -> list[Masked]:
    """Say, count, show, index and search markers, then forget them; nothing here holds them."""
    markers = new_markers(random.Random(), 12)
    masked = [Masked.of(marker) for marker in markers]  # now, for it makes stems of them
    session = await memory.session("s", title=markers[0].text, system_prompt=markers[1].text)
    for marker in markers[2:]:
        async with session.turn(f"{marker.text} " * 9) as turn:
            await turn.context("chat")
            await turn.tool("look", {"for": marker.text}, lambda **_: "x", cache_turns=3)
            await turn.finish("Noted. " * 20)
        await memory.search(marker.text)
    await memory.index()
    await memory.idle()
    await memory.forget(session="s", answers=True)
    return masked


def test_every_cache_of_the_process_is_emptied_or_known_to_hold_no_text() -> None:
    unknown: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        found = re.findall(r"@(?:functools\.)?(?:lru_cache|cache)\b[^\n]*\n\s*def (\w+)", text)
        emptied = set(re.findall(r"(\w+)\.cache_clear", text))
        name = path.relative_to(SOURCE).as_posix()
        unknown |= {f"{name}:{each}" for each in found if each not in emptied}
    assert unknown == WITHOUT_TEXT, "register it with text_caches, or list it in WITHOUT_TEXT"


# --- told ---


async def test_a_receipt_reads_well_and_is_json(tmp_path: Path) -> None:
    async with await on_file(tmp_path / "a.db") as memory:
        session = await memory.session("s", owner="ana")
        async with session.turn(SECRET) as turn:
            await turn.finish("Noted")
        await session.fork(id="f")
        await memory.index(owner="ana")
        told = await memory.forget(session="s", owner="ana")
    assert json.loads(json.dumps(told.to_json()))["messages"] == 2
    told = replace(told, at=NOON)
    assert str(told).splitlines() == [
        "Forgotten on 2026-09-21 at 14:13:20 UTC: session 's', owner 'ana'",
        "  2 messages",
        "  2 copies in forks",
        "  1 session as a whole",
        "  4 rows of the index: 4 pieces",
        "Cleaned: the word index was merged",
        "Cleaned: a.db was rewritten",
        "Cleaned: the log a.db-wal was emptied",
        "Files searched: a.db, a.db-wal, for 1 piece of the text; none found",
        "Erased bytes may remain in:",
        "  backups of a.db: they are not searched; until they are deleted",
    ]
    assert SECRET not in str(told)


async def test_progress_is_told(memory: Memory) -> None:
    session = await memory.session("s")
    await session.append(*[Message(role="user", content=str(n)) for n in range(1200)])
    seen: list[tuple[int, int]] = []
    await memory.forget(session="s", progress=lambda done, of: seen.append((done, of)))
    pages = [(500, 1200), (1000, 1200), (1200, 1200)]
    assert seen == [*pages, *pages]  # read, then erased


async def test_progress_of_the_search_for_repeats_is_told(tmp_path: Path) -> None:
    async with Memory.open(f"sqlite:///{tmp_path}/a.db", counter=Letters()) as memory:
        for name in ("s", "t"):
            session = await memory.session(name)
            await session.append(*[Message(role="user", content=SECRET) for _ in range(700)])
        seen: list[tuple[int, int]] = []
        receipt = await memory.forget(session="s", progress=lambda *told: seen.append(told))
        assert any("session 't'" in where for where in receipt.repeated)
        assert seen[-2:] == [(1200, 1400), (1400, 1400)]  # erased places are read too


def test_the_blocking_twin_forgets_too() -> None:
    threads: set[int] = set()
    with sync.Memory.open("ram://", counter=Letters()) as memory:
        session = memory.session("s")
        session.add_message("user", SECRET)
        told = memory.forget(session="s", progress=lambda *_: threads.add(threading.get_ident()))
        assert (told.messages, session.messages()[0].state) == (1, "erased")
    assert threads == {threading.get_ident()}


def test_the_command_shows_asks_and_forgets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fill() -> None:
        async with await on_file(tmp_path / "a.db") as memory:
            await shared_channel(memory)

    asyncio.run(fill())
    monkeypatch.setenv("KEEPTHREAD_STORE", f"sqlite:///{tmp_path}/a.db")

    def command(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["keepthread", *arguments])
        return main()

    assert command("forget", "--author", "bob", "--dry-run") == 0
    assert capsys.readouterr().out.splitlines() == ["To be forgotten: author 'bob'", "  1 message"]
    assert command("forget", "--author", "bob") == 2
    assert "--dry-run shows them, --yes erases them" in capsys.readouterr().err
    assert command("forget", "--author", "nobody", "--yes") == 0
    assert capsys.readouterr().err == "There is nothing to forget\n"
    assert command("forget", "--since", "soon", "--yes") == 2
    assert "is not a date" in capsys.readouterr().err
    assert command("forget", "--since", "2026-09-21T14:14", "--author", "bob", "--yes") == 0
    assert capsys.readouterr().out.startswith("Forgotten on ")
    hers = ("--session", "shared", "--owner", "ana")
    assert command("--json", "forget", *hers, "--yes") == 0
    assert json.loads(capsys.readouterr().out)["messages"] == 4
    for gone in (["show", "shared", "--owner", "ana"], ["forget", *hers, "--yes"]):
        assert command(*gone) == 2
        assert "there is no session 'shared'; `keepthread sessions`" in capsys.readouterr().err
