"""Who calls: the identity that a credential proves, and the memory that it may reach.

Handlers take a `Caller` from `needs("read")` and reach data through its memory only. The owner
comes from the credential or, for a key of a program that serves many people, from the header
`Keepthread-Owner`; never from a path, a query or a body, where a model's text could end up.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from fastapi import Depends, Request

from keepthread.apps.http.keys import SCOPES
from keepthread.apps.http.places import place_of
from keepthread.apps.http.problems import Problem
from keepthread.apps.http.state import UsedSessions, WorkerState
from keepthread.memory.owner import OwnerMemory
from keepthread.protocols.server import AuditEntry

if TYPE_CHECKING:
    from keepthread.protocols.server import ServerTables

OWNER_HEADER: Final = "Keepthread-Owner"
IDEMPOTENCY_HEADER: Final = "Idempotency-Key"
_IDENTITY: Final = "keepthread_identity"
ROUTE: Final = "keepthread_route"
"""Where the route of a request is noted, for logs and metrics."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The rights that a credential proves, and the owner that the request is about."""

    key_id: str
    tenant: str
    owner: str | None
    """None if the key is not bound to an owner and the request names none."""
    bound: bool
    """Whether the credential itself names the owner."""
    scopes: frozenset[str]


@dataclass(frozen=True)
class Caller:
    """One request's caller: the memory of the credential's tenant and owner, and the rights."""

    memory: OwnerMemory
    """The only way in which handlers reach data."""
    tenant: str
    owner: str
    key_id: str
    scopes: frozenset[str]
    cursor_key: bytes = field(default=b"", repr=False)
    """Signs cursors."""
    idempotency_key: str = ""
    """The `Idempotency-Key` of the request; empty if it has none."""
    known: UsedSessions = field(default_factory=UsedSessions, repr=False)
    """The sessions that this worker used last, of all owners."""


@dataclass(frozen=True)
class Operator:
    """One request's caller, for what belongs to a tenant and not to an owner: keys and audit."""

    tables: "ServerTables"
    tenant: str
    key_id: str
    scopes: frozenset[str]
    cursor_key: bytes = field(default=b"", repr=False)


def identify(scope: Any, identity: Identity) -> None:
    """Note in a request's scope who sent it; its connection is worth more from now on."""
    scope.setdefault("state", {})[_IDENTITY] = identity
    if (place := place_of(scope)) is not None:
        place.prove()


def identity_of(scope: Any) -> Identity | None:
    """Return who sent a request; None if nobody was authenticated."""
    return scope.get("state", {}).get(_IDENTITY)


def state_of(request: Request) -> WorkerState:
    """Return the state of this worker: its tables, its settings, and whether it is stopping."""
    return request.app.state.keepthread


async def audit(state: "WorkerState", caller: Caller, action: str, *targets: str | None) -> None:
    """Write to the audit log what a caller is about to do, and to which ids."""
    ids = tuple(target for target in targets if target is not None)
    entry = AuditEntry(state.clock(), caller.key_id, caller.tenant, caller.owner, action, ids)
    await state.tables.audit(entry)


def needs(scope: str) -> Any:
    """Return a dependency: the `Caller` if the credential has the scope, else a problem."""
    return Depends(_dependency(scope, caller_of))


def needs_identity(scope: str) -> Any:
    """Return a dependency: the `Identity` if the credential has the scope, without an owner."""
    return Depends(_dependency(scope, lambda _, identity: identity))


def needs_admin() -> Any:
    """Return a dependency: the `Operator` if the key may manage its tenant, else a problem."""
    return Depends(_dependency("admin", _operator))


def _dependency(scope: str, make: Callable[[Request, Identity], Any]) -> Callable[..., Any]:
    if scope not in SCOPES:
        raise ValueError(f"{scope!r} is not a scope")

    async def dependency(request: Request) -> Any:
        request.scope.setdefault("state", {})[ROUTE] = request.scope.get("route")
        return make(request, authorized(request.scope, scope))

    dependency.__name__ = f"needs_{scope}"
    return dependency


def authorized(request_scope: Any, scope: str) -> Identity:
    """Return who sent a request, if the credential has the scope; else raise a problem."""
    identity = identity_of(request_scope)
    if identity is None:
        raise unauthenticated("unauthenticated", "This path requires a key.")
    if scope not in identity.scopes:
        raise Problem(
            403,
            "scope_required",
            f"This needs a key with the scope {scope}; `keepthread keys create --scope {scope}` "
            "creates one.",
            headers={"WWW-Authenticate": _challenge("insufficient_scope", scope)},
        )
    return identity


def caller_of(request: Request, identity: Identity) -> Caller:
    """Return the caller: the memory of the owner that the request is about."""
    if identity.owner is None:
        raise Problem(
            400,
            "owner_required",
            f"This key serves many owners: name the owner in the header {OWNER_HEADER}.",
        )
    state = state_of(request)
    return Caller(
        memory=state.memory_of(identity.tenant).for_owner(identity.owner),
        tenant=identity.tenant,
        owner=identity.owner,
        key_id=identity.key_id,
        scopes=identity.scopes,
        cursor_key=state.cursor_key,
        idempotency_key=request.headers.get(IDEMPOTENCY_HEADER, ""),
        known=state.sessions,
    )


def _operator(request: Request, identity: Identity) -> Operator:
    # A key of one owner could make itself a key of another.
    if identity.bound:
        raise Problem(
            403,
            "bound_key",
            "A key that is bound to an owner cannot manage keys or audit.",
        )
    state = state_of(request)
    return Operator(
        tables=state.tables,
        tenant=identity.tenant,
        key_id=identity.key_id,
        scopes=identity.scopes,
        cursor_key=state.cursor_key,
    )


def without_scope(scope: str) -> Problem:
    """Return the problem of a request whose credential does not have a scope."""
    return Problem(
        403,
        "scope_required",
        f"This needs a key with the scope {scope}; `keepthread keys create --scope {scope}` "
        "creates one.",
        headers={"WWW-Authenticate": _challenge("insufficient_scope", scope)},
    )


def unauthenticated(code: str, detail: str) -> Problem:
    """Return the problem of a request without a valid credential."""
    return Problem(401, code, detail, headers={"WWW-Authenticate": _challenge("invalid_token")})


def _challenge(error: str, scope: str | None = None) -> str:
    wanted = f', scope="{scope}"' if scope else ""
    return f'Bearer realm="keepthread", error="{error}"{wanted}'
