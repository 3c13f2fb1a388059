"""The MCP SDK: loaded at first use, and only here."""

import importlib
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, Final, cast

from keepthread.errors import ToolError, ToolUnavailable
from keepthread.orchestrator.mcp.repair import Listener, RepairedStream
from keepthread.orchestrator.mcp.results import reason
from keepthread.orchestrator.mcp.transports import ENCODING, MOST_BYTES, StderrTail, bounded_client
from keepthread.orchestrator.mcp.types import Server

if TYPE_CHECKING:
    from mcp import Client, types

_FORGOTTEN: Final = "Session terminated"
"""The SDK's error for a server that lost our session because it was restarted."""
_ENDED: Final = ("Connection closed", "SSE stream ended")
"""The SDK's errors for a server that died; servers use the code alone for other errors, too."""
_MOST_PAGES: Final = 100
_MOST_LISTED: Final = 10_000


class Gone(Exception):
    """A server has ended."""

    def __init__(self, *, began: bool) -> None:
        """Note whether the call may have begun."""
        super().__init__()
        self.began = began


def load() -> None:
    """Import the SDK, which takes a second; call it in a thread."""
    try:
        importlib.import_module("mcp")
    except ImportError:
        raise ToolUnavailable(
            "tools over MCP need a package that is not installed: pip install 'keepthread[mcp]'"
        ) from None
    # We report the faults of servers; the SDK logs only if the program configures its logger.
    logging.getLogger("mcp").addHandler(logging.NullHandler())


@asynccontextmanager
async def connected(
    server: Server, stderr: StderrTail, listener: Listener
) -> AsyncGenerator["Client"]:
    """Start or reach a server, and end it; must be left in the task that entered it."""
    from mcp import Client  # noqa: PLC0415 - the SDK is loaded when first needed

    way = _started(server, stderr) if server.command else _reached(server, listener)

    @asynccontextmanager
    async def heard() -> AsyncGenerator[Any]:
        async with way as (read, write):
            yield RepairedStream(read, listener), write

    async with Client(heard(), cache=None) as client:
        yield client


def _started(server: Server, stderr: StderrTail) -> AbstractAsyncContextManager[Any]:
    from mcp import StdioServerParameters, stdio_client  # noqa: PLC0415

    program = StdioServerParameters(
        command=server.command or "",
        args=list(server.args),
        env=dict(server.env),
        cwd=server.cwd,
        encoding=ENCODING,
        encoding_error_handler="replace",
    )
    return stdio_client(program, stderr.open())


@asynccontextmanager
async def _reached(server: Server, listener: Listener) -> AsyncGenerator[Any]:
    from mcp.client.streamable_http import streamable_http_client  # noqa: PLC0415

    async with (
        bounded_client(server.headers, listener.refused) as http,
        streamable_http_client(
            server.url or "", http_client=http, max_sse_event_size=MOST_BYTES
        ) as streams,
    ):
        yield streams


async def asked(
    client: "Client", tool: str, arguments: Mapping[str, Any]
) -> "types.CallToolResult":
    """Call a tool; raise `Gone` if the server has ended, `ToolError` if the call fails."""
    from mcp import MCPError, types  # noqa: PLC0415
    from pydantic import ValidationError  # noqa: PLC0415

    try:
        return await client.call_tool(tool, dict(arguments))
    except MCPError as error:
        if error.code == types.INVALID_REQUEST and error.message == _FORGOTTEN:
            raise Gone(began=False) from None
        if error.code == types.CONNECTION_CLOSED and error.message.startswith(_ENDED):
            raise Gone(began=True) from None
        raise ToolError(reason(error.message)) from None
    except (ValidationError, RuntimeError):
        raise ToolError("its response violates the protocol") from None


async def answers(client: "Client") -> None:
    """Return once a server answers, even with an error."""
    from mcp import MCPError  # noqa: PLC0415
    from pydantic import ValidationError  # noqa: PLC0415

    with suppress(MCPError, ValidationError):
        await client.list_tools()


async def tools_of(client: "Client") -> list["types.Tool"]:
    """Return the tools that a server lists, page by page, up to a limit."""
    found: list[types.Tool] = []
    cursor = None
    for _ in range(_MOST_PAGES):
        page = await client.list_tools(cursor=cursor)
        found += page.tools
        cursor = page.next_cursor
        if not cursor or len(found) >= _MOST_LISTED:
            break
    return found


def failure_of(error: BaseException) -> str:
    """Return the reason why a server could not be started or reached, as text."""
    from mcp import MCPError, types  # noqa: PLC0415
    from pydantic import ValidationError  # noqa: PLC0415

    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    if isinstance(error, MCPError) and error.code == types.CONNECTION_CLOSED:
        return "it ended immediately"
    if isinstance(error, ValidationError):
        return "its messages violate the protocol"
    return " ".join(reason(str(error)).split()) if str(error) else type(error).__name__
