"""Contexts: what a model should see, and explanations of earlier contexts."""

from contextlib import suppress
from typing import Final

from fastapi import APIRouter, Response

from keepthread.apps.http.bodies import MAX_PAGE, ContextBody, RebuildBody
from keepthread.apps.http.caller import Caller
from keepthread.apps.http.operations import (
    OF_SESSIONS,
    Limit,
    Reads,
    SessionId,
    operation,
    returns,
    returns_page,
)
from keepthread.apps.http.replies import BuiltContext, RebuiltPrompt, page_of, reply
from keepthread.context.context import Context
from keepthread.errors import SessionGone
from keepthread.memory.rebuild import NOTHING_REBUILT
from keepthread.memory.session import Session
from keepthread.memory.why_log import Explanation

router: Final = APIRouter(prefix="/v1/sessions/{session:id}", tags=["contexts"])


def built(context: Context, body: ContextBody) -> BuiltContext:
    """Return a context in the form that the body requested."""
    rendered = {
        "openai-chat": context.to_openai_chat,
        "openai-responses": context.to_openai_responses,
        "anthropic": context.to_anthropic,
    }.get(body.format)
    return BuiltContext(
        system=context.system,
        messages=[*context.messages],
        tokens=context.tokens,
        budget=context.selection.budget,
        truncated=sorted(context.truncated),
        truncated_newest=context.truncated_newest,
        rendered=rendered(body.provider) if rendered else None,
        text=context.text if body.format == "text" else None,
        why=context.why,
    )


@operation(
    router,
    "POST",
    "/context",
    returns(BuiltContext),
    errors=(*OF_SESSIONS, "budget_too_small"),
)
async def build_context(caller: Reads, session: SessionId, body: ContextBody) -> Response:
    """Build what a model should see now.

    It is a POST because the recall query must not be in the URL, which is logged.
    """
    return reply(built(await _context(caller, session, body), body))


async def _context(caller: Caller, id: str, body: ContextBody) -> Context:
    """Build the context of a cached session handle, or else of a fresh one.

    The context of a deleted session fails, and that of a forgotten one shows no messages. In both
    cases the session is looked up again, so every worker gives the same answer.
    """
    known = caller.known.get(caller.tenant, caller.owner, id)
    if known is not None:
        with suppress(SessionGone):
            context = await _context_of(known, body)
            if any(each.seq for each in context.messages):
                return context
        caller.known.discard(caller.tenant, known)
    found = await caller.memory.get_session(id)
    context = await _context_of(found, body)
    caller.known.add(caller.tenant, found)
    return context


async def _context_of(session: Session, body: ContextBody) -> Context:
    return await session.context(
        body.view,
        budget=body.budget,
        query=body.query,
        newest=body.newest,
        text=body.format == "text",
    )


@operation(router, "GET", "/explanations", returns_page(Explanation), errors=OF_SESSIONS)
async def list_explanations(caller: Reads, session: SessionId, limit: Limit = 10) -> Response:
    """List the explanations of the latest contexts, newest first, as far as they are kept."""
    found = await caller.memory.get_session(session)
    return page_of(caller, "list_explanations", await found.explanations(limit))


@operation(router, "POST", "/rebuild", returns(RebuiltPrompt), errors=OF_SESSIONS)
async def rebuild_prompt(caller: Reads, session: SessionId, body: RebuildBody) -> Response:
    """Build the prompt of an earlier context again, from one of the latest explanations.

    The reply says whether it is exactly the prompt that was shown, and what changed since. Without
    a stored explanation nothing can be rebuilt.
    """
    found = await caller.memory.get_session(session)
    wanted = (body.view, body.at, body.turn)
    kept = [each for each in await found.explanations(MAX_PAGE) if each[:3] == wanted]
    made = await found.rebuild(kept[0]) if kept else NOTHING_REBUILT
    context = None if made.context is None else built(made.context, ContextBody())
    return reply(RebuiltPrompt(made.matches, context, [*made.messages], [*made.changes]))
