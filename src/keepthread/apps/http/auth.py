"""Authentication: which tenant, owner and scopes a request's credential proves.

It is a layer around all routes. A path that is not in `PUBLIC` needs a credential, also one that
does not exist, so a new route cannot be forgotten. The credential is the header `Authorization`
and nothing else: a key in an address would end up in logs and histories. Only clients of the proxy,
whose `Authorization` is the provider's, may have it in the path or in `Keepthread-Key`.
"""

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from keepthread.apps.http.caller import OWNER_HEADER, Identity, identify, unauthenticated
from keepthread.apps.http.json_input import has_body, too_large
from keepthread.apps.http.keys import SharedKeyReads, check_key
from keepthread.apps.http.mcp import METADATA_PATHS, with_metadata
from keepthread.apps.http.problems import Problem
from keepthread.apps.http.proxy import is_proxied, proxy_key
from keepthread.apps.http.state import WorkerState
from keepthread.apps.http.tokens import Tokens
from keepthread.errors import Unavailable
from keepthread.stores.validation import check_id

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

PUBLIC: Final = frozenset({"/livez", "/readyz", "/openapi.json", *METADATA_PATHS})
"""The paths that need no credential; they show nothing of any tenant, and take no body."""

_SECONDS: Final = 10.0
"""For reading a key: until then a request has a place that it may not deserve."""
_PREFIX: Final = "kt_"
_INVALID: Final = (
    "This key is unknown, expired or revoked; `keepthread keys list` shows the valid ones."
)
_MISSING: Final = (
    "This needs a credential: send the header `Authorization: Bearer kt_…`;"
    " `keepthread keys create` makes a key."
)
_MISSING_IN_PATH: Final = (
    "This needs a keepthread key: use the base URL `/proxy/k/KEY/v1`, or send the header"
    " `Keepthread-Key`; `keepthread keys create --scope proxy` makes a key."
)


class Authentication:
    """Notes in the request's scope who sends it, or refuses it before its body is read."""

    def __init__(self, app: "ASGIApp", state: WorkerState) -> None:
        """Wrap an application."""
        self._app = app
        self._state = state
        self._keys = SharedKeyReads(state.tables)
        self._tokens = Tokens(state.settings.issuers, state.clock)
        state.issuer_key_ages = self._tokens.key_ages

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Authenticate one request."""
        if scope["type"] == "http":
            if scope["path"] not in PUBLIC:
                await self._authenticate(scope)
            elif has_body(scope):
                raise too_large(0)
        await self._app(scope, receive, send)

    async def _authenticate(self, scope: "Scope") -> None:
        try:
            async with asyncio.timeout(_SECONDS):
                await self._state.prepare()
                identify(scope, await self.identity(scope))
        except Problem as problem:
            raise with_metadata(problem, scope, self._state.settings) from None
        except TimeoutError:
            raise Unavailable("reading the key took too long") from None

    async def identity(self, scope: "Scope") -> Identity:
        """Return who sends a request; raise a problem if that is not proven."""
        text = _credential(scope)
        found = await (self._by_key if text.startswith(_PREFIX) else self._tokens.identity)(text)
        return _with_owner(found, _one_header(scope, OWNER_HEADER))

    async def _by_key(self, text: str) -> Identity:
        key = (await check_key(self._keys, text, at=self._state.clock())).key
        if key is None:
            raise unauthenticated("invalid_key", _INVALID)
        return Identity(
            key_id=key.id,
            tenant=key.tenant,
            owner=key.owner,
            bound=key.owner is not None,
            scopes=key.scopes,
        )


def _credential(scope: "Scope") -> str:
    if is_proxied(scope):
        if not (key := proxy_key(scope)):
            raise unauthenticated("unauthenticated", _MISSING_IN_PATH)
        return key
    scheme, _, text = (_one_header(scope, "Authorization") or "").partition(" ")
    if scheme.lower() != "bearer" or not text.strip():
        raise unauthenticated("unauthenticated", _MISSING)
    return text.strip()


def _one_header(scope: "Scope", name: str) -> str | None:
    """Return a header that may be sent only once, so that no proxy reads another value."""
    wanted = name.lower().encode()
    found = [value for key, value in scope["headers"] if key.lower() == wanted]
    if len(found) > 1:
        raise Problem(400, "repeated_header", f"Send the header {name} once.")
    return found[0].decode("latin-1") if found else None


def _with_owner(identity: Identity, header: str | None) -> Identity:
    """Return the identity for the owner that the header names, if the credential allows it."""
    if header is None:
        return identity
    try:
        owner = check_id(unquote(header, errors="strict"), "owner")
    except UnicodeDecodeError:
        raise Problem(
            400, "invalid_owner", f"{OWNER_HEADER} is not UTF-8, encoded as in a URL."
        ) from None
    if identity.bound and owner != identity.owner:
        raise Problem(403, "wrong_owner", "This key is bound to another owner.")
    return replace(identity, owner=owner)
