"""Commands that make now what is made of the log: the index with its vectors, and summaries."""

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Annotated

import typer

from keepthread.cli.call import Call
from keepthread.cli.care import behind
from keepthread.cli.counting import current_counter
from keepthread.cli.wiring import embedder_of, model_of
from keepthread.errors import InvalidInput, SessionGone, SessionNotFound
from keepthread.interchange.exporting import every_session
from keepthread.memory import Memory
from keepthread.protocols import Progress
from keepthread.summaries import Folding
from keepthread.summarizers import ByModel
from keepthread.types import SessionInfo


async def index(
    call: Call,
    owner: Annotated[
        str | None, typer.Option(metavar="NAME", help="Only this owner's sessions.")
    ] = None,
) -> None:
    """Read what was written since into the index, and into vectors.

    Vectors are made if the settings name an embedder; what another model embedded is embedded anew.
    Programs that search do all this by themselves; here it is done beforehand.
    """
    embedder = embedder_of(call.config.settings.embedder, os.environ)
    embedded = 0
    async with call.memory() as memory:
        read = await _read_on(call, "Reading", memory, owner)
        if embedder:
            with_vectors = Memory(memory.store, counter=memory.counter, embedder=embedder)
            embedded = await _read_on(call, "Embedding", with_vectors, owner)
    name = embedder.name if embedder else None
    if call.json:
        call.write({"read": read, "embedder": name, "embedded": embedded})
    call.say(f"Read {read:,} messages into the index")
    if name:
        call.say(f"Embedded {embedded:,} messages with {name}")
    else:
        call.say("No vectors were made: the settings name no embedder")


async def _read_on(call: Call, label: str, memory: Memory, owner: str | None) -> int:
    """Read on with a bar, and return how many messages that took."""
    done = 0
    with call.progress(label, "messages") as progress:

        def tell(now: int, total: int) -> None:
            nonlocal done
            done = now
            if progress:
                progress(now, total)

        await memory.index(owner=owner, progress=tell)
    return done


async def fold(
    call: Call,
    sessions: Annotated[
        list[str] | None, typer.Argument(metavar="SESSION", help="The ids of sessions.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Fold every session.")] = False,
) -> None:
    """Fold old exchanges into summaries, and keep every message.

    Chats do so by themselves when it is due. Who shortens stands in the settings: the program
    itself, or a model, which is then asked.
    """
    if bool(sessions) == every:
        raise InvalidInput("name the sessions to fold, or say --all")
    counter = current_counter(call)
    async with call.memory() as opened, _folding(call) as folding:
        memory = Memory(opened.store, counter=counter, folding=folding)
        chosen = await _chosen(call, memory, sessions or ())
        total, passed, folds, refused = sum(each.exchanges for each in chosen), 0, 0, 0
        with call.progress("Folding", "exchanges") as progress:
            for each in chosen:
                # Of one session it is told what is due, of many how far they were gone through.
                tell = behind(passed, total, progress) if len(chosen) > 1 else progress
                done = await _fold(memory, each.id, tell)
                folds, refused = folds + done[0], refused + done[1]
                passed += each.exchanges
                if progress and len(chosen) > 1:
                    progress(passed, total)
    if call.json:
        call.write({"sessions": len(chosen), "folds": folds, "refused": refused})
    call.say(f"Made {folds:,} folds in {len(chosen):,} sessions")
    if refused:
        call.warn(f"{refused:,} times the model failed or said too much, and the program shortened")


async def _chosen(call: Call, memory: Memory, names: Sequence[str]) -> list[SessionInfo]:
    """Return the named sessions, or all that people talked in."""
    if names:
        return [(await call.session(memory, name)).info for name in dict.fromkeys(names)]
    return [
        session
        async for session in every_session(memory.store)
        if session.ready and session.state == "live" and session.kind != "delegate"
    ]


async def _fold(memory: Memory, id: str, progress: Progress | None) -> tuple[int, int]:
    """Fold a session; return the folds that were made, and how often a model failed at it."""
    with suppress(SessionNotFound, SessionGone):  # deleted meanwhile
        session = await memory.get_session(id)
        before = (await session.status()).refusals
        folds = await session.fold(progress=progress)
        return folds, (await session.status()).refusals - before
    return 0, 0


@asynccontextmanager
async def _folding(call: Call) -> AsyncGenerator[Folding]:
    """Give how to fold, by the settings."""
    settings = call.config.settings
    if settings.summarizer.by != "model":
        yield Folding()
        return
    model = model_of(settings.model, os.environ, name=settings.summarizer.name)
    try:
        yield Folding(summarizer=ByModel(model))
    finally:
        await model.close()
