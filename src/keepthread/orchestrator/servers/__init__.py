"""Tools of MCP servers: started, listed, called, started again when they die."""

from keepthread.orchestrator.servers.nouns import Rule, Server, State
from keepthread.orchestrator.servers.servers import Servers

__all__ = ["Rule", "Server", "Servers", "State"]
