"""Files that hold a conversation while its store is away; `delivery` brings them into it.

Each is a store of its own, owned by one process at a time. Which store it belongs to is in its
folder's name, so that nothing is ever delivered to another. A `forget` delivers them first. If
a running chat owns a file, it leaves a request beside it, and the process that delivers the file
forgets too.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from keepthread.apps.cli.settings.load import Config
from keepthread.stores.codec import new_id
from keepthread.stores.private_files import private_file
from keepthread.stores.sqlite.file import FileLock
from keepthread.stores.url import scheme_of, target_of

STATE_VARIABLE: Final = "KEEPTHREAD_STATE"
_SUFFIX: Final = ".db"
_BESIDE: Final = ("-wal", "-shm", "-lock", "-owner", "")
_REQUEST: Final = "-forget-"


class OfflineFile:
    """One such file, owned by this process."""

    def __init__(self, path: Path, lock: FileLock) -> None:
        """Take a file whose lock is held."""
        self.path = path
        self._lock = lock

    @property
    def address(self) -> str:
        """Return where it is, as a memory is opened."""
        return f"sqlite:///{self.path}"

    def remove(self) -> None:
        """Delete it and the files beside it, once it is closed and delivered."""
        self._lock.release()
        for path in (*_requests(self.path), *(_beside(self.path, each) for each in _BESIDE)):
            with suppress(OSError):
                path.unlink()

    def requests(self) -> list[dict[str, Any]]:
        """Return what others asked to forget while this process owned the file."""
        return [json.loads(path.read_bytes()) for path in _requests(self.path)]

    def leave(self) -> None:
        """Let another process have it."""
        self._lock.release()


class OfflineFiles:
    """The files of one store and tenant."""

    def __init__(self, folder: Path, target: str, tenant: str) -> None:
        """Know the folder; it is made when it is first needed."""
        name = hashlib.sha256(f"{target}\n{tenant}".encode()).hexdigest()[:16]
        self._folder = folder / name

    def new(self) -> OfflineFile:
        """Return a new file; `OSError` if there is no place for it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        path = self._folder / f"{new_id()}{_SUFFIX}"
        lock = FileLock(_beside(path, "-owner"))
        lock.take()
        return OfflineFile(path, lock)

    def left(self) -> list[Path]:
        """Return all existing files, oldest first: chats could not deliver them yet."""
        return sorted(self._folder.glob(f"*{_SUFFIX}"))

    def take(self, path: Path) -> OfflineFile | None:
        """Own one of them, unless another process does or it is gone."""
        lock = FileLock(_beside(path, "-owner"))
        with suppress(OSError):
            if lock.take():
                offline_file = OfflineFile(path, lock)
                if path.exists():
                    return offline_file
                offline_file.remove()  # its owner delivered it at this moment
        return None

    def request(self, path: Path, forget: Mapping[str, Any]) -> None:
        """Ask the process that delivers a file to forget; see `delivery.forget_as_asked`."""
        with private_file(_beside(path, f"{_REQUEST}{new_id()}")) as write:
            write(json.dumps(forget).encode())


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _requests(path: Path) -> list[Path]:
    found = path.parent.glob(f"{path.name}{_REQUEST}*")
    return sorted(each for each in found if each.suffix != ".part")


def offline_files_of(config: Config, environ: Mapping[str, str]) -> OfflineFiles | None:
    """Return the files that help out while the store is away; none for a store in memory."""
    settings = config.settings
    if scheme_of(settings.address) == "ram":
        return None
    return OfflineFiles(
        _state(environ) / "asides", target_of(settings.address), settings.memory.tenant
    )


def _state(environ: Mapping[str, str]) -> Path:
    if named := environ.get(STATE_VARIABLE):
        return Path(named).expanduser()
    import platformdirs  # noqa: PLC0415 - what the extra brings

    return platformdirs.user_state_path("keepthread", appauthor=False)
