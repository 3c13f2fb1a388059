"""The command that looks into an outbox: what waits, what was dropped or refused, and why."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.report_types import counted, size_of
from keepthread.apps.cli.sanitize import sanitize
from keepthread.errors import InvalidInput
from keepthread.interchange.schema import message_to_json
from keepthread.stores.outbox.file import OutboxFile, look
from keepthread.stores.outbox.store import OutboxStore
from keepthread.stores.outbox.types import Survey
from keepthread.stores.url import store_at, target_of


async def outbox(
    call: Call,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The outbox's file.")],
    deliver: Annotated[
        bool, typer.Option("--deliver", help="Deliver the waiting messages to the store now.")
    ] = False,
    clear: Annotated[
        bool, typer.Option("--clear", help="Discard dropped messages and those set aside.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Show an outbox: waiting and dropped messages, and those set aside with the reason.

    Looking changes nothing, and works while a program has the outbox open.
    """
    found = look(file)
    if deliver:
        await _deliver(call, file, found)
        found = look(file)
    if clear and (found.dropped or found.set_aside):
        if not yes and not _agreed(call, found):
            call.say("Nothing was discarded")
            return
        box = await OutboxFile.open(file)
        try:
            await box.clear()
        finally:
            await box.close()
        found = look(file)
    _show(call, found)


async def _deliver(call: Call, file: Path, found: Survey) -> None:
    if call.tenant not in ("default", found.tenant):
        raise InvalidInput(f"{file} is the outbox of tenant {found.tenant!r}, not {call.tenant!r}")
    opened = partial(store_at(call.url), tenant=found.tenant)
    target = target_of(call.url)
    async with await OutboxStore.open(file, opened, target=target, tenant=found.tenant) as store:
        with call.progress("Delivering", "messages") as progress:
            await store.outbox.deliver(progress=progress)


def _agreed(call: Call, found: Survey) -> bool:
    messages = sum(len(each.messages) for each in found.set_aside)
    what = (
        f"{counted(len(found.dropped), 'report')} and"
        f" {counted(messages, 'message that was', 'messages that were')} set aside"
    )
    if call.json or not sys.stdin.isatty():
        raise InvalidInput(f"this would discard {what}; use --yes to confirm")
    return typer.confirm(f"Permanently discard {what}?", err=True)


def _show(call: Call, found: Survey) -> None:
    if call.json:
        call.write(_as_json(found))
        return
    owner = f", open in {found.owner}" if found.owner else ""
    lines = [f"{found.target}, tenant {found.tenant}{owner}"]
    lines.append(
        counted(found.messages, "message waits", "messages wait")
        if found.messages
        else "No messages are waiting"
    )
    lines += [
        f"  {w.session}: {counted(w.messages, 'message')}, {size_of(w.bytes)}"
        for w in found.waiting
    ]
    if found.dropped:
        lines.append(counted(len(found.dropped), "message was dropped", "messages were dropped"))
    lines += [f"  {d.session}: {d.id}: {d.reason}" for d in found.dropped]
    if found.set_aside:
        lines.append(
            counted(len(found.set_aside), "append was set aside", "appends were set aside")
        )
    for each in found.set_aside:
        ids = ", ".join(message.id for message in each.messages)
        lines.append(f"  {each.session}: {ids}: {each.reason}")
    for line in lines:
        typer.echo(sanitize(line))


def _as_json(found: Survey) -> dict[str, Any]:
    aside = [
        each._asdict() | {"messages": [message_to_json(m) for m in each.messages]}
        for each in found.set_aside
    ]
    return found._asdict() | {
        "waiting": [each._asdict() for each in found.waiting],
        "dropped": [each._asdict() for each in found.dropped],
        "set_aside": aside,
    }
