"""The command that finds: messages that bear on a question, and why each does."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from keepthread.apps.cli.invocation import Call
from keepthread.errors import InvalidInput

if TYPE_CHECKING:
    from keepthread.memory.search.search import Hit
    from keepthread.types import Role


async def search(
    call: Call,
    query: Annotated[str, typer.Argument(metavar="WORDS", help="The query.")],
    owner: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only in this owner's sessions.")
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(
            metavar="SESSION", help="Only in this session; its owner is --owner, or memory.owner."
        ),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            metavar="DATE",
            help="At or after this date or time, in UTC: 2026-11-15, 2026-11-15T18:30.",
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option(metavar="DATE", help="Before this date or time.")
    ] = None,
    role: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE", help="Only user, assistant, tool or system; may be repeated."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show up to N messages.")] = 10,
) -> None:
    """Find the messages most relevant to a question, in every session or some.

    Without --owner and --session, those of all owners are searched. The best come first. Messages
    written since the last search are indexed first.
    """
    async with call.memory() as memory:
        if session is not None:
            # It names the nearest if there is none.
            owner = (await call.session(memory, session, owner)).owner
        filters: dict[str, Any] = {
            "since": seconds(since, "--since"),
            "until": seconds(until, "--until"),
            "roles": cast("list[Role] | None", role),
            "limit": limit,
        }
        with call.progress("Reading", "messages") as progress:
            if owner is None:
                hits = await memory.admin.search(query, **filters, progress=progress)
            else:
                owned = memory.for_owner(owner)
                hits = await owned.search(query, session=session, **filters, progress=progress)
    if not call.json:
        with call.paged() as screen:
            screen.hits(hits)
        return
    for hit in hits:
        call.write(_plain(hit))


def seconds(text: str | None, option: str) -> float | None:
    """Return a date or time in seconds since 1970."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{option} {text!r} is not a date: write 2026-11-15 or 2026-11-15T18:30"
        ) from None
    return at.replace(tzinfo=at.tzinfo or UTC).timestamp()


def _plain(hit: "Hit") -> dict[str, Any]:
    message = hit.message
    return {
        "session": hit.session,
        "owner": hit.owner,
        "seq": message.seq,
        "id": message.id,
        "role": message.role,
        "author": message.author,
        "origin": message.origin,
        "at": message.created_at,
        "score": round(hit.score, 3),
        "snippet": hit.snippet,
        "reason": hit.reason,
    }
