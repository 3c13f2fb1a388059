"""A conversation that goes on while a resource is taken away, and the resources to take."""

import functools
import os
import random
import resource
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from keepthread.errors import KeepthreadError, ReadOnly, StorageFull, Unavailable
from keepthread.protocols import Store
from keepthread.stores.url import store_at
from keepthread.types import Message, SessionInfo, SessionKey

T = TypeVar("T")
Refusals: TypeAlias = type[KeepthreadError] | tuple[type[KeepthreadError], ...]

LONG_SESSION: Final = 20_000


@dataclass(slots=True, kw_only=True)
class Trial:
    """What a conversation was told, and what went wrong."""

    url: str
    folder: Path
    mounts: bool
    rng: random.Random
    server: Any = None
    options: dict[str, Any] = field(default_factory=dict)
    told: list[str] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)
    in_doubt: bool = False
    """Whether what was refused may be stored: its server died before it answered."""
    errors: list[str] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)

    @property
    def path(self) -> Path:
        """The file of a store in one."""
        return self.folder / "chat.db"

    async def open(self, url: str = "") -> Store:
        """Open the store, or another one."""
        return await store_at(url or self.url)(**self.options)

    async def begin(self) -> Store:
        """Open the store, make the session and say a little."""
        store = await self.open()
        await store.put_session(SessionInfo(id="chat"))
        for _ in range(5):
            await self.say(store)
        return store

    async def say(self, store: Store, size: int = 100) -> None:
        """Append a message, and remember it once it is acknowledged."""
        text = self.rng.randbytes(size // 2).hex()
        self.asked.add(text)
        await store.append(await chat(store), [Message(role="user", content=text)])
        self.told.append(text)

    async def attempt(self, what: str, work: Awaitable[T], refusals: Refusals) -> T | None:
        """Return what the work returns; note by which of our errors it was refused."""
        try:
            return await work
        except refusals as error:
            self._note(type(error).__name__)
        except Exception as error:  # noqa: BLE001 - any other error is what we look for
            self.broken.append(f"{what}: {error!r}")
        return None

    async def refused(self, what: str, work: Awaitable[object], refusals: Refusals) -> None:
        """Hold the work to being refused."""
        if await self.attempt(what, _completed(work), refusals):
            self.broken.append(f"{what}: was not refused")

    async def say_until_refused(self, store: Store, size: int, refusals: Refusals) -> None:
        """Say more and more, until there is no room for it."""
        said = -1
        while said < len(self.told) < 1_000:
            said = len(self.told)
            await self.attempt("an append", self.say(store, size), refusals)
        if not self.errors:
            self.broken.append("there was always room")

    async def hear_all(self, what: str, store: Store) -> None:
        """Hold the store to having all that was acknowledged, and nothing else."""
        try:
            found = [m.content for m in await store.read(await chat(store), limit=1_000_000)]
        except Exception as error:  # noqa: BLE001 - reading must go on
            self.broken.append(f"{what}: cannot be read: {error!r}")
            return
        if lost := len(set(self.told) - set(found)):
            self.broken.append(f"{what}: {lost} acknowledged messages lost")
        if extra := len(set(found) - (self.asked if self.in_doubt else set(self.told))):
            self.broken.append(f"{what}: {extra} refused messages stored all the same")
        if len(set(found)) < len(found):
            self.broken.append(f"{what}: a message is stored twice")

    async def write_nothing(self, what: str, store: Store) -> None:
        """Hold a store that can only be read to refusing to write."""
        await self.refused(f"{what}, an append", self.say(store), ReadOnly)
        new = SessionInfo(id="another")
        await self.refused(f"{what}, a session", store.put_session(new), ReadOnly)
        await self.attempt(f"{what}, verify", store.verify(), ())

    async def recover(self, what: str, store: Store | None = None) -> None:
        """Hold the store to working again, and to being sound."""
        try:
            store = store or await self.open()
            try:
                await self.say(store)
                await self.hear_all(what, store)
                if not (await store.verify()).sound:
                    self.broken.append(f"{what}: the store is damaged")
            finally:
                await store.close()
        except Exception as error:  # noqa: BLE001 - everything must work now
            self.broken.append(f"{what}: does not recover: {error!r}")

    def _note(self, error: str) -> None:
        if error not in self.errors:
            self.errors.append(error)


class Fault(NamedTuple):
    """One way to run out of something."""

    name: str
    attempt: Callable[[Trial], Coroutine[Any, Any, None]]
    needs_disk: bool = False
    """Whether a file system of its own serves it best."""


async def _completed(work: Awaitable[object]) -> bool:
    result = await work
    close: Callable[[], Awaitable[None]] | None = getattr(result, "close", None)
    if close:
        await close()
    return True


async def chat(store: Store) -> SessionKey:
    session = await store.get_session("chat")
    assert session is not None, "the session is gone"
    return session.key


# --- disks ---


class SmallDisk:
    """A disk of a few megabytes that can be filled and freed."""

    def __init__(self, trial: Trial, size: int, folder: Path | None = None) -> None:
        self._mounts = trial.mounts
        self.folder = folder or trial.folder
        self._ballast = self.folder / "ballast"
        self._limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        if self._mounts:
            self.folder.mkdir(exist_ok=True)
            mount("-t", "tmpfs", "-o", f"size={size},mode=0777", "tmpfs", str(self.folder))

    def fill(self, *, left: int) -> None:
        """Leave so many bytes, no more."""
        if not self._mounts:
            largest = max((p.stat().st_size for p in self.folder.iterdir()), default=0)
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest + left, self._limits[1]))
            return
        disk = os.statvfs(self.folder)
        with self._ballast.open("ab") as file:
            file.write(bytes(max(0, disk.f_bavail * disk.f_frsize - left)))

    def free(self) -> None:
        """Make room again."""
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limits)
        self._ballast.unlink(missing_ok=True)

    def close(self) -> None:
        """Take the disk away; nobody may use it any more."""
        if self._mounts:
            subprocess.run(["umount", str(self.folder)], check=True, capture_output=True)

    @property
    def refusals(self) -> Refusals:
        """The error of a full disk; the stand-in looks like a failing one."""
        return StorageFull if self._mounts else Unavailable


def mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True, capture_output=True)


@functools.cache
def way_to_mount() -> Sequence[str]:
    """Return the command that gives a process mounts of its own, or nothing if none does."""
    for command in (["unshare", "-m"], ["unshare", "-rm"]):
        with tempfile.TemporaryDirectory() as folder, suppress(OSError):
            attempt = [*command, "mount", "-t", "tmpfs", "tmpfs", folder]
            if subprocess.run(attempt, capture_output=True, check=False).returncode == 0:
                return command
    return []


# --- descriptors ---


@contextmanager
def descriptors(left: int) -> Iterator[None]:
    """Leave so many more files that may be opened."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, limits[0]), limits[1]))
    taken: list[int] = []
    try:
        with suppress(OSError):
            while True:
                taken.append(os.dup(0))
        for descriptor in taken[len(taken) - left :]:
            os.close(descriptor)
        del taken[len(taken) - left :]
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


# --- on a server ---


async def no_descriptors(trial: Trial) -> None:
    """A client that can open no more connections says so, and goes on with those it has."""
    store = await trial.begin()
    for left in range(4):
        with descriptors(left):
            other = await trial.attempt("opening", trial.open(), Unavailable)
            if other:
                await trial.attempt("reading", chat(other), Unavailable)
                await other.close()
            many = [trial.attempt("an append", trial.say(store), Unavailable) for _ in range(8)]
            for one in many:
                await one
            await trial.hear_all(f"{left} descriptors", store)
    await trial.recover("with descriptors again", store)


async def write_long(store: Store, name: str, length: int) -> SessionKey:
    """Make a session of so many messages of ten tokens."""
    session = await store.put_session(SessionInfo(id=name))
    messages = [Message(role="user", content=f"{n}", tokens=10) for n in range(length)]
    for start in range(0, length, 1_000):
        await store.append(session.key, messages[start : start + 1_000])
    return session.key
