"""Transcripts: people read them, and they read back exactly; no text in them forges a message."""

import asyncio
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keepthread import Attachment, Memory, Message, RamStore, SessionInfo, SQLiteStore, ToolCall
from keepthread.errors import (
    InvalidInput,
    KeepthreadError,
    SessionGone,
    SessionNotFound,
    WrongFormat,
)
from keepthread.interchange.conversations import Arrived
from keepthread.interchange.export import export
from keepthread.interchange.markdown import header_of, markdown_of, read_markdown
from keepthread.interchange.transcripts import (
    import_transcript,
    newest_transcript,
    save_transcript,
    seed,
    transcript_name,
    write_transcript,
)
from keepthread.protocols import Store
from keepthread.testing.contract import new_session, user
from tests import preloaded

AT = 1763112612.25  # 2025-11-14 09:30:12.25 UTC
CALL = ToolCall(id="call_1", name="weather", arguments='{"city": "Jakarta"}')
TALK = (
    Message(role="user", content="How is the weather?", author="ana", created_at=AT),
    Message(role="assistant", tool_calls=(CALL,), created_at=AT + 1),
    Message(role="tool", content="32 °C", tool_call_id="call_1", name="weather", created_at=AT + 2),
    Message(role="assistant", content="# Sunny\n\n## User\n\n32 °C.\n", created_at=AT + 3),
)


async def talk(store: Store, id: str = "discord:42", **options: Any) -> SessionInfo:
    info = SessionInfo(id=id, owner="ana", created_at=AT, **options)
    session = await store.put_session(info)
    await store.append(session.key, TALK)
    return await store.describe(session.key)


async def written(store: Store, session: SessionInfo) -> bytes:
    out = io.BytesIO()
    await write_transcript(store, session, out.write)
    return out.getvalue()


async def read(store: Store, data: bytes, **options: Any) -> Arrived:
    return await import_transcript(store, io.BytesIO(data), **options)


async def test_a_transcript_is_markdown_that_people_can_read() -> None:
    store = RamStore()
    data = await written(store, await talk(store, title="Weekend in Jakarta"))
    assert data.decode() == (
        "<!-- keepthread transcript 1 -->\n"
        "# Weekend in Jakarta\n"
        "\n"
        "- session: discord:42\n"
        "- owner: ana\n"
        "- begun: 2025-11-14 09:30:12.25 UTC\n"
        "\n"
        "## User · by ana · 2025-11-14 09:30:12.25 UTC\n"
        "\n"
        "How is the weather?\n"
        "\n"
        "## Assistant · 2025-11-14 09:30:13.25 UTC\n"
        "\n"
        "### Call · to weather · as call_1\n"
        "\n"
        '{"city": "Jakarta"}\n'
        "\n"
        "## Tool · from weather · for call_1 · 2025-11-14 09:30:14.25 UTC\n"
        "\n"
        "32 °C\n"
        "\n"
        "## Assistant · 2025-11-14 09:30:15.25 UTC\n"
        "\n"
        "# Sunny\n"
        "\n"
        "\\## User\n"
        "\n"
        "32 °C.\n"
        "\n\n"
    )


async def test_a_transcript_reads_back_as_data_and_once() -> None:
    store, twin = RamStore(), RamStore()
    data = await written(store, await talk(store, title="Weekend"))
    done = await read(twin, data)
    assert (done.sessions, done.messages, done.refused) == (1, 4, 0)
    session = await twin.get_session("discord:42", "ana")
    assert session is not None
    assert (session.owner, session.title, session.created_at) == ("ana", "Weekend", AT)
    assert session.system_prompt is None
    messages = await twin.read(session.key)
    for given_, found in zip(TALK, messages, strict=True):
        for name in ("role", "content", "author", "name", "tool_calls", "created_at"):
            assert getattr(found, name) == getattr(given_, name), name
        assert found.origin == "import"
        assert re.fullmatch("import:[0-9a-f]{32}", found.source or "")
    assert [m.turn for m in messages] == [1, 1, 1, 1]
    again = await read(twin, data)
    assert (again.known, again.sessions) == (1, 1)
    assert await twin.read(session.key) == messages
    copied = await Memory(twin).get_session("discord:42", owner="ana")
    context = await copied.context(budget=1000)
    said = context.to_openai_chat()["messages"]
    assert [m["role"] for m in said] == ["user", "assistant", "tool", "user"]
    assert said[-1]["content"].startswith("Assistant (import) said:\n> ")


async def test_a_taken_id_is_named_and_a_prefix_or_an_owner_can_be_given() -> None:
    store = RamStore()
    data = await written(store, await talk(store))
    done = await read(store, data)
    assert done.refused == 1
    assert "--as PREFIX" in done.problems[0].what
    assert (await read(store, data, prefix="old/", owner="bea")).refused == 0
    session = await store.get_session("old/discord:42", "bea")
    assert session is not None
    assert session.owner == "bea"
    assert (await read(store, data, owner="bea")).refused == 0  # ana's has the id, bea's has not


ANY = st.text(st.characters(exclude_categories=()), max_size=12)
TEXTS = ANY | st.lists(
    st.sampled_from(
        ["## User", "\\## User · x", "### Call · to x", "", "\r", "&#13;", "&amp;#13;", "\\", "# a"]
    )
    | ANY,
    max_size=6,
).map("\n".join)
TIMES = st.floats(0, 1e300, allow_nan=False) | st.floats(1e9, 2e9)
NAMES = st.none() | st.text(min_size=1, max_size=8).filter(str.isprintable)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=TEXTS,
    author=NAMES,
    name=st.none() | TEXTS,
    tool_call_id=st.none() | TEXTS,
    created_at=TIMES,
    tool_calls=st.lists(st.builds(ToolCall, id=TEXTS, name=TEXTS, arguments=TEXTS), max_size=2).map(
        tuple
    ),
    attachments=st.lists(st.builds(Attachment, media_type=TEXTS, name=TEXTS), max_size=2).map(
        tuple
    ),
)


@given(
    messages=st.lists(MESSAGES, max_size=4),
    title=TEXTS,
    id=st.text(min_size=1, max_size=9).filter(str.isprintable),
    crlf=st.booleans(),
)
@example(messages=[Message(role="user", content="\n## User\n")], title="", id="a", crlf=True)
def test_any_conversation_reads_back_exactly(
    messages: list[Message], title: str, id: str, crlf: bool
) -> None:
    session = SessionInfo(id=id, owner="ana", title=title, created_at=AT)
    text = header_of(session) + "".join(map(markdown_of, messages))
    data = text.encode()
    if crlf:  # as an editor on another system saves it
        data = data.replace(b"\n", b"\r\n")
    found = read_markdown(data)
    assert list(found.messages) == messages
    assert (found.session, found.owner, found.begun) == (id, "ana", AT)
    assert found.title in (title.strip(), "")


async def test_what_was_erased_is_told_but_not_said() -> None:
    store = RamStore()
    session = await talk(store)
    await store.erase(session.key, [1])
    data = await written(store, session)
    assert b"## User \xc2\xb7 erased" in data
    assert b"How is" not in data
    assert [m.role for m in read_markdown(data).messages] == ["assistant", "tool", "assistant"]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "marker is missing"),
        (b"# A title\n\n## User\n\nhello\n", "marker is missing"),
        (b"<!-- keepthread transcript 2 -->\n", "newer keepthread"),
        (b"<!-- keepthread transcript 1 -->\n# x\n\n## User\n\nhi\n", "- session:"),
        (b"<!-- keepthread transcript 1 -->\n- session: \xff\n", "not UTF-8"),
    ],
)
async def test_a_file_that_is_no_transcript_is_refused(data: bytes, says: str) -> None:
    with pytest.raises((WrongFormat, InvalidInput), match=says):
        await read(RamStore(), data)


@given(st.lists(st.sampled_from(["## User · ", "### Call", "\n", "by &#9999999;", "9" * 30]) | ANY))
def test_whatever_stands_in_a_transcript_ends_in_a_session_or_in_an_error_of_ours(
    pieces: list[str],
) -> None:
    head = "<!-- keepthread transcript 1 -->\n- session: ../../etc\n- begun: soon\n\n"
    data = (head + "".join(pieces)).encode("utf-8", "surrogatepass")

    async def run() -> None:
        store = RamStore()
        try:
            first = await read(store, data)
        except KeepthreadError:
            return
        assert first.sessions + first.refused == 1
        assert (await read(store, data)).known == first.sessions
        assert (await store.verify()).sound

    asyncio.run(run())


# --- names, folders, seeds ---


@given(id=st.text(min_size=1, max_size=255).filter(str.isprintable), title=ANY, at=TIMES)
@example(id="../../etc/passwd", title="../..", at=0.0)
@example(id="CON", title="", at=1e300)
@example(id="a" * 255, title="b" * 300, at=AT)
def test_a_name_is_safe_on_every_file_system(id: str, title: str, at: float) -> None:
    name = transcript_name(SessionInfo(id=id, title=title, updated_at=at))
    assert re.fullmatch(r"session-memory-[a-z0-9-]+-[a-z0-9_-]+(\.[0-9a-f]{12})?-[0-9-]+\.md", name)
    assert len(name) < 200
    other = transcript_name(SessionInfo(id=id + "_", title=title, updated_at=at))
    assert other != name


async def test_a_session_is_named_by_topic_id_and_time(tmp_path: Path) -> None:
    store = RamStore()
    session = await talk(store, "lobby", title="Weekend in Jakarta!", updated_at=AT)
    assert transcript_name(replace(session, updated_at=AT)) == (
        "session-memory-weekend-in-jakarta-lobby-20251114-093012.md"
    )
    path = await save_transcript(store, session, tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.stat().st_mode & 0o077 == 0
    assert path.read_bytes() == await written(store, session)


async def test_a_saved_transcript_has_the_messages_of_now(tmp_path: Path) -> None:
    store = RamStore()
    before = await talk(store)
    await store.append(before.key, [user("Later.")])
    path = await save_transcript(store, before, tmp_path)
    assert path.read_text().rstrip().endswith("Later.")
    now = await store.describe(before.key)
    assert path.name == transcript_name(now)
    await store.delete_session(before.key)
    with pytest.raises(SessionGone):
        await save_transcript(store, before, tmp_path)


async def test_a_session_is_seeded_with_the_last_messages_of_its_newest_transcript(
    tmp_path: Path,
) -> None:
    store, twin = RamStore(), RamStore()
    session = await talk(store)
    for id, at, more in (
        ("discord:42", AT, "older"),
        ("discord:42", AT + 60, "newest"),
        ("discord:4", AT + 90, "another channel"),
        ("x-discord:42", AT + 90, "looks alike"),
    ):
        copy = replace(session, id=id, updated_at=at)
        text = await written(store, copy) + markdown_of(user(more)).encode()
        (tmp_path / transcript_name(copy)).write_bytes(text)
    (tmp_path / "session-memory-x-discord_42-20990101-000000.md").write_text("no transcript")
    found = newest_transcript(tmp_path, "discord:42")
    assert found is not None
    assert "newest" in found.read_text()

    assert await seed(twin, "discord:42", tmp_path, last=3, owner="ana") == 3
    made = await twin.get_session("discord:42", "ana")
    assert made is not None
    assert made.owner == "ana"
    messages = await twin.read(made.key)
    assert [m.content for m in messages][1:] == ["# Sunny\n\n## User\n\n32 °C.\n", "newest"]
    assert {m.origin for m in messages} == {"import"}
    assert await seed(twin, "discord:42", tmp_path, owner="ana") == 0
    assert await twin.read(made.key) == messages
    assert await seed(twin, "discord:43", tmp_path, owner="ana") == 0
    assert await twin.get_session("discord:43", "ana") is None
    await seed(twin, "discord:42", tmp_path, owner="bea")
    assert await twin.read(made.key) == messages


async def test_who_speaks_first_is_not_seeded_and_many_seeds_are_one(tmp_path: Path) -> None:
    store = RamStore()
    await save_transcript(store, await talk(store), tmp_path)
    twin = RamStore()
    counts = await asyncio.gather(*(seed(twin, "discord:42", tmp_path) for _ in range(5)))
    assert max(counts) == 4
    made = await twin.get_session("discord:42")
    assert made is not None
    assert made.messages == 4
    other = RamStore()
    key = await new_session(other, "discord:42")
    await other.append(key, [user("hello")])
    assert await seed(other, "discord:42", tmp_path) == 0


# --- by owner ---


async def test_an_export_of_an_owner_holds_what_is_theirs_and_no_more() -> None:
    store = RamStore()
    await talk(store, "hers")
    key = await new_session(store, "his", owner="bob")
    await store.append(key, [user("secret of bob")])
    out = io.BytesIO()
    done = await export(store, out.write, owner="ana")
    assert (done.sessions, done.messages) == (1, 4)
    assert b"bob" not in out.getvalue()
    kinds = [next(iter(json.loads(line))) for line in out.getvalue().splitlines()]
    assert kinds == ["format", "session", *["message"] * 4, "end"]
    with pytest.raises(SessionNotFound):
        await export(store, out.write, sessions=["his"], owner="ana")


# --- the command ---


def keepthread(*arguments: str | Path, status: int = 0) -> str:
    """Run the command as a program would, and return what it answered; errors if it failed."""
    result = preloaded.command(*arguments)
    assert result.returncode == status, result.stderr
    return result.stderr if status else result.stdout


async def two_owners(path: Path) -> None:
    async with await SQLiteStore.open(path) as store:
        await talk(store, "hers", title="Weekend")
        key = await new_session(store, "his", owner="bob")
        await store.append(key, [user("secret of bob")])
        await new_session(store, "task", owner="ana", kind="delegate", parent="hers")


def test_the_command_writes_transcripts_by_owner_and_reads_them_by_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEEPTHREAD_STORE", "sqlite:///chat.db")
    asyncio.run(two_owners(tmp_path / "chat.db"))
    done = json.loads(keepthread("export", "--to", "out", "--owner", "ana", "--json"))
    assert (done["sessions"], done["messages"], done["damaged"]) == (1, 4, [])
    (path,) = Path("out").iterdir()
    hers = ("export", "hers", "--owner", "ana", "--format", "markdown")
    assert keepthread(*hers) == path.read_text()
    other = ("--store", "sqlite:///other.db", "--json")
    assert json.loads(keepthread("import", path, *other))["sessions"] == 1
    assert json.loads(keepthread("import", path, *other))["known"] == 1
    seeded = keepthread(
        "import", "out", "--session", "hers", "--last", "2", "--store=sqlite:///s.db"
    )
    assert seeded == ""
    shown = keepthread("show", "hers", "--store", "sqlite:///s.db", "--json").splitlines()
    assert [json.loads(line)["role"] for line in shown] == ["tool", "assistant"]
    lines = keepthread("export", "--owner", "bob").splitlines()
    assert json.loads(lines[-1]) == {"end": {"sessions": 1, "messages": 1, "records": 0}}


def test_the_command_says_what_to_do_instead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KEEPTHREAD_STORE", "sqlite:///chat.db")
    asyncio.run(two_owners(tmp_path / "chat.db"))
    Path("no.json").write_text('[{"a": 1}]')
    Path("no.md").write_text("<!-- keepthread transcript 1 -->\n")
    for arguments, says in (
        (["export", "--format", "markdown"], "name one of them, or give --to FOLDER"),
        (["export", "--format", "pdf"], "--format must be jsonl or markdown"),
        (["export", "--to", "out", "-o", "x"], "leave out -o"),
        (
            ["export", "his", "--format", "markdown", "--owner", "ana"],
            "ana has no session 'his'; bob has",
        ),
        (["import", "."], "--session SESSION"),
        (["import", "no.json", "--session", "x"], "a folder of transcripts; to import one file"),
        (["import", "no.json", "--format", "pdf"], "jsonl, markdown, chatgpt, claude"),
        (["import", "no.json", "--store", "sqlite:///new.db"], "its conversations.json"),
        (["import", "no.md", "--store", "sqlite:///new.db"], "- session: "),
        (["import", "no.md", "--branches"], "a transcript has no branches"),
        (["import", "no.json", "--format", "jsonl", "--owner", "ana"], "leave out --owner"),
    ):
        assert says in keepthread(*arguments, status=2), arguments
    assert not Path("new.db").exists()
