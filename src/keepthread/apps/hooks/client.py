"""The process that a coding agent starts for each hook: it asks the helper, and ends in time.

The agent waits for it before every prompt, so it loads nothing else of the package, and ends within
a second whatever happens. It is silent and returns 0 if there is nothing to say or no way to say
it: an unavailable memory must not stop the user's work.

The helper is another process of the same user, reached by a socket in a private folder. Its name is
a digest of the installed version and of the variables that settings depend on: after a change of
either, another helper is started, and the earlier one ends when it has had nothing to do.
"""

import hashlib
import json
import os
import signal
import socket
import stat
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any, Final, cast

AGENTS: Final = ("claude-code", "codex")
"""The agents whose hooks are known. Both send and take the same fields."""
RECALLS: Final = "UserPromptSubmit"
STORES: Final = ("Stop", "SubagentStop", "SessionEnd")
WARMS: Final = "SessionStart"
EVENTS: Final = (WARMS, RECALLS, *STORES)

DEADLINE: Final = 0.85
"""Seconds after which a hook ends in any case."""
_MOST_SPENT: Final = 0.5
PLACE: Final = ("store", "tenant", "owner")
"""The options that name a memory. Only the command line gives them, never a payload."""
MAX_PAYLOAD: Final = 1 << 22
MAX_REQUEST: Final = 1 << 16
MAX_WAITING: Final = 1000
"""Maximum number of sessions waiting to be stored."""
TAKEN: Final = b"+"
"""The first byte of an answer; without it, the request was not taken."""
_ACKNOWLEDGED: Final = 0.4
_POLL: Final = 0.02
_LONGEST: Final = {
    "session_id": 200,
    "cwd": 4096,
    "transcript_path": 4096,
    "agent_transcript_path": 4096,
    "prompt": 8000,
}
"""The payload fields used, and the maximum characters of each."""
_VARIABLES: Final = ("HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "APPDATA", "LOCALAPPDATA")
_PREFIXES: Final = ("KEEPTHREAD_", "XDG_", "PG")
_PLACE_OPTIONS: Final = tuple(f"--{name}" for name in PLACE)
_MAX_SOCKET_PATH: Final = 100  # the shortest limit of the systems is 104 bytes


def run(arguments: Sequence[str]) -> int | None:
    """Handle a hook; return None if the arguments or the input are not those of an agent."""
    options = parsed(arguments)
    if options is None or getattr(sys.stdin, "isatty", bool)():
        return None
    end = time.monotonic() + DEADLINE - _spent()
    # Without a standard input, it has no buffer.
    with suppress(OSError, ValueError, RecursionError, AttributeError):
        if request := _request(options, _input(end)):
            _handle(request, end)
    return 0


def parsed(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return the options of a command line; None if it contains an unknown one."""
    options: dict[str, Any] = {}
    words = [part for word in arguments for part in _split(word)]
    while words:
        word = words.pop(0)
        if word in AGENTS and "agent" not in options:
            options["agent"] = word
        elif word == "--all-projects":
            options["all_projects"] = True
        elif word in _PLACE_OPTIONS and words:
            options[word[2:]] = words.pop(0)
        else:
            return None
    return options if "agent" in options else None


def _split(word: str) -> Sequence[str]:
    name, equals, value = word.partition("=")
    return (name, value) if equals and name in _PLACE_OPTIONS else (word,)


def _spent() -> float:
    """Return the seconds since this process began, where the system says when that was."""
    try:
        with open("/proc/self/stat", "rb") as file:  # noqa: PTH123 - pathlib is slow to load
            began = int(file.read().rpartition(b")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
        return min(_MOST_SPENT, max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began))
    except (OSError, ValueError, AttributeError):
        return 0.0


def _input(end: float) -> bytes:
    """Return the standard input; raise `TimeoutError` if it does not end in time.

    All other waits are given the time that is left.
    """
    if not hasattr(signal, "setitimer"):
        return sys.stdin.buffer.read(MAX_PAYLOAD + 1)
    signal.signal(signal.SIGALRM, _late)
    signal.setitimer(signal.ITIMER_REAL, max(0.01, end - time.monotonic()))
    try:
        return sys.stdin.buffer.read(MAX_PAYLOAD + 1)
    finally:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _late(*_: object) -> None:
    raise TimeoutError


def _request(options: Mapping[str, Any], data: bytes) -> dict[str, Any] | None:
    """Return the request for the helper; None if the payload is not that of a known event."""
    found: Any = json.loads(data) if len(data) <= MAX_PAYLOAD else None
    payload = cast("dict[str, Any]", found if isinstance(found, dict) else {})
    if payload.get("hook_event_name") not in EVENTS:
        return None
    given = {name: payload.get(name) for name in _LONGEST}
    fields = {name: text[: _LONGEST[name]] for name, text in given.items() if type(text) is str}
    return {
        **options,
        **fields,
        "event": payload["hook_event_name"],
        "folder": os.getcwd(),  # noqa: PTH109 - as above
        "project": os.environ.get("CLAUDE_PROJECT_DIR", "")[:4096],
    }


def _handle(request: Mapping[str, Any], end: float) -> None:
    path = socket_path()
    if request["event"] in STORES:
        if path is None or not _taken(path, request):
            leave(request)
            start_helper(path, request)
    elif path is None:
        _write(_recalled_here(request) if request["event"] == RECALLS else b"")
    else:
        _write(_asked_until(path, request, end))


def _recalled_here(request: Mapping[str, Any]) -> bytes:
    """Return the answer without a helper; the process ends if it takes too long."""
    import threading  # noqa: PLC0415 - only where no helper can run

    guard = threading.Timer(DEADLINE, os._exit, (0,))
    guard.daemon = True
    guard.start()
    answer: bytes = import_module("keepthread.apps.hooks.events").recall_here(request)
    guard.cancel()
    return answer


def _taken(path: str, request: Mapping[str, Any]) -> bool:
    """Return whether the helper has promised to store a turn."""
    try:
        return ask(path, request, time.monotonic() + _ACKNOWLEDGED) is not None
    except OSError:
        return False


def _asked_until(path: str, request: Mapping[str, Any], end: float) -> bytes:
    """Return the helper's answer; start the helper if none runs."""
    started = False
    while True:
        try:
            return ask(path, request, end) or b""
        except (FileNotFoundError, ConnectionError):
            if not started:
                start_helper(path)
                started = True
        if request["event"] == WARMS or time.monotonic() + _POLL > end:
            return b""
        time.sleep(_POLL)


def ask(path: str, request: Mapping[str, Any], end: float) -> bytes | None:
    """Return the helper's answer to a request; None if it did not take it."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(max(0.01, end - time.monotonic()))
        connection.connect(path)
        if not is_own(connection):
            return None
        connection.sendall(json.dumps(request).encode())
        connection.shutdown(socket.SHUT_WR)
        parts: list[bytes] = []
        while part := connection.recv(1 << 16):
            parts.append(part)
            connection.settimeout(max(0.01, end - time.monotonic()))
    answer = b"".join(parts)
    return answer[1:] if answer.startswith(TAKEN) else None


def is_own(connection: socket.socket) -> bool:
    """Return whether the other side belongs to this user, where the system can say so."""
    if not hasattr(socket, "SO_PEERCRED"):  # the folder is private in any case
        return True
    found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int.from_bytes(found[4:8], sys.byteorder) == os.geteuid()


def _write(answer: bytes) -> None:
    if answer:
        sys.stdout.buffer.write(answer)
        sys.stdout.buffer.flush()


# --- the helper ---


def socket_path() -> str | None:
    """Return where the helper listens; None where there can be none, as on Windows."""
    folder = _runtime_folder() if hasattr(socket, "AF_UNIX") and os.name == "posix" else None
    if folder is None:
        return None
    package = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))  # noqa: PTH120 - as above
    changed = os.stat(f"{package}/__init__.py").st_mtime_ns  # noqa: PTH116 - as above
    version = sys.modules["keepthread"].__version__
    name = _digest(sys.executable, package, str(changed), version, *_variables())
    path = f"{folder}/{name}.sock"
    return path if len(os.fsencode(path)) <= _MAX_SOCKET_PATH else None


def _runtime_folder() -> str | None:
    """Return a folder of this user's alone; None if there is none."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    shared = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - a folder of our own in it
    folder = f"{runtime}/keepthread" if runtime else f"{shared}/keepthread-{os.geteuid()}"
    try:
        os.mkdir(folder, 0o700)  # noqa: PTH102 - as above
    except FileExistsError:
        pass
    except OSError:
        return None
    found = os.lstat(folder)
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    return folder if private and found.st_uid == os.geteuid() else None


def start_helper(path: str | None, request: Mapping[str, Any] | None = None) -> None:
    """Start the helper, which outlives this process, and hand it a first request to store."""
    import subprocess  # noqa: PLC0415 - only where no helper runs

    # Without -P, Python would load modules from the folder that the agent works in.
    command = [sys.executable, "-P", "-m", "keepthread.apps.hooks.helper", path or "--once"]
    detached = getattr(subprocess, "DETACHED_PROCESS", 0)
    process = subprocess.Popen(  # noqa: S603 - our own program
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=os.path.abspath(os.sep),  # noqa: PTH100 - as above
        start_new_session=True,
        creationflags=detached,
    )
    assert process.stdin is not None
    with process.stdin as given:
        given.write(json.dumps(request).encode() if request else b"")
    process.returncode = 0  # the agent does not wait for it


def _variables() -> list[str]:
    """Return the variables that settings depend on, each with its value."""
    return sorted(
        f"{name}={value}"
        for name, value in os.environ.items()
        if name in _VARIABLES or name.startswith(_PREFIXES)
    )


def _digest(*parts: str) -> str:
    data = "\0".join(parts).encode("utf-8", "surrogateescape")
    return hashlib.blake2b(data, digest_size=10).hexdigest()


# --- sessions waiting to be stored ---


def waiting_folder(request: Mapping[str, Any]) -> str:
    """Return where the sessions are named that wait to be stored, with these options."""
    place = [str(request.get(name, "")) for name in PLACE]
    return f"{waiting_folders()}/{_digest(*place, *_variables())}"


def waiting_folders() -> str:
    """Return the folder of all such folders of this user."""
    home = os.path.expanduser("~")  # noqa: PTH111 - as above
    if os.name == "nt":
        base = os.environ.get("LOCALAPPDATA") or f"{home}/AppData/Local"
    else:
        base = os.environ.get("XDG_STATE_HOME") or f"{home}/.local/state"
    return f"{base}/keepthread/hooks"


def leave(request: Mapping[str, Any]) -> None:
    """Note that a session file is to be stored: its path, and nothing of its text."""
    names = ("agent", "folder", "transcript_path", "agent_transcript_path")
    note = {name: request[name] for name in names if name in request}
    folder = waiting_folder(request)
    os.makedirs(folder, 0o700, exist_ok=True)  # noqa: PTH103 - as above
    if len(os.listdir(folder)) >= MAX_WAITING:  # noqa: PTH208 - as above
        return
    path = f"{folder}/{_digest(*map(str, note.values()))}"
    part = f"{path}.{os.getpid()}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0)
    with open(os.open(part, flags, 0o600), "wb") as file:  # noqa: PTH123 - as above
        file.write(json.dumps(note).encode())
    os.replace(part, f"{path}.json")  # noqa: PTH105 - as above
