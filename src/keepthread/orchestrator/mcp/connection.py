"""One connection to a server: from its start to its end, or until it is closed."""

import asyncio
from typing import TYPE_CHECKING, Any, Final

from keepthread.errors import ToolUnavailable
from keepthread.orchestrator.mcp.sdk import Gone, answers, asked, connected, failure_of, tools_of
from keepthread.orchestrator.mcp.transports import StderrTail
from keepthread.orchestrator.mcp.types import Server

if TYPE_CHECKING:
    from mcp import Client, types

_PATIENCE: Final = 10.0
"""Maximum seconds for a server to answer a test request after a call timed out."""
_CLOSING: Final = 10.0  # seconds for a server to end, and as many again once it is cancelled


class Connection:
    """A running server, with a task of its own: the task that opens a client must close it."""

    def __init__(self, server: Server, seconds: float) -> None:
        """Start it in the background."""
        self.tools: list[types.Tool] = []
        self.wrong: dict[str, str] = {}
        """The tools that are left out, and why."""
        self.lost_at: float | None = None
        """When its end was noticed."""
        self.served = False
        """Whether a call has succeeded."""
        self._server = server
        self._seconds = seconds
        self._refusal = ""
        self._calls = 0
        self._words = 0
        self._proof: asyncio.Task[None] | None = None
        self._enough = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._client: asyncio.Future[Client] = self._loop.create_future()
        self._client.add_done_callback(_heed)
        self._task = asyncio.create_task(self._live(), name=f"mcp {server.name}")

    @property
    def running(self) -> bool:
        """Return whether it was started and, as far as is known, still runs."""
        return self._client.done() and self.lost_at is None

    @property
    def over(self) -> bool:
        """Return whether its task has ended."""
        return self._task.done()

    async def started(self) -> None:
        """Return once it runs and its tools are listed; raise `ToolUnavailable` if it cannot."""
        await asyncio.shield(self._client)

    async def close(self) -> None:
        """End it."""
        self._lose()
        self._enough.set()
        if not self._client.done():
            self._task.cancel()
        if self._proof:
            self._proof.cancel()
        ending = {self._task, *filter(None, [self._proof])}
        _, left = await asyncio.wait(ending, timeout=_CLOSING)
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left, timeout=_CLOSING)

    async def call(self, tool: str, arguments: dict[str, Any]) -> "types.CallToolResult":
        """Call a tool; raise `Gone` if the server has ended."""
        if self.lost_at is not None:
            raise Gone(began=False)
        before = self._words
        self._calls += 1
        try:
            result = await asked(self._client.result(), tool, arguments)
        except Gone:
            self._lose()
            raise
        except asyncio.CancelledError:
            if self._words == before and self._proof is None and self.lost_at is None:
                self._proof = asyncio.create_task(self._prove())
            raise
        finally:
            self._calls -= 1
            self._settle()
        self.served = True
        return result

    # --- inside ---

    async def _prove(self) -> None:
        """Check whether it still answers: a call timed out, and it has sent nothing since."""
        try:
            async with asyncio.timeout(min(_PATIENCE, self._server.timeout)):
                await answers(self._client.result())
        except TimeoutError:
            self._lose()
        finally:
            self._proof = None

    async def _live(self) -> None:
        with StderrTail() as heard:
            try:
                async with (
                    asyncio.timeout(self._seconds) as deadline,
                    connected(self._server, heard, self) as client,
                ):
                    self.tools = await tools_of(client)
                    deadline.reschedule(None)
                    self._client.set_result(client)
                    await self._enough.wait()
            except Exception as error:  # noqa: BLE001 - a server may break in any way
                if not self._client.done():
                    self._client.set_exception(ToolUnavailable(await self._why(error, heard)))
            finally:
                self._lose()
                if not self._client.done():
                    closed = ToolUnavailable(f"{self._server.name} was closed")
                    self._client.set_exception(closed)

    def _lose(self) -> None:
        if self.lost_at is None:
            self.lost_at = self._loop.time()
        self._settle()

    def _settle(self) -> None:
        """End a lost server once no call waits for it."""
        if self.lost_at is not None and not self._calls:
            self._enough.set()

    async def _why(self, error: BaseException, heard: StderrTail) -> str:
        """Return why it did not start, with the last line that it wrote."""
        if isinstance(error, TimeoutError):
            reason = f"it was not ready after {self._seconds:g} seconds"
        elif isinstance(error, FileNotFoundError | PermissionError):
            reason = f"its command cannot be run: {error.strerror}"
        else:
            reason = failure_of(error)
        last = await heard.last_line()
        more = f"; its last output: {last}" if last else self._refusal
        what = "does not start" if self._server.command else "cannot be reached"
        return self._server.without_secrets(f"{self._server.name} {what}: {reason}{more}")

    # --- events of the server ---

    def heard(self) -> None:
        """Note that it sent something."""
        self._words += 1

    def ended(self) -> None:
        """Note that it sends nothing more."""
        self._lose()

    def left_out(self, tool: str, why: str) -> None:
        """Note an invalid tool."""
        self.wrong[tool] = why

    def refused(self, status: int) -> None:
        """Note an HTTP status that refuses the request."""
        self._refusal = f"; it returned status {status}"


def _heed(client: "asyncio.Future[Client]") -> None:
    """Retrieve the result of a start that no caller waits for."""
    client.exception()
