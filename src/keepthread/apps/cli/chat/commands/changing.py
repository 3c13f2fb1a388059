"""Commands that change what the model is shown of a session; its log keeps all of it."""

from itertools import count

from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.commands import arguments
from keepthread.apps.cli.chat.commands.log import brief, counted, marks, newest
from keepthread.errors import InvalidInput, MessageNotFound
from keepthread.memory.material import newest_summary
from keepthread.memory.session import Session
from keepthread.types import Message, Summary


async def clear(chat: Chat, _: str) -> None:
    """Start afresh: nothing so far is shown to the model; the log keeps it."""
    chat.here()
    session = await chat.session()
    await session.clear()
    chat.talk.unsay()
    chat.person.say("Starting afresh; /history still has what was said")


async def rewind(chat: Chat, rest: str) -> None:
    """Hide the latest turn, or N of them, and offer the question again."""
    chat.here()
    wanted = arguments.number(rest, 1, what="a number of turns")
    session = await chat.session()
    questions = count(1)
    gone = await newest(chat, session, lambda m: m.role == "user" and next(questions) == wanted)
    asked = [message for message in gone if message.role == "user"]
    if not asked:
        raise InvalidInput("there is nothing to hide: the model is shown nothing of this session")
    await session.rewind(asked[0].seq - 1)
    chat.talk.unsay({message.id for message in gone})
    chat.offer = asked[0].content
    hidden = sum(message.seq >= asked[0].seq for message in gone)
    chat.person.say(
        f"Hidden from the model: {counted(len(asked), 'turn')},"
        f" {counted(hidden, 'message')}, from {brief(asked[0].content)} on; /history still has them"
    )


async def pin(chat: Chat, rest: str) -> None:
    """Keep the latest answer, or the message at N, before the model's eyes.

    `/pin -N` lets go of it. /history shows the positions.
    """
    chat.here()
    lets_go = rest.startswith("-")
    seq = arguments.number(rest.removeprefix("-"), 0, what="a position")
    session = await chat.session()
    if lets_go and not seq:
        raise InvalidInput("which one? write /pin -N; /history shows the positions")
    message = await (_at(chat, session, seq) if seq else _latest_answer(chat, session))
    said = f"{message.seq:,}, {brief(message.content)}"
    if not lets_go:
        await session.pin(message.id)
        chat.person.say(f"Pinned {said}; /pin -{message.seq} lets go of it")
    elif await session.unpin(message.id):
        chat.person.say(f"Let go of {said}")
    else:
        chat.person.say(f"{said}, was not pinned")


async def _at(chat: Chat, session: Session, seq: int) -> Message:
    found = await chat.talk.keeping.memory.store.find(session.key, seqs=[seq])
    if not found or found[0].state != "live":
        raise MessageNotFound(
            f"there is no message at position {seq}; /history shows the positions"
        )
    return found[0]


async def _latest_answer(chat: Chat, session: Session) -> Message:
    found = await newest(chat, session, _is_answer)
    if not found or not _is_answer(found[0]):
        raise MessageNotFound("there is no answer to pin yet: ask something, or write /pin N")
    return found[0]


def _is_answer(message: Message) -> bool:
    return message.role == "assistant" and bool(message.content)


async def compact(chat: Chat, _: str) -> None:
    """Compact what is old into the summary now, and tell how much shorter it is."""
    chat.here()
    session = await chat.session()
    with chat.call.progress("Compaction", "turns") as progress:
        compactions = await session.compact(progress=progress)
    summary = await _summary(chat, session)
    stay = chat.talk.keeping.memory.compaction.turns
    due = "" if compactions else f"Nothing is due: the newest {stay} turns stay as they are. "
    if summary is None:
        chat.person.say(f"{due}There is no summary yet")
        return
    counter = chat.talk.keeping.memory.counter
    short = counter.count(Message(role="user", content=summary.text))
    less = f", {1 - short / summary.tokens:.0%} shorter" if short < summary.tokens else ""
    chat.person.say(
        f"{due}The summary tells everything up to position {summary.last:,}:"
        f" {summary.tokens:,} tokens in {short:,}{less}"
    )


async def _summary(chat: Chat, session: Session) -> Summary | None:
    store = chat.talk.keeping.memory.store
    hidden = (await marks(chat, session)).hidden
    end = (await session.refresh()).messages + 1
    return await newest_summary(store, session.key, hidden, before=end)
