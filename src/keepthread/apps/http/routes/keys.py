"""Keys of the tenant and its audit log: for keys with the scope `admin` that serve all owners."""

from typing import Annotated, Final

from fastapi import APIRouter, Path, Request, Response

from keepthread.apps.http.bodies import KeyBody, RotateBody
from keepthread.apps.http.caller import Operator, state_of
from keepthread.apps.http.keys import KeyRights, create_key, find_key, revoke_key, rotate_key
from keepthread.apps.http.operations import (
    NOTHING,
    Administers,
    Cursor,
    Identifies,
    Limit,
    operation,
    returns,
    returns_page,
)
from keepthread.apps.http.problems import Problem
from keepthread.apps.http.replies import (
    CreatedKey,
    KeyInfo,
    WhoCalls,
    cursor_of,
    nothing,
    page_of,
    reply,
)
from keepthread.errors import InvalidInput
from keepthread.protocols.server import ApiKey, AuditEntry
from keepthread.stores.validation import MAX_ID
from keepthread.types import Page

router: Final = APIRouter(prefix="/v1", tags=["keys"])
ONE: Final = "/keys/{key:id}"

KeyId = Annotated[str, Path(min_length=1, max_length=MAX_ID, description="The id of a key.")]


def _info(key: ApiKey) -> KeyInfo:
    return KeyInfo(
        id=key.id,
        name=key.name,
        owner=key.owner,
        scopes=sorted(key.scopes),
        created_at=key.created_at,
        expires_at=key.expires_at,
        revoked_at=key.revoked_at,
    )


@operation(router, "GET", "/keys", returns_page(KeyInfo))
async def list_keys(caller: Administers, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """List the keys of the tenant, oldest first, also those that are expired or revoked."""
    after = cursor_of(caller, "list_keys", cursor)
    found = await caller.tables.list_keys(tenant=caller.tenant, after=after, limit=limit + 1)
    page = [_info(key) for key in found[:limit]]
    more = page[-1].id if len(found) > limit else None
    return page_of(caller, "list_keys", Page(page, cursor=more))


@operation(router, "POST", "/keys", returns(CreatedKey), status=201)
async def create_api_key(caller: Administers, request: Request, body: KeyBody) -> Response:
    """Make a key of the tenant; the reply shows its text, once.

    The new key cannot have rights that the calling key lacks. One with the scope `admin` must
    expire.
    """
    scopes = frozenset(body.scopes)
    _check_rights(caller, scopes)
    if "admin" in scopes and body.expires_at is None:
        raise InvalidInput("a key with the scope admin must expire: give `expires_at`")
    rights = KeyRights(caller.tenant, scopes, body.name, body.owner, body.expires_at)
    at = state_of(request).clock()
    new = await create_key(caller.tables, rights, by=caller.key_id, at=at)
    return reply(CreatedKey(_info(new.key), new.text), 201)


@operation(router, "GET", ONE, returns(KeyInfo), errors=("not_found",))
async def get_key(caller: Administers, key: KeyId) -> Response:
    """Get a key of the tenant."""
    return reply(_info(await find_key(caller.tables, caller.tenant, key)))


@operation(router, "POST", f"{ONE}/rotate", returns(CreatedKey), status=201, errors=("not_found",))
async def rotate_api_key(
    caller: Administers, request: Request, key: KeyId, body: RotateBody | None = None
) -> Response:
    """Replace a key by a new one with the same rights; the reply shows its text, once."""
    old = await find_key(caller.tables, caller.tenant, key)
    _check_rights(caller, old.scopes)
    new = await rotate_key(
        caller.tables,
        caller.tenant,
        key,
        by=caller.key_id,
        at=state_of(request).clock(),
        grace=(body or RotateBody()).grace,
    )
    return reply(CreatedKey(_info(new.key), new.text), 201)


@operation(router, "DELETE", ONE, NOTHING, status=204, errors=("not_found",))
async def revoke_api_key(caller: Administers, request: Request, key: KeyId) -> Response:
    """Revoke a key: from now on it is refused."""
    at = state_of(request).clock()
    await revoke_key(caller.tables, caller.tenant, key, by=caller.key_id, at=at)
    return nothing()


def _check_rights(caller: Operator, scopes: frozenset[str]) -> None:
    """Refuse to create a key with more rights than the calling key."""
    if more := sorted(scopes - caller.scopes):
        raise Problem(
            403,
            "scope_required",
            f"This key cannot create a key with the scope {more[0]}, because it does not have that "
            "scope.",
        )


@operation(router, "GET", "/audit", returns_page(AuditEntry))
async def list_audit(caller: Administers, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """List the audit log of the tenant, oldest first: who did what to which ids, without text."""
    given = cursor_of(caller, "list_audit", cursor)
    after = 0 if given is None else int(given)
    found = await caller.tables.list_audit(tenant=caller.tenant, after=after, limit=limit + 1)
    more = str(found[limit - 1].number) if len(found) > limit else None
    return page_of(caller, "list_audit", Page(found[:limit], cursor=more))


@operation(router, "GET", "/identity", returns(WhoCalls))
async def get_identity(caller: Identifies) -> Response:
    """Get the tenant, the owner and the scopes of the credential.

    `owner` is null if the key is not bound to one: then each request names its owner in the header
    `Keepthread-Owner`.
    """
    owner = caller.owner if caller.bound else None
    return reply(WhoCalls(caller.tenant, owner, sorted(caller.scopes)))
