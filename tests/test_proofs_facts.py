"""The promise that the newest truth is known, in small, and that its proof is not blind."""

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from keepthread import Message
from keepthread.types import Reply
from proofs.p20_facts import PROOF, Conversation, Reader
from tests.proving import hold
from tests.seeds import SEED


def test_of_all_that_was_said_the_newest_truth_is_known() -> None:
    hold(PROOF)


class Silent(Reader):
    """Proposes nothing."""

    async def complete(self, messages: Sequence[Message], **_: Any) -> Reply:
        return Reply(content='{"facts": []}')


class Mistaken(Reader):
    """Names the message before the right one."""

    async def complete(self, messages: Sequence[Message], **_: Any) -> Reply:
        reply = await super().complete(messages)
        wrong = reply.content.replace('"source": 2,', '"source": 1,')
        return Reply(content=wrong, usage=reply.usage)


class Confused(Reader):
    """Takes all values for one."""

    async def complete(self, messages: Sequence[Message], **_: Any) -> Reply:
        reply = await super().complete(messages)
        return Reply(content=reply.content.replace('"V1', '"V2'), usage=reply.usage)


@pytest.mark.parametrize("reader", [Silent, Mistaken, Confused])
async def test_the_proof_sees_what_is_lacking_or_wrong(
    reader: type[Reader], tmp_path: Path
) -> None:
    found: list[str] = []
    for number in range(5):
        path = tmp_path / f"{number}.db"
        rng = random.Random(SEED + number)
        found += await Conversation(path, rng, Counter(), reader).run()
    assert found
