"""The MCP server at `/mcp`: who may come in, whose memory a credential reaches, and both eras."""

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import mcp_types
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from keepthread import Memory
from keepthread.apps.http.app import create_app
from keepthread.apps.http.settings import HttpSettings, Issuer
from keepthread.apps.mcp.quotations import session_uri
from keepthread.models.tokens import Estimator
from proofs.p25_agents import outside_quotations
from tests.http_world import HttpWorld, listening, url_of
from tests.mcp_world import ERAS, SECRET, Era, fill, text_of
from tests.test_http_tokens import ISSUER, claims, jwk, token

MCP = frozenset({"mcp"})
AUDIENCE = "https://memory.example.com/mcp"
URL = "http://localhost/mcp"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[HttpWorld]:
    """Serve two owners, with keys and with tokens of an issuer."""
    keys = tmp_path / "jwks.json"
    keys.write_text(json.dumps({"keys": [jwk("ec", "one")]}))
    issuer = Issuer(name=ISSUER, audience=AUDIENCE, jwks=str(keys), tenant="default")
    settings = HttpSettings(issuers=(issuer,), rate=0)
    async with Memory.open(url_of(tmp_path), counter=Estimator()) as memory:
        await fill(memory.for_owner("ann"), "hazelnuts")
        await fill(memory.for_owner("bob"), SECRET)
        await (await memory.for_owner("bob").session("bobs")).add_message("user", f"I hid {SECRET}")
        tables = memory.store.server_tables()
        made = HttpWorld(memory, tables, create_app(memory, tables, settings))
        yield made
        for client in made.clients:
            await client.aclose()


async def ask(
    client: httpx2.AsyncClient,
    method: str,
    params: dict[str, Any] | None = None,
    *,
    era: Era = "auto",
    **headers: str,
) -> httpx2.Response:
    """Send one message of the protocol, without a client that would repeat or repair it."""
    version = "2026-07-28" if era == "auto" else "2025-11-25"
    given: dict[str, Any] = dict(params or {})
    sent = {"Accept": "application/json, text/event-stream", "MCP-Protocol-Version": version}
    if era == "auto":
        sent["Mcp-Method"] = method
        if name := given.get("name") or given.get("uri"):
            sent["Mcp-Name"] = name
        given["_meta"] = {
            mcp_types.PROTOCOL_VERSION_META_KEY: version,
            mcp_types.CLIENT_CAPABILITIES_META_KEY: {},
            mcp_types.CLIENT_INFO_META_KEY: {"name": "tester", "version": "1"},
        }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": given}
    return await client.post(URL, json=body, headers=sent | headers)


def tool(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


REQUESTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("tools/list", {}),
    ("tools/call", tool("search_memory", query=SECRET)),
    ("tools/call", tool("read_session", session="bobs")),
    ("tools/call", tool("list_facts")),
    ("tools/call", tool("remember", text="Has a new fact.")),
    ("resources/read", {"uri": "keepthread://facts"}),
    ("resources/read", {"uri": session_uri("bobs")}),
    ("prompts/get", {"name": "recall", "arguments": {"topic": SECRET}}),
)


# --- who may come in ---


async def test_nothing_is_answered_without_a_credential_for_it(world: HttpWorld) -> None:
    bobs = world.memory.for_owner("bob")
    before = [line async for line in bobs.export()]
    clients = {
        401: [
            world.client(None),
            world.client("kt_x"),
            world.client(await world.key("bob", MCP, expires_at=50.0, at=10.0)),
            world.client(token(claims(aud="https://other.example.com/mcp", scope="mcp"))),
            world.client(token(claims(aud=None, scope="mcp"))),
            world.client(token(claims(aud=AUDIENCE, scope="mcp", iss="https://evil.example/"))),
        ],
        403: [
            world.client(await world.key("bob", frozenset({"read", "write", "forget"}))),
            world.client(token(claims(aud=AUDIENCE, sub="bob", scope="read write"))),
        ],
        400: [world.client(await world.key(None, MCP))],
    }
    for status, refused in clients.items():
        for client in refused:
            for method, params in REQUESTS[:2]:
                for era in ERAS:
                    answer = await ask(client, method, params, era=era)
                    assert answer.status_code == status, answer.text
                    assert SECRET not in answer.text
                    challenge = answer.headers.get("WWW-Authenticate", "")
                    assert ("resource_metadata=" in challenge) == (status != 400)
    assert [line async for line in bobs.export()] == before


async def test_a_key_reaches_the_memory_of_its_owner_alone(world: HttpWorld) -> None:
    bobs = world.memory.for_owner("bob")
    before = [line async for line in bobs.export()]
    keys = [await world.key("ann", MCP), token(claims(aud=AUDIENCE, sub="ann", scope="mcp"))]
    for key in keys:
        client = world.client(key)
        for method, params in REQUESTS:
            for era in ERAS:
                answer = await ask(client, method, params, era=era)
                shown = answer.text.replace(json.dumps(SECRET), "")
                if "topic" not in json.dumps(params):  # the prompt repeats its topic
                    assert SECRET not in shown
                assert "I hid" not in shown
        other = await ask(world.client(key, **{"Keepthread-Owner": "bob"}), *REQUESTS[1])
        assert (other.status_code, other.json()["type"]) == (403, "wrong_owner")
    assert [line async for line in bobs.export()] == before
    found = await ask(world.client(keys[0]), "tools/call", tool("search_memory", query="allergic"))
    assert "> I am allergic to hazelnuts." in found.json()["result"]["content"][0]["text"]


async def test_a_program_that_serves_many_names_the_owner(world: HttpWorld) -> None:
    client = world.client(await world.key(None, MCP), **{"Keepthread-Owner": "ann"})
    found = await ask(client, "tools/call", tool("search_memory", query="allergic"))
    assert "hazelnuts" in found.text


async def test_the_metadata_names_the_issuer_and_the_challenge_leads_to_it(
    world: HttpWorld,
) -> None:
    client = world.client(None)
    refused = await ask(client, "tools/list")
    where = "https://memory.example.com/.well-known/oauth-protected-resource/mcp"
    assert f'resource_metadata="{where}"' in refused.headers["WWW-Authenticate"]
    assert 'scope="mcp"' in refused.headers["WWW-Authenticate"]
    found = await client.get("http://localhost/.well-known/oauth-protected-resource/mcp")
    assert found.json() == {
        "resource": AUDIENCE,
        "resource_name": "keepthread",
        "authorization_servers": [ISSUER],
        "scopes_supported": ["mcp"],
        "bearer_methods_supported": ["header"],
    }
    elsewhere = await client.get("http://localhost/v1/sessions")
    assert "resource_metadata" not in elsewhere.headers["WWW-Authenticate"]


async def test_other_names_and_pages_are_refused(world: HttpWorld) -> None:
    client = world.client(await world.key("ann", MCP))
    assert (await ask(client, "tools/list", Host="evil.example")).status_code == 421
    assert (await ask(client, "tools/list", Origin="https://evil.example")).status_code == 403
    assert (await ask(client, "tools/list", Origin="http://localhost")).status_code == 200


async def test_there_are_no_streams_and_no_sessions(world: HttpWorld) -> None:
    client = world.client(await world.key("ann", MCP))
    for method in ("GET", "DELETE"):
        answer = await client.request(method, URL, headers={"Accept": "text/event-stream"})
        assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")
    for era in ERAS:
        answer = await ask(client, "tools/list", era=era)
        assert answer.headers["Content-Type"] == "application/json"
        assert "Mcp-Session-Id" not in answer.headers


async def test_erasing_needs_the_scope_forget_as_well(world: HttpWorld) -> None:
    plain = world.client(await world.key("ann", MCP))
    both = world.client(await world.key("ann", MCP | {"forget"}))
    names = [
        [each["name"] for each in (await ask(client, "tools/list")).json()["result"]["tools"]]
        for client in (plain, both)
    ]
    assert set(names[1]) - set(names[0]) == {"forget_fact"}
    (fact,) = [f for f in await world.memory.for_owner("ann").facts.list() if f.state == "live"]
    refused = await ask(plain, "tools/call", tool("forget_fact", key=fact.key))
    assert refused.json()["error"]["message"] == "there is no such tool"
    done = await ask(both, "tools/call", tool("forget_fact", key=fact.key))
    assert done.json()["result"]["structuredContent"] == {"forgotten": 1}


async def test_a_fact_waits_with_its_client_as_its_source(world: HttpWorld) -> None:
    key = await world.key("ann", MCP)
    for era in ERAS:
        await ask(
            world.client(key), "tools/call", tool("remember", text=f"Said in {era}."), era=era
        )
    facts = {each.text: each for each in await world.memory.for_owner("ann").facts.list()}
    assert facts["Said in auto."].source == "mcp:tester"
    assert facts["Said in legacy."].source == f"mcp:key-{key.split('_')[1]}"
    assert {facts[f"Said in {era}."].state for era in ERAS} == {"quarantined"}


async def test_without_the_sdk_the_server_says_so(
    world: HttpWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "keepthread.apps.mcp.server", None)
    answer = await ask(world.client(await world.key("ann", MCP)), "tools/list")
    assert (answer.status_code, answer.json()["type"]) == (501, "mcp_not_installed")


# --- a client on the wire ---


async def test_a_client_of_the_sdk_uses_everything_over_http(tmp_path: Path) -> None:
    with listening(url_of(tmp_path)) as served:
        served.furnish("ann")
        key = served.key("ann", scopes=MCP | {"forget"})
        for era in ERAS:
            headers = {"Authorization": f"Bearer {key}"}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=60) as http,
                Client(
                    streamable_http_client(f"{served.address}/mcp", http_client=http), mode=era
                ) as client,
            ):
                tools = [each.name for each in (await client.list_tools()).tools]
                assert len(tools) == 5
                found = await client.call_tool("search_memory", {"query": "I keep"})
                assert outside_quotations(text_of(found))
                read = await client.call_tool("read_session", {"session": session_uri("trip")})
                assert not read.is_error
                noted = await client.call_tool("remember", {"text": f"Uses {era}."})
                assert noted.structured_content
                gone = await client.call_tool(
                    "forget_fact", {"key": noted.structured_content["key"]}
                )
                assert gone.structured_content == {"forgotten": 1}
                listed = await client.call_tool("list_facts")
                assert not listed.is_error
                assert (await client.list_resources()).resources
                assert (await client.list_resource_templates()).resource_templates
                assert (await client.read_resource("keepthread://facts")).contents
                assert (await client.list_prompts()).prompts
                assert (await client.get_prompt("recall", {"topic": "keep"})).messages
