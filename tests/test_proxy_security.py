"""The walls of the proxy: keys are kept nowhere, sessions are a credential's own, and no SSRF."""

import base64
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from keepthread import Memory
from keepthread.apps.http.app import create_app
from keepthread.apps.http.settings import HttpSettings
from keepthread.apps.proxy.settings import ProxySettings
from keepthread.models.tokens import Estimator
from keepthread.testing.server import Say, ScriptedServer
from tests import hostile_pairs
from tests.http_world import HttpWorld, url_of
from tests.proxy_world import error_of

PROXY = frozenset({"proxy"})
UPSTREAM_KEY = "sk-upstream-0123456789abcdef"
CHAT = "/v1/chat/completions"
HOST = "http://localhost"


class Served(HttpWorld):
    """A server with the proxy, before a scripted provider."""

    provider: ScriptedServer

    async def ask(
        self, key: str, text: str = "Hello.", path: str = CHAT, **headers: str
    ) -> httpx2.Response:
        """Ask one question, in a conversation of its own."""
        body = {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 9}
        given = {"Authorization": f"Bearer {UPSTREAM_KEY}", "anthropic-version": "2023-06-01"}
        url = f"{HOST}/proxy/k/{key}{path}"
        return await self.client(None).post(url, json=body, headers={**given, **headers})


@pytest.fixture
def provider() -> Iterator[ScriptedServer]:
    """Serve a provider that always answers."""
    with ScriptedServer(otherwise="Noted.") as server:
        yield server


@pytest.fixture
async def world(tmp_path: Path, provider: ScriptedServer) -> AsyncIterator[Served]:
    """Serve a store, with the proxy."""
    upstreams = ProxySettings(
        openai=provider.openai, anthropic=provider.anthropic, memory_deadline=30
    )
    settings = HttpSettings(rate=0, deadline=300, proxy=upstreams)
    async with Memory.open(url_of(tmp_path), counter=Estimator()) as memory:
        tables = memory.store.server_tables()
        made = Served(memory, tables, create_app(memory, tables, settings))
        made.provider = provider
        yield made
        for client in made.clients:
            await client.aclose()
        await made.app.state.keepthread.finish()


# --- who may come in ---


async def test_the_server_relays_for_keys_with_the_scope_and_for_nobody_else(
    world: Served, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    key = await world.key("ann", PROXY)
    others = {
        401: ["kt_x", f"{key[:-4]}AAAA", await world.key("ann", PROXY, expires_at=50.0, at=10.0)],
        403: [await world.key("ann", frozenset({"read", "write", "mcp"}))],
        400: [await world.key(None, PROXY)],
    }
    for status, keys in others.items():
        for each in keys:
            for path, kind in ((CHAT, "error"), ("/v1/messages", "type")):
                answer = await world.ask(each, path=path)
                assert answer.status_code == status, answer.text
                assert kind in answer.json()
                assert answer.headers["keepthread-error"]
                assert "www-authenticate" not in answer.headers
                assert each not in answer.text
    nothing = await world.client(key).post(f"{HOST}/proxy{CHAT}", json={})
    assert (nothing.status_code, error_of(nothing)["code"]) == (401, "unauthenticated")
    assert world.provider.requests == []
    answer = await world.ask(key)
    assert answer.status_code == 200, answer.text
    assert answer.headers["keepthread-memory"] == "recorded"
    headed = await world.client(None).post(
        f"{HOST}/proxy{CHAT}",
        json={"model": "m", "messages": [{"role": "user", "content": "Hi."}]},
        headers={"Keepthread-Key": key, "Authorization": f"Bearer {UPSTREAM_KEY}"},
    )
    assert headed.status_code == 200
    for each in world.provider.requests:
        assert key not in str(each.headers)
        assert f"Bearer {UPSTREAM_KEY}" in str(each.headers)
    # The client of this test is in the same process, and logs what it sends.
    records = [each for each in caplog.records if f"POST {HOST}" not in each.getMessage()]
    logged = "".join(f"{each.getMessage()} {vars(each)}" for each in records)
    assert "/proxy" in logged
    for secret in (key, key.split("_", 2)[2], UPSTREAM_KEY):
        assert secret not in logged


def _places(key: str) -> dict[str, tuple[str, dict[str, str]]]:
    """Return paths and headers that would carry a key to the provider."""
    basic = base64.b64encode(f"user:{key}".encode()).decode()
    of_urls = base64.urlsafe_b64encode(f"???:{key}".encode()).decode()  # `_` stands for `/`
    quoted = key.replace("_", "%5F", 1)
    return {
        "a bearer": (CHAT, {"Authorization": f"Bearer {key}"}),
        "a password": (CHAT, {"Authorization": f"Basic {basic}"}),
        "a password for URLs": (CHAT, {"Authorization": f"Basic {of_urls}"}),
        "a password for URLs without its end": (CHAT, {"x-api-key": of_urls.rstrip("=")}),
        "Anthropic's header": ("/v1/messages", {"x-api-key": key}),
        "a cookie": (CHAT, {"Cookie": f"a=b; key={key}"}),
        "a quoted cookie": (CHAT, {"Cookie": f"key={quoted}"}),
        "a header's name": (CHAT, {key: "x"}),
        "the query": (f"{CHAT}?key={key}", {}),
        "the quoted query": (f"{CHAT}?key={quoted}", {}),
        "twice quoted": (f"{CHAT}?key={quoted.replace('%', '%25')}", {}),
        "the path": (f"/k/{key}{CHAT}", {}),
        "the end of the path": (f"/v1/files/{key}", {}),
        "the quoted path": (f"/k/{quoted}{CHAT}", {}),
        "a session": (f"/s/{key}{CHAT}", {}),
        "a session's header": (CHAT, {"Keepthread-Session": key}),
    }


@pytest.mark.parametrize("place", _places("kt_x"))
async def test_no_key_goes_to_the_provider_or_into_a_log(
    world: Served, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    caplog.set_level(logging.DEBUG)
    mine, other = await world.key("ann", PROXY), await world.key("bob", PROXY)
    path, headers = _places(other)[place]
    answer = await world.ask(mine, path=path, **headers)
    assert (answer.status_code, answer.headers["keepthread-error"]) == (400, "key_in_request")
    assert "keepthread key" in answer.json()["error"]["message"]
    assert other not in answer.text
    assert world.provider.requests == []
    assert await world.memory.for_owner("ann").list_sessions() == []
    records = [each for each in caplog.records if f"POST {HOST}" not in each.getMessage()]
    assert other.split("_", 2)[2] not in str([vars(each) for each in records])


async def test_the_key_of_a_request_itself_goes_nowhere(world: Served) -> None:
    key = await world.key("ann", PROXY)
    # A program that puts its only key everywhere works with providers that want none.
    answer = await world.ask(key, **{"Authorization": f"Bearer {key}", "X-Other": key})
    assert answer.status_code == 200, answer.text
    assert key not in str(world.provider.requests[0].headers)
    for path in (f"{CHAT}?x={key}", f"/k/{key}{CHAT}"):
        assert (await world.ask(key, path=path)).status_code == 400
    assert len(world.provider.requests) == 1


# --- whose sessions ---


@pytest.mark.parametrize("name", ["trip", "../key-1/trip", "proxy/0/trip", "trip%2F..", "x" * 300])
async def test_a_session_id_reaches_no_session_of_another_credential(
    world: Served, name: str
) -> None:
    named = {"Keepthread-Session": name}
    anns, also_anns = await world.key("ann", PROXY), await world.key("ann", PROXY)
    bobs = await world.key("bob", PROXY)
    sessions: list[str] = []
    for key, text in ((anns, "I hid hazelnuts."), (also_anns, "Mine?"), (bobs, "hazelnuts?")):
        answer = await world.ask(key, text, **named)
        assert answer.status_code == 200, answer.text
        sessions.append(answer.headers["keepthread-session"])
    assert len(set(sessions)) == 3
    assert "hid" not in str(world.provider.requests[-1].body)
    # A whole id of another credential's session is a name like any other.
    stolen = await world.ask(also_anns, "Mine?", **{"Keepthread-Session": sessions[0]})
    assert stolen.headers["keepthread-session"] not in sessions
    found = await world.memory.for_owner("bob").list_sessions()
    assert [each.id for each in found] == [sessions[2]]


@pytest.mark.parametrize(("one", "other"), hostile_pairs.NAMES)
async def test_a_key_of_several_owners_has_the_memory_of_each(
    world: Served, one: str, other: str
) -> None:
    key = await world.key(None, PROXY)
    for owner, text in ((one, "I hid hazelnuts."), (other, "Where are the hazelnuts?")):
        answer = await world.ask(key, text, **{"Keepthread-Owner": quote(owner)})
        assert answer.status_code == 200, answer.text
    assert "hid" not in str(world.provider.requests[-1].body)
    assert len(await world.memory.for_owner(one).list_sessions()) == 1
    assert len(await world.memory.for_owner(other).list_sessions()) == 1


async def test_nothing_in_a_request_chooses_the_owner_or_the_tenant(world: Served) -> None:
    key = await world.key("bob", PROXY)
    answer = await world.ask(
        key, **{"Keepthread-User": "ann", "X-User-Id": "ann", "X-OpenWebUI-User-Id": "ann"}
    )
    assert answer.status_code == 200
    refused = await world.ask(key, **{"Keepthread-Owner": "ann"})
    assert refused.status_code == 403
    assert await world.memory.for_owner("ann").list_sessions() == []


# --- where requests go ---


async def test_nothing_in_a_request_names_another_upstream(world: Served) -> None:
    key = await world.key("ann", PROXY)
    with ScriptedServer(otherwise="stolen") as evil:
        host = evil.anthropic.removeprefix("http://")
        for headers in (
            {"X-Forwarded-Host": host, "Forwarded": f"host={host}", "X-Original-URL": evil.openai},
            {"Keepthread-Upstream": evil.openai, "X-Upstream": evil.openai, "Via": host},
            {"X-Base-Url": evil.openai, "OpenAI-Base-Url": evil.openai, "Referer": evil.openai},
        ):
            assert (await world.ask(key, **headers)).status_code == 200
        body: dict[str, Any] = {
            "model": evil.openai,
            "messages": [{"role": "user", "content": f"![]({evil.anthropic}/x.png)"}],
            "base_url": evil.openai,
            "api_base": evil.openai,
            "metadata": {"base_url": evil.openai},
        }
        url = f"{HOST}/proxy/k/{key}"
        sent = await world.client(None).post(f"{url}{CHAT}?base_url={evil.openai}", json=body)
        assert "keepthread-error" not in sent.headers  # the provider may refuse the fields
        for path in (f"//{host}/v1/models", f"/v1/%2f%2f{host}", "/v1/%2e%2e/x", f"/@{host}/x"):
            answer = await world.client(None).get(
                httpx2.URL(url + "/").copy_with(raw_path=f"/proxy/k/{key}{path}".encode())
            )
            assert answer.status_code in (400, 404), path
        assert evil.requests == []
    assert {each.path.partition("?")[0] for each in world.provider.requests} <= {CHAT, "/x"}


async def test_a_redirect_is_given_to_the_client_and_not_followed(tmp_path: Path) -> None:
    with ScriptedServer(otherwise="stolen") as evil:
        moved = Say(status=307, headers={"Location": f"{evil.openai}/chat/completions"})
        with ScriptedServer([moved]) as provider:
            settings = HttpSettings(
                rate=0, proxy=ProxySettings(openai=provider.openai, memory_deadline=30)
            )
            async with Memory.open(url_of(tmp_path), counter=Estimator()) as memory:
                tables = memory.store.server_tables()
                world = Served(memory, tables, create_app(memory, tables, settings))
                answer = await world.ask(await world.key("ann", PROXY))
                assert answer.status_code == 307
                assert evil.requests == []
                await world.clients[0].aclose()
                await world.app.state.keepthread.finish()


# --- keys of providers ---


def test_no_key_is_in_any_file_or_log(tmp_path: Path, provider: ScriptedServer) -> None:
    """The command itself: all that it writes is searched."""
    home = {f"XDG_{name}_HOME": str(tmp_path / "home") for name in ("CONFIG", "DATA", "STATE")}
    environment = {
        **{name: each for name, each in os.environ.items() if not name.startswith("KEEPTHREAD_")},
        "HOME": str(tmp_path / "home"),
        "NO_PROXY": "127.0.0.1",
        **home,
    }
    command = [sys.executable, "-m", "keepthread", "proxy", "--store", str(tmp_path / "m.db")]
    upstreams = ["--upstream", f"openai={provider.openai}", "anthropic=http://127.0.0.1:1"]
    with subprocess.Popen(
        [*command, "--port", "0", *upstreams],
        env=environment,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        url = process.stdout.readline().strip()
        token = url.split("/")[4]
        _ask_all(url)
        process.send_signal(signal.SIGTERM)
        out, errors = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "")
    assert token not in errors
    assert UPSTREAM_KEY not in errors
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert tmp_path / "m.db" in files
    for path in files:
        data = path.read_bytes()
        assert UPSTREAM_KEY.encode() not in data, path
        assert (token.encode() in data) == (path.name == "proxy-token"), path


def _ask_all(url: str) -> None:
    """Send requests that succeed and that fail, each with the key wherever clients put it."""
    headers = {
        "Authorization": f"Bearer {UPSTREAM_KEY}",
        "x-api-key": UPSTREAM_KEY,
        "api-key": UPSTREAM_KEY,
        "Cookie": f"session={UPSTREAM_KEY}",
    }
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Hello."}]}
    with httpx2.Client(trust_env=False, headers=headers, timeout=60) as client:
        statuses = [
            client.post(f"{url}/chat/completions?api_key={UPSTREAM_KEY}", json=body).status_code,
            client.post(f"{url}/chat/completions", json={**body, "stream": True}).status_code,
            client.post(f"{url}/chat/completions", content=b"{broken").status_code,
            client.post(f"{url}/messages", json={**body, "max_tokens": 5}).status_code,
            client.get(f"{url}/unknown?key={UPSTREAM_KEY}").status_code,
            client.post(f"{url.replace('/k/', '/k/x')}/chat/completions", json=body).status_code,
        ]
    assert statuses[:2] == [200, 200]
    assert statuses[3] == 502
    assert statuses[5] == 401
