"""Commands that show the messages of a session, and how much it holds."""

from typing import Final

from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.commands.common import marks, parse_number, place
from keepthread.memory.session import Status

_LATEST: Final = 20


async def history(chat: Chat, rest: str) -> None:
    """Show the newest messages of this session, 20 or N, hidden ones too."""
    limit = parse_number(rest, _LATEST, what="a number of messages")
    session = await chat.session()
    info = await session.refresh()
    messages = await chat.talk.persistence.memory.store.tail(session.key, limit=limit)
    hidden = (await marks(chat, session)).hidden
    chat.person.screen.transcript(info, messages, hidden=hidden, more="")
    if messages and messages[0].seq > 1:
        chat.person.say(f"{messages[0].seq - 1:,} earlier: /history {2 * limit} shows more")
    if chat.talk.persistence.away:
        chat.person.say("Memory is away: what was said before this chat began is not here")


async def status(chat: Chat, _: str) -> None:
    """Show how much this session holds, and where it is kept."""
    session = await chat.talk.known_session()
    told = [("session", chat.talk.id), ("model", chat.talk.model.name), ("kept", place(chat))]
    if away := chat.talk.persistence.away:
        told.append(("away", away))
    if session is None:
        told.append(("messages", "none yet"))
    else:
        told += _counts(await session.status())
        told.insert(1, ("title", session.info.title))
    chat.person.screen.rows([row for row in told if row[1]], "", "")


def _counts(status: Status) -> list[tuple[str, str]]:
    seen = f"{status.visible_messages:,} messages, {status.visible_tokens:,} tokens"
    everything = status.visible_messages == status.messages
    return [
        ("messages", f"{status.messages:,}"),
        ("turns", f"{status.turns:,}"),
        ("tokens", f"{status.tokens:,}"),
        ("visible", f"all of it, {seen}" if everything else seen),
        ("summary", f"{status.summary_bytes:,} bytes" if status.summary_bytes else "none yet"),
        ("tool results", f"{status.cached_tools:,} remembered"),
    ]
