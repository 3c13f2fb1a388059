"""What the clients of P24 sent and were told, held against the logs of the store."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from keepthread import Memory, Message
from keepthread.memory.tool_calls import INTERRUPTED
from keepthread.types import SessionInfo


class Person(NamedTuple):
    """Whose memory it is."""

    tenant: str
    owner: str


@dataclass(slots=True, eq=False)
class Sent:
    """A message that a client sent; its text occurs in no other."""

    person: Person
    session: str
    turn: str
    """The name of its turn; empty if it belongs to none of ours."""
    text: str
    began: int
    acknowledged: int = 0
    """When, by the journal's clock; 0 if the client was never told."""
    seq: int = 0
    """The position that the client was told; 0 if it was not told one."""
    id: str = ""


@dataclass(slots=True)
class Journal:
    """What was sent and acknowledged, in the order in which the clients saw it."""

    sent: dict[str, Sent] = field(default_factory=dict)
    sessions: dict[tuple[Person, str], str] = field(default_factory=dict)
    """Sessions that were created by title: the id, or nothing if it was not acknowledged."""
    clock: Iterator[int] = field(default_factory=lambda: count(1))
    broken: list[str] = field(default_factory=list)

    def begin(self, person: Person, session: str, turn: str, text: str) -> Sent:
        """Note that a message is about to be sent."""
        noted = Sent(person, session, turn, text, next(self.clock))
        assert text not in self.sent, text
        self.sent[text] = noted
        return noted

    def acknowledge(self, sent: Sent, told: Mapping[str, object] | None) -> None:
        """Note that the server said it is stored, and the message that it returned."""
        sent.acknowledged = next(self.clock)
        if told is not None:
            sent.seq, sent.id = int(str(told["seq"])), str(told["id"])
            if told["content"] != sent.text:
                self.fault(f"{sent.text!r} was acknowledged as {told['content']!r}")

    def fault(self, what: str) -> None:
        """Note a broken promise."""
        if what not in self.broken:
            self.broken.append(what)

    @property
    def acknowledged(self) -> int:
        """Return how many messages were acknowledged."""
        return sum(each.acknowledged > 0 for each in self.sent.values())


@dataclass(frozen=True, slots=True)
class Found:
    """A session of the store with its log."""

    person: Person
    info: SessionInfo
    log: Sequence[Message]


@dataclass(slots=True)
class Verdict:
    """How often each promise was broken."""

    lost: int = 0
    doubled: int = 0
    moved: int = 0
    misplaced: int = 0
    broken: list[str] = field(default_factory=list)


async def read_store(url: str, tenants: Sequence[str]) -> list[Found]:
    """Read every session of some tenants, whoever owns it."""
    found: list[Found] = []
    async with Memory.open(url) as memory:
        for tenant in tenants:
            admin = memory.tenant(tenant).admin
            for info in await admin.list_sessions(limit=100_000):
                session = await memory.tenant(tenant).for_owner(info.owner).get_session(info.id)
                log = await session.messages(limit=1_000_000)
                found.append(Found(Person(tenant, info.owner), info, log))
        if not (await memory.admin.verify()).sound:
            raise RuntimeError("verify finds damage")
    return found


def text_of(message: Message) -> str:
    """Return what names a message: its text, or the argument of the call that it holds."""
    if message.content or not message.tool_calls:
        return message.content
    return str(json.loads(message.tool_calls[0].arguments).get("of"))


def compare(journal: Journal, found: Sequence[Found]) -> Verdict:
    """Hold the journal against the logs."""
    verdict = Verdict()
    places: dict[str, tuple[Found, Message]] = {}
    for session in found:
        for message in session.log:
            _place(journal, session, message, places, verdict)
    for sent in journal.sent.values():
        _keep(sent, places, verdict)
    _order(journal, places, verdict)
    for session in found:
        verdict.broken += _turns(journal, session)
    verdict.broken += _sessions(journal, found)
    return verdict


def _place(
    journal: Journal,
    session: Found,
    message: Message,
    places: dict[str, tuple[Found, Message]],
    verdict: Verdict,
) -> None:
    """Find what one stored message is."""
    text = text_of(message)
    where = f"{session.person}, session {session.info.id}, at {message.seq}"
    sent = journal.sent.get(text)
    if message.role == "tool" and text == INTERRUPTED:
        return  # a client left its turn
    if sent is None:
        verdict.broken.append(f"nobody sent {text!r}, which is stored for {where}")
    elif (sent.person, sent.session) != (session.person, session.info.id):
        verdict.misplaced += 1
        verdict.broken.append(f"{text!r} of {sent.person} is stored for {where}")
    elif text in places:
        verdict.doubled += 1
        verdict.broken.append(f"{text!r} is stored twice for {where}")
    else:
        places[text] = (session, message)


def _keep(sent: Sent, places: Mapping[str, tuple[Found, Message]], verdict: Verdict) -> None:
    """Check that an acknowledged message is stored where the client was told."""
    if not sent.acknowledged:
        return
    if sent.text not in places:
        verdict.lost += 1
        verdict.broken.append(f"{sent.text!r} was acknowledged, and is not stored")
        return
    message = places[sent.text][1]
    if sent.seq and (message.seq, message.id) != (sent.seq, sent.id):
        verdict.moved += 1
        verdict.broken.append(
            f"{sent.text!r} was acknowledged at {sent.seq}, and is at {message.seq}"
        )


def _order(journal: Journal, places: Mapping[str, tuple[Found, Message]], verdict: Verdict) -> None:
    """Check that a message that was sent after another was acknowledged is stored after it."""
    of: dict[tuple[Person, str], list[Sent]] = {}
    for sent in journal.sent.values():
        if sent.acknowledged and sent.text in places:
            of.setdefault((sent.person, sent.session), []).append(sent)
    for each in of.values():
        by_end = sorted(each, key=lambda sent: sent.acknowledged)
        finished, latest = 0, 0
        for sent in sorted(each, key=lambda sent: sent.began):
            while by_end[finished].acknowledged < sent.began:
                latest = max(latest, places[by_end[finished].text][1].seq)
                finished += 1
            seq = places[sent.text][1].seq
            if seq <= latest:
                verdict.moved += 1
                verdict.broken.append(f"{sent.text!r} at {seq} was sent after {latest} was stored")


def _turns(journal: Journal, session: Found) -> Iterator[str]:
    """Check that each message is in its own turn, and that a turn has one answer at most."""
    numbers: dict[str, int] = {}
    for message in session.log:
        sent = journal.sent.get(text_of(message))
        if sent is not None and sent.turn:
            number = numbers.setdefault(sent.turn, message.turn)
            if number != message.turn:
                yield f"{sent.text!r} is in turn {message.turn}, and its turn is {number}"
    answers = Counter(m.turn for m in session.log if m.content.endswith(" is answered"))
    for turn, number in answers.items():
        if number > 1:
            yield f"turn {turn} of {session.person} has {number} answers"
    if [message.seq for message in session.log] != [*range(1, len(session.log) + 1)]:
        yield f"the positions of {session.person}, session {session.info.id} have gaps"


def _sessions(journal: Journal, found: Sequence[Found]) -> Iterator[str]:
    """Check that every session was asked for, and exists once."""
    titles = Counter((each.person, each.info.title) for each in found)
    for (person, title), number in titles.items():
        if (person, title) not in journal.sessions:
            yield f"nobody created the session {title!r} of {person}"
        if number > 1:
            yield f"the session {title!r} of {person} exists {number} times"
    ids = {(each.person, each.info.title): each.info.id for each in found}
    for place, id in journal.sessions.items():
        if id and ids.get(place) != id:
            yield f"the session {place} was created as {id}, and is {ids.get(place)}"
