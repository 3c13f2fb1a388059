"""Commands that look after a store: prune, verify, recount."""

import sys
import time
from functools import partial
from typing import Annotated

import typer

from keepthread import branching
from keepthread.checks import MAX_COUNT
from keepthread.cli.call import Call
from keepthread.cli.counting import current_counter
from keepthread.errors import InvalidInput
from keepthread.interchange.exporting import every_session
from keepthread.memory import DAY
from keepthread.protocols import Progress


async def prune(
    call: Call,
    days: Annotated[int, typer.Option(min=0, metavar="N", help="Days without activity.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete sessions without activity for so many days."""
    async with call.memory() as memory:
        before = time.time() - days * DAY
        listed = await memory.list_sessions(limit=MAX_COUNT)
        old = sum(session.updated_at < before for session in listed)
        if old and not yes and not _agreed(call, old, len(listed), days):
            call.say("Nothing was deleted")
            return
        pruned = await memory.prune(days) if old else 0
    if call.json:
        call.write({"pruned": pruned, "left": len(listed) - pruned})
    call.say(f"Deleted {pruned:,} of {len(listed):,} sessions")


def _agreed(call: Call, old: int, count: int, days: int) -> bool:
    if call.json or not sys.stdin.isatty():
        raise InvalidInput(f"this would delete {old} of {count} sessions; say --yes to do it")
    return typer.confirm(
        f"Delete {old:,} of {count:,} sessions, without activity for {days} days, for good?",
        err=True,
    )


async def verify(call: Call) -> int:
    """Check every row, and the file itself.

    Exits with 1 if anything is damaged.
    """
    async with call.memory() as memory:
        with call.progress("Verifying", "messages") as progress:
            found = await memory.verify(progress=progress)
    if call.json:
        damages = [damage._asdict() for damage in found.damages]
        call.write({"sound": found.sound, **found._asdict(), "damages": damages})
    else:
        call.screen.verification(found)
    return 0 if found.sound else 1


def _tell(progress: Progress, passed: int, total: int, done: int, _: int) -> None:
    progress(passed + done, max(total, passed + done))


async def recount(call: Call) -> None:
    """Count tokens anew where another counter counted them."""
    counter = current_counter(call)
    async with call.memory(counter=counter) as memory:
        sessions = [session async for session in every_session(memory.store)]
        total = sum(session.messages for session in sessions)
        passed = counted = 0
        with call.progress("Counting", "messages") as progress:
            for session in sessions:
                tell = progress and partial(_tell, progress, passed, total)
                counted += await branching.recount(
                    memory.store, session.key, counter, progress=tell
                )
                passed += session.messages
    if call.json:
        call.write({"counter": counter.name, "messages": total, "counted": counted})
    call.say(f"Counted {counted:,} of {total:,} messages anew with {counter.name}")
