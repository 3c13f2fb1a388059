"""The MCP server: one memory for Claude Code, Codex, VS Code and every other MCP client.

`keepthread mcp` serves it over standard input and output, `keepthread serve` at `/mcp`. Only
`server` loads the MCP SDK, so that other commands start without it.
"""
