"""A server with one tool: the weather of the cities in our stories."""

from mcp.server import MCPServer

from tests.mcp_servers.serving import serve
from tests.weather import DEGREES

server = MCPServer("sky")


@server.tool()
def weather(city: str) -> dict[str, str | int]:
    """Tell the weather of a city."""
    return {"city": city, "degrees": DEGREES[city]}


if __name__ == "__main__":
    serve(server)
