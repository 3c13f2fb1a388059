"""Commands about what is known: find it in all sessions, note it, list it."""

from keepthread.cli.chat.chat import Chat
from keepthread.cli.facts import told_of
from keepthread.cli.harmless import harmless


async def search(chat: Chat, rest: str) -> None:
    """Find the messages that bear most on some words, in all your sessions."""
    chat.at_home()
    with chat.call.progress("Reading", "messages") as progress:
        hits = await chat.talk.keeping.memory.search(rest, owner=chat.talk.owner, progress=progress)
    chat.person.screen.hits(hits)


async def remember(chat: Chat, rest: str) -> None:
    """Note a fact about you that all your sessions know from now on."""
    chat.at_home()
    fact = await chat.talk.keeping.memory.facts(chat.talk.owner).remember(rest)
    key, told, _ = told_of(fact)
    chat.person.say(harmless(f"Remembered: {told} (`keepthread facts forget {key}` undoes it)"))


async def facts(chat: Chat, _: str) -> None:
    """List what is known of you beyond one session."""
    chat.at_home()
    found = await chat.talk.keeping.memory.facts(chat.talk.owner).list()
    if not found:
        chat.person.say("Nothing is known yet; /remember TEXT notes something")
        return
    chat.person.screen.rows(map(told_of, found), "", "", "")
    waiting = sum(fact.state == "quarantined" for fact in found)
    if waiting:
        chat.person.say(f"{waiting:,} in quarantine: `keepthread facts confirm KEY` lets it out")
