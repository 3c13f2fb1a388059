"""Exports and imports: nothing is lost, nothing is believed, and being killed costs nothing.

The size of the large round trip is KEEPTHREAD_ROUND_TRIP messages, 5,000 if it is not set.
"""

import asyncio
import io
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread import (
    ForkPoint,
    Message,
    RamStore,
    Scope,
    SessionInfo,
    Span,
    SQLiteStore,
    ToolCall,
)
from keepthread.errors import (
    InvalidInput,
    KeepthreadError,
    SessionExists,
    SessionGone,
    WrongFormat,
)
from keepthread.interchange.export import Exported, export
from keepthread.interchange.import_ import Imported, import_lines
from keepthread.interchange.jsonl import MAX_LINE, decode_line, encode_line, lines_of
from keepthread.protocols import Store
from keepthread.testing.contract import FULL, new_session, user
from keepthread.types import SessionKey

SIZE = int(os.environ.get("KEEPTHREAD_ROUND_TRIP", "5000"))


async def exported(store: Store, *sessions: str) -> bytes:
    """Export ana's sessions of these ids, or everything."""
    out = io.BytesIO()
    await export(store, out.write, sessions=sessions, owner="ana" if sessions else None)
    return out.getvalue()


async def imported(store: Store, data: bytes, **options: Any) -> Imported:
    return await import_lines(store, lines_of(io.BytesIO(data)), **options)


async def full_store() -> RamStore:
    """Return a store with one of everything."""
    store = RamStore()
    info = SessionInfo(
        id="s",
        owner="ana",
        title="T \ud83d\ude00",
        tags=("a", "b"),
        system_prompt="Be brief.",
        meta={"z": [1, None], "a": 2**80},
        created_at=10.25,
        updated_at=20.5,
        ready=False,
    )
    key = (await store.put_session(info)).key
    await store.append(key, [user("one", id="1"), FULL, user("gone"), Message(role="system")])
    await store.erase(key, [3])
    stored = await store.get_session("s", "ana")
    assert stored is not None
    await store.put_session(replace(stored, ready=True))
    point = ForkPoint(session="s", seq=1)
    fork = await new_session(store, "f", owner="ana", kind="fork", forked_from=point, ready=False)
    await new_session(store, "d", owner="ana", kind="delegate", parent="s")
    spans = [Span(session=fork, first=1, last=1), Span(session=key, first=1, last=2)]
    await store.put(Scope(session=key), "pin", "1", {"b": 1, "a": [0.1, "\ud800"]}, made_of=spans)
    await store.put(Scope(owner="ana"), "fact", "1", "likes tea", made_of=spans[1:])
    await store.put(Scope(), "setting", "1", None)
    return store


# --- exactness ---


async def test_an_imported_export_exports_to_the_same_bytes() -> None:
    data = await exported(await full_store())
    twin = RamStore()
    done = await imported(twin, data)
    assert done == Imported(sessions=3, messages=4, records=3)
    assert await exported(twin) == data


async def test_messages_sessions_and_records_come_back_as_they_were() -> None:
    store, twin = await full_store(), RamStore()
    await imported(twin, await exported(store))
    for session in await store.scan_sessions():
        copy = await twin.get_session(session.id, session.owner)
        assert copy is not None
        kept = {"key": session.key, "epoch": session.epoch, "delimiter": session.delimiter}
        assert copy.delimiter != session.delimiter
        assert replace(copy, **kept) == session
        assert await twin.read(copy.key) == await store.read(session.key)
    s, f = await twin.get_session("s", "ana"), await twin.get_session("f", "ana")
    assert s is not None
    assert f is not None
    (pin,) = await twin.scan(Scope(session=s.key))
    assert pin.value == {"b": 1, "a": [0.1, "\ud800"]}
    assert isinstance(pin.value, dict)
    assert list(pin.value) == ["b", "a"]
    assert [span.session for span in pin.made_of] == [f.key, s.key]


def test_every_line_is_valid_json_in_valid_utf_8() -> None:
    data = asyncio.run(exported(asyncio.run(full_store())))
    kinds = [next(iter(json.loads(line.decode()))) for line in data.splitlines()]
    assert kinds[0] == "format"
    assert kinds[-1] == "end"
    assert "base64" in kinds
    assert {next(iter(decode_line(line))) for line in data.splitlines()[1:]} == {
        "session",
        "message",
        "record",
        "end",
    }


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=6,
)


@given(content=ANY_TEXT, meta=st.dictionaries(ANY_TEXT, VALUES | ANY_TEXT, max_size=3))
def test_any_text_and_any_json_survive(content: str, meta: dict[str, Any]) -> None:
    async def round_trip() -> None:
        store, twin = RamStore(), RamStore()
        key = await new_session(store, title=content)
        call = ToolCall(id=content, name=content, arguments=content)
        message = Message(role="assistant", content=content, meta=meta, tool_calls=(call,))
        await store.append(key, [message])
        await store.put(Scope(session=key), "k", "k", meta)
        data = await exported(store)
        await imported(twin, data)
        assert await exported(twin) == data
        copy = await twin.get_session("s")
        assert copy is not None
        assert copy.title == content
        assert await twin.read(copy.key) == await store.read(key)

    asyncio.run(round_trip())


async def test_named_sessions_are_exported_alone() -> None:
    lines = (await exported(await full_store(), "s")).splitlines()
    assert [next(iter(decode_line(line))) for line in lines] == [
        "format",
        "session",
        *["message"] * 4,
        "record",
        "end",
    ]


class Deleting(RamStore):
    """A store that deletes a session when its messages after a position are read."""

    doomed: SessionKey | None = None
    after = 500

    async def read(self, session: SessionKey, **where: Any) -> list[Message]:
        if session == self.doomed and where["after"] == self.after:
            with suppress(SessionGone):
                await self.delete_session(session)
        return await super().read(session, **where)


@pytest.mark.parametrize("after", [0, 500])
async def test_an_export_goes_on_where_a_session_is_deleted_meanwhile(after: int) -> None:
    store, twin = Deleting(), RamStore()
    keys = [await new_session(store, name) for name in ("a", "b", "c")]
    for key in keys:
        await store.append(key, [user(f"message {number}") for number in range(600)])
    store.doomed, store.after = keys[1], after
    lines: list[bytes] = []
    done = await export(store, lines.append)
    assert done == Exported(sessions=2, messages=1200, deleted=1, damaged=[])
    assert await imported(twin, b"".join(lines)) == Imported(sessions=2, messages=1200)
    assert sorted(session.id for session in await twin.scan_sessions()) == ["a", "c"]
    assert await exported(twin) == await exported(store)


async def test_only_the_session_above_can_be_left_out_of_an_import() -> None:
    for line in (
        b'{"deleted":{"session":"t"}}\n',
        b'{"deleted":{"session":"s","owner":"bea"}}\n',
        b'{"deleted":null}\n',
    ):
        with pytest.raises(InvalidInput, match="only the session above can be deleted"):
            await imported(RamStore(), HEAD + line)
    with pytest.raises(InvalidInput, match="only the session above can be deleted"):
        await imported(RamStore(), HEAD.splitlines(keepends=True)[0] + line)


async def test_a_session_that_is_at_the_target_stays_where_an_export_says_it_was_deleted() -> None:
    store, twin = Deleting(), RamStore()
    key = await new_session(store, "a")
    await store.append(key, [user(f"message {number}") for number in range(600)])
    await imported(twin, whole := await exported(store))
    store.doomed = key
    assert await imported(twin, await exported(store)) == Imported()
    assert await exported(twin) == whole


async def test_damage_is_named_and_stays_damage(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    async with await SQLiteStore.open(path) as store:
        key = await new_session(store)
        other = await new_session(store, "other")
        await store.append(key, [user("one", tokens=1), user("two", tokens=2), user("three")])
        await store.put(Scope(session=other), "k", "k", 1)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE messages SET content = x'ff00' WHERE seq = 2")
        db.execute("UPDATE sessions SET owner = 'mallory' WHERE id = 'other'")
        db.execute("UPDATE records SET value = '2'")
    db.close()
    out = io.BytesIO()
    async with await SQLiteStore.open(path) as store:
        done: Exported = await export(store, out.write)
    assert [what.partition(",")[0] for what in done.damaged] == [
        "message 2 of session 's'",
        "the records of session 'other'",
        "the record of session 'other': owner",
    ]
    async with await SQLiteStore.open(tmp_path / "b.db") as twin:
        report = await imported(twin, out.getvalue())
        copy = await twin.get_session("s")
        assert copy is not None
        assert [m.state for m in await twin.read(copy.key)] == ["live", "damaged", "live"]
        assert [(d.session, d.seq) for d in (await twin.verify()).damages] == [("s", 2)]
        assert report.damaged == 2
        assert (await imported(twin, out.getvalue())).known == 2


# --- again, elsewhere, broken off ---


async def test_importing_again_changes_nothing_even_if_the_session_moved_on() -> None:
    data = await exported(await full_store())
    twin = RamStore()
    await imported(twin, data)
    session = await twin.get_session("s", "ana")
    assert session is not None
    await twin.append(session.key, [user("and on")])
    await twin.drop(Scope(session=session.key), "pin", "1")
    await twin.put(Scope(owner="ana"), "fact", "1", "likes coffee")
    before = await exported(twin)
    done = await imported(twin, data)
    assert (done.known, done.kept) == (2, 1)
    assert await exported(twin) == before


async def test_a_taken_id_is_an_error_that_names_it_unless_renamed() -> None:
    data = await exported(await full_store())
    for taken in (
        SessionInfo(id="s", owner="ana"),
        SessionInfo(id="s", owner="ana", created_at=10.25),
    ):
        twin = RamStore()
        key = (await twin.put_session(taken)).key
        await twin.append(key, [user("another", id="1")] * 4)
        with pytest.raises(SessionExists, match=r"line \d+: session 's'.*--as"):
            await imported(twin, data)
        await imported(twin, data, prefix="old/")
        assert [s.id for s in await twin.scan_sessions()] == ["s", "old/s", "old/f", "old/d"]
        fork = await twin.get_session("old/f", "ana")
        delegate = await twin.get_session("old/d", "ana")
        assert fork is not None
        assert fork.forked_from == ForkPoint(session="old/s", seq=1)
        assert delegate is not None
        assert delegate.parent == "old/s"


@pytest.mark.parametrize(
    "stored",
    [
        {"parent": "other"},
        {"parent": None},
        {"kind": "main"},
        {"created_at": 11.0},
        {"kind": "fork", "forked_from": ForkPoint(session="p", seq=1)},
    ],
    ids=str,
)
@pytest.mark.parametrize("ready", [True, False])
async def test_the_same_messages_under_the_same_id_of_another_session_are_not_taken_for_it(
    stored: dict[str, Any], ready: bool
) -> None:
    """Only the records of the two sessions differ: when or of what they were made."""
    given = SessionInfo(id="s", owner="ana", kind="delegate", parent="p", created_at=10.0)
    source, target = RamStore(), RamStore()
    for store, info in ((source, given), (target, replace(given, ready=ready, **stored))):
        await new_session(store, "p")
        key = (await store.put_session(info)).key
        await store.append(key, [user("one", id="1", created_at=1.0)])
    data = await exported(source, "s")
    before = await exported(target)
    with pytest.raises(SessionExists, match="session 's' already exists and is another"):
        await imported(target, data)
    assert await exported(target) == before
    assert (await imported(source, data)).known == 1


async def test_sessions_of_two_owners_with_one_id_are_exported_and_imported_apart() -> None:
    store, twin = RamStore(), RamStore()
    for owner in ("ana", "bea", "default"):
        key = await new_session(store, "s", owner=owner, created_at=10.0)
        await store.append(key, [user(f"{owner}'s", id="1")])
        span = Span(session=key, first=1, last=1)
        await store.put(Scope(session=key), "pin", "1", owner, made_of=[span])
        await store.put(Scope(owner="ana"), "fact", owner, owner, made_of=[span])
    bea = await new_session(twin, "s", owner="bea", created_at=10.0, ready=False)
    data = await exported(store)
    assert await imported(twin, data) == Imported(sessions=3, messages=3, records=6)
    keys = {info.owner: info.key for info in await twin.scan_sessions()}
    assert keys["bea"] == bea
    for owner, key in keys.items():
        assert [message.content for message in await twin.read(key)] == [f"{owner}'s"]
        (pin,) = await twin.scan(Scope(session=key))
        fact = await twin.get(Scope(owner="ana"), "fact", owner)
        assert fact is not None
        assert pin.value == fact.value == owner
        assert [span.session for each in (pin, fact) for span in each.made_of] == [key, key]
    assert b"ana's" not in await exported_of(store, "bea")


async def exported_of(store: Store, owner: str) -> bytes:
    out = io.BytesIO()
    await export(store, out.write, sessions=["s"], owner=owner)
    return out.getvalue()


async def test_another_owners_session_of_that_id_is_no_obstacle() -> None:
    data = await exported(await full_store())
    twin = RamStore()
    key = await new_session(twin, "s", owner="bea")
    await twin.append(key, [user("another", id="1")] * 4)
    await imported(twin, data)
    assert [(s.id, s.owner) for s in await twin.scan_sessions()] == [
        *(("s", "bea"), ("s", "ana"), ("f", "ana"), ("d", "ana"))
    ]
    assert [m.content for m in await twin.read(key)] == ["another"]


async def test_an_export_of_version_1_is_read() -> None:
    """It named sessions by their ids alone, which were unique then."""
    data = await exported(await full_store())
    lines = [decode_line(line) for line in data.splitlines()]
    lines[0]["version"] = 1
    for line in lines:
        if record := line.get("record"):
            if "session" in record["scope"]:
                del record["scope"]["owner"]
            if made_of := record.get("made_of"):
                record["made_of"] = [span[1:] for span in made_of]
    twin = RamStore()
    done = await imported(twin, b"".join(map(encode_line, lines)))
    assert done == Imported(sessions=3, messages=4, records=3)
    assert await exported(twin) == data
    head, *_, end = map(encode_line, lines)
    gone = b'{"session":{"id":"s","owner":"ana","messages":1}}\n{"deleted":{"session":"s"}}\n'
    end = end.replace(b"3", b"0").replace(b"4", b"0")
    twin = RamStore()
    assert await imported(twin, head + gone + end) == Imported()
    assert await twin.scan_sessions() == []


async def test_an_import_broken_off_at_any_line_shows_nothing_and_goes_on() -> None:
    data = await exported(await full_store())
    lines = data.splitlines(keepends=True)
    for length in range(1, len(lines)):
        twin = RamStore()
        with pytest.raises(InvalidInput, match="the export is incomplete"):
            await imported(twin, b"".join(lines[:length]))
        assert await twin.list_sessions() == []
        await imported(twin, data)
        assert await exported(twin) == data


# --- nothing is believed ---


async def test_a_newer_version_is_refused_by_name() -> None:
    with pytest.raises(WrongFormat, match=r"version 3.*newer keepthread"):
        await imported(RamStore(), b'{"format":"keepthread","version":3}\n')
    for other in (b"{}\n", b'{"format":"chatgpt"}\n', b'{"format":"keepthread"}\n'):
        with pytest.raises(WrongFormat):
            await imported(RamStore(), other)


HEAD = b'{"format":"keepthread","version":2}\n{"session":{"id":"s","messages":1}}\n'


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"no json\n", "line 3: it is not valid JSON"),
        (b"[" * 100_000 + b"\n", "line 3: it is not valid JSON"),
        (b"\xff\n", "line 3: it is not valid JSON"),
        (b'{"message":NaN}\n', "line 3: it is not valid JSON"),
        (b"7\n", "line 3: it is not a JSON object"),
        (b'{"base64":"!"}\n', "line 3: its base64"),
        (b'{"pickle":"x"}\n', "line 3: unknown kind of line: 'pickle'"),
        (b'{"message":{"role":"user","class":"os.system"}}\n', "line 3: the message has no field"),
        (b'{"message":{"role":"user"}}\n', "line 3: a message id"),
        (b'{"message":{"id":"1","seq":1,"role":"user","digest":"00"}}\n', "match its digest"),
        (b'{"message":{"id":"1","seq":2,"role":"user","state":"damaged"}}\n', "position 2"),
        (b'{"session":{"id":"t","messages":0}}\n', "line 3: session 's' should have 1 message;"),
        (b'{"record":{"scope":{"session":"t"},"kind":"k","key":"k","value":1}}\n', "session 't'"),
        (
            b'{"record":{"scope":{"session":"s","owner":"bea"},"kind":"k","key":"k","value":1}}\n',
            "line 3: session 's' must come before its records",
        ),
        (b'{"end":{"sessions":1}}\n', "line 3: session 's' should have"),
        (b" " * (MAX_LINE + 1), "line 2: a line has more than"),
    ],
)
async def test_a_bad_line_is_named(line: bytes, says: str) -> None:
    with pytest.raises(KeepthreadError) as caught:
        await imported(RamStore(), HEAD + line)
    assert says in str(caught.value)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of everything inside a JSON value."""
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def with_change(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copy = value.copy()
    copy[path[0]] = with_change(value[path[0]], path[1:], new)
    return copy


def told(line: Any) -> str:
    """Return a line's text without what says nothing."""
    if not isinstance(line, dict):
        return repr(float(line) if type(line) is int else line)
    told_of = {key: told(value) for key, value in line.items() if value not in (None, [], {}, 0)}
    return repr(sorted(told_of.items()))


async def test_whatever_stands_in_a_field_is_taken_exactly_or_refused_by_us() -> None:
    lines = [decode_line(line) for line in (await exported(await full_store())).splitlines()]
    junk = (None, True, -1, 1.5, 2**70, "", "\x00", "x" * 300, [], {}, [[1]], {"a": {}}, ["x"])
    tried = refused = 0
    for number, line in enumerate(lines):
        for path in places(line):
            for new in junk:
                changed = [*lines[:number], with_change(line, path, new), *lines[number + 1 :]]
                data = b"".join(map(encode_line, changed))
                tried += 1
                twin = RamStore()
                try:
                    await imported(twin, data)
                except KeepthreadError:
                    refused += 1
                    continue
                if path[1:2] != ("made_of",):  # a session that is not there leaves no trace
                    again = [decode_line(each) for each in (await exported(twin)).splitlines()]
                    assert sorted(map(told, again)) == sorted(map(told, changed)), (path, new)
    assert tried > 1000
    assert refused > tried * 0.8


# --- large, and killed ---


def keepthread(*arguments: str | Path) -> list[str]:
    code = "import sys; from keepthread.apps.cli import main; sys.exit(main())"
    return [sys.executable, "-c", code, *map(str, arguments)]


def run(*arguments: str | Path) -> str:
    result = subprocess.run(keepthread(*arguments), capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout


async def make_store(path: Path, size: int) -> None:
    chance = random.Random(3)
    async with await SQLiteStore.open(path, durability="process") as store:
        for number in range(10):
            key = await new_session(store, f"s{number}")
            for _ in range(size // 1000):
                words = [chance.choice(("tea", "rain", "日本", "naïve")) for _ in range(60)]
                page = [user(" ".join(words[n % 7 :]), tokens=n) for n in range(99)]
                await store.append(key, [*page, replace(FULL, id="")])
            await store.erase(key, [5])
            await store.put(Scope(session=key), "pin", "1", {"n": number})


async def digests(path: Path) -> list[tuple[str, int, str, bytes, int, str]]:
    found: list[tuple[str, int, str, bytes, int, str]] = []
    async with await SQLiteStore.open(path) as store:
        for session in await store.scan_sessions():
            for message in await store.read(session.key, limit=10**9):
                row = (message.id, message.digest, message.total, message.state)
                found.append((session.id, message.seq, *row))
    return found


@pytest.mark.timeout(900)
def test_a_large_export_killed_in_the_middle_of_its_import_arrives_whole(tmp_path: Path) -> None:
    source, target, file = tmp_path / "a.db", tmp_path / "b.db", tmp_path / "all.jsonl"
    asyncio.run(make_store(source, SIZE))
    begin = time.perf_counter()
    run("export", "--store", f"sqlite:///{source}", "-o", file)
    exported_in = time.perf_counter() - begin

    command = keepthread("import", "--store", f"sqlite:///{target}", file)
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while loaded(target) < SIZE // 3:
        assert process.poll() is None, "the import ended before it could be killed"
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert 0 < loaded(target) < SIZE
    assert run("sessions", "--store", f"sqlite:///{target}", "--json") == ""

    begin = time.perf_counter()
    done = json.loads(run("import", "--store", f"sqlite:///{target}", file, "--json"))
    print(f"{SIZE} messages: exported in {exported_in:.1f} s, ", end="")
    print(f"resumed and imported in {time.perf_counter() - begin:.1f} s")
    assert done["messages"] == SIZE
    assert asyncio.run(digests(source)) == asyncio.run(digests(target))
    assert json.loads(run("verify", "--store", f"sqlite:///{target}", "--json"))["sound"]


def loaded(path: Path) -> int:
    """Count the messages that an import has stored so far, from another process."""
    if not path.exists():
        return 0
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        return db.execute("SELECT count(*) FROM messages").fetchone()[0]
    except sqlite3.OperationalError:  # it is just being made
        return 0
    finally:
        db.close()
