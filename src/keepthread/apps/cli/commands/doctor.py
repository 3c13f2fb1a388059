"""Commands that look at what is around a store: doctor, which says what to do, and models."""

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final

import typer

from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.report_types import Finding, counted, size_of
from keepthread.apps.cli.sanitize import sanitize
from keepthread.apps.cli.services import ModelList, address_of, list_models, offers
from keepthread.apps.cli.settings.secrets import source_of
from keepthread.apps.cli.settings.settings import ModelSettings
from keepthread.apps.cli.stores import file_of, is_server, place_of
from keepthread.apps.cli.wiring import best_counter, key_of, model_of
from keepthread.apps.hooks.events import everything_that_waits
from keepthread.errors import InvalidInput, KeepthreadError, ModelDenied, ModelUnavailable
from keepthread.stores.changes import FeedHolder, HoldableFeed
from keepthread.stores.front import every_session
from keepthread.stores.sqlite import SQLiteStore
from keepthread.stores.sqlite.file import FileFacts
from keepthread.types import Durability, Message

_RACE: Final = ((3, 7, 0), (3, 51, 2))
_LONG_LOG: Final = 64 << 20
_LONG_TRANSACTION: Final = 10.0
_NETWORK: Final = {"9p", "afs", "ceph", "cifs", "davfs", "glusterfs", "lustre", "nfs", "nfs4"} | {
    *("smb3", "smbfs", "vboxsf", "fuse.davfs2", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs"),
    "fuse.sshfs",
}


async def doctor(
    call: Call,
    ask: Annotated[
        bool, typer.Option("--ask", help="Also ask the model for one token, which may cost money.")
    ] = False,
) -> None:
    """Check the store, its file and disk, the token counter, and the model.

    The service of the model is asked which models it offers.
    """
    settings = call.config.settings
    store, content = await _about_store(call)
    model = about_model(settings.model, os.environ)
    if ask:
        model.append(await about_answer(settings.model, os.environ))
    findings = [*store, *model, about_counter(settings.tokenizer), *content]
    if waiting := everything_that_waits():
        findings.append(about_hooks(waiting))
    if call.json:
        call.write({"findings": [asdict(f) | {"ok": f.ok} for f in findings]})
    else:
        with call.paged() as screen:
            screen.findings(findings)


async def _about_store(call: Call) -> tuple[Sequence[Finding], Sequence[Finding]]:
    """Look at the store itself, and at what is in it."""
    if not is_server(call.url) and not (file := file_of(call.url)).is_file():
        advice = "`keepthread chat` or `keepthread import` creates it"
        return [Finding(what="file", found=f"there is no {file} yet", advice=advice)], []
    async with call.memory() as memory:
        sessions = [s async for s in every_session(memory.store) if not s.forgotten]
        if isinstance(memory.store, SQLiteStore):
            store = _about_sqlite_store(await memory.store.facts(), memory.store.durability)
        else:
            store = [*about_server(place_of(call.url), memory.store.durability)]
        if isinstance(memory.store, HoldableFeed):
            store.append(about_feed(await memory.store.feed_holder()))
    unready = sum(not session.ready for session in sessions)
    return store, [about_sessions(len(sessions), sum(s.messages for s in sessions), unready)]


def about_model(settings: ModelSettings, environ: Mapping[str, str]) -> list[Finding]:
    """Look at whether the model can be asked: its name, the key, the service."""
    try:
        key = key_of(settings, environ)
    except (InvalidInput, ModelDenied) as error:
        return [
            _about_name(settings, ModelList()),
            Finding(what="key", found="none", advice=str(error)),
        ]
    source = source_of(settings.key_variable, environ, settings.key_command)
    has = (
        f"{settings.key_variable}, from the {source}"
        if key
        else f"no {settings.key_variable}; some services need no key"
    )
    listing, address = list_models(settings, key), address_of(settings)
    many = counted(len(listing.names), "model")
    found = f"{address} offers {many}" if listing.names else listing.problem or f"{address} answers"
    return [
        _about_name(settings, listing),
        Finding(what="key", found=has, advice=_key_advice(settings, key) if listing.denied else ""),
        Finding(what="service", found=found, advice=_service_advice(listing)),
    ]


def _service_advice(listing: ModelList) -> str:
    if listing.denied:
        return "it answers, but requires a valid key"
    if listing.answers:
        return ""
    return "start it, or correct the address: `keepthread config set model.base_url URL`"


def _key_advice(settings: ModelSettings, key: str | None) -> str:
    if key:
        return "the service rejects the key: check it, or set another"
    return f"the service requires a key: export {settings.key_variable}=…"


def _about_name(settings: ModelSettings, listing: ModelList) -> Finding:
    name = settings.name
    if name is None:
        advice = "run `keepthread init`, or `keepthread config set model.name NAME`"
        return Finding(what="model", found="no model is set", advice=advice)
    if listing.names and not offers(listing.names, name):
        near = get_close_matches(name, listing.names, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        return Finding(
            what="model",
            found=name,
            advice=f"the service does not offer it; {hint}`keepthread models` lists them",
        )
    return Finding(what="model", found=name)


async def about_answer(settings: ModelSettings, environ: Mapping[str, str]) -> Finding:
    """Ask the model for one token."""
    began = time.monotonic()
    try:
        model = model_of(settings, environ)
        try:
            await model.complete([Message(role="user", content="Hello")], max_tokens=1)
        finally:
            await model.close()
    except KeepthreadError as error:
        return Finding(what="answer", found="none", advice=str(error))
    return Finding(what="answer", found=f"after {time.monotonic() - began:.1f} seconds")


def _about_sqlite_store(facts: FileFacts, durability: Durability) -> list[Finding]:
    below = (about_disk(facts.path, _mounts()), about_sqlite(facts.sqlite_version))
    return [*about_file(facts), *about_settings(facts, durability), *below]


def about_server(place: str, durability: Durability) -> Sequence[Finding]:
    """Look at what a server says of itself."""
    lost = "acknowledged writes are lost when it stops; enable persistence to disk"
    return (
        Finding(what="server", found=place),
        Finding(what="durability", found=durability, advice=lost if durability == "memory" else ""),
    )


def about_feed(holder: FeedHolder | None) -> Finding:
    """Look at whether a transaction keeps changes from being shown."""
    if holder is None or (holder.seconds is not None and holder.seconds < _LONG_TRANSACTION):
        return Finding(what="feed", found="shows changes at once")
    where = f"in database {holder.database}" if holder.database else "in an unknown database"
    some = "an unknown time" if holder.seconds is None else f"{holder.seconds:,.0f} seconds"
    return Finding(
        what="feed",
        found=f"waits for transaction {holder.transaction} {where}, which has run for {some}",
        advice="later changes are not shown until it ends; end it if its program has forgotten it",
    )


def about_file(facts: FileFacts) -> Sequence[Finding]:
    """Look at where the file is and how large."""
    protected = "" if facts.writable else "it is read-only; to write, change its permissions"
    long = facts.wal_size > _LONG_LOG
    advice = (
        "a program has been reading for very long or was killed; close it, and the next write"
        " truncates the log"
    )
    return (
        Finding(what="file", found=f"{facts.path}, format {facts.format}", advice=protected),
        Finding(
            what="size",
            found=f"{size_of(facts.size)}, write-ahead log {size_of(facts.wal_size)}",
            advice=advice if long else "",
        ),
    )


def about_settings(facts: FileFacts, durability: Durability) -> Sequence[Finding]:
    """Look at how writes reach the disk."""
    wal = facts.journal_mode == "wal"
    rollback = "another program changed it; open the store once with write access to restore it"
    return (
        Finding(what="journal", found=facts.journal_mode, advice="" if wal else rollback),
        Finding(
            what="durability",
            found=f"{durability} (synchronous={facts.synchronous}), unless a program chose a lower "
            "level",
        ),
    )


def about_disk(path: Path, mounts: str) -> Finding:
    """Look at what the file lies on, by the text of /proc/mounts."""
    found, kind = "", "unknown"
    path = path.resolve()
    for line in mounts.splitlines():
        point, name = (*line.split(" "), "", "")[1:3]
        point = point.replace("\\040", " ")
        if path.is_relative_to(point) and len(point) >= len(found):
            found, kind = point, name
    advice = "SQLite's locks are unreliable on network file systems; move the file to a local disk"
    return Finding(what="disk", found=kind, advice=advice if kind in _NETWORK else "")


def _mounts() -> str:
    """Return what Linux says of its disks; elsewhere nothing does."""
    mounts = Path("/proc/mounts")
    return mounts.read_text(errors="replace") if mounts.exists() else ""


def about_sqlite(version: str) -> Finding:
    """Look at SQLite's version and what is known against it."""
    first, last = _RACE
    affected = first <= tuple(map(int, version.split("."))) <= last
    advice = (
        "before 3.51.3, two programs that reset the log at the same time may lose a write; "
        "keepthread prevents this with a lock, so let no other program write to this file"
    )
    return Finding(what="SQLite", found=version, advice=advice if affected else "")


def about_counter(vocabulary: str) -> Finding:
    """Look at whether the exact counter can be had."""
    counter, reason = best_counter(vocabulary)
    how = "an estimate" if reason else "exact, through tiktoken"
    return Finding(what="counter", found=f"{counter.name}, {how}", advice=reason)


def about_sessions(sessions: int, messages: int, unready: int) -> Finding:
    """Look at how much there is."""
    found = f"{counted(sessions, 'session')}, {counted(messages, 'message')}"
    many = f"{unready:,} {'is' if unready == 1 else 'are'} not ready"
    advice = f"{many}: run the interrupted import or fork again"
    return Finding(what="content", found=found, advice=advice if unready else "")


def about_hooks(waiting: int) -> Finding:
    """Look at the session files that hooks of coding agents have not stored yet."""
    advice = (
        "the next hook stores them, unless the store is unavailable or the settings in their folder"
        " have a mistake: `keepthread config` there shows it"
    )
    found = f"{counted(waiting, 'session waits', 'sessions wait')} to be stored"
    return Finding(what="hooks", found=found, advice=advice)


def models(call: Call) -> None:
    """List the models that the service offers.

    The one that is set is marked. The settings name the service: `keepthread config model`.
    """
    settings = call.config.settings.model
    found = list_models(settings, key_of(settings, os.environ))
    if found.problem:
        raise ModelUnavailable(
            f"{found.problem}; `keepthread config model` shows the current settings"
        )
    chosen = settings.name
    if call.json:
        call.write({"service": address_of(settings), "models": [*found.names], "set": chosen})
        return
    offered = chosen is not None and offers(found.names, chosen)
    call.say(f"{address_of(settings)} offers {counted(len(found.names), 'model')}")
    for name in found.names:
        here = offered and name in (chosen, f"{chosen}:latest")
        typer.secho(f"{'→' if here else ' '} {sanitize(name)}", bold=here)
    if not chosen:
        call.say("No model is set: `keepthread config set model.name NAME`")
    elif not offered:
        call.warn(f"{chosen} is set but not offered; set another with `keepthread config set`")
