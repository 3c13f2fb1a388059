"""What other memory servers got wrong, each by the number under which it was published.

Letta's SSRF by an image's URL (CVE-2026-4964), voltagent's guessed conversation ids (issue 1315)
and cursors against the sort order (letta-python issue 63) are about resources, and are tested with
the routes.
"""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from keepthread.apps.http.auth import PUBLIC
from keepthread.apps.http.serve import Bind, check
from keepthread.apps.http.settings import HttpSettings, Issuer
from keepthread.apps.http.tokens import IssuerKeys
from keepthread.apps.http.worker import Work
from keepthread.errors import InvalidInput
from keepthread.memory.memory import Memory
from keepthread.models.tokens import Estimator
from tests.http_app import bearer, served
from tests.test_http_tokens import claims, settings, token


def work(path: Path, **given: Issuer) -> Work:
    return Work(
        open_memory=lambda: Memory.open(f"sqlite:///{path}/a.db", counter=Estimator()),
        settings=HttpSettings(issuers=tuple(given.values())),
    )


@pytest.mark.parametrize("number", ["CVE-2026-31240", "CVE-2026-31243", "CVE-2026-31244"])
async def test_no_route_works_without_authentication(number: str) -> None:
    """mem0 and OpenMemory: anyone could read, add and delete memories."""
    async with served() as server:
        for route in server.app.routes:
            if not isinstance(route, APIRoute) or route.path in PUBLIC:
                continue
            for method in route.methods or ():
                answer = await server.client.request(method, route.path.replace("{", "x"))
                assert (answer.status_code, answer.json()["type"]) == (401, "unauthenticated")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.com", ""])
async def test_a_server_without_keys_does_not_listen_to_other_machines(
    host: str, tmp_path: Path
) -> None:
    """CVE-2026-31240: mem0's server listened on every address, and asked for nothing."""
    with pytest.raises(InvalidInput, match="keepthread keys create"):
        await check(work(tmp_path), Bind(host=host))


async def test_loopback_needs_a_key_too(tmp_path: Path) -> None:
    """CVE-2026-31243: programs and pages of the same machine are not trusted."""
    notes = await check(work(tmp_path), Bind(host="127.0.0.1"))
    assert any("keepthread keys create" in note for note in notes)
    async with served() as server:
        assert (await server.client.get("/v1/who")).status_code == 401


async def test_keys_are_not_stored_as_they_are(tmp_path: Path) -> None:
    """mem0 issue 6081: keys could be read in the database."""
    async with served(url=f"sqlite:///{tmp_path}/a.db") as server:
        key = await server.key()
        assert (await server.client.get("/v1/who", headers=bearer(key))).status_code == 200
        secret = key.split("_", 2)[2].encode()
    for file in tmp_path.iterdir():
        assert secret not in file.read_bytes()


async def test_a_key_does_only_what_its_scopes_say() -> None:
    """CVE-2026-49948: every user who was authenticated could do what an administrator can."""
    async with served() as server:
        user = await server.headers("read", "write", owner=None) | {"Keepthread-Owner": "ann"}
        for method, path in (("GET", "/v1/operator"), ("POST", "/v1/keys/new")):
            answer = await server.client.request(method, path, headers=user)
            assert (answer.status_code, answer.json()["type"]) == (403, "scope_required")
        erase = await server.client.delete("/v1/notes/a", headers=user)
        assert erase.status_code == 403


@pytest.mark.parametrize("origin", ["https://evil.example.com", "null", "http://localhost:3000"])
async def test_no_page_of_another_origin_reaches_a_server_on_localhost(origin: str) -> None:
    """Localhost with CORS `*`: every page that a user visits could read that user's memory."""
    async with served() as server:
        key = await server.headers()
        plain = await server.client.get("/v1/who", headers=key | {"Origin": origin})
        asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        preflight = await server.client.options("/v1/who", headers=asked)
        health = await server.client.get("/livez", headers={"Origin": origin})
    for answer in (plain, preflight, health):
        assert (answer.status_code, answer.json()["type"]) == (403, "wrong_origin")
        assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example.com",
        "127.0.0.1.evil.example.com",
        "localhost.x",
        "localhost:80@evil.example.com",
        "[::1].evil.example.com:80",
    ],
)
async def test_a_name_that_leads_to_this_machine_is_not_its_name(host: str) -> None:
    """DNS rebinding: a page's own name leads to 127.0.0.1 later on."""
    async with served() as server:
        key = await server.headers()
        answer = await server.client.get("/v1/who", headers=key | {"Host": host})
        own = await server.client.get("/v1/who", headers=key | {"Host": "LOCALHOST.:8765"})
        six = await server.client.get("/v1/who", headers=key | {"Host": "[::1]:8765"})
    assert (answer.status_code, answer.json()["type"]) == (421, "wrong_host")
    assert (own.status_code, six.status_code) == (200, 200)


async def test_an_origin_that_is_allowed_is_named_and_never_all() -> None:
    page = "https://app.example.com"
    async with served(HttpSettings(origins=frozenset({page}))) as server:
        key = await server.headers()
        asked = {"Origin": page, "Access-Control-Request-Method": "POST"}
        preflight = await server.client.options("/v1/notes/a", headers=asked)
        found = await server.client.get("/v1/who", headers=key | {"Origin": page})
        denied = await server.client.get("/v1/who", headers={"Origin": page})
        other = await server.client.get("/v1/who", headers=key | {"Origin": page + ".evil.com"})
    assert preflight.status_code == found.status_code == 200
    for answer in (preflight, found, denied):  # a page can read why it was refused
        assert answer.headers["Access-Control-Allow-Origin"] == page
        assert "Access-Control-Allow-Credentials" not in answer.headers
    assert (denied.status_code, other.status_code) == (401, 403)


async def test_a_token_without_an_end_is_refused(tmp_path: Path) -> None:
    """Honcho: tokens of administrators had no expiry."""
    keys = tmp_path / "jwks.json"
    keys.write_text('{"keys": []}')
    async with served(settings(keys)) as server:
        for given in (claims(exp=None), claims(exp=2**40)):
            answer = await server.client.get("/v1/who", headers=bearer(token(given)))
            assert answer.status_code in (401, 503)
            assert "who" not in answer.text


class _Elsewhere(BaseHTTPRequestHandler):
    """Sends whoever asks to another address, and counts who comes there."""

    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(302)
        self.send_header("Location", "/internal")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


async def test_the_server_asks_no_address_that_a_request_or_an_answer_names() -> None:
    """mem0 issue 6081 and CVE-2026-4964: settings and bodies made the server fetch any URL."""
    asked: list[str] = []
    handler = type("Handler", (_Elsewhere,), {"asked": asked})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as elsewhere:
        threading.Thread(target=elsewhere.serve_forever, daemon=True).start()
        place = f"http://127.0.0.1:{elsewhere.server_port}"
        async with served() as server:
            key = await server.headers()
            forged = token(claims(iss=place), jku=f"{place}/jku", x5u=f"{place}/x5u")
            await server.client.get("/v1/who", headers=bearer(forged))
            body = {"text": f"{place}/image.png"}
            await server.client.post("/v1/notes/a", json=body, headers=key)
            for name in ("X-Forwarded-Host", "Forwarded", "X-Original-URL", "Referer"):
                await server.client.get("/v1/who", headers=key | {name: place})
        assert asked == []
        with pytest.raises(Exception, match="cannot be read"):
            await IssuerKeys(f"{place}/keys").find("one")
        assert asked == ["/keys"]  # and not where the answer led
        elsewhere.shutdown()


def test_no_route_changes_the_settings() -> None:
    """mem0 issue 6081: a request could point the server at another address."""
    assert HttpSettings.__dataclass_params__.frozen  # pyright: ignore[reportAttributeAccessIssue]
