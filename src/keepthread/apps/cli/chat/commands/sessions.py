"""Commands about whole sessions: list, resume, name, copy, save, delete and forget them."""

from contextlib import suppress
from typing import TYPE_CHECKING, Final

from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.commands.common import (
    NO_ANSWER,
    brief,
    newest,
    parse_number,
    place,
    unanswered,
)
from keepthread.apps.cli.chat.persistence import AWAY
from keepthread.apps.cli.chat.talk import new_session_id
from keepthread.apps.cli.invocation import find_session
from keepthread.apps.cli.report_types import counted
from keepthread.apps.cli.sanitize import sanitize
from keepthread.errors import InvalidInput, SessionExists, SessionNotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from keepthread.memory.forgetting.receipt import Receipt

_LISTED: Final = 20
_LATEST: Final = 10
_SHOWN: Final = 5
_LONGEST: Final = 200


async def sessions(chat: Chat, rest: str) -> None:
    """List your sessions, the latest first; 20 of them, or N."""
    await _list(chat, parse_number(rest, _LISTED, what="a number of sessions"))


async def _list(chat: Chat, limit: int) -> None:
    chat.at_home()
    found = await chat.talk.persistence.memory.list_sessions(limit=limit)
    chat.listed = [session.id for session in found]
    chat.person.screen.sessions(found, current=chat.talk.id)


async def resume(chat: Chat, rest: str) -> None:
    """Continue in another session, by its id or its number in the list.

    Without either, the latest ones are listed. If an id is also such a number, the id is meant.
    """
    if not rest:
        await _list(chat, _LATEST)
        chat.person.say("/resume N or /resume ID continues one of them")
        return
    chat.at_home()
    id = await _meant(chat, rest)
    session = await find_session(chat.talk.persistence.memory, id, lists="/sessions")
    chat.talk.move(session.id)
    await chat.talk.mark_used()
    latest = await newest(session, lambda message: message.role == "user")
    chat.person.screen.transcript(session.info, latest, more="")
    if await unanswered(session):
        chat.person.say(NO_ANSWER)


async def _meant(chat: Chat, word: str) -> str:
    """Return the id that is meant; a number is one of the list unless it is an id itself."""
    if not word.isdigit():
        return word
    memory = chat.talk.persistence.memory
    with suppress(SessionNotFound):
        return (await memory.get_session(word)).id
    listed = chat.listed or [info.id for info in await memory.list_sessions(limit=_LATEST)]
    place = parse_number(word, 1)
    if place > len(listed):
        raise InvalidInput(
            f"{place} is not in the list of {counted(len(listed), 'session')}; /sessions N lists "
            "more"
        )
    return listed[place - 1]


async def rename(chat: Chat, rest: str) -> None:
    """Give this session a title."""
    chat.here()
    title = " ".join(rest.split())
    if len(title) > _LONGEST:
        raise InvalidInput(
            f"a title has at most {_LONGEST} characters; this one has {len(title):,}"
        )
    info = await (await chat.session()).update(title=title)
    chat.person.say(f"This session is now called {brief(info.title)}")


async def fork(chat: Chat, rest: str) -> None:
    """Continue in a copy of this session, which is not changed.

    The copy gets the id that is given, or a new one.
    """
    chat.at_home()
    session = await chat.session()
    try:
        copy = await session.fork(id=rest or new_session_id())
    except SessionExists:
        raise SessionExists(f"session {rest!r} already exists; give another id, or none") from None
    chat.talk.move(copy.id)
    chat.person.say(
        f"This is {sanitize(copy.id)} now, a copy; /resume {sanitize(session.id)} goes back"
    )


async def save(chat: Chat, _: str) -> None:
    """Show what is saved, and where; everything is saved as it arrives.

    If the store was away, waiting messages are delivered first.
    """
    persistence = chat.talk.persistence
    if persistence.away:
        try:
            await persistence.come_back()
        except AWAY as error:
            raise Unavailable(
                f"the memory is still unavailable: {' '.join(str(error).split())}; new messages "
                f"are kept {place(chat)}"
            ) from error
    chat.at_home()
    await persistence.idle()
    session = await chat.session()
    info = await session.refresh()
    chat.person.say(
        f"Saved: {counted(info.messages, 'message')} of session {sanitize(info.id)} in"
        f" {place(chat)}; each message is saved as it arrives"
    )


# --- deleting and forgetting ---


async def delete(chat: Chat, rest: str) -> None:
    """Delete this session, or another by its id or number, and keep facts.

    It asks first. Forks stay, and after this session another begins. `/forget` also erases all
    that was made from it: copies in forks, summaries, facts.
    """
    chat.at_home()
    memory = chat.talk.persistence.memory
    id = await _meant(chat, rest) if rest else (await chat.session()).id
    found = await find_session(memory, id, lists="/sessions")
    which = f"session {sanitize(id)}" if id != chat.talk.id else "this session"
    count = counted(found.info.messages, "message")
    if not await chat.person.agrees(f"Delete {which}, {count}, and keep facts?"):
        chat.person.say("Nothing was deleted")
        return
    if id == chat.talk.id:
        chat.talk.unsay()
    await memory.delete_session(id)
    chat.person.say(f"Deleted: {count}; facts stay")
    if id == chat.talk.id:
        chat.talk.move(new_session_id())
        chat.person.say(f"A new session begins, {chat.talk.id}")


async def forget(chat: Chat, rest: str) -> None:
    """Permanently erase this session, or with `last` its latest turn.

    It asks first. Copies in forks go as well, and all that was made from it: summaries, facts,
    the index. After a whole session another begins. `/delete` removes a session and keeps facts.
    """
    if rest not in ("", "last"):
        raise InvalidInput(f"/forget does not accept {rest}: write /forget, or /forget last")
    chat.at_home()
    await (_forget_last(chat) if rest else _forget_all(chat))


async def _forget_all(chat: Chat) -> None:
    memory = chat.talk.persistence.memory
    session = await chat.session()
    planned = await memory.forget(session=session.id, dry_run=True)
    if not await chat.person.agrees(f"Permanently forget this session ({_what([planned])})?"):
        chat.person.say("Nothing was forgotten")
        return
    chat.talk.unsay()  # also if it is broken off
    await chat.talk.persistence.before_forget(session=session.id)
    with chat.call.progress("Forgetting", "messages") as progress:
        done = await memory.forget(session=session.id, progress=progress)
    chat.talk.move(new_session_id())
    _report(chat, [done])
    chat.person.say(f"A new session begins, {chat.talk.id}")


async def _forget_last(chat: Chat) -> None:
    memory = chat.talk.persistence.memory
    session = await chat.session()
    found = await newest(session, lambda message: message.role == "user")
    if not found or found[0].role != "user":
        raise InvalidInput("there is nothing to forget: the model sees no question of this session")
    ids = [message.id for message in found if message.turn == found[0].turn]
    question = f"Forget {brief(found[0].content)} and its answer permanently"
    if not await chat.person.agrees(f"{question} ({counted(len(ids), 'message')})?"):
        chat.person.say("Nothing was forgotten")
        return
    chat.talk.unsay(ids)  # also if it is broken off
    for id in ids:
        await chat.talk.persistence.before_forget(session=session.id, message=id)
    with chat.call.progress("Forgetting", "messages") as progress:
        done = [
            await memory.forget(session=session.id, message=id, progress=progress) for id in ids
        ]
    await session.refresh()  # its title may have been made from what is gone
    _report(chat, done)


def _what(receipts: "Sequence[Receipt]") -> str:
    """Say in short what receipts are about."""
    counts = (
        (sum(r.messages + r.derived for r in receipts), "message", "messages", ""),
        (sum(r.copies for r in receipts), "copy", "copies", " in forks"),
        (sum(sum(r.records.values()) for r in receipts), "record", "records", " made from them"),
    )
    shown = [f"{counted(n, one, many)}{rest}" for n, one, many, rest in counts if n]
    return ", ".join(shown) or "nothing"


def _report(chat: Chat, receipts: "Sequence[Receipt]") -> None:
    chat.person.say(f"Forgotten: {_what(receipts)}")
    kept = sorted({answer for receipt in receipts for answer in receipt.answers})
    if kept:
        places = ", ".join(f"{session} {seq:,}" for session, seq in kept[:_SHOWN])
        more = ", …" if len(kept) > _SHOWN else ""
        chat.person.say(
            f"{counted(len(kept), 'answer')} based on it, kept: {sanitize(places)}{more}"
        )
    residues = {residue for receipt in receipts for residue in receipt.residues}
    for where, why, until in sorted(residues):
        chat.person.say(
            sanitize(f"Bytes of the erased text may remain in {where}: {why}; until {until}")
        )
    if any(receipt.found for receipt in receipts):
        chat.person.say("A check just found some of the erased text there")
