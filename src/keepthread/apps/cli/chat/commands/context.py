"""Commands that show, explain and change what the model sees of a session; the log keeps it all."""

from itertools import count
from typing import TYPE_CHECKING, Final

from keepthread.apps.cli.chat.attachments import typed_part
from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.commands.common import brief, newest, parse_number
from keepthread.apps.cli.chat.talk import VIEW
from keepthread.apps.cli.report_types import ContextReport, counted
from keepthread.context.hidden import CLEARED
from keepthread.errors import InvalidInput, MessageNotFound
from keepthread.memory.session import Session
from keepthread.types import Message, Summary

if TYPE_CHECKING:
    from keepthread.memory.why_log import Explanation

_SUMMARIES: Final = 1000
"""Summaries that are looked at; a session keeps far fewer."""


async def context(chat: Chat, _: str) -> None:
    """Show what the model would see now, by section, in tokens and percent."""
    session = await chat.session()
    chat.person.screen.context(session.id, await _next(chat, session))


async def why(chat: Chat, rest: str) -> None:
    """Show what the model saw for the latest answer, what was left out, and why.

    `/why 2` is about the answer before that, as far as explanations are kept.
    """
    number = parse_number(rest, 1, what="the number of an answer")
    session = await chat.session()
    last = chat.talk.last
    if number == 1 and last is not None:
        drawn = last.report()
    else:
        drawn = await _kept(chat, session, number)
    chat.person.screen.why(session.id, drawn)


async def _kept(chat: Chat, session: Session, number: int) -> ContextReport:
    """Return the explanation of an earlier answer, 1 the latest; of the next if none is kept."""
    keep = chat.config.settings.memory.keep_why
    kept: dict[int, Explanation] = {}
    for account in await session.explanations(max(1, keep)):
        if account.turn:
            kept[account.turn] = account  # the first of a turn is the one that was asked
    if not kept and number == 1:
        return await _next(chat, session)
    if number > len(kept):
        hint = "" if keep else "; set memory.keep_why to 20 to keep the newest 20"
        answers = counted(len(kept), "answer")
        raise InvalidInput(
            f"only explanations of {answers} are kept here; {number} is not one of "
            f"them{hint or '; 1 is the latest'}"
        )
    found = list(kept.values())[number - 1]
    return ContextReport(
        view=found.view,
        why=found.why,
        number=number,
        turn=found.turn,
        at=found.at,
        history=await chat.talk.history_budget() if found.view == VIEW else None,
    )


async def _next(chat: Chat, session: Session) -> ContextReport:
    budget = await chat.talk.history_budget()
    return ContextReport(view=VIEW, why=(await session.context(VIEW, budget=budget)).why)


async def clear(chat: Chat, _: str) -> None:
    """Start over: the model no longer sees earlier messages; the log keeps them."""
    chat.here()
    session = await chat.session()
    await session.clear()
    chat.talk.unsay()
    chat.person.say("Starting over. /undo reverts this, and /history still shows all messages")


async def rewind(chat: Chat, rest: str) -> None:
    """Hide the latest turn, or N of them, and offer its question again."""
    chat.here()
    wanted = parse_number(rest, 1, what="a number of turns")
    session = await chat.session()
    questions = count(1)
    gone = await newest(session, lambda m: m.role == "user" and next(questions) == wanted)
    asked = [message for message in gone if message.role == "user"]
    if not asked:
        raise InvalidInput("there is nothing to hide: the model sees no messages of this session")
    await session.rewind(asked[0].seq - 1)
    chat.talk.unsay({message.id for message in gone})
    chat.offer = typed_part(asked[0].content)
    hidden = sum(message.seq >= asked[0].seq for message in gone)
    chat.person.say(
        f"Hidden from the model: {counted(len(asked), 'turn')},"
        f" {counted(hidden, 'message')}, from {brief(asked[0].content)} on;"
        " /undo shows them again, and /history still lists them"
    )


async def undo(chat: Chat, _: str) -> None:
    """Undo the latest /clear or /rewind, if no message was added since.

    Repeated, it undoes the one before that.
    """
    chat.here()
    session = await chat.session()
    span = await session.unhide()
    if span is None:
        raise InvalidInput(
            "there is nothing to undo: no /clear or /rewind was used, or a message was added after "
            "it"
        )
    what = "/clear" if span.reason == CLEARED else "/rewind"
    count = counted(span.last - span.first + 1, "message")
    chat.person.say(f"Undone: {what}. The model sees {count} again, from {span.first:,} on")


async def pin(chat: Chat, rest: str) -> None:
    """Keep the latest answer, or the message at N, in every context.

    `/pin -N` unpins it. /history shows the positions.
    """
    chat.here()
    lets_go = rest.startswith("-")
    seq = parse_number(rest.removeprefix("-"), 0, what="a position")
    session = await chat.session()
    if lets_go and not seq:
        raise InvalidInput("which one? write /pin -N; /history shows the positions")
    message = await chosen_message(session, seq, "to pin")
    said = f"{message.seq:,}, {brief(message.content)}"
    if not lets_go:
        await session.pin(message.id)
        chat.person.say(f"Pinned {said}; /pin -{message.seq} unpins it")
    elif await session.unpin(message.id):
        chat.person.say(f"Unpinned {said}")
    else:
        chat.person.say(f"{said}, was not pinned")


async def chosen_message(session: Session, seq: int, what: str) -> Message:
    """Return the message at a position, or for 0 the latest answer that the model sees.

    `what` completes the error if there is none: "there is no answer to pin yet".
    """
    if seq:
        return await _at(session, seq)
    found = await newest(session, _is_answer)
    if not found or not _is_answer(found[0]):
        raise MessageNotFound(
            f"there is no answer {what} yet: ask something, or give the position of a message"
        )
    return found[0]


async def _at(session: Session, seq: int) -> Message:
    found = await session.messages(after=seq - 1, limit=1)
    if not found or found[0].state != "live":
        raise MessageNotFound(
            f"there is no message at position {seq}; /history shows the positions"
        )
    return found[0]


def _is_answer(message: Message) -> bool:
    return message.role == "assistant" and bool(message.content)


async def compact(chat: Chat, _: str) -> None:
    """Compact old turns into the summary now, and show how much shorter it is."""
    chat.here()
    session = await chat.session()
    with chat.call.progress("Compaction", "turns") as progress:
        compactions = await session.compact(progress=progress)
    summary = await _summary(session)
    stay = chat.config.settings.compaction.turns
    due = (
        ""
        if compactions
        else f"Nothing to compact: the newest {stay} turns are kept word for word. "
    )
    if summary is None:
        chat.person.say(f"{due}There is no summary yet")
        return
    counter = chat.talk.persistence.counter
    short = counter.count(Message(role="user", content=summary.text))
    less = f", {1 - short / summary.tokens:.0%} shorter" if short < summary.tokens else ""
    chat.person.say(
        f"{due}The summary covers everything up to position {summary.last:,}:"
        f" {summary.tokens:,} tokens in {short:,}{less}"
    )


async def _summary(session: Session) -> Summary | None:
    """Return the newest summary that covers nothing hidden."""
    hidden = await session.hidden()

    def is_shown(summary: Summary) -> bool:
        pairs = ((span, each) for span in summary.spans for each in hidden)
        return not any(s.first <= h.last and h.first <= s.last for s, h in pairs)

    return next(filter(is_shown, await session.compactions(_SUMMARIES)), None)
