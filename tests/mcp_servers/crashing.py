"""A server that dies: at start, while it works, or between two calls."""

import os
import sys

from mcp.server import MCPServer

from tests.mcp_servers.serving import lives, note, serve

server = MCPServer("crashing")


def die() -> None:
    os._exit(1)


@server.tool()
def look(lives_needed: int) -> str:
    """Die until it lives for the so-manieth time."""
    note("look")
    if lives() < lives_needed:
        die()
    return f"seen in life {lives()}"


@server.tool()
def write(lives_needed: int) -> str:
    """Change something, and die as often."""
    note("write")
    if lives() < lives_needed:
        die()
    return f"written in life {lives()}"


if __name__ == "__main__":
    if os.environ.get("CRASH") == "start":
        print(f"cannot open the door with {os.environ['DOOR_KEY']}", file=sys.stderr, flush=True)
        die()
    serve(server)
