"""Who may do what on the HTTP server: keys, owners and scopes."""

import hashlib
import time
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread.apps.http.auth import PUBLIC
from keepthread.apps.http.caller import Caller, Operator
from keepthread.apps.http.cursors import sign, unsign
from keepthread.apps.http.problems import Problem
from tests.hostile_pairs import NAMES
from tests.http_app import bearer, served


async def test_a_bound_key_acts_for_its_owner_alone() -> None:
    async with served() as server:
        key = await server.headers("read")
        plain = await server.client.get("/v1/who", headers=key)
        same = await server.client.get("/v1/who", headers=key | {"Keepthread-Owner": "ann"})
        other = await server.client.get("/v1/who", headers=key | {"Keepthread-Owner": "bob"})
    assert plain.json()["owner"] == same.json()["owner"] == "ann"
    assert (other.status_code, other.json()["type"]) == (403, "wrong_owner")


@pytest.mark.parametrize(("owner", "other"), [*NAMES, *((b, a) for a, b in NAMES)])
async def test_a_bound_key_does_not_act_for_an_owner_with_a_similar_name(
    owner: str, other: str
) -> None:
    async with served() as server:
        key = await server.headers("read", owner=owner)
        same = await server.client.get("/v1/who", headers=key | {"Keepthread-Owner": quote(owner)})
        wrong = await server.client.get("/v1/who", headers=key | {"Keepthread-Owner": quote(other)})
    assert same.json()["owner"] == owner
    assert (wrong.status_code, wrong.json()["type"]) == (403, "wrong_owner")


async def test_a_key_of_a_program_names_the_owner_in_a_header() -> None:
    async with served() as server:
        key = await server.headers("read", owner=None)
        missing = await server.client.get("/v1/who", headers=key)
        owner = "Zoë 100% /?"
        named = key | {"Keepthread-Owner": quote(owner)}
        found = await server.client.get("/v1/who?owner=eve", headers=named)
        twice = [*key.items(), ("Keepthread-Owner", "a"), ("Keepthread-Owner", "b")]
        repeated = await server.client.get("/v1/who", headers=twice)
        broken = await server.client.get("/v1/who", headers=key | {"Keepthread-Owner": "%FF"})
    assert (missing.status_code, missing.json()["type"]) == (400, "owner_required")
    assert found.json()["owner"] == owner
    assert (repeated.status_code, repeated.json()["type"]) == (400, "repeated_header")
    assert (broken.status_code, broken.json()["type"]) == (400, "invalid_owner")


async def test_all_keys_that_do_not_hold_are_refused_alike() -> None:
    async with served() as server:
        good = await server.key("read")
        revoked = await server.key("read")
        await server.tables.revoke_key(revoked.split("_")[1], server.now())
        expired = await server.key("read", expires_at=server.now() + 60)
        server.app.state.keepthread.clock = lambda: time.time() + 120
        wrong = good[:-1] + ("A" if good[-1] != "A" else "B")
        unknown = good.replace(good.split("_")[1], "0" * 12)
        refused = [
            await server.client.get("/v1/who", headers=bearer(key))
            for key in (revoked, expired, wrong, unknown, "kt_", "kt__", good + "x", good.upper())
        ]
        assert (await server.client.get("/v1/who", headers=bearer(good))).status_code == 200
    assert {each.status_code for each in refused} == {401}
    assert len({each.text for each in refused[:-1]}) == 1
    assert all("Bearer" in each.headers["WWW-Authenticate"] for each in refused)


async def test_a_credential_counts_in_its_header_only() -> None:
    async with served() as server:
        key = await server.key("read")
        asked = [
            await server.client.get(f"/v1/who?key={key}&access_token={key}&authorization={key}"),
            await server.client.get("/v1/who", headers={"Cookie": f"key={key}", "X-Api-Key": key}),
            await server.client.get("/v1/who", headers={"Authorization": key}),
            await server.client.get("/v1/who", headers={"Authorization": f"Basic {key}"}),
            await server.client.get("/v1/who", headers={"Authorization": "Bearer "}),
        ]
        twice = [("Authorization", f"Bearer {key}")] * 2
        repeated = await server.client.get("/v1/who", headers=twice)
    assert [each.json()["type"] for each in asked] == ["unauthenticated"] * len(asked)
    assert repeated.status_code == 400


async def test_every_path_that_is_not_public_needs_a_key_also_one_that_does_not_exist() -> None:
    paths = ["/", "/v1", "/v1/nothing", "/docs", "/redoc", "/livez/", "/readyz/x"]
    async with served() as server:
        answers = [await server.client.get(path) for path in paths]
        public = [await server.client.get(path) for path in sorted(PUBLIC)]
    assert {each.status_code for each in answers} == {401}
    assert {each.status_code for each in public} == {200}


async def test_a_handler_gets_what_its_scope_allows() -> None:
    async with served() as server:
        reader = await server.headers("read")
        denied = await server.client.post("/v1/notes/1", json={"text": "a"}, headers=reader)
        writer = await server.headers("write")
        allowed = await server.client.post("/v1/notes/1", json={"text": "a"}, headers=writer)
        not_read = await server.client.get("/v1/who", headers=writer)
    assert (denied.status_code, denied.json()["type"]) == (403, "scope_required")
    assert 'scope="write"' in denied.headers["WWW-Authenticate"]
    assert "`keepthread keys create --scope write` creates one" in denied.json()["detail"]
    assert allowed.status_code == 200
    assert not_read.status_code == 403


async def test_only_a_key_of_the_whole_tenant_manages_it() -> None:
    async with served() as server:
        bound = await server.client.get("/v1/operator", headers=await server.headers("admin"))
        whole = await server.headers("admin", owner=None, tenant="acme")
        found = await server.client.get("/v1/operator", headers=whole)
        plain = await server.headers("read", "write", "forget", owner=None)
        denied = await server.client.get("/v1/operator", headers=plain)
    assert (bound.status_code, bound.json()["type"]) == (403, "bound_key")
    assert found.json() == {"tenant": "acme"}
    assert denied.json()["type"] == "scope_required"


async def test_tenants_come_from_the_key() -> None:
    async with served() as server:
        key = await server.headers("read", tenant="acme", owner="ann")
        named = key | {"Keepthread-Tenant": "other"}
        found = (await server.client.get("/v1/who?tenant=other", headers=named)).json()
    assert found["tenant"] == "acme"


def caller(tenant: str = "t", owner: str = "o", key: bytes = b"k" * 32) -> Caller:
    return Caller(None, tenant, owner, "key", frozenset(), key)  # pyright: ignore[reportArgumentType]


@given(st.text(max_size=200), st.text(max_size=20))
def test_a_signed_cursor_comes_back_as_it_was(cursor: str, operation: str) -> None:
    cursor = cursor.encode("utf-8", "replace").decode()
    operation = operation.encode("utf-8", "replace").decode()
    text = sign(caller(), operation, cursor)
    assert text.isascii()
    assert unsign(caller(), operation, text) == cursor


@pytest.mark.parametrize(
    "other",
    [caller("u"), caller(owner="p"), caller(key=b"x" * 32)],
    ids=["tenant", "owner", "secret"],
)
def test_a_cursor_of_somebody_else_is_refused(other: Caller) -> None:
    with pytest.raises(Problem, match="earlier page"):
        unsign(other, "sessions", sign(caller(), "sessions", "c"))


def test_a_cursor_continues_only_what_it_came_from() -> None:
    signed = sign(caller(), "sessions", "c")
    operator = Operator(None, "t", "key", frozenset(), b"k" * 32)  # pyright: ignore[reportArgumentType]
    for who, operation, text in (
        (caller(), "search", signed),
        (operator, "sessions", signed),
        (caller(), "sessions", signed[:-2]),
        (caller(), "sessions", "é"),
        (caller(), "sessions", "=" * 7),
        (caller(), "sessions", ""),
        (caller(), "sessions", hashlib.sha256(b"").hexdigest()),
    ):
        with pytest.raises(Problem) as raised:
            unsign(who, operation, text)
        assert (raised.value.status, raised.value.code) == (400, "invalid_cursor")
