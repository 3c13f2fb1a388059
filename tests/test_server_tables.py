"""The tables of a server on every store: API keys, secrets, requests and the audit log."""

from pathlib import Path

import pytest

from keepthread.errors import Unsupported
from keepthread.protocols import Store
from keepthread.stores.outbox.store import OutboxStore
from keepthread.stores.ram import RamStore
from keepthread.stores.sqlite import SQLiteStore
from keepthread.testing.tables import TablesContract


class TestRamTables(TablesContract):
    async def open_store(self, folder: Path) -> Store:
        return RamStore()


class TestSQLiteTables(TablesContract):
    async def open_store(self, folder: Path) -> Store:
        return await SQLiteStore.open(folder / "store.db")


async def test_a_store_with_an_outbox_has_no_tables(tmp_path: Path) -> None:
    target = tmp_path / "target.db"
    async with await OutboxStore.open(
        tmp_path / "outbox.db", lambda: SQLiteStore.open(target), target="file"
    ) as store:
        with pytest.raises(Unsupported, match="without the outbox"):
            store.server_tables()
