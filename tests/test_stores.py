"""Both backends through the contract that every backend passes."""

from collections.abc import Callable
from pathlib import Path

from keepthread.protocols import Store
from keepthread.stores.ram import RamStore
from keepthread.stores.sqlite import SQLiteStore
from keepthread.testing.contract import StoreContract


class TestRamStore(StoreContract):
    async def open_store(self, folder: Path, *, clock: Callable[[], float]) -> Store:
        return RamStore(clock=clock)


class TestSQLiteStore(StoreContract):
    async def open_store(self, folder: Path, *, clock: Callable[[], float]) -> Store:
        return await SQLiteStore.open(folder / "store.db", clock=clock)


class TestFasterSQLiteStore(StoreContract):
    async def open_store(self, folder: Path, *, clock: Callable[[], float]) -> Store:
        return await SQLiteStore.open(folder / "store.db", clock=clock, durability="process")
