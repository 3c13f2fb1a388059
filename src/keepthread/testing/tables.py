"""The contract of a server's tables: what every store that has them must do, as tests.

Subclass `TablesContract`, say how to open your store, and let pytest collect the class. To see the
values of a failed assertion, call `pytest.register_assert_rewrite` with this module's name.
"""

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, TypeVar

from keepthread.errors import InvalidInput, NotFound, StoreClosed
from keepthread.protocols import Store
from keepthread.protocols.server import (
    KEPT,
    LEASE,
    ApiKey,
    AuditEntry,
    Begun,
    KeptAnswer,
    RequestId,
    ServerTables,
)
from keepthread.testing.contract import new_session, refused

T = TypeVar("T", bound="TablesContract")

NOW: Final = 1_700_000_000.0
BODY: Final = b'{"content": "the number is 555-0199 \x00\xff"}'
ANSWER: Final = KeptAnswer(201, (("Location", "/v1/sessions/a"), ("ETag", '"1"')), BODY)
REQUEST: Final = RequestId("acme", "key", "retry me")
DIGEST: Final = sha256(b"a request").digest()
_RACERS: Final = 20


def on_tables(
    test: Callable[[T, ServerTables], Awaitable[None]],
) -> Callable[[T, Path], None]:
    """Run a test on a newly opened store and its tables."""

    def run(self: T, tmp_path: Path) -> None:
        async def session() -> None:
            self.store = await self.open_store(tmp_path)
            try:
                await test(self, self.store.server_tables())
            finally:
                await self.store.close()

        asyncio.run(session())

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


def a_key(id: str, tenant: str = "acme", **values: Any) -> ApiKey:
    """Return a key with every field, or with others."""
    full: dict[str, Any] = {
        "digest": sha256(id.encode()).digest(),
        "owner": "ana",
        "scopes": frozenset(("read", "write")),
        "name": "the bot, 日本",
        "created_at": NOW + 0.123456,
        "expires_at": NOW + 1000.5,
    }
    return ApiKey(id=id, tenant=tenant, **(full | values))


def an_entry(action: str, tenant: str = "acme", **values: Any) -> AuditEntry:
    """Return an entry of the audit log with every field, or with others."""
    full: dict[str, Any] = {
        "at": NOW + 0.5,
        "caller": "key",
        "owner": "ana",
        "targets": ("s1", "日本"),
    }
    return AuditEntry(tenant=tenant, action=action, **(full | values))


class TablesContract:
    """The tests. `open_store` opens an empty store."""

    store: Store
    """The store of the test that runs."""

    async def open_store(self, folder: Path) -> Store:
        """Return a store of your own; it is closed after the test."""
        raise NotImplementedError

    # --- API keys ---

    @on_tables
    async def test_a_key_comes_back_as_it_was_added(self, tables: ServerTables) -> None:
        full = a_key("0full")
        bare = a_key("0bare", owner=None, scopes=frozenset[str](), expires_at=None)
        for key in (full, bare):
            await tables.add_key(key)
        assert [await tables.get_key(key.id) for key in (full, bare)] == [full, bare]
        assert await tables.get_key("unknown") is None
        with refused(InvalidInput):
            await tables.add_key(full._replace(owner="bea"))
        assert await tables.get_key(full.id) == full
        assert await self.store.tenant("acme").server_tables().get_key(full.id) == full

    @on_tables
    async def test_keys_are_listed_by_id_in_pages(self, tables: ServerTables) -> None:
        keys = [a_key(f"k{number}", "acme" if number % 2 else "other") for number in range(7)]
        for key in reversed(keys):
            await tables.add_key(key)
        assert await tables.list_keys() == keys
        assert await tables.list_keys(tenant="acme") == keys[1::2]
        assert await tables.list_keys(after="k2", limit=3) == keys[3:6]
        assert await tables.list_keys(tenant="other", after="k2", limit=1) == [keys[4]]
        assert await tables.list_keys(tenant="nobody") == []
        assert await tables.list_keys(limit=0) == []

    @on_tables
    async def test_a_revoked_key_stays_revoked(self, tables: ServerTables) -> None:
        key = a_key("k", expires_at=None)
        await tables.add_key(key)
        assert await tables.revoke_key("k", NOW + 60)
        later = await tables.get_key("k")
        assert later is not None
        assert later == key._replace(revoked_at=NOW + 60)
        assert (later.is_valid(NOW + 59), later.is_valid(NOW + 60)) == (True, False)
        assert not await tables.revoke_key("k", NOW + 61)
        assert await tables.revoke_key("k", NOW)
        assert await tables.list_keys() == [key._replace(revoked_at=NOW)]
        assert not await tables.revoke_key("k", NOW)
        assert not await tables.revoke_key("unknown", NOW)

    @on_tables
    async def test_of_many_revocations_the_earliest_holds(self, tables: ServerTables) -> None:
        await tables.add_key(a_key("k"))
        times = [NOW + number * 7 % _RACERS for number in range(_RACERS)]
        await asyncio.gather(*(tables.revoke_key("k", at) for at in times))
        found = await tables.get_key("k")
        assert found is not None
        assert found.revoked_at == NOW

    @on_tables
    async def test_what_cannot_be_a_key_is_refused(self, tables: ServerTables) -> None:
        bad: dict[str, Any] = {
            "id": "",
            "tenant": "a\nb",
            "owner": "",
            "name": "\ud800",
            "digest": b"short",
            "scopes": frozenset(("a\0",)),
            "created_at": -1.0,
            "expires_at": float("nan"),
        }
        for name, value in bad.items():
            with refused(InvalidInput):
                await tables.add_key(a_key("k")._replace(**{name: value}))
        assert await tables.list_keys() == []

    # --- secrets ---

    @on_tables
    async def test_a_secret_is_made_once(self, tables: ServerTables) -> None:
        asked = [tables.secret("cursor") for _ in range(_RACERS)]
        (secret,) = set(await asyncio.gather(*asked))
        assert len(secret) == 32
        assert await self.store.server_tables().secret("cursor") == secret
        assert await tables.secret("other") != secret

    # --- requests ---

    @on_tables
    async def test_a_request_is_done_once_and_answered_again(self, tables: ServerTables) -> None:
        begun = await tables.begin_request(REQUEST, DIGEST, NOW)
        assert begun.state == "new"
        assert await tables.begin_request(REQUEST, DIGEST, NOW + 1) == Begun("in_flight")
        assert await tables.end_request(REQUEST, begun.token, ANSWER)
        for at in (NOW + 1, NOW + LEASE, NOW + KEPT - 1):
            again = await tables.begin_request(REQUEST, DIGEST, at)
            assert again == Begun("done", answer=ANSWER)
        other = sha256(b"another request").digest()
        assert await tables.begin_request(REQUEST, other, NOW + 1) == Begun("mismatch")
        for name in ("tenant", "caller", "key"):
            elsewhere = REQUEST._replace(**{name: "else"})
            assert (await tables.begin_request(elsewhere, other, NOW)).state == "new"
        assert not await tables.abandon_request(REQUEST, begun.token)
        assert (await tables.begin_request(REQUEST, other, NOW + KEPT)).state == "new"

    @on_tables
    async def test_of_many_workers_one_does_a_request(self, tables: ServerTables) -> None:
        for number in range(3):
            request = REQUEST._replace(key=f"round {number}")
            begun = await asyncio.gather(
                *(tables.begin_request(request, DIGEST, NOW) for _ in range(_RACERS))
            )
            assert sorted(each.state for each in begun) == ["in_flight"] * (_RACERS - 1) + ["new"]

    @on_tables
    async def test_a_worker_that_died_loses_its_request(self, tables: ServerTables) -> None:
        dead = await tables.begin_request(REQUEST, DIGEST, NOW)
        early = await tables.begin_request(REQUEST, DIGEST, NOW + LEASE - 1)
        assert early == Begun("in_flight")
        other = sha256(b"another request").digest()
        assert await tables.begin_request(REQUEST, other, NOW + LEASE) == Begun("mismatch")
        heir = await tables.begin_request(REQUEST, DIGEST, NOW + LEASE)
        assert heir.state == "new"
        assert not await tables.end_request(REQUEST, dead.token, KeptAnswer(500))
        assert not await tables.abandon_request(REQUEST, dead.token)
        assert await tables.end_request(REQUEST, heir.token, ANSWER)
        assert not await tables.end_request(REQUEST, dead.token, KeptAnswer(500))
        found = await tables.begin_request(REQUEST, DIGEST, NOW + 2 * LEASE)
        assert found.answer == ANSWER

    @on_tables
    async def test_an_abandoned_request_is_new_again(self, tables: ServerTables) -> None:
        begun = await tables.begin_request(REQUEST, DIGEST, NOW)
        assert await tables.abandon_request(REQUEST, begun.token)
        assert not await tables.abandon_request(REQUEST, begun.token)
        assert not await tables.end_request(REQUEST, begun.token, ANSWER)
        assert (await tables.begin_request(REQUEST, DIGEST, NOW)).state == "new"

    @on_tables
    async def test_old_requests_are_purged(self, tables: ServerTables) -> None:
        for number in range(4):
            request = REQUEST._replace(key=f"r{number}", tenant=f"t{number % 2}")
            begun = await tables.begin_request(request, DIGEST, NOW + number)
            if number != 1:
                assert await tables.end_request(request, begun.token, ANSWER)
        assert await tables.purge_requests(NOW + 2) == 2
        assert await tables.purge_requests(NOW + 2) == 0
        for number, state in enumerate(("new", "new", "done", "done")):
            request = REQUEST._replace(key=f"r{number}", tenant=f"t{number % 2}")
            assert (await tables.begin_request(request, DIGEST, NOW + 3)).state == state

    @on_tables
    async def test_answers_of_any_kind_are_kept_up_to_a_limit(self, tables: ServerTables) -> None:
        large = b"x" * (1 << 20)
        kept = [
            KeptAnswer(204),
            KeptAnswer(200, (), large),
            KeptAnswer(409, (("a", "b"), ("a", "é")), None),
        ]
        kept.append(KeptAnswer(200, (), large + b"x"))
        for number, answer in enumerate(kept):
            request = REQUEST._replace(key=f"r{number}")
            begun = await tables.begin_request(request, DIGEST, NOW)
            assert await tables.end_request(request, begun.token, answer)
            found = (await tables.begin_request(request, DIGEST, NOW)).answer
            assert found == (answer if number < 3 else answer._replace(body=None))

    @on_tables
    async def test_what_cannot_be_a_request_is_refused(self, tables: ServerTables) -> None:
        for bad in (REQUEST._replace(key=""), REQUEST._replace(caller="x" * 256)):
            with refused(InvalidInput):
                await tables.begin_request(bad, DIGEST, NOW)
        with refused(InvalidInput):
            await tables.begin_request(REQUEST, b"", NOW)
        begun = await tables.begin_request(REQUEST, DIGEST, NOW)
        with refused(InvalidInput):
            await tables.end_request(REQUEST, begun.token, KeptAnswer(99))
        with refused(InvalidInput):
            await tables.end_request(REQUEST, b"", ANSWER)

    # --- the audit log ---

    @on_tables
    async def test_entries_are_listed_by_their_numbers(self, tables: ServerTables) -> None:
        entries = [an_entry(f"a{n}", "acme" if n % 2 else "other") for n in range(6)]
        entries[3] = entries[3]._replace(owner=None, targets=())
        numbers = [await tables.audit(entry) for entry in entries]
        assert numbers == sorted(set(numbers))
        kept = [e._replace(number=n) for e, n in zip(entries, numbers, strict=True)]
        assert await tables.list_audit() == kept
        assert await tables.list_audit(tenant="acme") == kept[1::2]
        assert await tables.list_audit(after=numbers[1], limit=3) == kept[2:5]
        assert await tables.list_audit(tenant="other", after=numbers[2]) == [kept[4]]
        assert await tables.list_audit(tenant="nobody") == []
        more = await asyncio.gather(*(tables.audit(an_entry("b")) for _ in range(_RACERS)))
        assert len(set(more)) == _RACERS
        assert min(more) > numbers[-1]
        for bad in (an_entry(""), an_entry("a", "\n"), an_entry("a", targets=("",))):
            with refused(InvalidInput):
                await tables.audit(bad)

    @on_tables
    async def test_the_oldest_entries_are_pruned_in_steps(self, tables: ServerTables) -> None:
        for number in range(6):
            await tables.audit(an_entry(f"a{number}", f"t{number % 2}", at=NOW + number))
        kept = await tables.list_audit()
        assert await tables.prune_audit(NOW) == 0
        assert await tables.prune_audit(NOW + 4, limit=3) == 3
        assert await tables.prune_audit(NOW + 4, limit=3) == 1
        assert await tables.prune_audit(NOW + 4, limit=3) == 0
        assert await tables.list_audit() == kept[4:]
        assert await tables.list_audit(tenant="t0") == kept[4:5]
        assert await tables.prune_audit(NOW + 99) == 1
        assert await tables.list_audit() == kept[5:]  # numbers continue from the newest
        assert await tables.audit(an_entry("b")) > kept[5].number

    # --- tenants ---

    @on_tables
    async def test_forgetting_deletes_the_bodies_of_answers(self, tables: ServerTables) -> None:
        waiting = REQUEST._replace(key="waiting")
        token = (await tables.begin_request(waiting, DIGEST, NOW)).token
        for tenant in ("acme", "other"):
            request = REQUEST._replace(tenant=tenant)
            begun = await tables.begin_request(request, DIGEST, NOW)
            await tables.end_request(request, begun.token, ANSWER)
        await self.store.tenant("acme").clean()
        again = await tables.begin_request(REQUEST, DIGEST, NOW)
        assert again == Begun("done", answer=ANSWER._replace(body=None))
        other = await tables.begin_request(REQUEST._replace(tenant="other"), DIGEST, NOW)
        assert other.answer == ANSWER
        # Its worker may have read what is forgotten before it was.
        assert await tables.end_request(waiting, token, ANSWER)
        again = await tables.begin_request(waiting, DIGEST, NOW)
        assert again == Begun("done", answer=ANSWER._replace(body=None))
        later = REQUEST._replace(key="later")
        token = (await tables.begin_request(later, DIGEST, NOW)).token
        assert await tables.end_request(later, token, ANSWER)
        assert (await tables.begin_request(later, DIGEST, NOW)).answer == ANSWER

    @on_tables
    async def test_an_answer_that_is_stored_stays(self, tables: ServerTables) -> None:
        token = (await tables.begin_request(REQUEST, DIGEST, NOW)).token
        assert await tables.end_request(REQUEST, token, ANSWER)
        assert await tables.end_request(REQUEST, token, KeptAnswer(200, (), b"another"))
        assert (await tables.begin_request(REQUEST, DIGEST, NOW)).answer == ANSWER
        await self.store.tenant("acme").clean()
        assert await tables.end_request(REQUEST, token, ANSWER)  # sent again by its worker
        found = await tables.begin_request(REQUEST, DIGEST, NOW)
        assert found.answer == ANSWER._replace(body=None)

    @on_tables
    async def test_a_request_that_takes_long_is_renewed(self, tables: ServerTables) -> None:
        token = (await tables.begin_request(REQUEST, DIGEST, NOW)).token
        assert await tables.renew_request(REQUEST, token, NOW + LEASE - 1)
        soon = await tables.begin_request(REQUEST, DIGEST, NOW + 2 * LEASE - 2)
        assert soon == Begun("in_flight")
        heir = await tables.begin_request(REQUEST, DIGEST, NOW + 2 * LEASE)
        assert heir.state == "new"
        assert not await tables.renew_request(REQUEST, token, NOW + 2 * LEASE)
        assert await tables.end_request(REQUEST, heir.token, ANSWER)
        assert not await tables.renew_request(REQUEST, heir.token, NOW + 2 * LEASE)

    @on_tables
    async def test_a_dropped_tenant_has_no_keys_and_no_requests(self, tables: ServerTables) -> None:
        for number, tenant in enumerate(("acme", "bare", "other")):
            await tables.add_key(a_key(f"k{number}", tenant))
            request = REQUEST._replace(tenant=tenant)
            begun = await tables.begin_request(request, DIGEST, NOW)
            await tables.end_request(request, begun.token, ANSWER)
            await tables.audit(an_entry("key.create", tenant))
        await new_session(self.store.tenant("acme"))
        await new_session(self.store.tenant("other"))
        for tenant in ("acme", "bare"):
            await self.store.drop_tenant(tenant)
            with refused(NotFound):
                await self.store.drop_tenant(tenant)
            assert await tables.list_keys(tenant=tenant) == []
            request = REQUEST._replace(tenant=tenant)
            assert (await tables.begin_request(request, DIGEST, NOW)).state == "new"
            assert len(await tables.list_audit(tenant=tenant)) == 1
        assert await tables.get_key("k0") is None
        assert [key.id for key in await tables.list_keys()] == ["k2"]
        request = REQUEST._replace(tenant="other")
        assert (await tables.begin_request(request, DIGEST, NOW)).answer == ANSWER
        assert len(await tables.list_audit()) == 3

    @on_tables
    async def test_tables_hold_nothing_of_a_tenants_data(self, tables: ServerTables) -> None:
        await tables.add_key(a_key("k", "acme"))
        await tables.secret("cursor")
        await tables.audit(an_entry("key.create"))
        await tables.begin_request(REQUEST, DIGEST, NOW)
        tenant = self.store.tenant("acme")
        assert (await tenant.verify())[:3] == (0, 0, 0)
        assert (await tenant.verify()).sound
        assert (await tenant.owners(), await tenant.scan_sessions()) == ([], [])
        assert await self.store.tenants() == []

    @on_tables
    async def test_tables_of_a_closed_store_are_closed(self, tables: ServerTables) -> None:
        await tables.secret("cursor")
        await self.store.close()
        with refused(StoreClosed):
            await tables.get_key("k")
        with refused(StoreClosed):
            await tables.audit(an_entry("a"))
