"""A file of this keepthread opens with all it holds; one of an earlier version is refused."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keepthread import Memory, RamStore, Record, Scope, SessionInfo, SessionKey, SQLiteStore
from keepthread.errors import WrongFormat
from keepthread.protocols import Store
from keepthread.references import References
from keepthread.stores.kinds import ADDITION
from keepthread.stores.postgres import schema as postgres_schema
from keepthread.stores.records import decode_details, encode_details
from keepthread.stores.sqlite import schema as sqlite_schema
from keepthread.stores.validation import check_format
from tests.formats.content import HERE, fill, make, settled

ROOT = Path(__file__).resolve().parent.parent
FILES = sorted(HERE.glob("format-*.db"))


async def contents(store: Store) -> list[Any]:
    """Return all that a store holds, without what each store chooses for itself."""
    found: list[Any] = []
    for tenant in ("default", "other"):
        behind = store.tenant(tenant)
        for id, owner in (("discord:42", "ana"), ("discord:42", "default"), ("child", "agent:x")):
            session = await behind.get_session(id, owner)
            if session is not None:
                found.append(_apart(session))
                found += await behind.read(session.key)
                found += [_apart(r) for r in await behind.scan(Scope(session=session.key))]
        for scope in (Scope(owner="ana"), Scope()):
            found += [_apart(record) for record in await behind.scan(scope)]
    return found


def _apart(noun: SessionInfo | Record) -> SessionInfo | Record:
    if isinstance(noun, SessionInfo):
        return replace(noun, key=SessionKey(""), delimiter="")
    spans = tuple(span._replace(session=SessionKey("")) for span in noun.made_of)
    scope = noun.scope._replace(session=SessionKey(""))
    return replace(noun, version=0, scope=scope, made_of=spans)


async def test_a_file_opens_with_all_it_holds(tmp_path: Path) -> None:
    await make(tmp_path / "chat.db")
    fresh = RamStore(**settled())
    await fill(fresh)
    async with await SQLiteStore.open(tmp_path / "chat.db") as store:
        assert await contents(store) == await contents(fresh)
        assert (await store.verify()).sound


@pytest.mark.parametrize(("first", "schema"), [(3, sqlite_schema), (16, postgres_schema)])
def test_each_earlier_format_names_the_last_commit_that_reads_it(first: int, schema: Any) -> None:
    assert len(schema.READERS) == schema.FORMAT - first
    for number, commit in enumerate(("4ce31d9", *schema.READERS), first - 1):
        with pytest.raises(WrongFormat, match=rf"format {number}, .* at commit {commit} "):
            check_format("a store", number, schema.FORMAT, schema.READERS)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        (sqlite_schema, "src/keepthread/stores/sqlite/schema.py"),
        (postgres_schema, "src/keepthread/stores/postgres/schema.py"),
    ],
)
def test_the_commit_for_the_newest_older_format_reads_it(schema: Any, path: str) -> None:
    if _git("cat-file", "-e", "4ce31d9") is None:
        pytest.skip("this copy has no history")
    text = _git("show", f"{schema.READERS[-1]}:{path}")
    assert text is not None
    assert f"FORMAT: Final = {schema.FORMAT - 1}\n" in text


def _git(*arguments: str) -> str | None:
    """Return what git prints; None if it fails or is not installed."""
    git = shutil.which("git")
    if git is None:
        return None
    command = [git, "-C", str(ROOT), *arguments]
    ran = subprocess.run(command, check=False, capture_output=True, text=True)
    return None if ran.returncode else ran.stdout


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_a_file_of_an_earlier_version_is_refused_with_the_commit_to_export_with(
    file: Path, tmp_path: Path
) -> None:
    path = tmp_path / "old.db"
    shutil.copy(file, path)
    number = file.stem.removeprefix("format-")
    with pytest.raises(WrongFormat, match=rf"format {number}, .*at commit 4ce31d9"):
        await SQLiteStore.open(path)
    assert path.read_bytes() == file.read_bytes()


def test_a_delimiter_is_read_by_its_former_name() -> None:
    session = SessionInfo(id="s", delimiter="0a1b")
    details = json.loads(encode_details(session))
    details["fence"] = details.pop("delimiter")
    assert decode_details(json.dumps(details).encode())["delimiter"] == "0a1b"

    made = References("s", "Window", "bytes", False, "0a1b", 1, "", (), "k", "d")
    value = made.to_record()
    value["fence"] = value.pop("delimiter")
    assert References.from_record(value, "s") == made._replace(messages=[])


async def test_an_addition_is_read_by_the_former_name_of_its_delimiter() -> None:
    store = RamStore()
    async with Memory(store) as memory:
        session = await memory.session("s")
        value: Any = {"fence": "0a1b", "tokens": 9, "at": 1.0, "trust": "user", "facts": []}
        value |= {"messages": [], "body": "Rex barks."}
        await store.put(Scope(session=session.key), ADDITION, "t1", value)
        (addition,) = await session.additions()
        assert addition.text.startswith("[recalled, quoted, delimiter 0a1b]\nRex barks.\n")
