"""The authorization grid: every operation of the OpenAPI document, with every wrong credential.

A new operation joins automatically. Each request is first sent by its owner and must succeed, so
that a refusal is never a mistake of the request.
"""

import ast
import re
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from keepthread.apps.http.app import create_app
from keepthread.apps.http.operations import OWN
from proofs.http_timing import measure
from tests.http_world import ALL, HttpWorld, Operation, furnished, http_world, operations, url_of

SECRET = "quetzal"
"""A word that only the owner wrote."""
NAME, NOBODYS = "anns-trip", "nobs-trip"

# The operations are known before any store is open: the document does not depend on one.
OPERATIONS = operations(create_app(None, None).openapi())  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
OF_NOBODY = ("get_identity",)
"""Operations that say something of the key alone."""
OF_OWNERS = [each for each in OPERATIONS if each.scope != "admin" and each.id not in OF_NOBODY]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[HttpWorld]:
    async with http_world(url_of(tmp_path)) as opened:
        opened.app.state.keepthread.stopping.set()  # an event stream ends after its first page
        yield opened


def ids_for(operation: Operation, ids: Mapping[str, str]) -> dict[str, str]:
    """Return the values of parameters and fields that name something."""
    return {**ids, "id": f"new-{operation.id}", "title_from": ids["message"]}


async def send(
    client: httpx2.AsyncClient,
    operation: Operation,
    ids: Mapping[str, str],
    *,
    full: bool = False,
    owner: str | None = None,
) -> httpx2.Response:
    """Send the request of an operation, with or without its optional fields."""
    headers = {} if owner is None else {"Keepthread-Owner": owner}
    values = ids_for(operation, ids)
    path = operation.path.removeprefix("/v1")
    for name in operation.parameters("path"):
        path = path.replace(f"{{{name}}}", quote(values[name], safe=""))
    if "if-match" in operation.parameters("header"):
        headers["If-Match"] = "*"
    body = operation.body(values, full=full)
    given: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    if body is None:
        given = {}
    if full and "session" in operation.parameters("query"):
        given["params"] = {"session": ids["session"]}
    return await client.request(operation.method, path, headers=headers, **given)


def in_order(chosen: list[Operation]) -> list[Operation]:
    """Return operations so that none deletes what a later one needs."""
    return sorted(chosen, key=lambda each: (each.method == "DELETE", -len(each.path)))


def seen(response: httpx2.Response, ids: Mapping[str, str]) -> str:
    """Return all that a client sees, without what differs between any two requests."""
    text = f"{response.status_code} {sorted(response.headers)} {response.text}"
    for name in sorted(ids.values(), key=len, reverse=True):
        text = text.replace(name, "NAME")
    text = re.sub(r"kt_\w{12}_[\w-]{43}|[0-9a-f]{12,}|\b[0-9a-hjkmnp-tv-z]{12}\b", "ID", text)
    text = re.sub(r'"next":"[^"]*"|id: \S+', "CURSOR", text)
    return re.sub(r"-?\d+(?:\.\d+)?(?:e[-+]\d+)?", "N", text)


async def picture(world: HttpWorld, owner: str = "ann") -> list[bytes]:
    """Return everything of an owner."""
    return [line async for line in world.memory.for_owner(owner).export()]


def test_the_document_has_every_route_and_every_operation_says_what_it_needs() -> None:
    app = create_app(None, None)  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]
    public = {"/livez", "/readyz"}
    listed = {each for each in app.openapi()["paths"] if each not in public}
    assert listed == {each.path for each in OPERATIONS}
    assert {each.scope for each in OPERATIONS} == {"read", "write", "forget", "admin"}
    assert len({each.id for each in OPERATIONS}) == len(OPERATIONS)
    changing = [o.id for o in OPERATIONS if o.method not in ("GET", "POST") and o.scope == "read"]
    assert changing == []


async def test_every_operation_succeeds_for_its_owner(world: HttpWorld) -> None:
    ids = await furnished(world, "ann", NAME, SECRET)
    ann = await world.of("ann")
    operator = world.client(await world.key(None))
    for operation in in_order(OPERATIONS):
        client = operator if operation.scope == "admin" else ann
        response = await send(client, operation, ids)
        assert response.status_code < 300, (operation.id, response.status_code, response.text)
        operation.check(response)


async def test_no_operation_succeeds_without_a_key_that_holds(world: HttpWorld) -> None:
    ids = await furnished(world, "ann", NAME, SECRET)
    before = await picture(world)
    key = await world.key("ann")
    revoked = await world.key("ann")
    await world.tables.revoke_key(revoked.split("_")[1], time.time() - 1)
    clients = {
        "none": world.client(None),
        "malformed": world.client("kt_x"),
        "unknown": world.client(f"{key[:-4]}AAAA"),
        "expired": world.client(await world.key("ann", at=1.0, expires_at=10.0)),
        "revoked": world.client(revoked),
        "basic": world.client(None, Authorization=f"Basic {key}"),
    }
    for operation in OPERATIONS:
        for name, client in clients.items():
            response = await send(client, operation, ids)
            assert response.status_code == 401, (operation.id, name, response.text)
            assert response.headers["www-authenticate"].startswith("Bearer"), operation.id
            assert SECRET not in response.text
    # Unknown, expired and revoked keys are told apart by nobody.
    bodies = {(await send(c, OPERATIONS[0], ids)).text for n, c in clients.items() if n in REFUSED}
    assert len(bodies) == 1
    assert await picture(world) == before


REFUSED = ("unknown", "expired", "revoked")


async def test_no_operation_succeeds_without_its_scope(world: HttpWorld) -> None:
    """Authentication without roles was CVE-2026-49948 elsewhere."""
    ids = await furnished(world, "ann", NAME, SECRET)
    before = await picture(world)
    others = ALL | {"proxy", "mcp"}
    clients = {
        scope: world.client(await world.key(None if scope == "admin" else "ann", others - {scope}))
        for scope in ALL
    }
    for operation in OPERATIONS:
        response = await send(clients[operation.scope], operation, ids)
        assert response.status_code == 403, (operation.id, response.text)
        assert response.json()["type"] == "scope_required", operation.id
    assert await picture(world) == before


async def test_a_key_acts_for_its_owner_alone_and_another_names_one(world: HttpWorld) -> None:
    ids = await furnished(world, "ann", NAME, SECRET)
    before = await picture(world)
    bound, unbound = world.client(await world.key("bob")), world.client(await world.key(None))
    similar = world.client(await world.key("ANN"))
    for operation in OF_OWNERS:
        for client in (bound, similar):
            response = await send(client, operation, ids, owner="ann")
            code = (response.status_code, response.json()["type"])
            assert code == (403, "wrong_owner"), operation.id
        response = await send(unbound, operation, ids)
        code = (response.status_code, response.json()["type"])
        assert code == (400, "owner_required"), operation.id
    for operation in OPERATIONS:
        if operation.scope == "admin":
            response = await send(bound, operation, ids)
            assert response.status_code == 403, operation.id
    assert await picture(world) == before


@pytest.mark.parametrize("other", ["another owner", "an owner in another case", "another tenant"])
async def test_what_is_anothers_answers_like_what_does_not_exist(
    world: HttpWorld, other: str
) -> None:
    """A conversation's id gave access to it elsewhere (IDOR): voltagent#1315."""
    anns = await furnished(world, "ann", NAME, SECRET)
    nobodys = {
        "session": NOBODYS,
        "message": f"{NOBODYS}-message",
        "turn": f"{NOBODYS}-turn",
        "fact": "0" * len(anns["fact"]),
        "digest": "0" * 64,
        "key": "0" * 12,
    }
    before = await picture(world)
    if other != "another tenant":
        one, two = ("ANN", "Ann") if "case" in other else ("bob-one", "bob-two")
        askers = [(one, "default", anns), (two, "default", nobodys)]
        chosen = OF_OWNERS  # an operator manages all keys of the tenant
    else:
        askers = [("ann", "acme-one", anns), ("ann", "acme-two", nobodys)]
        chosen = OPERATIONS
    clients = [await world.of(owner, tenant=tenant) for owner, tenant, _ in askers]
    operators = [world.client(await world.key(None, tenant=tenant)) for _, tenant, _ in askers]
    for operation in in_order(chosen):
        for full in (False, True):
            answers: list[str] = []
            given = operators if operation.scope == "admin" else clients
            for client, (owner, tenant, ids) in zip(given, askers, strict=True):
                response = await send(client, operation, ids, full=full)
                assert SECRET not in response.text, operation.id
                names = {**ids_for(operation, ids), "owner": owner, "tenant": tenant}
                answers.append(seen(response, names))
            assert answers[0] == answers[1], (operation.id, full)
    assert await picture(world) == before


@pytest.mark.nightly
async def test_the_time_of_every_operation_with_an_id_can_be_measured() -> None:
    """`scripts/time_http` compares foreign ids with missing ones, on a quiet machine."""
    found = await measure("sqlite", 4)
    assert {each.operation for each in found} == {
        each.id for each in OPERATIONS if each.parameters("path")
    }
    assert {each.status for each in found} == {200, 404}


async def test_an_id_in_a_path_is_not_an_owner(world: HttpWorld) -> None:
    """The document has no place for an owner or a tenant: not in paths, queries or bodies."""
    for operation in OF_OWNERS:
        names = {*operation.parameters("path"), *operation.parameters("query")}
        names |= _fields(operation.body({}, full=True))
        assert not names & {"owner", "tenant", "user", "user_id"}, operation.id


def _fields(value: Any) -> set[str]:
    if isinstance(value, dict):
        return {*value}.union(*map(_fields, value.values()))
    return set().union(*map(_fields, value)) if isinstance(value, list) else set()


# --- errors ---

HTTP = Path(__file__).parents[1] / "src" / "keepthread" / "apps" / "http"


def codes_in(source: str) -> set[tuple[int, str]]:
    """Return the status and code of every problem that a module raises."""
    found: set[tuple[int, str]] = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Name(id="Problem"),
                args=[ast.Constant(value=int(status)), ast.Constant(value=str(code)), *_],
            ):
                found.add((status, code))
            case ast.Call(
                func=ast.Name(id="unauthenticated"), args=[ast.Constant(value=str(code)), *_]
            ):
                found.add((401, code))
            case _:
                pass
    return found


@pytest.mark.parametrize("path", sorted(HTTP.rglob("*.py")), ids=lambda path: path.stem)
def test_every_error_of_the_server_is_described(path: Path) -> None:
    described = {(status, code) for code, (status, _) in OWN.items()}
    described |= {(412, "stale"), (413, "too_large"), (400, "no_websockets")}
    assert codes_in(path.read_text()) <= described
