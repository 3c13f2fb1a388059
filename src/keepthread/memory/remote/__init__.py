"""The memory of a server, over HTTP: the same calls as a memory in this process."""
