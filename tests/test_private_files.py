"""Files that keepthread writes: private, complete, and never through somebody else's link."""

import asyncio
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from keepthread import SQLiteStore
from keepthread.errors import InvalidInput, Unavailable
from keepthread.interchange.transcripts import save_transcript, transcript_name
from keepthread.stores.private_files import private_copy, private_file
from keepthread.stores.sqlite.file import FileLock
from keepthread.testing.contract import new_session, user
from tests import preloaded


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Path]:
    """Return a file that planted links lead to; it must not change."""
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / "victim"
    file.write_text("precious")
    file.chmod(0o644)
    yield file
    assert file.read_text() == "precious"
    assert stat.S_IMODE(file.stat().st_mode) == 0o644


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder that somebody else prepared."""
    (tmp_path / "repository").mkdir()
    return tmp_path / "repository"


def is_private(file: Path) -> bool:
    return not file.is_symlink() and stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


# --- the writer ---


@pytest.mark.usefixtures("open_umask")
def test_a_file_is_private_and_appears_once_it_is_complete(folder: Path) -> None:
    path = folder / "notes.md"
    with private_file(path) as write:
        write(b"half")
        assert not path.exists()
        (part,) = folder.iterdir()
        assert is_private(part)
        write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert is_private(path)
    assert list(folder.iterdir()) == [path]


def test_a_file_that_was_not_completed_leaves_the_old_one(folder: Path) -> None:
    path = folder / "notes.md"
    path.write_text("old")

    def fail() -> None:
        with private_file(path) as write:
            write(b"new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert path.read_text() == "old"
    assert list(folder.iterdir()) == [path]


def test_a_link_is_replaced_and_not_followed(folder: Path, victim: Path) -> None:
    path = folder / "notes.md"
    path.symlink_to(victim)
    with private_file(path) as write:
        write(b"mine")
    assert path.read_bytes() == b"mine"
    assert is_private(path)


def test_a_guessed_name_is_refused_and_not_followed(
    folder: Path, victim: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "urandom", bytes)
    (folder / f"notes.md.{'0' * 16}.part").symlink_to(victim)
    with pytest.raises(FileExistsError), private_file(folder / "notes.md"):
        pass


def test_a_long_name_has_room_for_the_unfinished_one(folder: Path) -> None:
    path = folder / ("n" * 255)
    with private_file(path) as write:
        write(b"x")
    assert path.read_bytes() == b"x"


def test_a_copy_replaces_nothing(folder: Path) -> None:
    path = folder / "copy.db"

    def copy() -> None:
        with private_copy(path) as part:
            part.write_bytes(b"copy")
            path.write_bytes(b"of another")

    with pytest.raises(FileExistsError):
        copy()
    assert path.read_bytes() == b"of another"
    assert list(folder.iterdir()) == [path]


def test_a_copy_works_without_hard_links(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "link", refuse)
    path = folder / "copy.db"
    with private_copy(path) as part:
        part.write_bytes(b"copy")
    assert path.read_bytes() == b"copy"
    with pytest.raises(FileExistsError), private_copy(path):
        pass
    assert list(folder.iterdir()) == [path]


# --- everything that writes a file ---


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("out.jsonl", ["export", "-o", "out.jsonl"]),
        ("out.md", ["export", "s", "--format", "markdown", "-o", "out.md"]),
        ("facts.md", ["facts", "export", "-o", "facts.md"]),
        ("copy.db", ["backup", "copy.db"]),
    ],
)
def test_a_command_does_not_write_through_planted_links(
    folder: Path, victim: Path, tmp_path: Path, name: str, arguments: list[str]
) -> None:
    async def fill() -> None:
        async with await SQLiteStore.open(tmp_path / "chat.db") as store:
            await store.append(await new_session(store, "s"), [user("a")])

    asyncio.run(fill())
    (folder / f"{name}.part").symlink_to(victim)
    if not name.endswith(".db"):
        (folder / name).symlink_to(victim)
    store = f"sqlite:///{tmp_path}/chat.db"
    done = preloaded.command("--store", store, *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert is_private(folder / name)


async def test_a_backup_does_not_follow_the_link_at_its_name(
    folder: Path, victim: Path, tmp_path: Path
) -> None:
    (folder / "copy.db").symlink_to(victim)
    async with await SQLiteStore.open(tmp_path / "chat.db") as store:
        with pytest.raises(InvalidInput, match="never overwrites a file"):
            await store.backup(folder / "copy.db")


@pytest.mark.usefixtures("open_umask")
async def test_a_transcript_does_not_follow_planted_links(
    folder: Path, victim: Path, tmp_path: Path
) -> None:
    async with await SQLiteStore.open(tmp_path / "chat.db") as store:
        await store.append(await new_session(store, "s"), [user("a")])
        session = await store.get_session("s")
        assert session
        name = transcript_name(session)
        for planted in (name, f"{name}.part"):
            (folder / planted).symlink_to(victim)
        many = [save_transcript(store, session, folder) for _ in range(4)]
        assert set(await asyncio.gather(*many)) == {folder / name}
    assert is_private(folder / name)


async def test_a_lock_does_not_follow_a_planted_link(folder: Path, victim: Path) -> None:
    path = folder / "chat.db"
    path.with_name("chat.db-lock").symlink_to(victim.with_name("created"))
    with pytest.raises(OSError, match="symbolic link"):
        FileLock(path.with_name("chat.db-lock")).take()
    with pytest.raises(Unavailable):
        await SQLiteStore.open(path)
    assert not victim.with_name("created").exists()
