"""Commands that show the messages of a session, and how much it holds."""

from typing import Final

from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.commands.common import parse_number, place
from keepthread.apps.cli.report_types import counted
from keepthread.memory.session import Session, Status
from keepthread.types import Message

_LATEST: Final = 20
_PAGE: Final = 100
_TOOLS: Final = "--tools"


async def history(chat: Chat, rest: str) -> None:
    """Show the newest messages of this session, 20 or N, including hidden ones.

    Tool calls and their results are left out; `--tools` shows them as well.
    """
    words = rest.split()
    tools = _TOOLS in words
    number = " ".join(word for word in words if word != _TOOLS)
    limit = parse_number(number, _LATEST, what="a number of messages")
    session = await chat.session()
    info = await session.refresh()
    messages = await _newest(session, limit, tools=tools)
    chat.person.screen.transcript(info, messages, hidden=await session.hidden(), more="")
    if messages and messages[0].seq > 1:
        more = f"/history {2 * limit}{f' {_TOOLS}' if tools else ''}"
        chat.person.say(f"{messages[0].seq - 1:,} earlier: {more} shows more")
    first = messages[0].seq if messages else 1
    if not tools and (left := info.messages - first + 1 - len(messages)) > 0:
        calls = counted(left, "message with a tool call or result", "messages with tool calls")
        chat.person.say(f"{calls} left out: /history {_TOOLS} shows them")
    if chat.talk.persistence.away:
        chat.person.say("The memory is unavailable: messages from before this chat are not shown")


async def _newest(session: Session, limit: int, *, tools: bool) -> list[Message]:
    """Return the newest messages, oldest first, without those of tools unless they are wanted."""
    found: list[Message] = []
    last = session.info.messages
    while last and len(found) < limit:
        after = max(0, last - max(limit, _PAGE))
        page = await session.messages(after=after, limit=last - after)
        last = after
        found = [*(m for m in page if tools or not (m.tool_calls or m.role == "tool")), *found]
    return found[-limit:]


async def status(chat: Chat, _: str) -> None:
    """Show how much this session holds, and where it is kept."""
    session = await chat.talk.known_session()
    rows = [("session", chat.talk.id), ("model", chat.talk.model.name), ("kept", place(chat))]
    if away := chat.talk.persistence.away:
        rows.append(("away", away))
    if session is None:
        rows.append(("messages", "none yet"))
    else:
        rows += _counts(await session.status())
        rows.insert(1, ("title", session.info.title))
    chat.person.screen.rows([row for row in rows if row[1]], "", "")


def _counts(status: Status) -> list[tuple[str, str]]:
    seen = f"{counted(status.visible_messages, 'message')}, {status.visible_tokens:,} tokens"
    everything = status.visible_messages == status.messages
    return [
        ("messages", f"{status.messages:,}"),
        ("turns", f"{status.turns:,}"),
        ("tokens", f"{status.tokens:,}"),
        ("visible", f"all of it, {seen}" if everything else seen),
        ("summary", f"{status.summary_bytes:,} bytes" if status.summary_bytes else "none yet"),
        ("tool results", f"{status.cached_tools:,} cached"),
    ]
