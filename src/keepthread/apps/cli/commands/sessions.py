"""Commands about sessions: list them, show one, rename one."""

import shlex
from typing import Annotated, Final

import typer

from keepthread.apps.cli.invocation import Call, OwnerOption
from keepthread.errors import InvalidInput
from keepthread.interchange.schema import message_to_json, session_to_json
from keepthread.memory.admin import Admin
from keepthread.memory.owner import OwnerMemory
from keepthread.types import SessionInfo


async def sessions(
    call: Call,
    owner: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only the sessions of this owner.")
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Only those with this text in their title or id."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show up to N sessions.")] = 20,
) -> None:
    """List sessions, latest activity first.

    Sessions of sub-agents are left out, and imports that are not complete.
    """
    async with call.memory() as memory:
        lists = memory.admin if owner is None else memory.for_owner(owner)
        if search is None:
            found = [*await lists.list_sessions(limit=limit)]
        else:
            found = await _matching(lists, search.casefold(), limit)
    if not call.json:
        with call.paged() as screen:
            screen.sessions(found)
        if search is not None and not found:
            call.say(f"`keepthread search {shlex.quote(search)}` searches the messages")
        return
    for session in found:
        counts = {"turns": session.turns, "tokens": session.tokens}
        call.write(session_to_json(session) | counts)


_PAGE: Final = 200


async def _matching(lists: Admin | OwnerMemory, text: str, limit: int) -> list[SessionInfo]:
    """Return sessions that have a text in their title or id, latest activity first."""
    found: list[SessionInfo] = []
    cursor: str | None = None
    while True:
        page = await lists.list_sessions(limit=_PAGE, cursor=cursor)
        found += [s for s in page if text in s.title.casefold() or text in s.id.casefold()]
        cursor = page.next
        if cursor is None or len(found) >= limit:
            return found[:limit]


async def show(
    call: Call,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    owner: OwnerOption = None,
    last: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only the last N messages.")
    ] = None,
    after: Annotated[int, typer.Option(min=0, metavar="N", help="Start after this position.")] = 0,
    limit: Annotated[int, typer.Option(min=1, metavar="N", help="Show up to N messages.")] = 100,
) -> None:
    """Show a session's messages, oldest first, hidden ones included."""
    if last is not None and after:
        raise InvalidInput("--last and --after exclude each other; give one")
    async with call.open_session(session, owner) as found:
        if last is None:
            messages = await found.messages(after=after, limit=limit)
        else:
            messages = await found.messages(before=found.info.messages + 1, limit=last)
    if not call.json:
        with call.paged() as screen:
            screen.transcript(found.info, messages)
        return
    for message in messages:
        call.write(message_to_json(message))


async def rename(
    call: Call,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    title: Annotated[str, typer.Argument(metavar="TITLE", help="The new title, in quotes.")],
    owner: OwnerOption = None,
) -> None:
    """Rename a session.

    Its title changes; its id stays.
    """
    if not title.strip():
        raise InvalidInput("the new title is empty; give a text")
    async with call.open_session(session, owner) as found:
        info = await found.update(title=title.strip())
    if call.json:
        call.write({"session": info.id, "title": info.title})
    call.say(f"Session {info.id} is now called {info.title}")
