"""What the servers share: a journal of what happens to them, and the two ways of serving."""

import os
import socket
import sys
from pathlib import Path

import uvicorn
from mcp.server import MCPServer

JOURNAL = Path(sys.argv[1])


def note(line: str) -> None:
    """Write a line that is there at once, whatever happens next."""
    with JOURNAL.open("a") as file:
        file.write(f"{line}\n")


def lives() -> int:
    """Return how often this server was started, this time included."""
    return JOURNAL.read_text().count("started")


def serve(server: MCPServer) -> None:
    """Serve over standard input and output, or on a port if one is given (0: any)."""
    note(f"started {os.getpid()}")
    if len(sys.argv) == 2:
        try:
            server.run()
        finally:
            note("ended")
        return
    app = server.streamable_http_app()
    with socket.create_server(("127.0.0.1", int(sys.argv[2]))) as listening:
        print(listening.getsockname()[1], flush=True)
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listening])
