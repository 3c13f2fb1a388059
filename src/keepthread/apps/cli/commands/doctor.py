"""The command that looks at everything around a store and says what to do about it."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Final

from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.report_types import Finding
from keepthread.apps.cli.stores import place_of
from keepthread.apps.cli.wiring import best_counter
from keepthread.stores.front import every_session
from keepthread.stores.sqlite import SQLiteStore
from keepthread.stores.sqlite.file import FileFacts
from keepthread.types import Durability

_RACE: Final = ((3, 7, 0), (3, 51, 2))
_LONG_LOG: Final = 64 << 20
_NETWORK: Final = {"9p", "afs", "ceph", "cifs", "davfs", "glusterfs", "lustre", "nfs", "nfs4"} | {
    *("smb3", "smbfs", "vboxsf", "fuse.davfs2", "fuse.glusterfs", "fuse.rclone", "fuse.s3fs"),
    "fuse.sshfs",
}


async def doctor(call: Call) -> None:
    """Look at the store, its settings, what is below it and the token counter."""
    async with call.memory() as memory:
        sessions = [s async for s in every_session(memory.store) if not s.forgotten]
        if isinstance(memory.store, SQLiteStore):
            findings = _about_sqlite_store(await memory.store.facts(), memory.store.durability)
        else:
            findings = [*about_server(place_of(call.url), memory.store.durability)]
    findings.append(about_counter(call.config.settings.tokenizer))
    unready = sum(not session.ready for session in sessions)
    findings.append(about_sessions(len(sessions), sum(s.messages for s in sessions), unready))
    if call.json:
        call.write({"findings": [asdict(f) | {"ok": f.ok} for f in findings]})
    else:
        call.screen.findings(findings)


def _about_sqlite_store(facts: FileFacts, durability: Durability) -> list[Finding]:
    below = (about_disk(facts.path, _mounts()), about_sqlite(facts.sqlite_version))
    return [*about_file(facts), *about_settings(facts, durability), *below]


def about_server(place: str, durability: Durability) -> Sequence[Finding]:
    """Look at what a server says of itself."""
    lost = "what it acknowledges is lost when it stops; have it write to its disk"
    return (
        Finding(what="server", found=place),
        Finding(what="durability", found=durability, advice=lost if durability == "memory" else ""),
    )


def about_file(facts: FileFacts) -> Sequence[Finding]:
    """Look at where the file is and how large."""
    protected = "" if facts.writable else "it can be read only; to write, change its permissions"
    long = facts.wal_size > _LONG_LOG
    advice = "a program reads for very long or was killed; close it, the next write shortens it"
    return (
        Finding(what="file", found=f"{facts.path}, format {facts.format}", advice=protected),
        Finding(
            what="size",
            found=f"{_size(facts.size)}, write-ahead log {_size(facts.wal_size)}",
            advice=advice if long else "",
        ),
    )


def about_settings(facts: FileFacts, durability: Durability) -> Sequence[Finding]:
    """Look at how writes reach the disk."""
    wal = facts.journal_mode == "wal"
    rollback = "another program changed it; open the store once with write access to set it back"
    return (
        Finding(what="journal", found=facts.journal_mode, advice="" if wal else rollback),
        Finding(
            what="durability",
            found=f"{durability} (synchronous={facts.synchronous}), unless a program chose less",
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
    advice = "SQLite's locks do not hold over a network; move the file to a local disk"
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
        "before 3.51.3, two programs that reset the log at once may lose a write; keepthread takes"
        " a lock against it, so let no other program write to this file"
    )
    return Finding(what="SQLite", found=version, advice=advice if affected else "")


def about_counter(vocabulary: str) -> Finding:
    """Look at whether the exact counter can be had."""
    counter, reason = best_counter(vocabulary)
    how = "an estimate" if reason else "exact, through tiktoken"
    return Finding(what="counter", found=f"{counter.name}, {how}", advice=reason)


def about_sessions(sessions: int, messages: int, unready: int) -> Finding:
    """Look at how much there is."""
    found = f"{sessions:,} sessions, {messages:,} messages"
    advice = f"{unready:,} are not ready: run the import or fork again that was broken off"
    return Finding(what="content", found=found, advice=advice if unready else "")


def _size(size: int) -> str:
    for limit, unit in ((1_000, "bytes"), (1_000_000, "kB"), (1_000_000_000, "MB")):
        if size < limit:
            return f"{size} bytes" if limit == 1_000 else f"{size * 1_000 / limit:.1f} {unit}"
    return f"{size / 1_000_000_000:.1f} GB"
