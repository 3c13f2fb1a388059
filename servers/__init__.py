"""Real servers for tests, proofs and benchmarks: started here, on ports of their own."""

import socket
from contextlib import closing


class Missing(Exception):
    """A server's program is not on this machine; the text says how to get it."""


def free_port() -> int:
    """Return a port that nobody listens on."""
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def hold_port(port: int = 0) -> socket.socket:
    """Hold a port, or a new one, that a server will listen on later: nobody else is given it."""
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", port))
    return holder
