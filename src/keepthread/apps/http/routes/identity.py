"""Identity: what the credential of a request proves, so that a client can check it first."""

from typing import Final

from fastapi import APIRouter, Response

from keepthread.apps.http.operations import Identifies, operation, returns
from keepthread.apps.http.replies import WhoCalls, reply

router: Final = APIRouter(prefix="/v1", tags=["identity"])


@operation(router, "GET", "/identity", returns(WhoCalls))
async def get_identity(caller: Identifies) -> Response:
    """Get the tenant, the owner and the scopes of the credential.

    `owner` is null if the key is not bound to one: then each request names its owner in the header
    `Keepthread-Owner`.
    """
    owner = caller.owner if caller.bound else None
    return reply(WhoCalls(caller.tenant, owner, sorted(caller.scopes)))
