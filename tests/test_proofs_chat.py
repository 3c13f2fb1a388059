"""The promise that a killed chat loses nothing, in small, and that its proof is not blind."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from keepthread import Message
from keepthread.testing.server import Received
from proofs.p21_chat import PROOF, SESSION, Home, Tally, answer_to
from tests.proving import hold
from tests.seeds import SEED

ONE, TWO = "Question 1?", "Question 2?"


def test_a_chat_that_is_killed_loses_nothing_that_was_said_to_the_model() -> None:
    hold(PROOF)


@pytest.mark.parametrize(
    ("asked", "stored", "broken"),
    [
        ([ONE, TWO], [ONE, answer_to(ONE)[:20], TWO], ""),
        ([ONE, TWO], [ONE, answer_to(ONE)], f"lost: {TWO}"),
        ([ONE], [ONE, ONE], f"there twice: {ONE}"),
        ([ONE, TWO], [TWO, ONE], "not in the order"),
        ([ONE], [ONE, answer_to(TWO)], f"no answer to {ONE}"),
    ],
)
async def test_the_proof_sees_what_is_lost_twice_or_wrong(
    tmp_path: Path, asked: Sequence[str], stored: Sequence[str], broken: str
) -> None:
    tally = Tally()
    home = Home(tmp_path, tally, random.Random(SEED))
    await home.begin()
    said = [{"role": "user", "content": question} for question in asked]
    home.server.requests += [
        Received("openai-chat", "", {}, {"messages": said[: n + 1]}) for n in range(len(said))
    ]
    with home.server:
        async with home.memory() as memory:
            session = await memory.get_session(SESSION)
            for text in stored:
                role = "user" if text.startswith("Question") else "assistant"
                await session.append(Message(role=role, content=text))
        await home.check()
    assert bool(tally.broken) is bool(broken)
    assert broken in "\n".join(tally.broken)


async def test_the_proof_sees_a_chat_that_did_not_go_on(tmp_path: Path) -> None:
    tally = Tally()
    home = Home(tmp_path, tally, random.Random(SEED))
    await home.begin()
    asked = {"messages": [{"role": "user", "content": ONE}]}
    home.server.requests += [Received("openai-chat", "", {}, asked)] * 2
    with home.server:
        async with home.memory() as memory:
            await (await memory.get_session(SESSION)).add_message("user", ONE)
            await memory.session("another")
        await home.check()
    assert "a chat did not go on: ['another', 'killed']" in tally.broken[0]
