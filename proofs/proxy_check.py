"""What P26 holds against the store and the provider's journal, when all conversations are over."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from keepthread import Memory, Message, Options
from keepthread.apps.proxy.quoted import ADDITION_ENDS, ADDITION_STARTS
from keepthread.context.trust import origin_of, rank, trust_in
from keepthread.memory.alignment import is_document
from keepthread.memory.facts.extraction import Extraction
from keepthread.models.tokens import Estimator
from keepthread.testing.model import ScriptedModel
from keepthread.types import Reply
from proofs.proxy_talks import DOCUMENT, OWNERS, Sent, Talk, World

_ORDER: Final = re.compile(r"order\s+<\w+:\w+:\d+>")
_NAMED: Final = re.compile(r"<(\w+):(\w+):\d+>")


@dataclass
class StoredTalk:
    """A session as the store has it."""

    owner: str
    id: str
    log: Sequence[Message]
    shown: Sequence[str]


@dataclass
class Verdict:
    """How the promise was broken, and how often."""

    broken: list[str] = field(default_factory=list[str])
    seen: Counter[str] = field(default_factory=Counter[str])

    def add(self, what: str, talk: Talk, detail: str) -> None:
        """Note that something is wrong."""
        self.seen[what] += 1
        self.broken.append(f"{talk.name} ({talk.naming}, {talk.wire}): {what}: {detail}")

    def figures(self) -> dict[str, int]:
        """Return the numbers."""
        names = (
            *("stored messages", "answers checked", "additions", "answers sent again after hiding"),
            *("answers of killed proxies", "lost", "doubled", "out of order", "misplaced"),
            "changed requests",
        )
        return {name: self.seen[name] for name in names}


async def check(url: str, world: World, talks: Sequence[Talk]) -> Verdict:
    """Read the store, and compare."""
    verdict = Verdict()
    stored: dict[tuple[str, str], StoredTalk] = {}
    async with Memory.open(url) as memory:
        for owner in OWNERS:
            own = memory.for_owner(owner)
            cursor = None
            while True:
                page = await own.list_sessions(limit=200, cursor=cursor)
                for info in page:
                    session = await own.get_session(info.id)
                    log = await session.messages()
                    gaps = [(h.first, h.last) for h in await session.hidden()]
                    verdict.broken += _trusted(log)
                    log = [message for message in log if not is_document(message)]
                    shown = [m.content for m in log if not any(a <= m.seq <= b for a, b in gaps)]
                    stored[owner, info.id] = StoredTalk(owner, info.id, log, shown)
                if (cursor := page.next) is None:
                    break
            verdict.broken += await _live_facts(memory, owner)
    verdict.seen["stored messages"] = sum(len(each.log) for each in stored.values())
    for talk in talks:
        talk.uncertain |= _asked_twice(world, talk)
    homes = _homes(talks)
    for place, found in stored.items():
        _check_place(verdict, found, homes.get(place, []))
    for talk in talks:
        _check_end(verdict, talk, stored)
        _check_answers(verdict, world, talk, stored)
        for sent in talk.requests:
            _check_request(verdict, world, talk, sent)
    for id in world.provider.repeated:
        verdict.broken.append(f"the provider got request {id} more than once")
    return verdict


def _trusted(log: Sequence[Message]) -> list[str]:
    """Return the messages of users that count as more than a tool's, or hold a document."""
    users = [message for message in log if message.role == "user"]
    return [
        f"{message.content!r} is trusted as {trust_in(message)}"
        for message in users
        if rank(trust_in(message)) > rank("tool")
        or (DOCUMENT in message.content and origin_of(message) == "user")
    ]


async def _live_facts(memory: Memory, owner: str) -> list[str]:
    """Let an honest model read all conversations, and return the facts that hold."""
    options = Options(extraction=Extraction(_Honest(), turns=1), counter=Estimator())
    facts = Memory(memory.store, options).for_owner(owner).facts
    await facts.extract()
    found = await facts.list(all=True)
    return [f"a fact of {owner} holds: {each.text!r}" for each in found if each.state == "live"]


class _Honest(ScriptedModel):
    """A model that extracts the first order of each batch that it reads."""

    def __init__(self) -> None:
        super().__init__([])

    async def complete(self, messages: Sequence[Message], **_: Any) -> Reply:
        found = _ORDER.search("".join(message.content for message in messages))
        fact = {
            "source": 1,
            "subject": "user",
            "attribute": "order",
            "value": found[0] if found else "",
            "many": True,
            "ended": False,
            "text": f"The user wants {found[0]}." if found else "",
        }
        return Reply(content=json.dumps({"facts": [fact] if found else []}))


def _asked_twice(world: World, talk: Talk) -> set[str]:
    """Return the texts of a thread's requests whose answer was given, and did not arrive.

    The client asks again, and sends nothing that shows it. Nor does it send an answer again that
    its proxy was about to record when it was killed.
    """
    if talk.naming != "thread":
        return set()
    lost = [
        sent
        for sent in talk.requests
        if sent.id in world.at_kills or (not sent.complete and sent.id in world.provider.given)
    ]
    return {text for sent in lost for text in (*sent.texts, world.provider.replies[sent.id].text)}


def _homes(talks: Sequence[Talk]) -> dict[tuple[str, str], list[Talk]]:
    found: dict[tuple[str, str], list[Talk]] = {}
    for talk in talks:
        for session in {sent.session for sent in talk.requests if sent.session}:
            found.setdefault((talk.owner, session), []).append(talk)
    return found


def _check_place(verdict: Verdict, found: StoredTalk, talks: Sequence[Talk]) -> None:
    """Check that a session holds texts of one conversation, each shown once."""
    if len(talks) > 1:
        verdict.add("misplaced", talks[0], f"{found.id} is of {[talk.name for talk in talks]}")
    for talk in talks:
        for message in found.log:
            if message.content not in talk.known and not _is_part(message, talk):
                verdict.add("misplaced", talk, f"{message.content!r} in {found.id}")
        for text, times in Counter(found.shown).items():
            if times > 1 and text not in talk.uncertain:
                verdict.add("doubled", talk, f"{text!r} is shown {times} times")
        again = Counter(message.content for message in found.log)
        verdict.seen["answers sent again after hiding"] += sum(n - 1 for n in again.values())
    if not talks:  # a session whose first response never came to the client
        names = {named for m in found.log for named in _NAMED.findall(m.content)}
        if any(owner != found.owner for owner, _ in names) or len({n for _, n in names}) > 1:
            verdict.broken.append(f"{found.id} of {found.owner} holds texts of {sorted(names)}")


def _is_part(message: Message, talk: Talk) -> bool:
    """Return whether a message is the beginning of an answer that was cut off."""
    cut = message.meta.get("truncated") is True
    return cut and any(text.startswith(message.content) for text in talk.known)


def _check_end(verdict: Verdict, talk: Talk, stored: dict[tuple[str, str], StoredTalk]) -> None:
    """Check that the session shows the client's history, in order."""
    last = talk.requests[-1]
    if last.state != "recorded":
        if last.state.startswith("not-recorded") and talk.naming == "opening":
            verdict.seen["ambiguous"] += 1
        else:
            verdict.add("lost", talk, f"the last response said {last.state!r}")
        return
    found = stored.get((talk.owner, last.session))
    if found is None:
        verdict.add("lost", talk, f"there is no session {last.session}")
        return
    texts = [text for _, text in talk.history]
    wanted = [text for text in texts if not text.startswith("summary")]
    wanted = [text for text in wanted if text not in talk.uncertain]
    mine = set(wanted)
    shown = [text for text in found.shown if text in mine]
    for text in wanted:
        if text not in shown:
            verdict.add("lost", talk, f"{text!r} is not shown in {found.id}")
    if Counter(shown) == Counter(wanted) and shown != wanted:
        verdict.add("out of order", talk, f"{found.id} shows {shown}, not {wanted}")
    others = talk.summarized | talk.uncertain | set(texts) | _begun(talk)
    for text in found.shown:
        if text not in others and not text.startswith("summary"):
            verdict.add("misplaced", talk, f"{text!r} is shown, and the client dropped it")


def _begun(talk: Talk) -> set[str]:
    """Return the beginnings of answers to questions that may not have been recorded again.

    They stay in view: the whole answer, which would take their place, was given without the memory.
    """
    asked = [sent for sent in talk.requests if sent.texts[-1] in talk.uncertain]
    return {sent.answer for sent in asked if sent.answer and not sent.complete}


def _check_answers(
    verdict: Verdict, world: World, talk: Talk, stored: dict[tuple[str, str], StoredTalk]
) -> None:
    """Check that each complete answer of a response that said `recorded` is in the log."""
    for sent in talk.requests:
        if not sent.complete or sent.status != 200 or sent.state != "recorded":
            continue
        verdict.seen["answers checked"] += 1
        found = stored.get((talk.owner, sent.session))
        log = {message.content for message in found.log} if found else set[str]()
        if sent.texts[-1] not in log:
            verdict.add("lost", talk, f"the question {sent.texts[-1]!r} of {sent.id}")
        if sent.answer in log:
            continue
        if sent.life < world.lives[talk.owner] and sent.id in world.at_kills:
            verdict.seen["answers of killed proxies"] += 1
        else:
            verdict.add("lost", talk, f"the answer {sent.answer!r} of {sent.id}")


# --- requests ---


def _check_request(verdict: Verdict, world: World, talk: Talk, sent: Sent) -> None:
    """Check that the provider got the client's request, with additions where they may be."""
    got = world.provider.asked.get(sent.id)
    if got is None or got == sent.body:
        return
    if talk.naming == "thread":
        _check_thread(verdict, talk, sent, got)
        return
    other = next(owner for owner in OWNERS if owner != talk.owner)
    theirs, ours = json.loads(got), json.loads(sent.body)
    name = "input" if talk.wire == "responses" else "messages"
    additions: list[str] = []
    bare = [_without(item, additions) for item in theirs[name]]
    verdict.seen["additions"] += len(additions)
    if {**theirs, name: bare} != {**ours, name: [_without(item, []) for item in ours[name]]}:
        verdict.add("changed requests", talk, f"{sent.id}: {got!r}")
    if any(f"<{other}:" in text for text in additions):
        verdict.add("misplaced", talk, f"{sent.id} quotes another owner")


def _check_thread(verdict: Verdict, talk: Talk, sent: Sent, got: bytes) -> None:
    other = next(owner for owner in OWNERS if owner != talk.owner)
    text = got.decode()
    if json.dumps(sent.texts[-1])[1:-1] not in text:
        verdict.add("changed requests", talk, f"{sent.id} has no question")
    if f"<{other}:" in text:
        verdict.add("misplaced", talk, f"{sent.id} has text of another owner")


def _without(item: dict[str, Any], additions: list[str]) -> dict[str, Any]:
    """Return an item of a history without additions; only the user's turns may have some."""
    texts = [*_texts(item)]
    kept: list[str] = []
    for text in texts:
        start = text.find(ADDITION_STARTS) if item.get("role") == "user" else -1
        if start >= 0 and text.rstrip().endswith(ADDITION_ENDS):
            additions.append(text[start:])
            kept.append(text[:start].rstrip())
        else:
            kept.append(text)
    return {"role": item.get("role"), "texts": [text for text in kept if text]}


def _texts(item: dict[str, Any]) -> Iterator[str]:
    content = item.get("content")
    if isinstance(content, str):
        yield content
        return
    for part in content or ():
        yield part.get("text", "")
