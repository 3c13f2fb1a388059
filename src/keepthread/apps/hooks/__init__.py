"""Hooks of coding agents: recall before a prompt, and store after an answer.

`client` is the process that an agent starts for each hook; it loads nothing else of the package.
`helper` is the process that it asks, which holds the memory open; `events` is what that does.
"""
