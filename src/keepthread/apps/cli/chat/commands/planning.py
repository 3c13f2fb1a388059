"""Commands about the orchestrator: how the latest request was handled, and with which tools."""

from typing import TYPE_CHECKING

from keepthread.apps.cli.chat.chat import Chat
from keepthread.errors import InvalidInput

if TYPE_CHECKING:
    from keepthread.apps.cli.chat.orchestrating import Orchestrating


async def plan(chat: Chat, _: str) -> None:
    """Show how the latest request was handled: the route, the plan and its steps."""
    lines = _orchestrating(chat).steps.lines()
    chat.person.say("\n".join(lines) if lines else "nothing was asked yet")


async def tools(chat: Chat, _: str) -> None:
    """List the tools there are, and how their servers are."""
    found = _orchestrating(chat).tools
    runnable = await found.ready()
    rows = [(each.tool.name, _kept(each.cache_turns, each.side_effects)) for each in runnable]
    rows += [(state.name, state.problem) for state in found.states if state.problem]
    if rows:
        chat.person.screen.rows(rows, "", "")
    else:
        chat.person.say("There are no tools: name servers in mcp.json beside your settings")


def _kept(cache_turns: int, side_effects: bool) -> str:
    if cache_turns and not side_effects:
        return f"remembered for {cache_turns} turns"
    return "has side_effects" if side_effects else "run each time"


def _orchestrating(chat: Chat) -> "Orchestrating":
    if chat.orchestrating is None:
        raise InvalidInput("nothing is planned here: start with `keepthread chat --orchestrate`")
    return chat.orchestrating
