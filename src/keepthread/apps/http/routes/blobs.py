"""Blobs: bytes that are stored beside the log, named by their SHA-256."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from keepthread.apps.http.operations import (
    NOT_MODIFIED,
    Cursor,
    Forgets,
    Limit,
    Reads,
    Writes,
    operation,
    returns,
    returns_bytes,
    returns_page,
)
from keepthread.apps.http.replies import (
    Outcome,
    cursor_of,
    is_known,
    not_modified,
    page_of,
    reply,
    tag_of,
)
from keepthread.memory.blobs.repository import UNKNOWN_TYPE
from keepthread.memory.blobs.types import Blob

router: Final = APIRouter(prefix="/v1/blobs", tags=["blobs"])
ONE: Final = "/{digest}"
MAX_NAME: Final = 255

Digest = Annotated[
    str, Path(pattern="^[0-9a-f]{64}$", description="The SHA-256 of the blob's bytes.")
]
_BYTES: Final[dict[str, Any]] = {
    "requestBody": {
        "required": True,
        "description": "The bytes. The header `Content-Type` is stored with them.",
        "content": {UNKNOWN_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}


@operation(router, "GET", "", returns_page(Blob))
async def list_blobs(caller: Reads, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """List the blobs, in the order of their digests, also those of long messages."""
    before = cursor_of(caller, "list_blobs", cursor)
    page = await caller.memory.blobs.list(limit=limit, cursor=before)
    return page_of(caller, "list_blobs", page)


@operation(
    router,
    "POST",
    "",
    returns(Blob),
    status=201,
    errors=("too_large",),
    extra=_BYTES,
)
async def put_blob(
    caller: Writes,
    request: Request,
    name: Annotated[str, Query(max_length=MAX_NAME, description="The name of the file.")] = "",
) -> Response:
    """Store bytes; equal bytes are stored once.

    An attachment of a message refers to them by the `uri` `blob:` and the digest. The server only
    stores what is in the body: it never fetches an address.
    """
    media_type = request.headers.get("content-type", UNKNOWN_TYPE)
    blob = await caller.memory.blobs.put(request.stream(), media_type=media_type, name=name)
    return reply(blob, 201, {"Location": f"{router.prefix}/{blob.digest}"})


@operation(router, "GET", ONE, returns(Blob), errors=("not_found",))
async def get_blob(caller: Reads, digest: Digest) -> Response:
    """Get the description of a blob."""
    return reply(await caller.memory.blobs.info(digest))


@operation(
    router,
    "GET",
    f"{ONE}/content",
    returns_bytes(UNKNOWN_TYPE, "The bytes."),
    errors=("not_found",),
    also={304: NOT_MODIFIED},
)
async def get_blob_content(
    caller: Reads,
    digest: Digest,
    if_none_match: Annotated[str | None, Header(description="The `ETag` of the bytes.")] = None,
) -> Response:
    """Get the bytes of a blob.

    They are a download of the type `application/octet-stream`, whatever was stored: a browser must
    not run them as a page of this server. `get_blob` names their type.
    """
    blobs = caller.memory.blobs
    blob = await blobs.info(digest)
    if is_known(if_none_match, digest):
        return not_modified(digest)
    headers = {
        "Content-Length": str(blob.size),
        "Content-Disposition": "attachment",
        "Content-Security-Policy": "sandbox",
        "X-Content-Type-Options": "nosniff",
        "ETag": tag_of(digest),
    }
    return StreamingResponse(blobs.open(digest), media_type=UNKNOWN_TYPE, headers=headers)


@operation(router, "DELETE", ONE, returns(Outcome), errors=("not_found",))
async def delete_blob(caller: Forgets, digest: Digest) -> Response:
    """Delete a blob; if a message refers to it, it stays until that message is erased.

    `changed` says whether it is gone now.
    """
    gone = await caller.memory.blobs.delete(digest)
    return reply(Outcome(gone, int(gone)))
