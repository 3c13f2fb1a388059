"""Commands that look: at what was said, how much it is, and what the model is shown of it."""

from typing import TYPE_CHECKING, Final

from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.commands import arguments
from keepthread.apps.cli.chat.commands.log import marks, place
from keepthread.apps.cli.chat.talk import VIEW
from keepthread.apps.cli.reports import ContextReport
from keepthread.errors import InvalidInput
from keepthread.memory.session import Session, Status

if TYPE_CHECKING:
    from keepthread.memory.why_log import Explanation

_LATEST: Final = 20


async def history(chat: Chat, rest: str) -> None:
    """Show the newest messages of this session, 20 or N, hidden ones too."""
    limit = arguments.number(rest, _LATEST, what="a number of messages")
    session = await chat.session()
    info = await session.refresh()
    messages = await chat.talk.keeping.memory.store.tail(session.key, limit=limit)
    hidden = (await marks(chat, session)).hidden
    chat.person.screen.transcript(info, messages, hidden=hidden, more="")
    if messages and messages[0].seq > 1:
        chat.person.say(f"{messages[0].seq - 1:,} earlier: /history {2 * limit} shows more")
    if chat.talk.keeping.away:
        chat.person.say("Memory is away: what was said before this chat began is not here")


async def status(chat: Chat, _: str) -> None:
    """Tell how much this session holds, and where it is kept."""
    session = await chat.talk.known_session()
    told = [("session", chat.talk.id), ("model", chat.talk.model.name), ("kept", place(chat))]
    if away := chat.talk.keeping.away:
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


async def context(chat: Chat, _: str) -> None:
    """Draw what the model would be shown now, by section, in tokens and percent."""
    session = await chat.session()
    chat.person.screen.context(session.id, await _next(session))


async def why(chat: Chat, rest: str) -> None:
    """Tell what the model was shown for the latest answer, what not, and why.

    `/why 2` is about the answer before that, as far as accounts are kept.
    """
    number = arguments.number(rest, 1, what="the number of an answer")
    session = await chat.session()
    last = chat.talk.last
    if number == 1 and last is not None:
        drawn = ContextReport(view=VIEW, why=last.context.why)
    else:
        drawn = await _kept(chat, session, number)
    chat.person.screen.why(session.id, drawn)


async def _kept(chat: Chat, session: Session, number: int) -> ContextReport:
    """Return the account of an earlier answer, 1 the latest; of the next one if none is kept."""
    keep = chat.config.settings.memory.keep_why
    kept: dict[int, Explanation] = {}
    for account in await session.explanations(max(1, keep)):
        if account.turn:
            kept[account.turn] = account  # the first of a turn is the one that was asked
    if not kept and number == 1:
        return await _next(session)
    if number > len(kept):
        hint = "" if keep else "; set memory.keep_why to 20 to keep the newest 20"
        raise InvalidInput(
            f"accounts of {len(kept):,} answers are kept here, and {number} is none of"
            f" them{hint or '; 1 is the latest'}"
        )
    found = list(kept.values())[number - 1]
    return ContextReport(
        view=found.view, why=found.why, number=number, turn=found.turn, at=found.at
    )


async def _next(session: Session) -> ContextReport:
    return ContextReport(view=VIEW, why=(await session.context(VIEW)).why)
