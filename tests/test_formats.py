"""A file that a released keepthread wrote is opened by this one, with all it holds."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keepthread import RamStore, Record, Scope, SessionInfo, SessionKey, SQLiteStore
from keepthread.protocols import Store
from keepthread.stores.sqlite.schema import FORMAT
from tests.formats.content import HERE, fill, settled

FILES = sorted(HERE.glob("format-*.db"))


def test_every_format_has_its_file() -> None:
    assert [file.stem for file in FILES] == [f"format-{n}" for n in range(1, FORMAT + 1)]


async def contents(store: Store) -> list[Any]:
    """Return all that a store holds, without what each store chooses for itself."""
    found: list[Any] = []
    for tenant in ("default", "other"):
        behind = store.tenant(tenant)
        for id in ("discord:42", "child"):
            session = await behind.get_session(id)
            if session is not None:
                found.append(_apart(session))
                found += await behind.read(session.key)
                found += [_apart(r) for r in await behind.scan(Scope(session=session.key))]
        for scope in (Scope(owner="ana"), Scope()):
            found += [_apart(record) for record in await behind.scan(scope)]
    return found


def _apart(noun: SessionInfo | Record) -> SessionInfo | Record:
    if isinstance(noun, SessionInfo):
        return replace(noun, key=SessionKey(""), fence="")
    spans = tuple(span._replace(session=SessionKey("")) for span in noun.made_of)
    scope = noun.scope._replace(session=SessionKey(""))
    return replace(noun, version=0, scope=scope, made_of=spans)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
async def test_a_file_of_an_earlier_format_opens_with_all_it_holds(
    file: Path, tmp_path: Path
) -> None:
    shutil.copy(file, tmp_path / "old.db")
    fresh = RamStore(**settled())
    await fill(fresh)
    async with await SQLiteStore.open(tmp_path / "old.db") as store:
        assert await contents(store) == await contents(fresh)
        assert (await store.verify()).sound
