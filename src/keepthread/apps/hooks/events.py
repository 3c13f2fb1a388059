"""The work of a hook on the memory: recall for a prompt, and store session files.

Payloads come from another program and may contain text from anyone: they cannot name an owner or a
store, texts are truncated, and a session file is read only inside its agent's folder.
"""

import asyncio
import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple, cast

from keepthread.apps.cli.chat.startup import chat_counter
from keepthread.apps.cli.settings.load import read_config
from keepthread.apps.cli.stores import file_of, is_server, opened, store_url
from keepthread.apps.cli.wiring import context_options
from keepthread.apps.hooks.client import (
    AGENTS,
    EVENTS,
    PLACE,
    RECALLS,
    waiting_folder,
    waiting_folders,
)
from keepthread.apps.mcp.actions import ClientMemory
from keepthread.errors import InvalidInput, KeepthreadError, StoreClosed, Unavailable
from keepthread.interchange.agents import import_agents
from keepthread.interchange.conversations import session_id
from keepthread.memory.memory import Memory
from keepthread.types import SessionInfo

if TYPE_CHECKING:
    from keepthread.protocols import TokenCounter

MAX_TRANSCRIPT: Final = 1 << 28
"""Bytes of a session file; a larger one is left to `keepthread import`."""
_TEXTS: Final = ("session_id", "cwd", "project", "prompt", *PLACE)
_LONGEST: Final = 8192
_FOLDERS: Final = {
    "claude-code": ("CLAUDE_CONFIG_DIR", ".claude", "projects"),
    "codex": ("CODEX_HOME", ".codex", "sessions"),
}
"""Where each agent keeps session files: a variable, its default in the home folder, and below."""
_TAKEN: Final = ".taken"
_REFUSALS: Final = ".log"
"""The suffix of the file beside the folder of waiting sessions that names refused files."""
_MAX_REFUSALS: Final = 100


class RefusedTranscript(InvalidInput):
    """A session file that a hook does not read. The text has nothing of its content."""


class _NotOpened(Exception):
    """The settings cannot be read, or the memory that they name cannot be opened."""


class HookRequest(NamedTuple):
    """A hook as `client` passes it on."""

    agent: str
    event: str
    folder: str
    """The working folder of the hook's process; its settings apply."""
    session_id: str = ""
    cwd: str = ""
    """The working folder of the session."""
    project: str = ""
    """The folder that the session was started in, if the agent says so."""
    prompt: str = ""
    store: str = ""
    tenant: str = ""
    owner: str = ""
    all_projects: bool = False
    transcripts: tuple[str, ...] = ()

    @classmethod
    def of(cls, value: Any) -> "HookRequest":
        """Return a request from its JSON; raise `InvalidInput` if it is not one."""
        if not isinstance(value, dict):
            raise InvalidInput("a request is an object")
        given = cast("dict[str, Any]", value)
        agent, event = given.get("agent"), given.get("event", RECALLS)
        if agent not in AGENTS or event not in EVENTS or not isinstance(given.get("folder"), str):
            raise InvalidInput("the request names no known agent, event or folder")
        texts = {name: text for name in _TEXTS if isinstance(text := given.get(name, ""), str)}
        # A sub-agent has a file of its own; of older agents it is in that of the session.
        path = given.get("agent_transcript_path") or given.get("transcript_path")
        return cls(
            agent=agent,
            event=event,
            folder=given["folder"],
            all_projects=given.get("all_projects") is True,
            transcripts=(path,) if isinstance(path, str) and path else (),
            **{name: text[:_LONGEST] for name, text in texts.items()},
        )

    @property
    def session(self) -> str:
        """Return the id of the agent's session in the memory, as an import names it."""
        return session_id(self.agent, self.session_id)


# --- the memory ---


class HookMemories:
    """The memories of the hooks' settings, each opened at its first use."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        """Initialize without opening; the environment names the agents' folders."""
        self._environ = environ
        self._stack = AsyncExitStack()
        self._open: dict[tuple[str, ...], Memory] = {}
        self._counters: dict[Memory, TokenCounter] = {}
        self._opening = asyncio.Lock()

    async def close(self) -> None:
        """Close all of them."""
        with suppress(KeepthreadError):
            await self._stack.aclose()

    async def recall(self, request: HookRequest) -> str:
        """Return what the memory holds for a prompt, quoted; empty if there is nothing."""
        memory, owner = await self._memory(request, create=False)
        mine = ClientMemory(memory=memory.for_owner(owner), client=request.agent)
        current = request.session
        projects = {request.cwd, request.project} - {""}

        def admits(session: SessionInfo) -> bool:
            if session.id == current or session.id.startswith(f"{current}/"):
                return False  # the model has already seen it
            return request.all_projects or session.meta.get("project") in projects

        return await mine.related(request.prompt, admits)

    async def store(self, request: HookRequest) -> None:
        """Store the messages of a request's session files that the memory lacks."""
        try:
            memory, owner = await self._memory(request, create=True)
        except (Unavailable, StoreClosed, TimeoutError):
            raise
        except (KeepthreadError, OSError) as error:
            raise _NotOpened from error
        counter = self._counters[memory]
        files = session_files(request, self._environ)
        await import_agents(memory.store, files, counter=counter, owner=owner)

    async def _memory(self, request: HookRequest, *, create: bool) -> tuple[Memory, str]:
        """Return the memory and the owner of the settings that apply in the request's folder."""
        folder = _folder(request)
        flags = {
            "memory.url": store_url(request.store),
            "memory.tenant": request.tenant,
            "memory.owner": request.owner,
        }
        config = read_config(self._environ, folder, {k: v for k, v in flags.items() if v})
        settings = config.settings
        url, tenant = settings.address, settings.memory.tenant
        if not is_server(url):
            url = f"sqlite:///{folder / file_of(url)}"
        key = (url, tenant, repr(settings.embedder), settings.tokenizer)
        async with self._opening:
            if key not in self._open:
                if create and not request.store:
                    config.make_room()
                counter = chat_counter(self._environ, settings.tokenizer)
                store = opened(url, tenant=tenant, create=create and not is_server(url))
                memory = Memory(
                    await self._stack.enter_async_context(store), context_options(settings, counter)
                )
                self._open[key], self._counters[memory] = memory, counter
        return self._open[key], settings.memory.owner

    def forget_connections(self) -> None:
        """Open every memory again at its next use, after one failed."""
        self._open.clear()


def _folder(request: HookRequest) -> Path:
    folder = Path(request.folder)
    return folder if folder.is_dir() else Path.home()


# --- session files ---


def session_files(request: HookRequest, environ: Mapping[str, str]) -> Iterator[BinaryIO]:
    """Yield the session files of a request, each open until the next one: also of sub-agents.

    An agent may write the end of a sub-agent's file after it has called the hook for it.
    """
    for path in request.transcripts:
        with open_transcript(path, request.agent, environ) as file:
            yield file
        for child in sorted(Path(path).with_suffix("").glob("subagents/*.jsonl")):
            with open_transcript(str(child), request.agent, environ) as file:
                yield file


def open_transcript(path: str, agent: str, environ: Mapping[str, str]) -> BinaryIO:
    """Open a session file for reading.

    It must be a regular file of this user, inside the folder where the agent keeps its session
    files: a payload must not let a hook read any other file.
    """
    variable, hidden, below = _FOLDERS[agent]
    root = (Path(environ.get(variable) or Path.home() / hidden) / below).resolve()
    real = Path(path).resolve()
    if real.suffix != ".jsonl" or not real.is_relative_to(root):
        raise RefusedTranscript("the session file is outside the agent's folder for session files")
    # A link or a pipe that took its place since is neither followed nor waited for.
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    file = open(os.open(real, flags | getattr(os, "O_BINARY", 0)), "rb")  # noqa: PTH123, SIM115 - the caller closes it
    found = os.fstat(file.fileno())
    own = not hasattr(os, "geteuid") or found.st_uid == os.geteuid()
    if not stat.S_ISREG(found.st_mode) or not own or found.st_size > MAX_TRANSCRIPT:
        file.close()
        raise RefusedTranscript("the session file is not a regular file of this user, or too large")
    return file


# --- sessions waiting to be stored ---


async def store_waiting(memories: HookMemories, options: Mapping[str, Any]) -> None:
    """Store all waiting session files; one that cannot be stored now keeps waiting.

    `options` are those of the hook: its store, its tenant and its owner.
    """
    folder = Path(waiting_folder(options))
    for note in _claimed(folder):
        try:
            request = HookRequest.of({**_place(options), **json.loads(note.read_bytes())})
            await memories.store(request)
        except _NotOpened:  # as by a mistake in a project's settings; other folders have others
            _keep_waiting(note)
            continue
        except (Unavailable, StoreClosed, TimeoutError):
            memories.forget_connections()
            _keep_waiting(note)
            return
        except (KeepthreadError, OSError, ValueError, RecursionError) as error:
            # There is nothing that another attempt would store.
            _log_refusal(folder, note.name.partition(".")[0], error)
        note.unlink(missing_ok=True)


def _keep_waiting(note: Path) -> None:
    name = note.with_name(note.name.removesuffix(_TAKEN))
    with suppress(OSError):
        note.unlink() if name.exists() else note.rename(name)


def _log_refusal(folder: Path, note: str, error: Exception) -> None:
    """Write down that a session file was not stored, and nothing of its text."""
    reason = str(error) if isinstance(error, RefusedTranscript) else type(error).__name__
    at = datetime.now(UTC).isoformat(timespec="seconds")
    log = folder.with_suffix(_REFUSALS)
    with suppress(OSError):
        lines = [*_lines_of(log), f"{at} session file {note} was not stored: {reason}"]
        new = log.with_suffix(f".{os.getpid()}")
        new.touch(mode=0o600)
        new.write_text("".join(f"{line}\n" for line in lines[-_MAX_REFUSALS:]), "utf-8")
        new.replace(log)


def _lines_of(log: Path) -> list[str]:
    return log.read_text("utf-8", "replace").splitlines() if log.is_file() else []


def refusals(options: Mapping[str, Any]) -> list[str]:
    """Return a line for each session file that was lately not stored, the oldest first."""
    return _lines_of(Path(waiting_folder(options)).with_suffix(_REFUSALS))


def _place(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in PLACE if name in options}


def _claimed(folder: Path) -> Iterator[Path]:
    """Yield the notes of a folder, each renamed: a newer note of the same session is kept apart."""
    names = sorted(folder.iterdir()) if folder.is_dir() else []
    for path in names:
        if path.name.endswith(f".json{_TAKEN}"):  # of a process that was ended
            yield path
        elif path.suffix == ".json":
            taken = path.with_name(path.name + _TAKEN)
            with suppress(OSError):
                yield path.replace(taken)


def anything_waits(options: Mapping[str, Any]) -> int:
    """Return how many session files wait to be stored, with these options."""
    return _notes_below(Path(waiting_folder(options)), "*.json*")


def everything_that_waits() -> int:
    """Return how many session files wait to be stored, with any options and variables."""
    return _notes_below(Path(waiting_folders()), "*/*.json*")


def _notes_below(folder: Path, pattern: str) -> int:
    notes = (path.with_name(path.name.removesuffix(_TAKEN)) for path in folder.glob(pattern))
    return len({path for path in notes if path.suffix == ".json"})


# --- without a helper ---


def output_of(text: str) -> bytes:
    """Return what a hook prints, in the form of both agents."""
    if not text:
        return b""
    output = {"hookEventName": RECALLS, "additionalContext": text}
    return json.dumps({"hookSpecificOutput": output}).encode() + b"\n"


def recall_here(request: Mapping[str, Any]) -> bytes:
    """Return what a hook prints, from a memory that is opened for it alone."""
    return output_of(asyncio.run(_recalled(HookRequest.of(request))))


async def _recalled(request: HookRequest) -> str:
    memories = HookMemories()
    try:
        return await memories.recall(request)
    except (KeepthreadError, OSError):
        return ""
    finally:
        await memories.close()
