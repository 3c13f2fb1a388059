"""An MCP server over standard input and output that dies when it is told to."""

import os
import random
import sys
from pathlib import Path

from mcp.server import MCPServer

server = MCPServer("mortal")


def die() -> None:
    """End at once, and leave a note."""
    with Path(sys.argv[1]).open("a") as journal:
        journal.write("died\n")
    os._exit(1)


@server.tool()
def ask(number: int, dies: bool) -> str:
    """Answer, or die; whoever asks again may have more luck."""
    if dies and random.random() < 0.8:
        die()
    return f"the server says {number}"


@server.tool()
def order(number: int, dies: bool) -> str:
    """Do something that is not to be done twice, or die over it."""
    if dies:
        die()
    return f"the server did {number}"


if __name__ == "__main__":
    server.run()
