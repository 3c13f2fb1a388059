"""Tasks side by side."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


@asynccontextmanager
async def side_by_side() -> AsyncGenerator[asyncio.TaskGroup]:
    """Give a group of tasks; if one fails the others end, and its error is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
