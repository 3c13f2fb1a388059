"""Commands that look after a store: prune, verify, recount."""

import os
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated

import typer

from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.report_types import counted
from keepthread.apps.cli.wiring import current_counter, embedder_of, model_of
from keepthread.errors import InvalidInput, SessionGone, SessionNotFound
from keepthread.interchange.json_types import to_json
from keepthread.memory import history as branching
from keepthread.memory.admin import DAY, Admin
from keepthread.memory.memory import Memory
from keepthread.memory.options import Options
from keepthread.memory.owner import OwnerMemory
from keepthread.memory.summaries import Compaction
from keepthread.models.summarizers import ByModel
from keepthread.protocols import Progress
from keepthread.stores.front import every_session
from keepthread.types import SessionInfo


async def prune(
    call: Call,
    days: Annotated[int, typer.Option(min=0, metavar="N", help="Days without activity.")],
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show what would be deleted.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete sessions without activity for N days.

    Asks first; without a terminal, `--yes` is required.
    """
    async with call.memory() as memory:
        before = time.time() - days * DAY
        count = pruned = 0
        old: list[SessionInfo] = []
        async for session in every_session(memory.store):
            if session.forgotten:
                continue
            count += 1
            if session.state == "live" and session.updated_at < before:
                old.append(session)
        if dry_run:
            _preview(call, old, count)
            return
        if old and not yes and not _agreed(call, len(old), count, days):
            call.say("Nothing was deleted")
            return
        if old:
            with call.progress("Deleting", "sessions") as progress:
                pruned = await memory.admin.prune(days, progress=progress)
    if call.json:
        call.write({"pruned": pruned, "left": count - pruned})
    call.say(f"Deleted {pruned:,} of {counted(count, 'session')}")


def _preview(call: Call, old: Sequence[SessionInfo], count: int) -> None:
    """Show which sessions would be deleted, the latest first, and delete none."""
    latest = sorted(old, key=lambda session: -session.updated_at)
    if call.json:
        named = [{"id": each.id, "owner": each.owner} for each in latest]
        call.write({"would_prune": len(old), "left": count - len(old), "sessions": named})
        return
    if old:
        with call.paged() as screen:
            screen.sessions(latest)
    call.say(f"Would delete {len(old):,} of {counted(count, 'session')}")


def _agreed(call: Call, old: int, count: int, days: int) -> bool:
    if call.json or not sys.stdin.isatty():
        raise InvalidInput(
            f"this would delete {old:,} of {counted(count, 'session')}; use --yes to confirm"
        )
    return typer.confirm(
        f"Permanently delete {old:,} of {counted(count, 'session')},"
        f" without activity for {counted(days, 'day')}?",
        err=True,
    )


async def verify(call: Call) -> int:
    """Check every row, and the file itself.

    Exits with 1 if anything is damaged.
    """
    async with call.memory() as memory:
        with call.progress("Verifying", "messages") as progress:
            found = await memory.admin.verify(progress=progress)
    if call.json:
        call.write(to_json(found))
    else:
        with call.paged() as screen:
            screen.verification(found)
    return 0 if found.sound else 1


def behind(passed: int, total: int, progress: Progress | None) -> Progress | None:
    """Return a callback for the progress of a part, after work that is done already."""
    if progress is None:
        return None
    return lambda done, _: progress(passed + done, max(total, passed + done))


async def recount(call: Call) -> None:
    """Recompute token counts after changing the tokenizer.

    A session changes as a whole or not at all. Until then contexts are right as well, but cost more
    to build.
    """
    counter = current_counter(call)
    async with call.memory(counter=counter) as memory:
        sessions = [session async for session in every_session(memory.store)]
        total = sum(session.messages for session in sessions)
        passed = again = 0
        with call.progress("Counting", "messages") as progress:
            for session in sessions:
                report = behind(passed, total, progress)
                again += await branching.recount(
                    memory.store, session.key, counter, progress=report
                )
                passed += session.messages
    if call.json:
        call.write({"counter": counter.name, "messages": total, "counted": again})
    call.say(f"Recounted {again:,} of {counted(total, 'message')} with {counter.name}")


async def index(
    call: Call,
    owner: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this owner's sessions.")
    ] = None,
) -> None:
    """Index new messages for search, by words and by vectors.

    Vectors are made if the settings name an embedder; vectors of another model are replaced.
    Programs that search do all this automatically; this command does it in advance.
    """
    embedder = embedder_of(call.config.settings.embedder, os.environ)
    embedded = 0
    async with call.memory() as memory:
        read = await _read_on(call, "Reading", _part(memory, owner))
        if embedder:
            with_vectors = Memory(memory.store, Options(counter=memory.counter, embedder=embedder))
            embedded = await _read_on(call, "Embedding", _part(with_vectors, owner))
    name = embedder.name if embedder else None
    if call.json:
        call.write({"read": read, "embedder": name, "embedded": embedded})
    call.say(f"Indexed {counted(read, 'message')}")
    if name:
        call.say(f"Embedded {counted(embedded, 'message')} with {name}")
    else:
        call.say("No vectors were made: the settings name no embedder")


def _part(memory: Memory, owner: str | None) -> Admin | OwnerMemory:
    """Return the part of a memory that is one owner's, or all of it."""
    return memory.admin if owner is None else memory.for_owner(owner)


async def _read_on(call: Call, label: str, memory: Admin | OwnerMemory) -> int:
    """Read on with a bar, and return how many messages that took."""
    done = 0
    with call.progress(label, "messages") as progress:

        def report(now: int, total: int) -> None:
            nonlocal done
            done = now
            if progress:
                progress(now, total)

        await memory.index(progress=report)
    return done


async def compact(
    call: Call,
    sessions: Annotated[
        list[str] | None, typer.Argument(metavar="SESSION", help="The ids of sessions.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Compact every session.")] = False,
    owner: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Whose sessions (default: memory.owner, or with --all every owner).",
        ),
    ] = None,
) -> None:
    """Compact old turns into summaries, and keep every message.

    Chats do so automatically when it is due. The settings name the summarizer: the program
    itself, or a model, which is then called.
    """
    if bool(sessions) == every:
        raise InvalidInput("name the sessions to compact, or use --all")
    counter = current_counter(call)
    async with call.memory() as opened, _compaction(call) as compaction:
        memory = Memory(opened.store, Options(counter=counter, compaction=compaction))
        chosen = await _chosen(call, memory, sessions or (), owner)
        total, passed, compactions, refused = sum(each.turns for each in chosen), 0, 0, 0
        with call.progress("Compaction", "turns") as progress:
            for each in chosen:
                # For one session it shows the turns that are due, for many the sessions done.
                report = behind(passed, total, progress) if len(chosen) > 1 else progress
                done = await _compact(memory.for_owner(each.owner), each.id, report)
                compactions, refused = compactions + done[0], refused + done[1]
                passed += each.turns
                if progress and len(chosen) > 1:
                    progress(passed, total)
    if call.json:
        call.write({"sessions": len(chosen), "compactions": compactions, "refused": refused})
    call.say(f"Made {counted(compactions, 'compaction')} in {counted(len(chosen), 'session')}")
    if refused:
        call.warn(
            f"{counted(refused, 'time')} the model failed or wrote too much, and the built-in "
            "summarizer was used"
        )


async def _chosen(
    call: Call, memory: Memory, names: Sequence[str], owner: str | None
) -> list[SessionInfo]:
    """Return the named sessions, or all that people talked in, of an owner if one is given."""
    if names:
        return [(await call.session(memory, name, owner)).info for name in dict.fromkeys(names)]
    return [
        session
        async for session in every_session(memory.store)
        if session.ready and session.state == "live" and session.kind != "delegate"
        if owner in (None, session.owner)
    ]


async def _compact(memory: OwnerMemory, id: str, progress: Progress | None) -> tuple[int, int]:
    """Compact a session; return the number of compactions and of failures of the model."""
    with suppress(SessionNotFound, SessionGone):  # deleted in the meantime
        session = await memory.get_session(id)
        before = (await session.status()).refusals
        compactions = await session.compact(progress=progress)
        return compactions, (await session.status()).refusals - before
    return 0, 0


@asynccontextmanager
async def _compaction(call: Call) -> AsyncGenerator[Compaction]:
    """Give how to compact, by the settings."""
    settings = call.config.settings
    if settings.summarizer.by != "model":
        yield Compaction()
        return
    model = model_of(settings.model, os.environ, name=settings.summarizer.name)
    try:
        yield Compaction(summarizer=ByModel(model))
    finally:
        await model.close()
