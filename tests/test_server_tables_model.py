"""The tables of a server do what a plain model does, whatever is asked of them, on every store."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keepthread.errors import InvalidInput, NotFound
from keepthread.protocols import Store
from keepthread.protocols.server import KEPT, LEASE, ApiKey, Begun, KeptAnswer, RequestId
from keepthread.stores.postgres import PostgresStore
from keepthread.stores.ram import RamStore
from keepthread.stores.redis import RedisStore
from keepthread.stores.sqlite import SQLiteStore
from keepthread.testing.tables import NOW, a_key, an_entry

IDS = st.sampled_from(("a", "b", "c"))
TENANTS = st.sampled_from(("acme", "other"))
REQUESTS = st.builds(RequestId, TENANTS, st.just("key"), IDS)
DIGESTS = st.sampled_from((bytes(32), b"\1" * 32))
STEPS = st.sampled_from((0.0, 1.0, LEASE - 1, LEASE, KEPT))

Step = tuple[str, tuple[Any, ...]]
STEP: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("add"), st.tuples(IDS, TENANTS)),
    st.tuples(st.just("revoke"), st.tuples(IDS, st.sampled_from((NOW, NOW + 1)))),
    st.tuples(st.just("list_keys"), st.tuples(st.none() | TENANTS, st.none() | IDS)),
    st.tuples(st.just("wait"), st.tuples(STEPS)),
    st.tuples(st.just("begin"), st.tuples(REQUESTS, DIGESTS)),
    st.tuples(st.just("end"), st.tuples(REQUESTS, st.binary(max_size=3))),
    st.tuples(st.just("renew"), st.tuples(REQUESTS)),
    st.tuples(st.just("abandon"), st.tuples(REQUESTS)),
    st.tuples(st.just("purge"), st.tuples()),
    st.tuples(st.just("clean"), st.tuples(TENANTS)),
    st.tuples(st.just("audit"), st.tuples(TENANTS)),
    st.tuples(st.just("drop"), st.tuples(TENANTS)),
)


@dataclass
class Request:
    """A request as the model has it."""

    digest: bytes
    token: bytes
    at: float
    answer: KeptAnswer | None = None
    forgot: bool = False
    """Whether its tenant forgot something since it began."""


@dataclass
class Model:
    """Plain dictionaries, and the steps on them beside those on the store."""

    store: Store
    now: float = NOW
    keys: dict[str, ApiKey] = field(default_factory=dict[str, ApiKey])
    requests: dict[RequestId, Request] = field(default_factory=dict[RequestId, Request])
    tokens: dict[RequestId, bytes] = field(default_factory=dict[RequestId, bytes])
    entries: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        self.tables = self.store.server_tables()

    async def add(self, id: str, tenant: str) -> None:
        key = a_key(id, tenant, created_at=self.now)
        if self.keys.setdefault(id, key) is key:
            await self.tables.add_key(key)
        elif self.keys[id] != key:
            with pytest.raises(InvalidInput):
                await self.tables.add_key(key)

    async def revoke(self, id: str, at: float) -> None:
        key = self.keys.get(id)
        expected = key is not None and (key.revoked_at is None or key.revoked_at > at)
        assert await self.tables.revoke_key(id, at) is expected
        if key and expected:
            self.keys[id] = key._replace(revoked_at=at)

    async def list_keys(self, tenant: str | None, after: str | None) -> None:
        found = await self.tables.list_keys(tenant=tenant, after=after)
        mine = [
            k for k in self.keys.values() if tenant in (None, k.tenant) and k.id > (after or "")
        ]
        assert found == sorted(mine)

    async def wait(self, seconds: float) -> None:
        self.now += seconds

    async def begin(self, request: RequestId, digest: bytes) -> None:
        begun = await self.tables.begin_request(request, digest, self.now)
        known = self.requests.get(request)
        if known and self.now - known.at < KEPT:
            if known.digest != digest:
                assert begun == Begun("mismatch")
                return
            if known.answer:
                assert begun == Begun("done", answer=known.answer)
                return
            if self.now - known.at < LEASE:
                assert begun == Begun("in_flight")
                return
        assert begun.state == "new"
        self.requests[request] = Request(digest, begun.token, self.now)
        self.tokens.setdefault(request, begun.token)  # the oldest: perhaps of a worker that died

    async def end(self, request: RequestId, body: bytes) -> None:
        token, known = self.tokens.pop(request, None), self.requests.get(request)
        if token is not None:
            answer = KeptAnswer(200, (("a", "b"),), body)
            has_it = known is not None and known.token == token
            assert await self.tables.end_request(request, token, answer) is has_it
            if known and has_it:
                known.answer = answer._replace(body=None) if known.forgot else answer

    async def renew(self, request: RequestId) -> None:
        token, known = self.tokens.get(request), self.requests.get(request)
        if token is not None:
            has_it = known is not None and known.token == token and known.answer is None
            assert await self.tables.renew_request(request, token, self.now) is has_it
            if known and has_it:
                known.at = self.now

    async def abandon(self, request: RequestId) -> None:
        token, known = self.tokens.pop(request, None), self.requests.get(request)
        if token is not None:
            has_it = known is not None and known.token == token and known.answer is None
            assert await self.tables.abandon_request(request, token) is has_it
            if has_it:
                del self.requests[request]

    async def purge(self) -> None:
        old = [id for id, known in self.requests.items() if known.at < self.now - LEASE]
        assert await self.tables.purge_requests(self.now - LEASE) == len(old)
        for id in old:
            del self.requests[id]

    async def clean(self, tenant: str) -> None:
        await self.store.tenant(tenant).clean()
        for id, known in self.requests.items():
            if id.tenant == tenant:
                known.forgot = True
                known.answer = known.answer and known.answer._replace(body=None)

    async def audit(self, tenant: str) -> None:
        await self.tables.audit(an_entry("a", tenant))
        self.entries.append(tenant)

    async def drop(self, tenant: str) -> None:
        mine = [id for id, key in self.keys.items() if key.tenant == tenant]
        if mine:
            await self.store.drop_tenant(tenant)
        else:
            with pytest.raises(NotFound):
                await self.store.drop_tenant(tenant)
        for id in mine:
            del self.keys[id]
        self.requests = {id: r for id, r in self.requests.items() if id.tenant != tenant}

    async def compare(self) -> None:
        assert await self.tables.list_keys() == sorted(self.keys.values())
        assert [entry.tenant for entry in await self.tables.list_audit()] == self.entries


async def follow(store: Store, steps: list[Step]) -> None:
    model = Model(store)
    for name, values in steps:
        await getattr(model, name)(*values)
    await model.compare()


@given(st.lists(STEP, max_size=40))
def test_in_memory(steps: list[Step]) -> None:
    asyncio.run(follow(RamStore(), steps))


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(STEP, min_size=10, max_size=30))
@pytest.mark.parametrize("where", ["sqlite", "postgres", "redis"])
def test_on_a_store(
    where: str, steps: list[Step], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    async def run() -> None:
        if where == "sqlite":
            path = tmp_path / f"{len(list(tmp_path.iterdir()))}.db"
            store: Store = await SQLiteStore.open(path, durability="process")
        elif where == "postgres":
            store = await PostgresStore.open(request.getfixturevalue("postgres").empty())
        else:
            server = request.getfixturevalue("redis_server")
            server.ask("FLUSHALL")
            store = await RedisStore.open(server.url)
        try:
            await follow(store, steps)
        finally:
            await store.close()

    asyncio.run(run())
