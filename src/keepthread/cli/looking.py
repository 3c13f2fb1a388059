"""Commands that look: the sessions, one transcript, and why a context is what it is."""

from typing import Annotated, Any

import typer

from keepthread.cli.call import Call
from keepthread.cli.counting import current_counter
from keepthread.interchange.nouns import message_to_json, session_to_json


async def sessions(
    call: Call,
    owner: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the sessions of this owner.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many.")] = 20,
) -> None:
    """List sessions, latest activity first."""
    async with call.memory() as memory:
        found = await memory.list_sessions(owner=owner, limit=limit)
    if not call.json:
        call.screen.sessions(found)
        return
    for session in found:
        counts = {"exchanges": session.exchanges, "tokens": session.tokens}
        call.write(session_to_json(session) | counts)


async def show(
    call: Call,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    after: Annotated[int, typer.Option(min=0, metavar="N", help="Begin behind this position.")] = 0,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many messages.")] = 100,
) -> None:
    """Show a session's messages, oldest first, hidden ones included."""
    async with call.memory() as memory:
        found = await call.session(memory, session)
        messages = await found.messages(after=after, limit=limit)
    if not call.json:
        call.screen.transcript(found.info, messages)
        return
    for message in messages:
        call.write(message_to_json(message))


async def why(
    call: Call,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    view: Annotated[
        str | None, typer.Option(metavar="NAME", help="The view: router, planner, chat.")
    ] = None,
    budget: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Tokens, in place of the view's.")
    ] = None,
) -> None:
    """Draw the next context: what is in, what is out, and why."""
    async with call.memory(counter=current_counter(call)) as memory:
        found = await call.session(memory, session)
        reason = (await found.context(view, budget=budget)).why
    if call.json:
        said: dict[str, Any] = {"session": found.id, "view": view or "chat", **reason.to_json()}
        call.write(said)
    else:
        call.screen.why(found.id, view or "chat", reason)
