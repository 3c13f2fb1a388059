"""API keys: each is unique, none is stored, and only the right one is accepted, while it holds."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread.apps.http.keys import (
    SCOPES,
    CheckedKey,
    KeyRights,
    SharedKeyReads,
    check_key,
    create_key,
    find_key,
    id_in,
    make_key,
    revoke_key,
    rotate_key,
)
from keepthread.errors import InvalidInput, NotFound, Unavailable
from keepthread.protocols.server import ApiKey, ServerTables
from keepthread.stores.ram import RamStore
from keepthread.stores.sqlite import SQLiteStore

NOW = 1_700_000_000.0
RIGHTS = KeyRights("acme", frozenset(("read", "write")), "bot", "ana", NOW + 1000)


@pytest.fixture
def tables() -> ServerTables:
    return RamStore().server_tables()


async def test_a_key_is_accepted_while_it_holds(tables: ServerTables) -> None:
    new = await create_key(tables, RIGHTS, by="cli", at=NOW)
    assert await check_key(tables, new.text, at=NOW) == CheckedKey(new.key)
    assert await check_key(tables, new.text, at=NOW + 999) == CheckedKey(new.key)
    assert await check_key(tables, new.text, at=NOW + 1000) == CheckedKey(None, "expired")
    assert await revoke_key(tables, "acme", new.key.id, by="cli", at=NOW + 5)
    ending = CheckedKey(new.key._replace(revoked_at=NOW + 5))
    assert await check_key(tables, new.text, at=NOW + 4) == ending
    assert await check_key(tables, new.text, at=NOW + 5) == CheckedKey(None, "revoked")
    assert not await revoke_key(tables, "acme", new.key.id, by="cli", at=NOW + 6)


async def test_every_other_text_is_refused(tables: ServerTables) -> None:
    new = await create_key(tables, RIGHTS, by="cli", at=NOW)
    text = new.text
    for place in range(len(text)):
        for letter in "A0_-é\n":
            if letter != text[place]:
                other = text[:place] + letter + text[place + 1 :]
                assert (await check_key(tables, other, at=NOW)).key is None, place
    stranger = make_key(RIGHTS, at=NOW).text
    mixed = text[:16] + stranger[16:]
    for other in ("", "kt_", text[:-1], text + "A", f" {text}", f"{text}\n", stranger, mixed):
        assert (await check_key(tables, other, at=NOW)).key is None


async def test_the_secret_is_not_stored_and_not_shown(tmp_path: Any) -> None:
    async with await SQLiteStore.open(tmp_path / "store.db") as store:
        new = await create_key(store.server_tables(), RIGHTS, by="cli", at=NOW)
    secret = new.text[16:]
    assert secret not in repr(new)
    for file in tmp_path.iterdir():
        data = file.read_bytes()
        assert secret.encode() not in data
        assert new.key.digest.hex().encode() in data or file.name != "store.db"


@given(st.lists(st.floats(NOW, NOW + 1e9), min_size=2, max_size=20))
def test_ids_sort_by_the_time_they_were_made(times: list[float]) -> None:
    made = [make_key(RIGHTS._replace(expires_at=None), at=at).key for at in times]
    assert len({key.id for key in made}) == len(times)
    for one in made:
        for other in made:
            if other.created_at - one.created_at >= 4:
                assert one.id < other.id


async def test_a_rotated_key_has_the_same_rights_and_the_old_one_ends(tables: ServerTables) -> None:
    old = await create_key(tables, RIGHTS, by="cli", at=NOW)
    new = await rotate_key(tables, "acme", old.key.id, by="cli", at=NOW + 100, grace=60)
    same = {"id": "", "digest": b"", "created_at": 0.0, "expires_at": None}
    assert new.key._replace(**same) == old.key._replace(**same)
    assert new.key.expires_at == NOW + 100 + 1000
    assert (await check_key(tables, old.text, at=NOW + 159)).key is not None
    assert (await check_key(tables, old.text, at=NOW + 160)).refusal == "revoked"
    assert (await check_key(tables, new.text, at=NOW + 160)).key == new.key
    with pytest.raises(InvalidInput, match="revoked"):
        await rotate_key(tables, "acme", old.key.id, by="cli", at=NOW + 160)


async def test_keys_of_another_tenant_are_unknown(tables: ServerTables) -> None:
    new = await create_key(tables, RIGHTS, by="cli", at=NOW)
    for id in (new.key.id, "000000000000"):
        for change in (rotate_key, revoke_key):
            with pytest.raises(NotFound, match=f"there is no key '{id}'"):
                await change(tables, "other", id, by="cli", at=NOW)
    assert (await check_key(tables, new.text, at=NOW)).key == new.key


async def test_changes_are_in_the_audit_log(tables: ServerTables) -> None:
    old = await create_key(tables, RIGHTS, by="cli", at=NOW)
    new = await rotate_key(tables, "acme", old.key.id, by="admin-key", at=NOW + 1)
    await revoke_key(tables, "acme", new.key.id, by="cli", at=NOW + 2)
    await revoke_key(tables, "acme", new.key.id, by="cli", at=NOW + 3)
    entries = await tables.list_audit(tenant="acme")
    assert [(e.at, e.caller, e.owner, e.action, e.targets) for e in entries] == [
        (NOW, "cli", "ana", "keys.create", (old.key.id,)),
        (NOW + 1, "admin-key", "ana", "keys.rotate", (old.key.id, new.key.id)),
        (NOW + 2, "cli", "ana", "keys.revoke", (new.key.id,)),
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scopes": frozenset[str]()}, "needs a scope; there are read"),
        ({"scopes": frozenset(("read", "dance"))}, "'dance' is not a scope"),
        ({"expires_at": NOW}, "would already be expired"),
        ({"owner": ""}, "owner must be"),
        ({"tenant": "a\nb"}, "tenant must be"),
        ({"name": ""}, "name must be"),
    ],
)
async def test_what_cannot_be_a_key_is_refused(
    tables: ServerTables, change: dict[str, Any], said: str
) -> None:
    with pytest.raises(InvalidInput, match=said):
        await create_key(tables, RIGHTS._replace(**change), by="cli", at=NOW)
    assert await tables.list_keys() == []
    assert await tables.list_audit() == []


def test_a_whole_key_stands_for_its_id_and_is_never_repeated() -> None:
    new = make_key(RIGHTS._replace(scopes=frozenset(SCOPES)), at=NOW)
    assert id_in(new.text) == id_in(new.key.id) == new.key.id
    with pytest.raises(InvalidInput) as refused:
        id_in(new.text[:-1])
    assert new.text[16:30] not in str(refused.value)


# --- reads that requests share ---


class SlowTables:
    """Tables whose reads wait until a test lets them go on."""

    def __init__(self) -> None:
        self.key: ApiKey | None = None
        self.reads: list[asyncio.Event] = []

    async def get_key(self, id: str) -> ApiKey | None:
        found, go_on = self.key, asyncio.Event()
        self.reads.append(go_on)
        await go_on.wait()
        return found


async def reads_of(tables: SlowTables, number: int) -> None:
    """Wait until so many reads have begun."""
    for _ in range(1000):
        if len(tables.reads) >= number:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"only {len(tables.reads)} reads have begun")


async def test_requests_share_a_read_that_began_after_they_came() -> None:
    tables = SlowTables()
    shared = SharedKeyReads(tables)
    tables.key = make_key(KeyRights("acme", frozenset({"read"}), "bot"), at=1.0).key
    first = asyncio.create_task(shared.get_key("a"))
    await reads_of(tables, 1)
    later = [asyncio.create_task(shared.get_key("a")) for _ in range(9)]
    other = asyncio.create_task(shared.get_key("b"))
    await reads_of(tables, 2)  # that of the other key does not wait
    later[0].cancel()  # its client is gone
    known, tables.key = tables.key, None  # revoked: the read under way does not know it
    tables.reads[0].set()
    assert await first == known
    await reads_of(tables, 3)
    tables.reads[1].set()
    tables.reads[2].set()
    assert await asyncio.gather(*later[1:]) == [None] * 8
    assert await other == known
    assert len(tables.reads) == 3


async def test_a_read_that_fails_fails_for_its_requests_alone() -> None:
    class Away(SlowTables):
        async def get_key(self, id: str) -> ApiKey | None:
            await super().get_key(id)
            if len(self.reads) == 1:
                raise Unavailable("away")
            return None

    tables = Away()
    shared = SharedKeyReads(tables)
    first = asyncio.create_task(shared.get_key("a"))
    await reads_of(tables, 1)
    second = asyncio.create_task(shared.get_key("a"))
    tables.reads[0].set()
    with pytest.raises(Unavailable):
        await first
    await reads_of(tables, 2)
    tables.reads[1].set()
    assert await second is None


async def test_a_key_is_found_among_keys_with_similar_ids(tables: ServerTables) -> None:
    made = make_key(RIGHTS, at=NOW).key
    ids = ["a", "ab", "aba", "abb", "abc", "abcd", "b"]
    for id in ids:
        await tables.add_key(made._replace(id=id))
    await tables.add_key(made._replace(id="abbb", tenant="other"))
    assert [(await find_key(tables, "acme", id)).id for id in ids] == ids
    for id in ("abbb", "aa", "abz", "c"):
        with pytest.raises(NotFound, match="there is no key"):
            await find_key(tables, "acme", id)
