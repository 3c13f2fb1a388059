"""Tokens of an identity provider (JWT, OIDC): checked against pinned issuers, keys and algorithms.

A token is text from outside. It chooses neither the algorithm, nor the keys, nor where they come
from: the settings name the issuer, its audience, its algorithms and the one place of its keys.
"""

import asyncio
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, cast
from urllib.error import URLError
from urllib.request import HTTPRedirectHandler, OpenerDirector, build_opener

import jwt

from keepthread.apps.http.caller import Identity, unauthenticated
from keepthread.apps.http.keys import SCOPES
from keepthread.apps.http.problems import Problem
from keepthread.apps.http.settings import KIB, Issuer
from keepthread.errors import InvalidInput
from keepthread.stores.validation import check_id

_REQUIRED: Final = ["exp", "iss", "aud"]
_MAX_LIFETIME: Final = 24 * 3600.0
"""Longer-lived tokens are rejected, like those that never expire."""
_MAX_TOKEN: Final = 16 * KIB
_MAX_JWKS: Final = 256 * KIB
_FETCH_SECONDS: Final = 5.0
_FRESH: Final = 600.0
"""Seconds after which keys are read again."""
_MAX_AGE: Final = 3600.0
"""Seconds after which keys that cannot be read again are no longer used: one may be withdrawn."""
_PAUSE: Final = 30.0
"""Seconds between two readings that an unknown key id or a failure causes."""


class Tokens:
    """Checks tokens of the issuers that the settings name."""

    def __init__(self, issuers: Sequence[Issuer], clock: Callable[[], float] = time.time) -> None:
        """Take the issuers; their keys are read with the first token."""
        self._issuers = {each.name: each for each in issuers}
        self._keys = {each.name: IssuerKeys(each.jwks) for each in issuers}
        self._clock = clock

    def key_ages(self) -> dict[str, float]:
        """Return the age of the keys of each issuer that was used, in seconds."""
        ages = {name: keys.age() for name, keys in self._keys.items()}
        return {name: age for name, age in ages.items() if age is not None}

    async def identity(self, text: str) -> Identity:
        """Return whom a token names; raise a problem if it is not valid."""
        try:
            return await self._checked(text)
        except (jwt.PyJWTError, InvalidInput, ValueError, TypeError) as error:
            raise _refused(type(error).__name__) from None

    async def _checked(self, text: str) -> Identity:
        if len(text) > _MAX_TOKEN:
            raise _refused("too long")
        issuer = self._issuer_of(text)
        header = jwt.get_unverified_header(text)
        key = await self._keys[issuer.name].find(str(header.get("kid", "")))
        if key.algorithm_name not in issuer.algorithms:
            raise _refused("algorithm")
        claims = jwt.decode(
            text,
            key,
            algorithms=[key.algorithm_name],
            audience=issuer.audience,
            issuer=issuer.name,
            leeway=issuer.leeway,
            options={"require": [*_REQUIRED, issuer.owner_claim]},
        )
        if claims["exp"] > self._clock() + _MAX_LIFETIME + issuer.leeway:
            raise _refused("valid for too long")
        return _identity(issuer, claims)

    def _issuer_of(self, text: str) -> Issuer:
        claims = jwt.decode(text, options={"verify_signature": False})
        issuer = self._issuers.get(str(claims.get("iss")))
        return issuer if issuer is not None else _unknown_issuer()


def _unknown_issuer() -> NoReturn:
    raise _refused("issuer")


def _identity(issuer: Issuer, claims: Mapping[str, Any]) -> Identity:
    tenant = issuer.tenant or claims.get(issuer.tenant_claim)
    owner = claims[issuer.owner_claim]
    if not isinstance(tenant, str) or not isinstance(owner, str):
        raise _refused("claims")
    named = claims.get(issuer.scope_claim, "")
    scopes = cast("list[object]", named) if isinstance(named, list) else str(named).split()
    who = hashlib.sha256(f"{issuer.name}\n{owner}".encode()).hexdigest()[:16]
    return Identity(
        key_id=f"jwt-{who}",
        tenant=check_id(tenant, "tenant"),
        owner=check_id(owner, "owner"),
        bound=True,
        scopes=frozenset(SCOPES).intersection(map(str, scopes)),
    )


class IssuerKeys:
    """The public keys of one issuer, kept for some minutes and shared by all requests."""

    def __init__(self, place: str, clock: Callable[[], float] = time.monotonic) -> None:
        """Take an https URL or the path of a file."""
        self._place = place
        self._clock = clock
        self._keys: dict[str, jwt.PyJWK] = {}
        self._read_at = self._tried_at = clock() - _MAX_AGE
        self._first_try: float | None = None
        self._fetch_lock = asyncio.Lock()

    def age(self) -> float | None:
        """Return for how long the keys could not be read again; None if they were never needed."""
        if self._first_try is None:
            return None
        return self._clock() - (self._read_at if self._keys else self._first_try)

    async def find(self, id: str) -> jwt.PyJWK:
        """Return the key of an id; a new id may make it read the keys again, but not often."""
        now = self._clock()
        if id not in self._keys or now - self._read_at > _FRESH:
            async with self._fetch_lock:
                await self._refresh(id, now)
        if not self._keys or now - self._read_at > _MAX_AGE:
            raise Problem(
                503,
                "issuer_unavailable",
                "The identity provider's keys cannot be read right now; retry later.",
                headers={"Retry-After": "5"},
                retryable=True,
            )
        # A provider with one key need not name it.
        if not id and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(id) or _unknown_key()

    async def _refresh(self, id: str, now: float) -> None:
        """Read the keys unless another request just did, or failed to."""
        fresh = id in self._keys and now - self._read_at <= _FRESH
        if fresh or now - self._tried_at < _PAUSE:
            return
        self._tried_at = now
        if self._first_try is None:
            self._first_try = now
        try:
            found = await asyncio.wait_for(
                asyncio.to_thread(_read, self._place), 2 * _FETCH_SECONDS
            )
        except (OSError, ValueError, jwt.PyJWTError, TimeoutError):
            return  # the known keys remain in use for an hour
        self._keys = found
        self._read_at = now


def _unknown_key() -> NoReturn:
    raise _refused("key")


class _NoRedirects(HTTPRedirectHandler):
    """Refuses redirects: only the configured URL is requested."""

    def redirect_request(
        self,
        req: Any,  # noqa: ARG002
        fp: Any,
        code: Any,  # noqa: ARG002
        msg: Any,  # noqa: ARG002
        headers: Any,  # noqa: ARG002
        newurl: Any,  # noqa: ARG002
    ) -> NoReturn:
        fp.close()
        raise URLError("redirected")


def _read(place: str) -> dict[str, jwt.PyJWK]:
    """Return the keys at a place by their ids."""
    if "://" in place:
        opener: OpenerDirector = build_opener(_NoRedirects)
        with opener.open(place, timeout=_FETCH_SECONDS) as response:
            data = response.read(_MAX_JWKS + 1)
    else:
        with Path(place).open("rb") as file:
            data = file.read(_MAX_JWKS + 1)
    if len(data) > _MAX_JWKS:
        raise ValueError("too many keys")
    keys: dict[str, jwt.PyJWK] = {}
    for each in json.loads(data)["keys"]:
        if each.get("use", "sig") == "sig" and each.get("kty") in ("RSA", "EC", "OKP"):
            keys[str(each.get("kid", ""))] = jwt.PyJWK(each)
    return keys


def _refused(reason: str) -> Problem:
    """Return the problem; a text from the token is not part of it."""
    return unauthenticated("invalid_token", f"This token is not accepted ({reason}).")
