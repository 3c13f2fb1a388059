"""The server itself, on the MCP SDK: both eras of the protocol, over streams and over HTTP.

Handlers ask for the `ClientMemory` of each request, so one server serves one person over standard
input and output, or many people over HTTP, where each request has a credential of its own.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from mcp import MCPError, types
from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.types import Receive, Scope, Send

import keepthread
from keepthread.apps.mcp.actions import ClientMemory
from keepthread.apps.mcp.definitions import (
    FACTS_RESOURCE,
    FACTS_URI,
    INSTRUCTIONS,
    MAX_QUERY,
    RECALL,
    RECALL_PROMPT,
    RECALL_TOPIC,
    SESSION_TEMPLATE,
    SESSIONS_URI,
    TOOLS,
    ToolDefinition,
)
from keepthread.errors import KeepthreadError

Request: TypeAlias = ServerRequestContext[Any, Any]
MemoryOf: TypeAlias = Callable[[Request], ClientMemory]
"""Returns the memory that a request may use; over HTTP its credential decides."""

_LOG: Final = logging.getLogger("keepthread.mcp")
_TEXT: Final = "text/plain"
_UNKNOWN: Final = "unknown"


class McpHandlers:
    """Answers the requests of the protocol."""

    def __init__(self, memory_of: MemoryOf) -> None:
        """Take the function that gives each request its memory."""
        self._memory_of = memory_of

    async def list_tools(
        self, request: Request, _: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        """Return the tools that this client may use."""
        memory = self._memory_of(request)
        return types.ListToolsResult(
            tools=[_tool(each) for each in TOOLS if memory.offers(each.name)]
        )

    async def call_tool(
        self, request: Request, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        """Run a tool."""
        memory = self._memory_of(request)
        if not memory.offers(params.name):
            raise MCPError(types.INVALID_PARAMS, "there is no such tool")
        answer = await memory.call(params.name, params.arguments or {})
        return types.CallToolResult(
            content=[types.TextContent(text=answer.text)],
            structured_content=None if answer.failed else dict(answer.value),
            is_error=answer.failed,
        )

    async def list_resources(
        self, _: Request, __: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        """Return the facts; sessions are read by the template, and their names are not listed."""
        name, about = FACTS_RESOURCE
        facts = types.Resource(name=name, uri=FACTS_URI, description=about, mime_type=_TEXT)
        return types.ListResourcesResult(resources=[facts])

    async def list_templates(
        self, _: Request, __: types.PaginatedRequestParams | None
    ) -> types.ListResourceTemplatesResult:
        """Return the template of sessions."""
        name, about = SESSION_TEMPLATE
        template = types.ResourceTemplate(
            name=name, uri_template=SESSIONS_URI + "{id}", description=about, mime_type=_TEXT
        )
        return types.ListResourceTemplatesResult(resource_templates=[template])

    async def read_resource(
        self, request: Request, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        """Return a resource as quoted text."""
        uri = str(params.uri)
        text = await self._memory_of(request).resource(uri)
        if text is None:
            raise MCPError(types.INVALID_PARAMS, "there is no such resource")
        contents = types.TextResourceContents(uri=uri, mime_type=_TEXT, text=text)
        return types.ReadResourceResult(contents=[contents])

    async def list_prompts(
        self, _: Request, __: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        """Return the prompt."""
        topic = types.PromptArgument(name="topic", description=RECALL_TOPIC, required=True)
        prompt = types.Prompt(name=RECALL, description=RECALL_PROMPT, arguments=[topic])
        return types.ListPromptsResult(prompts=[prompt])

    async def get_prompt(
        self, request: Request, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        """Return the prompt with what the memory holds about its topic."""
        topic = (params.arguments or {}).get("topic", "").strip()
        if params.name != RECALL:
            raise MCPError(types.INVALID_PARAMS, "there is no such prompt")
        if not topic or len(topic) > MAX_QUERY:
            raise MCPError(
                types.INVALID_PARAMS, f"recall needs a topic of up to {MAX_QUERY} characters"
            )
        text = await self._memory_of(request).recall(topic)
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description=RECALL_PROMPT, messages=[message])


def _tool(definition: ToolDefinition) -> types.Tool:
    tool = definition.tool
    annotations = types.ToolAnnotations(
        read_only_hint=definition.read_only,
        destructive_hint=None if definition.read_only else definition.destructive,
        idempotent_hint=None if definition.read_only else True,
        open_world_hint=False,
    )
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=dict(tool.parameters),
        output_schema=dict(definition.output),
        annotations=annotations,
    )


async def _guarded(ctx: Request, call_next: CallNext) -> HandlerResult:
    """Return only the code of our own errors."""
    try:
        return await call_next(ctx)
    except KeepthreadError as error:
        _LOG.warning("%s failed: %s", ctx.method, type(error).__name__)
        raise MCPError(types.INTERNAL_ERROR, f"the memory failed ({error.code})") from None


def build(memory_of: MemoryOf) -> Server[Any]:
    """Return the server; `memory_of` decides what each request may use."""
    handlers = McpHandlers(memory_of)
    schemas: Mapping[str, Any] = {each.name: each.tool.parameters for each in TOOLS}
    server = Server[Any](
        "keepthread",
        version=keepthread.__version__,
        instructions=INSTRUCTIONS,
        get_tool_input_schema=schemas.get,
        on_list_tools=handlers.list_tools,
        on_call_tool=handlers.call_tool,
        on_list_resources=handlers.list_resources,
        on_list_resource_templates=handlers.list_templates,
        on_read_resource=handlers.read_resource,
        on_list_prompts=handlers.list_prompts,
        on_get_prompt=handlers.get_prompt,
    )
    server.middleware = [_guarded]  # without the SDK's spans, which would hold names of clients
    return server


def client_of(request: Request, otherwise: str = _UNKNOWN) -> str:
    """Return the name of the client that sends a request, as it calls itself."""
    params = request.session.client_params
    return (params.client_info.name if params else "") or otherwise


async def serve_streams(memory_of: MemoryOf) -> None:
    """Serve over standard input and output, until the client closes them."""
    server = build(memory_of)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


async def serve_request(server: Server[Any], scope: Scope, receive: Receive, send: Send) -> None:
    """Serve one HTTP request: without a session, and with a response in JSON.

    Each request has a manager of its own, which ends with it. Names and origins were checked before
    the request came here.
    """
    manager = StreamableHTTPSessionManager(
        app=server,
        json_response=True,
        stateless=True,
        security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),
    )
    async with manager.run():
        await manager.handle_request(scope, receive, send)
