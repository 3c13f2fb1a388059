"""The proof of hostile input is not blind: it notices bugs that are planted in one store."""

import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keepthread.errors import InvalidInput
from keepthread.stores.sqlite import SQLiteStore
from keepthread.types import Message, SessionKey
from proofs.p13_hostile import try_all
from proofs.places import file_url
from tests.seeds import SEED

right = SQLiteStore.append


async def broken(folder: Path) -> str:
    outcome = await try_all(file_url(folder / "hostile.db"), 150, SEED, lambda done, of: None)
    return "\n".join(outcome.broken)


async def changed(
    self: SQLiteStore, key: SessionKey, batch: Sequence[Message], **options: Any
) -> Any:
    """Store text in another normal form."""
    batch = [
        replace(m, content=unicodedata.normalize("NFD", m.content))
        if isinstance(m.content, str)
        else m
        for m in batch
    ]
    return await right(self, key, batch, **options)


async def stripped(
    self: SQLiteStore, key: SessionKey, batch: Sequence[Message], **options: Any
) -> Any:
    """Store text without NUL."""
    batch = [
        replace(m, content=m.content.replace("\0", "")) if isinstance(m.content, str) else m
        for m in batch
    ]
    return await right(self, key, batch, **options)


async def untyped(
    self: SQLiteStore, key: SessionKey, batch: Sequence[Message], **options: Any
) -> Any:
    """Refuse with an error that is not ours."""
    try:
        return await right(self, key, batch, **options)
    except InvalidInput as error:
        raise ValueError(str(error)) from error


async def partial(
    self: SQLiteStore, key: SessionKey, batch: Sequence[Message], **options: Any
) -> Any:
    """Store the first message of a batch that is refused."""
    try:
        return await right(self, key, batch, **options)
    except InvalidInput:
        if len(batch) > 1:
            await right(self, key, batch[:1], **options)
        raise


async def test_without_a_bug_nothing_is_broken(tmp_path: Path) -> None:
    assert await broken(tmp_path) == ""


@pytest.mark.parametrize("bug", [changed, stripped, untyped, partial])
async def test_the_proof_notices_what_one_store_does_differently(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Any
) -> None:
    monkeypatch.setattr(SQLiteStore, "append", bug)
    assert await broken(tmp_path)
