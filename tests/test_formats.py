"""A file of this keepthread opens with all it holds; one of an earlier version is refused."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keepthread import RamStore, Record, Scope, SessionInfo, SessionKey, SQLiteStore
from keepthread.errors import WrongFormat
from keepthread.protocols import Store
from keepthread.stores.postgres import schema as postgres_schema
from keepthread.stores.sqlite import schema as sqlite_schema
from keepthread.stores.validation import check_format
from tests.formats.content import HERE, fill, make, settled

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
