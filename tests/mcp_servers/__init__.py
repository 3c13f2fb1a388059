"""MCP servers to test against, programs: `python -m tests.mcp_servers.NAME JOURNAL [PORT]`."""
