"""Commands that look after a store: prune, verify, recount."""

import sys
import time
from typing import Annotated

import typer

from keepthread import branching
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
    """Delete sessions without activity for so many days.

    It asks first; where nobody can answer, `--yes` must be said.
    """
    async with call.memory() as memory:
        before = time.time() - days * DAY
        count = old = pruned = 0
        async for session in every_session(memory.store):
            count += 1
            old += session.state == "live" and session.updated_at < before
        if old and not yes and not _agreed(call, old, count, days):
            call.say("Nothing was deleted")
            return
        if old:
            with call.progress("Deleting", "sessions") as progress:
                pruned = await memory.prune(days, progress=progress)
    if call.json:
        call.write({"pruned": pruned, "left": count - pruned})
    call.say(f"Deleted {pruned:,} of {count:,} sessions")


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


def behind(passed: int, total: int, progress: Progress | None) -> Progress | None:
    """Return what tells of a part of the work, behind so much that is done already."""
    if progress is None:
        return None
    return lambda done, _: progress(passed + done, max(total, passed + done))


async def recount(call: Call) -> None:
    """Count tokens anew where another counter counted them.

    A session changes as a whole or not at all. Until then contexts are right as well, but cost more
    to build.
    """
    counter = current_counter(call)
    async with call.memory(counter=counter) as memory:
        sessions = [session async for session in every_session(memory.store)]
        total = sum(session.messages for session in sessions)
        passed = counted = 0
        with call.progress("Counting", "messages") as progress:
            for session in sessions:
                tell = behind(passed, total, progress)
                counted += await branching.recount(
                    memory.store, session.key, counter, progress=tell
                )
                passed += session.messages
    if call.json:
        call.write({"counter": counter.name, "messages": total, "counted": counted})
    call.say(f"Counted {counted:,} of {total:,} messages anew with {counter.name}")
