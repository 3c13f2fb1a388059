"""Facts about the owner: remember, list, correct, confirm and forget them."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, cast

from fastapi import APIRouter, Header, Path, Query, Response

from keepthread.apps.http.bodies import (
    FactBody,
    FactChangesBody,
    FactDocumentBody,
    FactImportBody,
    FactQueryBody,
)
from keepthread.apps.http.caller import Caller, without_scope
from keepthread.apps.http.operations import (
    Cursor,
    Forgets,
    Limit,
    Reads,
    Writes,
    operation,
    returns,
    returns_page,
)
from keepthread.apps.http.replies import (
    FactDocument,
    FactExport,
    Outcome,
    cursor_of,
    matched,
    page_of,
    reply,
    stale,
    tag_of,
)
from keepthread.errors import NotFound, Stale
from keepthread.memory.facts.types import Fact, Loaded
from keepthread.stores.validation import MAX_ID, MAX_TIME

router: Final = APIRouter(prefix="/v1/facts", tags=["facts"])
ONE: Final = "/{fact:id}"
MARKDOWN: Final = "/documents/markdown"
JSON_DOCUMENT: Final = "/documents/json"
_ERRORS: Final = ("not_found", "unsupported")

FactKey = Annotated[str, Path(min_length=1, max_length=MAX_ID, description="The `key` of a fact.")]
IfMatch = Annotated[
    str | None, Header(description="The `ETag` of the fact that the change is based on, or *.")
]


async def _known(caller: Caller, key: str) -> Fact:
    fact = await caller.memory.facts.get(key)
    if fact is None:
        raise NotFound(f"there is no fact {key!r}")
    return fact


def _reply(fact: Fact, status: int = 200) -> Response:
    return reply(fact, status, {"ETag": tag_of(fact.version)})


@operation(router, "GET", "", returns_page(Fact), errors=("unsupported",))
async def list_facts(
    caller: Reads,
    all: Annotated[bool, Query(description="Whether to include non-current facts.")] = False,  # noqa: A002 - as in the library
    at: Annotated[
        float | None,
        Query(
            ge=0, lt=MAX_TIME, description="A point in time other than now, in seconds since 1970."
        ),
    ] = None,
    limit: Limit = 50,
    cursor: Cursor = None,
) -> Response:
    """List current facts and those waiting for confirmation, oldest first."""
    before = cursor_of(caller, "list_facts", cursor)
    page = await caller.memory.facts.list(all=all, at=at, limit=limit, cursor=before)
    return page_of(caller, "list_facts", page)


@operation(
    router,
    "POST",
    "",
    returns(Fact),
    status=201,
    errors=("session_not_found", "message_not_found", "unsupported"),
)
async def remember_fact(caller: Writes, body: FactBody) -> Response:
    """Store a fact; one that is already stored is returned unchanged.

    Without messages it counts as the owner's own statement, unless it is stored `by` a model: then
    it waits until the owner confirms it.
    """
    return _reply(await caller.memory.facts.remember(**body.model_dump()), 201)


@operation(router, "POST", "/search", returns_page(Fact), errors=("unsupported",))
async def search_facts(caller: Reads, body: FactQueryBody) -> Response:
    """Find the facts that share words with a question, the best first."""
    found = await caller.memory.facts.search(body.query, limit=body.limit)
    return page_of(caller, "search_facts", found)


@operation(router, "GET", MARKDOWN, returns(FactDocument), errors=("unsupported",))
async def get_fact_document(caller: Reads) -> Response:
    """Get the facts that hold or wait as a document that people can edit and load again."""
    return reply(FactDocument(await caller.memory.facts.to_markdown()))


@operation(router, "POST", MARKDOWN, returns(Loaded), errors=("unsupported",))
async def load_fact_document(caller: Writes, body: FactDocumentBody) -> Response:
    """Apply a person's changes of the document: new lines, changed ones, ticked boxes.

    With `prune`, which needs the scope `forget`, facts whose lines are gone are forgotten.
    """
    if body.prune and "forget" not in caller.scopes:
        raise without_scope("forget")
    return reply(await caller.memory.facts.from_markdown(body.text, prune=body.prune))


@operation(router, "GET", JSON_DOCUMENT, returns(FactExport), errors=("unsupported",))
async def export_facts(caller: Reads) -> Response:
    """Get all facts as JSON, also those that no longer hold."""
    document = cast(Mapping[str, Any], await caller.memory.facts.to_json())
    return reply(FactExport(document))


@operation(router, "POST", JSON_DOCUMENT, returns(Loaded), errors=("unsupported",))
async def import_facts(caller: Writes, body: FactImportBody) -> Response:
    """Add facts that are missing here; the document cannot raise their trust."""
    return reply(await caller.memory.facts.from_json(body.facts))


@operation(router, "GET", ONE, returns(Fact), errors=_ERRORS)
async def get_fact(caller: Reads, fact: FactKey) -> Response:
    """Get one fact."""
    return _reply(await _known(caller, fact))


@operation(
    router,
    "PATCH",
    ONE,
    returns(Fact),
    errors=(*_ERRORS, "stale", "precondition_required"),
)
async def edit_fact(
    caller: Writes, fact: FactKey, body: FactChangesBody, if_match: IfMatch = None
) -> Response:
    """Edit a fact on the owner's behalf.

    The header `If-Match` is required: `*` overwrites whatever others changed.
    """
    version = matched(if_match, (await _known(caller, fact)).version)
    try:
        edited = await caller.memory.facts.edit(fact, **body.model_dump(), version=version)
    except Stale:
        raise stale() from None
    return _reply(edited)


@operation(router, "POST", f"{ONE}/confirm", returns(Fact), errors=_ERRORS)
async def confirm_fact(caller: Writes, fact: FactKey) -> Response:
    """Release a fact from quarantine: its owner confirms it."""
    await _known(caller, fact)
    return _reply(await caller.memory.facts.confirm(fact))


@operation(router, "GET", f"{ONE}/history", returns_page(Fact), errors=_ERRORS)
async def get_fact_history(caller: Reads, fact: FactKey) -> Response:
    """List all facts of the same subject and attribute, oldest first, with earlier wordings."""
    await _known(caller, fact)
    return page_of(caller, "get_fact_history", await caller.memory.facts.history(fact))


@operation(router, "DELETE", ONE, returns(Outcome), errors=_ERRORS)
async def forget_fact(caller: Forgets, fact: FactKey) -> Response:
    """Forget a fact with all its sources; `count` is their number.

    The fact it had replaced becomes current again. The messages stay; `forget` erases them.
    """
    await _known(caller, fact)
    count = await caller.memory.facts.forget(fact)
    return reply(Outcome(count > 0, count))
