"""Tokens of an identity provider: pinned issuer, audience, algorithms and keys."""

import asyncio
import base64
import json
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

from keepthread.apps.http.metrics import Metrics, watch_keys
from keepthread.apps.http.problems import Problem
from keepthread.apps.http.settings import HttpSettings, Issuer
from keepthread.apps.http.tokens import IssuerKeys
from keepthread.errors import InvalidInput
from tests.http_app import bearer, served

ISSUER = "https://login.example.com/"
AUDIENCE = "keepthread"


@cache
def private_key(name: str) -> Any:
    if name == "rsa":
        return rsa.generate_private_key(65537, 2048)
    return ec.generate_private_key(ec.SECP256R1())


def jwk(name: str, kid: str, **more: Any) -> dict[str, Any]:
    kind = RSAAlgorithm if name == "rsa" else ECAlgorithm
    found = kind.to_jwk(private_key(name).public_key(), as_dict=True)
    return {**found, "kid": kid, "alg": "RS256" if name == "rsa" else "ES256", **more}


def claims(**more: Any) -> dict[str, Any]:
    given = {
        "iss": ISSUER,
        "aud": AUDIENCE,
        "exp": time.time() + 600,
        "sub": "ann",
        "tenant": "acme",
        "scope": "openid read write",
        **more,
    }
    return {name: value for name, value in given.items() if value is not None}


def token(
    given: Mapping[str, Any], name: str = "ec", kid: str = "one", alg: str = "ES256", **headers: Any
) -> str:
    key = private_key(name) if isinstance(name, str) and name in ("rsa", "ec") else name
    return jwt.encode(dict(given), key, algorithm=alg, headers={"kid": kid, **headers})


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [jwk("ec", "one"), jwk("rsa", "two")]}))
    return path


def settings(keys: Path, **more: Any) -> HttpSettings:
    issuer = Issuer(name=ISSUER, audience=AUDIENCE, jwks=str(keys), **more)
    return HttpSettings(issuers=(issuer,))


async def test_claims_give_tenant_owner_and_scopes(keys: Path) -> None:
    async with served(settings(keys)) as server:
        for given in (token(claims()), token(claims(), "rsa", "two", "RS256")):
            who = await server.client.get("/v1/who", headers=bearer(given))
            assert (who.json()["tenant"], who.json()["owner"]) == ("acme", "ann")
        headers = bearer(token(claims())) | {"Keepthread-Owner": "bob"}
        other = await server.client.get("/v1/who", headers=headers)
        erase = await server.client.delete("/v1/notes/a", headers=bearer(token(claims())))
        named = await server.client.delete(
            "/v1/notes/a", headers=bearer(token(claims(scope=["forget", "root"])))
        )
    assert other.json()["type"] == "wrong_owner"
    assert (erase.status_code, named.status_code) == (403, 200)


async def test_a_token_does_not_choose_the_tenant_where_the_settings_name_it(keys: Path) -> None:
    async with served(settings(keys, tenant="acme")) as server:
        for named in ("other", "", None):
            given = bearer(token(claims(tenant=named)))
            who = await server.client.get("/v1/who", headers=given)
            assert who.json()["tenant"] == "acme"


async def test_two_issuers_users_of_one_name_are_two_clients(keys: Path) -> None:
    other = "https://login.example.org/"
    issuers = [Issuer(name=name, audience=AUDIENCE, jwks=str(keys)) for name in (ISSUER, other)]
    async with served(HttpSettings(issuers=(*issuers,))) as server:
        answers = [
            await server.client.get("/v1/who", headers=bearer(token(claims(iss=name))))
            for name in (ISSUER, other)
        ]
    one, two = (answer.json() for answer in answers)
    assert (one["tenant"], one["owner"]) == (two["tenant"], two["owner"])
    assert one["key"] != two["key"]


def unsigned(given: Mapping[str, Any]) -> str:
    parts = ({"alg": "none", "kid": "one"}, given)
    encoded = [base64.urlsafe_b64encode(json.dumps(p).encode()).rstrip(b"=") for p in parts]
    return b".".join([*encoded, b""]).decode()


REFUSED = {
    "no end": lambda: token(claims(exp=None)),
    "an end in ten years": lambda: token(claims(exp=time.time() + 10 * 365 * 86400)),
    "expired": lambda: token(claims(exp=time.time() - 60)),
    "not yet valid": lambda: token(claims(nbf=time.time() + 600)),
    "another issuer": lambda: token(claims(iss="https://evil.example.com/")),
    "a longer issuer": lambda: token(claims(iss=ISSUER + "x")),
    "no issuer": lambda: token(claims(iss=None)),
    "another audience": lambda: token(claims(aud="other")),
    "no audience": lambda: token(claims(aud=None)),
    "no owner": lambda: token(claims(sub=None)),
    "an empty owner": lambda: token(claims(sub="")),
    "no tenant": lambda: token(claims(tenant=None)),
    "a tenant that is a list": lambda: token(claims(tenant=["acme"])),
    "an unknown key": lambda: token(claims(), kid="three"),
    "a key of another kind": lambda: token(claims(), kid="two"),
    "the public key as a secret": lambda: token(claims(), "s" * 32, "one", "HS256"),
    "no signature": lambda: unsigned(claims()),
    "a signature of something else": lambda: token(claims())[:-6] + "AAAAAA",
    "keys of its own": lambda: token(claims(), kid="three", jku="http://127.0.0.1:1/jwks"),
    "a key of its own": lambda: token(claims(), kid="three", jwk=jwk("ec", "three")),
    "no token": lambda: "abc",
    "three dots": lambda: "...",
    "too long": lambda: token(claims(more="x" * 20_000)),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_a_token_is_refused_with(case: str, keys: Path) -> None:
    async with served(settings(keys)) as server:
        answer = await server.client.get("/v1/who", headers=bearer(REFUSED[case]()))
    assert (answer.status_code, answer.json()["type"]) == (401, "invalid_token")


async def test_without_an_issuer_no_token_is_accepted() -> None:
    async with served() as server:
        answer = await server.client.get("/v1/who", headers=bearer(token(claims())))
    assert answer.status_code == 401


@pytest.mark.parametrize(
    "wrong",
    [
        {"algorithms": ("HS256",)},
        {"algorithms": ("none",)},
        {"algorithms": ()},
        {"jwks": "http://login.example.com/keys"},
        {"jwks": "http://localhost@evil.example.com/keys"},
        {"jwks": "ftp://login.example.com/keys"},
    ],
)
def test_settings_that_would_not_be_safe_are_refused(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"name": ISSUER, "audience": AUDIENCE, "jwks": "keys.json", **wrong}
    with pytest.raises(InvalidInput):
        Issuer(**given)


async def test_new_keys_are_found_and_unknown_ones_are_not_looked_for_in_haste(
    keys: Path,
) -> None:
    now = 0.0
    store = IssuerKeys(str(keys), lambda: now)
    assert (await store.find("one")).key_id == "one"
    keys.write_text(json.dumps({"keys": [jwk("ec", "new")]}))
    for seconds in (1, 29):
        now = seconds
        with pytest.raises(Exception, match="not accepted"):
            await store.find("new")
    now = 31
    assert (await store.find("new")).key_id == "new"
    keys.write_text("not json")
    now = 2000
    assert (await store.find("new")).key_id == "new"  # what is known serves on


async def test_keys_that_cannot_be_read_again_are_used_for_an_hour(keys: Path) -> None:
    now = 0.0
    store, good = IssuerKeys(str(keys), lambda: now), keys.read_text()
    assert store.age() is None
    await store.find("one")
    keys.unlink()
    now = 3599
    assert (await store.find("one")).key_id == "one"
    assert store.age() == now
    now = 3601
    with pytest.raises(Problem) as raised:
        await store.find("one")
    assert (raised.value.status, raised.value.code) == (503, "issuer_unavailable")
    keys.write_text(good)
    now += 31
    assert (await store.find("one")).key_id == "one"
    assert store.age() == 0


async def test_a_metric_shows_the_age_of_the_issuers_keys(keys: Path) -> None:
    metrics = Metrics()
    async with served(settings(keys)) as server:
        state = server.app.state.keepthread
        for seen in (None, 0.0):
            watching = asyncio.create_task(watch_keys(state, metrics, every=60))
            await asyncio.sleep(0)
            watching.cancel()
            age = metrics.registry.get_sample_value(
                "keepthread_issuer_keys_age_seconds", {"issuer": ISSUER}
            )
            assert age is None if seen is None else age is not None and 0 <= age < 60
            await server.client.get("/v1/who", headers=bearer(token(claims())))


async def test_a_provider_that_is_away_is_told_apart_from_a_wrong_token(tmp_path: Path) -> None:
    async with served(settings(tmp_path / "missing.json")) as server:
        answer = await server.client.get("/v1/who", headers=bearer(token(claims())))
    assert (answer.status_code, answer.json()["type"]) == (503, "issuer_unavailable")
    assert "missing.json" not in answer.text
