"""A slow server, which notes when it is told to stop."""

import asyncio

from mcp.server import MCPServer

from tests.mcp_servers.serving import note, serve

server = MCPServer("slow")


@server.tool()
async def dream(seconds: float) -> str:
    """Take a while."""
    note("dream began")
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        note("dream cancelled")
        raise
    note("dream ended")
    return f"dreamt for {seconds:g} seconds"


@server.tool()
def wake() -> str:
    """Answer at once."""
    return "awake"


if __name__ == "__main__":
    serve(server)
