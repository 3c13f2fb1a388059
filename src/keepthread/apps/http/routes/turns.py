"""Turns: a user message, the messages of model and tools, and one answer.

Each request finds the turn again by the id of its user message, so any worker can continue it. A
turn is entered but never exited: a failed request must not close open tool calls, because the
client may still answer them.
"""

from typing import Any, Final

from fastapi import APIRouter, Response

from keepthread.apps.http.bodies import (
    ContextBody,
    FinishBody,
    MemoryToolBody,
    MessagesBody,
    TurnBody,
    TurnToolBody,
    attachments,
)
from keepthread.apps.http.caller import Caller
from keepthread.apps.http.idempotency import ids_of, with_ids
from keepthread.apps.http.operations import (
    OF_SESSIONS,
    Reads,
    SessionId,
    TurnId,
    Writes,
    operation,
    returns,
    returns_page,
)
from keepthread.apps.http.replies import BuiltContext, RecordedText, TurnState, page_of, reply
from keepthread.apps.http.routes.contexts import built
from keepthread.errors import InvalidInput
from keepthread.memory.tool_calls import pair, text_of, tool_request
from keepthread.memory.turn import Turn
from keepthread.types import Message

router: Final = APIRouter(prefix="/v1/sessions/{session:id}/turns", tags=["turns"])
ONE: Final = "/{turn:id}"
_ERRORS: Final = (*OF_SESSIONS, "message_not_found")


async def _resumed(caller: Caller, session: str, turn: str) -> Turn:
    found = await caller.memory.get_session(session)
    return await found.resume_turn(turn).__aenter__()


def _state(turn: Turn) -> TurnState:
    return TurnState(turn.user.id, turn.number, turn.user, turn.answer)


@operation(
    router,
    "POST",
    "",
    returns(TurnState, "The turn."),
    status=201,
    errors=(*OF_SESSIONS, "conflict", "too_large"),
)
async def begin_turn(caller: Writes, session: SessionId, body: TurnBody) -> Response:
    """Begin a turn: store the user message, before any model is asked.

    With an `id` the request can be repeated, also after the turn is finished: then it has an
    `answer`.
    """
    found = await caller.memory.get_session(session)
    ids = ids_of(caller, found.key)
    turn = found.turn(
        body.text,
        id=body.id or (ids and ids()),
        author=body.author,
        attachments=attachments(body.attachments),
    )
    return reply(_state(await turn.__aenter__()), 201)


@operation(router, "GET", ONE, returns(TurnState), errors=_ERRORS)
async def get_turn(caller: Reads, session: SessionId, turn: TurnId) -> Response:
    """Get a turn: its user message, and the answer if there is one."""
    return reply(_state(await _resumed(caller, session, turn)))


@operation(
    router,
    "POST",
    f"{ONE}/messages",
    returns_page(Message),
    status=201,
    errors=(*_ERRORS, "conflict", "too_large"),
)
async def append_to_turn(
    caller: Writes, session: SessionId, turn: TurnId, body: MessagesBody
) -> Response:
    """Append messages of the model and its tools to a turn.

    The first result of a tool call stays; sent again, it is returned.
    """
    resumed = await _resumed(caller, session, turn)
    messages = with_ids(caller, turn, [each.message() for each in body.messages])
    stored = await resumed.append(*messages)
    response = page_of(caller, "append_to_turn", stored)
    response.status_code = 201
    return response


@operation(
    router,
    "POST",
    f"{ONE}/context",
    returns(BuiltContext),
    errors=(*_ERRORS, "budget_too_small"),
)
async def build_turn_context(
    caller: Writes, session: SessionId, turn: TurnId, body: ContextBody
) -> Response:
    """Build what a model should see to answer a turn.

    The answer of the turn then records which messages it was written from.
    """
    resumed = await _resumed(caller, session, turn)
    context = await resumed.context(
        body.view,
        budget=body.budget,
        query=body.query,
        newest=body.newest,
        text=body.format == "text",
    )
    await resumed.suspend()
    return reply(built(context, body))


@operation(
    router,
    "POST",
    f"{ONE}/finish",
    returns(Message, "The answer that is stored."),
    errors=(*_ERRORS, "conflict", "too_large"),
)
async def finish_turn(
    caller: Writes, session: SessionId, turn: TurnId, body: FinishBody
) -> Response:
    """Store the answer of a turn, and return the answer that is stored.

    A turn has one answer: an existing one is returned unchanged.
    """
    if (body.text is None) == (body.message is None):
        raise InvalidInput("give the answer as a `text`, or as a `message`")
    resumed = await _resumed(caller, session, turn)
    answer = body.message.message() if body.message else body.text or ""
    stored = await resumed.finish(answer, usage=body.usage, truncated=body.truncated)
    return reply(stored)


@operation(
    router,
    "POST",
    f"{ONE}/tools",
    returns(RecordedText, "The text that is recorded: the cached one if there is one."),
    errors=(*_ERRORS, "conflict", "too_large"),
)
async def record_tool(
    caller: Writes, session: SessionId, turn: TurnId, body: TurnToolBody
) -> Response:
    """Record the result of a tool that the client ran, and cache it for some turns.

    With a `call_id` it answers a call that was appended before; else call and result are recorded.
    """

    def ran(**_: object) -> Any:
        return body.result

    resumed = await _resumed(caller, session, turn)
    call_id, ids = body.call_id, ids_of(caller, turn)
    if call_id is None and ids is not None:
        request = tool_request(body.name, body.arguments)
        call, result = pair(request, text_of(body.result), ids)
        if not body.cache_turns:
            stored = await resumed.append(call, result)
            return reply(RecordedText(stored[-1].content))
        found = await caller.memory.get_session(session)
        cached = await found.cached_tool(body.name, body.arguments, author=resumed.user.author)
        if cached is not None:
            return reply(RecordedText(cached))
        call_id = await _appended(resumed, call)
    text = await resumed.tool(
        body.name, body.arguments, ran, call_id=call_id, cache_turns=body.cache_turns
    )
    return reply(RecordedText(text))


async def _appended(turn: Turn, call: Message) -> str:
    """Append a message with one tool call; its result then has an id that follows from it."""
    await turn.append(call)
    return call.tool_calls[0].id


@operation(
    router,
    "POST",
    f"{ONE}/memory-tools",
    returns(RecordedText, "The text for the model."),
    errors=(*_ERRORS, "conflict", "too_large", "unsupported"),
)
async def run_memory_tool(
    caller: Writes, session: SessionId, turn: TurnId, body: MemoryToolBody
) -> Response:
    """Run `remember` or `search_memory` for a model, and record call and result."""
    resumed = await _resumed(caller, session, turn)
    call_id, ids = body.call_id, ids_of(caller, turn)
    if call_id is None and ids is not None:
        call, _ = pair(tool_request(body.name, body.arguments), "", ids)
        call_id = await _appended(resumed, call)
    text = await resumed.memory_tool(body.name, body.arguments, call_id=call_id)
    return reply(RecordedText(text))
