"""Forget: erase messages with everything made from them, and read the receipts."""

from typing import Final

from fastapi import APIRouter, Response

from keepthread.apps.http.bodies import ForgetBody
from keepthread.apps.http.operations import (
    Cursor,
    Forgets,
    Limit,
    Reads,
    operation,
    returns,
    returns_page,
)
from keepthread.apps.http.replies import cursor_of, page_of, reply
from keepthread.memory.forgetting.receipt import Receipt
from keepthread.memory.forgetting.receipts import StoredReceipt

router: Final = APIRouter(prefix="/v1", tags=["forgetting"])


@operation(
    router,
    "POST",
    "/forget",
    returns(Receipt, "The receipt, or with `dry_run` its preview."),
    errors=("session_not_found", "message_not_found"),
)
async def forget(caller: Forgets, body: ForgetBody) -> Response:
    """Erase messages, their copies and everything that was made from them, permanently.

    By default it is a dry run, which reports what would be erased. If only a session is given, all
    of it is erased, including title and prompt.
    """
    return reply(await caller.memory.forget(**body.model_dump()))


@operation(router, "GET", "/receipts", returns_page(StoredReceipt))
async def list_receipts(caller: Reads, limit: Limit = 10, cursor: Cursor = None) -> Response:
    """List the receipts of `forget`, latest first; they hold no erased text."""
    before = cursor_of(caller, "list_receipts", cursor)
    page = await caller.memory.receipts(limit=limit, cursor=before)
    return page_of(caller, "list_receipts", page)
