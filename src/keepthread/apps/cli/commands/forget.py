"""The commands that forget and delete: both show what would go, and ask first."""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keepthread.apps.cli.chat.delivery import bring_home, forget_as_asked
from keepthread.apps.cli.chat.offline_files import offline_files_of
from keepthread.apps.cli.commands.search import seconds
from keepthread.apps.cli.invocation import Call, OwnerOption
from keepthread.apps.cli.report_types import counted
from keepthread.apps.cli.sanitize import sanitize
from keepthread.errors import InvalidInput
from keepthread.memory.memory import Memory, Opening
from keepthread.models.tokens import Estimator
from keepthread.types import Residue

if TYPE_CHECKING:
    from keepthread.memory.forgetting.receipt import Receipt


async def forget(  # noqa: PLR0913 - each names one way to choose
    call: Call,
    whole: Annotated[
        str | None,
        typer.Argument(metavar="SESSION", help="A session to forget, as with --session."),
    ] = None,
    session: Annotated[
        str | None,
        typer.Option(metavar="SESSION", help="Only in this session (alone: the whole session)."),
    ] = None,
    message: Annotated[
        str | None, typer.Option(metavar="ID", help="The message of this id in the session.")
    ] = None,
    owner: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Only in this owner's sessions (alone: all of them)."),
    ] = None,
    author: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only messages of this author.")
    ] = None,
    source: Annotated[
        str | None,
        typer.Option(
            metavar="SOURCE", help="Only messages from this source: tool:NAME, web:URL, import:ID."
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
    answers: Annotated[
        bool, typer.Option("--answers", help="Also erase answers known to be based on it.")
    ] = False,
    rewrite: Annotated[
        bool,
        typer.Option("--rewrite", help="Have PostgreSQL rewrite the changed tables (locks them)."),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be forgotten.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> int:
    """Permanently erase messages, their copies and everything made from them.

    A message must match all the options given. Exits with 1 if a file still holds some of it.
    Without --owner it covers all owners; a session is one of --owner or of the setting
    memory.owner. `keepthread delete SESSION` removes a session and keeps the facts.
    """
    if whole is not None and session is not None:
        raise InvalidInput("two sessions are named: give one, with --session or without")
    session = session if whole is None else whole
    chosen: dict[str, Any] = {
        "session": session,
        "message": message,
        "owner": call.owner if owner is None and session is not None else owner,
        "author": author,
        "source": source,
        "since": seconds(since, "--since"),
        "until": seconds(until, "--until"),
        "answers": answers,
        "rewrite": rewrite,
    }
    async with call.memory() as memory:
        await _bring_home(call, memory)
        if session is not None:
            await call.session(memory, session, owner)  # names the nearest if there is none
        with call.progress("Looking", "messages") as progress:
            receipt = await forget_as_asked(memory, chosen, dry_run=True, progress=progress)
        if not dry_run:
            if not receipt.any:
                call.say("There is nothing to forget")
                return _report(call, receipt)
            if not yes and not _agreed(call, receipt):
                call.say("Nothing was forgotten")
                return 0
            stayed = await _bring_home(call, memory, forget=chosen)
            with call.progress("Looking", "messages", then="Forgetting") as progress:
                receipt = await forget_as_asked(memory, chosen, progress=progress)
            receipt = replace(receipt, residues=(*receipt.residues, *map(_residue, stayed)))
    if not call.json:
        _show(receipt)
    return _report(call, receipt)


async def _bring_home(
    call: Call, memory: Memory, *, forget: Mapping[str, Any] | None = None
) -> list[Path]:
    """Bring home what chats kept in files while the store was away; return the files that stay."""
    offline_files = offline_files_of(call.config, os.environ)
    if offline_files is None:
        return []
    return await bring_home(offline_files, _opened, memory, call.say, forget=forget)


def _opened(address: str) -> Opening:
    return Memory.open(address, counter=Estimator())


def _residue(path: Path) -> Residue:
    why = "a chat holds messages there that the store has not received yet"
    return Residue(str(path), why, "it is delivered; this request is carried out then")


def _report(call: Call, receipt: "Receipt") -> int:
    if call.json:
        call.write(receipt.to_json())
    return 1 if receipt.found else 0


def _show(receipt: "Receipt") -> None:
    first, *lines = str(receipt).splitlines()
    typer.secho(sanitize(first), bold=True)
    for line in lines:
        typer.echo(sanitize(line))


def _agreed(call: Call, planned: "Receipt") -> bool:
    count = planned.messages + planned.copies + planned.derived
    if call.json or not sys.stdin.isatty():
        raise InvalidInput(
            f"this would erase {counted(count, 'message')}; --dry-run shows them, --yes erases them"
        )
    _show(planned)
    return typer.confirm("Forget this permanently?", err=True)


async def delete(
    call: Call,
    session: Annotated[str, typer.Argument(metavar="SESSION", help="The session's id.")],
    owner: OwnerOption = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete a session with its messages, and keep facts and forks.

    `keepthread forget SESSION` also erases its copies and all that was made from it:
    facts, summaries and the bytes in files. Asks first; without a terminal, `--yes` is required.
    """
    async with call.memory() as memory:
        await _bring_home(call, memory)
        found = (await call.session(memory, session, owner)).info
        if not yes and not _agreed_to_delete(call, found.id, found.messages):
            call.say("Nothing was deleted")
            return
        await memory.for_owner(found.owner).delete_session(found.id)
    if call.json:
        call.write({"deleted": found.id, "messages": found.messages})
    call.say(f"Deleted session {found.id}, {counted(found.messages, 'message')}; facts stay")


def _agreed_to_delete(call: Call, id: str, messages: int) -> bool:
    if call.json or not sys.stdin.isatty():
        raise InvalidInput(
            f"this would delete session {id!r} with {counted(messages, 'message')}; --yes confirms"
        )
    return typer.confirm(
        sanitize(f"Delete session {id} with {counted(messages, 'message')}, and keep facts?"),
        err=True,
    )
