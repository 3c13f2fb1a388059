"""A good server: the weather, and what else a tool can give."""

import os

from mcp import types
from mcp.server import MCPServer
from mcp.server.mcpserver import Image

from tests.mcp_servers.serving import note, serve

server = MCPServer("weather")


@server.tool(description=os.environ.get("WEATHER_SAYS") or None)
def weather(city: str) -> str:
    """Tell how warm it is."""
    note(f"weather {city}")
    return f"19 °C in {city}"


@server.tool(annotations=types.ToolAnnotations(read_only_hint=True))
def forecast(city: str, days: int) -> list[dict[str, int]]:
    """Tell how warm it will be."""
    note(f"forecast {city}")
    return [{"day": day, "degrees": 18 + day} for day in range(1, days + 1)]


@server.tool()
def chart(city: str) -> list[str | Image]:
    """Draw how warm it was."""
    return [f"The last week in {city}:", Image(data=bytes(12_000), format="png")]


@server.tool()
def archive() -> types.CallToolResult:
    """Give everything, in every form."""
    blob = types.BlobResourceContents(
        uri="file:///a.pdf", mime_type="application/pdf", blob="AAAA" * 700_000
    )
    text = types.TextResourceContents(uri="file:///a.txt", text="old records")
    return types.CallToolResult(
        content=[
            types.TextContent(text="in short"),
            types.AudioContent(data="AAAA", mime_type="audio/wav"),
            types.EmbeddedResource(resource=blob),
            types.EmbeddedResource(resource=text),
            types.ResourceLink(name="all", uri="https://example.org/all"),
        ],
        structured_content={"years": 120},
    )


@server.tool()
def fail(city: str) -> types.CallToolResult:
    """Fail."""
    text = f"there is no {city}; the key is {os.environ.get('WEATHER_KEY')}"
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


@server.tool()
def odd(self: str, name: str, tool: str) -> str:
    """Take what some programs call their own."""
    return f"{self} {name} {tool}"


if __name__ == "__main__":
    serve(server)
