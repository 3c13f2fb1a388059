"""Forget: erase messages with everything made from them, and read the receipts.

An erasure outlives its request: neither a disconnect nor the deadline interrupts it. If it takes
long, the client gets 202, and the receipt when it repeats the request later. The claim is stored,
so any worker can see it, and repeats the erasure if the first worker died.
"""

import asyncio
import json
from contextlib import suppress
from hashlib import sha256
from typing import Any, Final

from fastapi import APIRouter, Request, Response

from keepthread.apps.http.bodies import ForgetBody
from keepthread.apps.http.caller import Caller, audit, state_of
from keepthread.apps.http.idempotency import ids_of
from keepthread.apps.http.operations import (
    Cursor,
    Forgets,
    Limit,
    Reads,
    operation,
    returns,
    returns_page,
)
from keepthread.apps.http.problems import Problem
from keepthread.apps.http.replies import Erasing, cursor_of, page_of, reply
from keepthread.apps.http.state import WorkerState
from keepthread.errors import KeepthreadError
from keepthread.memory.forgetting.receipt import Receipt
from keepthread.memory.forgetting.receipts import StoredReceipt, receipt_from_json, without_text
from keepthread.protocols.server import Begun, KeptAnswer, RequestId
from keepthread.stores.codec import new_id

router: Final = APIRouter(prefix="/v1", tags=["forgetting"])
_RECEIPT: Final = "receipt"
PATIENCE: Final = 0.5
"""The share of a request's deadline that an erasure may take before the client gets 202."""
_TEXTS: Final = ("author", "source")


@operation(
    router,
    "POST",
    "/forget",
    returns(Receipt, "The receipt, or with `dry_run` its preview."),
    also={
        202: returns(Erasing, "Not finished yet: repeat the request after `Retry-After` seconds.")
    },
    errors=("session_not_found", "message_not_found"),
)
async def forget(caller: Forgets, request: Request, body: ForgetBody) -> Response:
    """Erase messages, their copies and everything that was made from them, permanently.

    By default it is a dry run, which reports what would be erased. If only a session is given, all
    of it is erased, including title and prompt. An erasure that takes long answers 202 and
    continues: send the same request again, with the same `id` or `Idempotency-Key`, to get the
    receipt. That receipt shows a given author or source as null.
    """
    if body.dry_run:
        return reply(await caller.memory.forget(**body.model_dump()))
    ids = ids_of(caller, "forget")
    id = body.id or (ids() if ids else new_id())
    erasure = _ForgetRequest(state_of(request), caller, body.model_copy(update={"id": id}))
    receipt = await erasure.receipt()
    if receipt is None:
        return reply(Erasing(id), 202, {"Retry-After": "1"})
    return reply(receipt)


class _ForgetRequest:
    """One erasure, which this worker or another one does."""

    def __init__(self, state: WorkerState, caller: Caller, body: ForgetBody) -> None:
        self._state = state
        self._caller = caller
        self._body = body
        self._request = RequestId(
            caller.tenant, "server", json.dumps(["forget", caller.owner, body.id])
        )

    async def receipt(self) -> Receipt | None:
        """Begin it unless it was begun; return the receipt, or None if that takes long."""
        tables, now = self._state.tables, self._state.clock()
        begun = await tables.begin_request(self._request, self._digest(), now)
        if begun.state == "mismatch":
            raise Problem(
                422,
                "idempotency_mismatch",
                "A different erasure has this id; use a new id for each erasure.",
            )
        if begun.state != "new":
            return _kept(begun)
        work = self._state.spawn(self._run(begun.token))
        seconds = self._state.settings.deadline * PATIENCE
        done, _ = await asyncio.wait({work}, timeout=seconds)
        return work.result() if done else None

    async def _run(self, token: bytes) -> Receipt:
        """Erase, and note the receipt for the next request of this id."""
        state, body = self._state, self._body
        try:
            with state.renewing(self._request, token):
                await audit(state, self._caller, "forget", body.id, body.session, body.message)
                receipt = await self._caller.memory.forget(**body.model_dump())
            kept = json.dumps(without_text(receipt).to_json())
            await state.tables.end_request(
                self._request, token, KeptAnswer(200, ((_RECEIPT, kept),), None)
            )
        except BaseException:
            with suppress(KeepthreadError):  # the store may be unavailable or closed
                await state.tables.abandon_request(self._request, token)
            raise
        return receipt

    def _digest(self) -> bytes:
        """Return a digest of what is asked, without texts that are erased with the messages."""
        asked: dict[str, Any] = self._body.model_dump()
        asked |= {name: asked[name] is not None for name in _TEXTS}
        return sha256(json.dumps(asked, sort_keys=True).encode()).digest()


def _kept(begun: Begun) -> Receipt | None:
    if begun.answer is None:
        return None
    return receipt_from_json(json.loads(dict(begun.answer.headers)[_RECEIPT]))


@operation(router, "GET", "/receipts", returns_page(StoredReceipt))
async def list_receipts(caller: Reads, limit: Limit = 10, cursor: Cursor = None) -> Response:
    """List the receipts of `forget`, latest first; they hold no erased text."""
    before = cursor_of(caller, "list_receipts", cursor)
    page = await caller.memory.receipts(limit=limit, cursor=before)
    return page_of(caller, "list_receipts", page)
