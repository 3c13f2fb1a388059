"""P26 at a small size: nothing is lost through the proxy; and its proof is not blind."""

import json
import random
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from keepthread import Memory, Message
from keepthread.context.trust import LOWEST_ORIGIN
from proofs.p26_proxy import PROOF
from proofs.places import file_url
from proofs.proxy_check import Verdict, check
from proofs.proxy_provider import KINDS, Provider, Reply, Wire, heard, stream
from proofs.proxy_talks import DOCUMENT, Sent, Talk, World, body_of
from servers import postgres
from tests.conftest import started
from tests.proving import hold

SESSION = "proxy/x/t1"


def test_nothing_is_lost_doubled_or_misplaced_through_the_proxy() -> None:
    assert hold(PROOF).figures["kills of a proxy"] == 1


@pytest.mark.nightly
def test_nothing_is_lost_while_the_database_restarts() -> None:
    started(postgres.find_programs)
    hold(PROOF, PROOF.on["postgres"], size=40)


# --- what the proof sees ---


def user(text: str) -> Message:
    return Message(role="user", content=text, meta={LOWEST_ORIGIN: "tool"})


def assistant(text: str) -> Message:
    return Message(role="assistant", content=text)


def held() -> Talk:
    """Return a conversation of one turn, as it was recorded."""
    world = World(Provider(), random.Random(1), httpx2.AsyncClient())
    talk = Talk(world, "t1", "ann", "chat", "header", random.Random(2))
    question, answer = talk.text("question"), talk.text("answer")
    talk.history = [("user", question), ("assistant", answer)]
    body = body_of("chat", talk.history[:1], streams=False)
    sent = Sent("1", body, [question], "recorded", SESSION, 200, answer, True, 1)
    talk.requests.append(sent)
    world.provider.asked["1"] = body
    world.lives["ann"] = 1
    return talk


async def judged(folder: Path, talk: Talk, log: list[Message], *, owner: str = "ann") -> Verdict:
    folder.mkdir(parents=True, exist_ok=True)
    url = file_url(folder / "memory.db")
    async with Memory.open(url, durability="process") as memory:
        session = await memory.for_owner(owner).session(SESSION)
        await session.append(*log)
    return await check(url, talk.world, [talk])


def log_of(talk: Talk) -> list[Message]:
    return [user(t) if r == "user" else assistant(t) for r, t in talk.history]


async def test_a_conversation_that_was_recorded_is_not_broken(tmp_path: Path) -> None:
    talk = held()
    assert (await judged(tmp_path, talk, log_of(talk))).broken == []


Planted = Callable[[list[Message]], list[Message]]
PLANTED: dict[str, tuple[str, Planted]] = {
    "the answer is missing": ("lost", lambda log: log[:1]),
    "the question is missing": ("lost", lambda log: log[1:]),
    "a question is doubled": ("doubled", lambda log: [log[0], *log]),
    "the order is another": ("out of order", lambda log: log[::-1]),
    "a text of another conversation": (
        "misplaced",
        lambda log: [*log, user("question <ann:t2:1> about the tide")],
    ),
}


@pytest.mark.parametrize("planted", PLANTED)
async def test_a_planted_fault_of_a_log_is_noticed(tmp_path: Path, planted: str) -> None:
    talk = held()
    what, change = PLANTED[planted]
    verdict = await judged(tmp_path, talk, change(log_of(talk)))
    assert verdict.seen[what]
    assert verdict.broken


@pytest.mark.parametrize(
    "planted",
    [
        Message(role="user", content="Hello."),
        Message(role="user", content=f"{DOCUMENT} x", meta={LOWEST_ORIGIN: "tool"}),
    ],
)
async def test_words_that_are_trusted_too_much_are_noticed(
    tmp_path: Path, planted: Message
) -> None:
    talk = held()
    talk.known.add(planted.content)
    verdict = await judged(tmp_path, talk, [planted, *log_of(talk)])
    assert any("is trusted as" in each for each in verdict.broken)


async def test_another_owners_session_is_noticed(tmp_path: Path) -> None:
    talk = held()
    verdict = await judged(tmp_path, talk, log_of(talk), owner="bob")
    assert verdict.seen["lost"]
    assert any("bob holds texts of" in each for each in verdict.broken)


async def test_changed_requests_are_noticed(tmp_path: Path) -> None:
    talk = held()
    sent = json.loads(talk.requests[0].body)
    added = "<keepthread-memory>\n{}\n</keepthread-memory>"
    for place, quoted, is_allowed in (
        (1, "question <ann:t7:1> about", True),
        (1, "question <bob:t7:1> about", False),
        (0, "in the system prompt", False),
    ):
        body = json.loads(json.dumps(sent))
        body["messages"][place]["content"] += "\n" + added.format(quoted)
        talk.world.provider.asked["1"] = json.dumps(body).encode()
        verdict = await judged(tmp_path / str(place) / quoted[10:13], talk, log_of(talk))
        assert (verdict.broken == []) == is_allowed, (place, quoted)
        assert verdict.seen["additions"] == (place == 1)


async def test_a_changed_response_is_noticed() -> None:
    talk = held()
    talk.note(talk.requests[0], Reply("whole", "x"), b"{}")
    talk.world.provider.given["1"] = b"{ }"
    talk.note(talk.requests[0], Reply("whole", "x"), b"{}")
    talk.note(talk.requests[0], Reply("error", "x"), b"{ }")
    assert len(talk.world.broken) == 3


@pytest.mark.parametrize("wire", ["chat", "anthropic", "responses"])
def test_streams_say_what_they_shall(wire: Wire) -> None:
    events = [*stream(wire, "a text of some length")]
    assert heard(wire, b"".join(events)) == "a text of some length"
    assert "a text of some length".startswith(heard(wire, b"".join(events)[:-200]))
    assert len(KINDS) == 4
