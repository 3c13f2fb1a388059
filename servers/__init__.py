"""Real servers for tests, proofs and benchmarks: started here, on ports of their own."""

import random
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import subprocess

Started = TypeVar("Started")
_PORTS = range(10_000, 32_000)  # below those that a kernel gives to outgoing connections
_ATTEMPTS = 3
_LOG_END = 4000


class Missing(Exception):
    """A server's program is not on this machine; the text says how to get it."""


class PortTaken(Exception):
    """Another process took the port between the choice of it and the start of the server."""


def free_port() -> int:
    """Return a port that nobody listens on; two processes that ask at once get different ones."""
    chance = random.SystemRandom()
    while True:
        port = chance.choice(_PORTS)
        with closing(socket.socket()) as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def start_anew(start: Callable[[], Started]) -> Started:
    """Start a server; try again if its port was taken, it ended at once, or it did not answer."""
    for _ in range(_ATTEMPTS - 1):
        try:
            return start()
        except Missing:
            raise
        except Exception:  # noqa: BLE001 - the last attempt raises its own
            continue
    return start()


def did_not_start(what: str, log: str) -> Exception:
    """Return the error for a server that ended at once, by what its log says last."""
    signs = ("already in use", "create any TCP/IP sockets", "Failed listening", "nowhere to listen")
    kind = PortTaken if any(sign in log for sign in signs) else RuntimeError
    return kind(f"{what} did not start:\n{log[-_LOG_END:]}")


def ending(process: "subprocess.Popen[Any] | None", log: Path) -> str | None:
    """Return how a server ended and the end of its log, or None while it runs."""
    if process is None:
        status = "was stopped"
    elif process.poll() is None:
        return None
    else:
        status = f"ended with status {process.returncode}"
    text = log.read_text(errors="replace")[-_LOG_END:].strip() if log.exists() else ""
    return f"{status}; the end of its log:\n{text or '(empty)'}"


def hold_port(port: int = 0) -> socket.socket:
    """Hold a port, or a new one, that a server will listen on later: nobody else is given it."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", port))
    return holder
