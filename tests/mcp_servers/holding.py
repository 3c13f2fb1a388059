"""A program that uses servers until it is killed: `python -m tests.mcp_servers.holding JOURNAL`."""

import asyncio
import sys

from keepthread.orchestrator.mcp import Server, Servers


async def main() -> None:
    args = ["-m", "tests.mcp_servers.slow", sys.argv[1]]
    async with Servers([Server("slow", command=sys.executable, args=args)]) as servers:
        dream = next(each for each in servers.tools if each.tool.name == "dream")
        await dream.run(seconds=60)


if __name__ == "__main__":
    asyncio.run(main())
