"""Commands that look: the sessions, and one transcript."""

from typing import Annotated

import typer

from keepthread.apps.cli.invocation import Call, OwnerOption
from keepthread.interchange.schema import message_to_json, session_to_json


async def sessions(
    call: Call,
    owner: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the sessions of this owner.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show up to N sessions.")] = 20,
) -> None:
    """List sessions, latest activity first.

    Delegates are left out, and what is still being filled.
    """
    async with call.memory() as memory:
        lists = memory.admin if owner is None else memory.for_owner(owner)
        found = await lists.list_sessions(limit=limit)
    if not call.json:
        call.screen.sessions(found)
        return
    for session in found:
        counts = {"turns": session.turns, "tokens": session.tokens}
        call.write(session_to_json(session) | counts)


async def show(
    call: Call,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    owner: OwnerOption = None,
    after: Annotated[int, typer.Option(min=0, metavar="N", help="Start after this position.")] = 0,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show up to N messages.")] = 100,
) -> None:
    """Show a session's messages, oldest first, hidden ones included."""
    async with call.open_session(session, owner) as found:
        messages = await found.messages(after=after, limit=limit)
    if not call.json:
        call.screen.transcript(found.info, messages)
        return
    for message in messages:
        call.write(message_to_json(message))
