"""Tools of MCP servers: started, listed, called, started again when they die."""

from keepthread.orchestrator.mcp.toolset import Servers
from keepthread.orchestrator.mcp.types import Rule, Server, State

__all__ = ["Rule", "Server", "Servers", "State"]
