"""Files and images in a chat: `@path`, `--attach`, and what is said of files that cannot go."""

import base64
from pathlib import Path
from typing import Any

import pytest

from keepthread import Memory
from keepthread.apps.cli.chat.attachments import mentioned, read_file, typed_part, with_files
from keepthread.apps.cli.chat.delivery import deliver
from keepthread.apps.cli.chat.persistence import Persistence
from keepthread.apps.cli.chat.talk import Talk
from keepthread.errors import InvalidInput
from keepthread.testing.model import ScriptedModel
from keepthread.testing.server import ScriptedServer
from tests.chatting import home

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(200))


def images_in(body: Any) -> list[str]:
    parts = [p for m in body["messages"] for p in m["content"] if isinstance(m["content"], list)]
    return [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]


async def test_files_go_with_a_message_and_are_stored_with_it(tmp_path: Path) -> None:
    (tmp_path / "my notes.md").write_text("Buy ``` milk\n")
    (tmp_path / "cat.png").write_bytes(PNG)
    with ScriptedServer(["A cat.", "Still a cat."]) as server:
        place = home(tmp_path, server)
        with place.start("--session", "s", "--attach", "cat.png", rows=40) as chat:
            chat.asked("@cat.png ")
            chat.type("what is it, and @my")
            chat.key("tab")
            chat.sees_at_cursor('@"my notes.md"')
            chat.key("enter")
            chat.sees("A cat.")
            chat.asked()
            assert "+ cat.png: PNG, 208 bytes, about 1,600 tokens" in chat.seen
            assert "+ my notes.md: text, 13 bytes, about" in chat.seen
            assert "Still a cat." in chat.say("sure? write to ana@example.com, @property")
            shown = chat.say("/rewind 2", offer='@cat.png what is it, and @"my notes.md"')
            assert "2 turns" in shown
        first, second = server.requests
        assert "[file my notes.md, 13 bytes]\n````\nBuy ``` milk\n````" in first.text
        address = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
        assert images_in(first.body) == images_in(second.body) == [address]
        assert second.text == "sure? write to ana@example.com, @property"
        async with Memory.open(f"sqlite:///{place.store}") as memory:
            owner = memory.for_owner("default")
            session = await owner.get_session("s")
            (image,) = (await session.messages())[0].attachments
            assert (image.name, image.media_type) == ("cat.png", "image/png")
            assert await owner.blobs.read(image.uri.removeprefix("blob:")) == PNG
            await owner.delete_session("s")
            assert await owner.blobs.list() == []


async def test_one_question_takes_files_and_reads_none_that_its_text_names(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha")
    (tmp_path / "secret.txt").write_text("hush")
    with ScriptedServer(["Read."]) as server:
        place = home(tmp_path, server)
        missing = place.run("chat", "-p", "Look", "--attach", "b.txt")
        assert missing.returncode == 2
        assert missing.stderr == b"error: there is no file b.txt here\n"
        done = place.run("chat", "-p", "Look at @secret.txt", "--attach", "a.txt")
        assert done.stdout == b"Read.\n", done.stderr
        assert b"+ a.txt: text, 5 bytes, about" in done.stderr
        (asked,) = server.requests
        assert "alpha" in asked.text
        assert "hush" not in asked.text


def test_an_at_that_names_no_file_is_text(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.txt").write_text("x")
    texts = (
        "ana@a.txt",
        "@property\ndef f(self): ...",
        "@app.route('/x')",
        "import x from '@/a.txt'",
        "@types/node",
        "@ a.txt",
        "@@ -1,2 +1,2 @@",
        "@ or @... or @~ or @/",
    )
    assert [mentioned(text) for text in texts] == [[]] * len(texts)
    named = mentioned("see (@a.txt), @a.txt. or @./a.txt!")
    assert [file.name for file in named] == ["a.txt"]
    assert typed_part(with_files("see @a.txt", named)) == "see @a.txt"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@gone.md", "there is no file gone.md here; to send @gone.md as text, put a space"),
        ("@./gone", "there is no file ./gone here"),
        ('@"no such"', "there is no file no such here"),
        ("@~nobody-here/x", "~nobody-here/x: there is no such home folder"),
        ("@folder", "folder is a folder; name a file in it"),
        ("@data.bin", "data.bin is neither text in UTF-8 nor an image (PNG, JPEG, GIF, WebP)"),
        (
            "@long.txt",
            "long.txt has 900,001 bytes, but the limit for text files together is 900,000",
        ),
        ("@half.txt @more.txt", "the files have 1,000,000 bytes of text"),
        ("@large.png", "large.png has 5,000,208 bytes, but the limit for an image is 5,000,000"),
    ],
)
def test_a_file_that_cannot_go_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: Any, text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "data.bin").write_bytes(b"\0\1\2")
    (tmp_path / "long.txt").write_text("x" * 900_001)
    for name in ("half.txt", "more.txt"):
        (tmp_path / name).write_text("y" * 500_000)
    (tmp_path / "large.png").write_bytes(PNG + bytes(5_000_000))
    with pytest.raises(InvalidInput) as caught:
        mentioned(text)
    assert said in str(caught.value)


async def test_a_pasted_text_sends_no_file_from_elsewhere_unasked(tmp_path: Path) -> None:
    (tmp_path / "key.txt").write_text("hush")
    (tmp_path / "work").mkdir()
    with ScriptedServer(["No file."]) as server:
        place = home(tmp_path / "work", server)
        with place.chat() as chat:
            chat.terminal.paste(f"Summarize:\nplease read @{tmp_path}/key.txt\nin brief")
            chat.sees_at_cursor("in brief")
            chat.key("enter")
            chat.answer("n")
            chat.sees("No file.")
        assert "hush" not in server.requests[0].context


async def test_a_file_that_is_missing_sends_nothing_and_offers_the_line(tmp_path: Path) -> None:
    with ScriptedServer([]) as server, home(tmp_path, server).chat() as chat:
        chat.send("Read @gone.md")
        chat.sees("error: there is no file gone.md here")
        chat.asked("Read @gone.md")
        assert not server.requests


async def test_images_survive_an_outage_and_come_home(tmp_path: Path) -> None:
    (tmp_path / "cat.png").write_bytes(PNG)
    persistence = Persistence("ram://", Memory.open, None)
    await persistence.begin()
    talk = Talk(persistence, ScriptedModel(["A cat."]), id="s")
    files = [read_file(str(tmp_path / "cat.png"))]
    assert [piece async for piece in talk.ask("What?", files=files)]
    async with Memory.open("ram://") as store:
        done = await deliver(persistence._whole, store)
        assert (done.messages, done.failed) == (2, "")
        owner = store.for_owner("default")
        (question, _) = await (await owner.get_session("s")).messages()
        digest = question.attachments[0].uri.removeprefix("blob:")
        assert await owner.blobs.read(digest) == PNG
    await persistence.close()
