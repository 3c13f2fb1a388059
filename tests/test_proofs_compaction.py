"""The promise that an old turn is compacted once, in small, and that its proof is not blind."""

import pytest

from keepthread import Message, Span
from keepthread.types import SessionKey, Summary
from proofs.p18_compaction import PROOF, Tags, tags, turns, wrong
from tests.proving import hold

KEY = SessionKey("s")
LOG = [
    Message(role=m.role, content=m.content, seq=seq, turn=(seq + 1) // 2)
    for seq, m in enumerate(turns(1, 4), start=1)
]


def test_an_old_turn_is_compacted_once_and_the_log_stays() -> None:
    hold(PROOF)


async def test_the_proofs_summarizer_keeps_what_is_twice_and_what_is_missing() -> None:
    for numbers in ([1, 2, 3], [1, 2, 2, 3], [1, 3], [2, 1]):
        text = " and ".join(f"q{number}q asks" for number in numbers)
        short = (await Tags().shorten(text, limit=100)).text
        assert tags(short) == tags((await Tags().shorten(short, limit=100)).text) == numbers


def summary(text: str, last: int = 4, first: int = 1) -> Summary:
    span = Span(session=KEY, first=first, last=last)
    return Summary(text=text, last=last, turn=(last + 1) // 2, spans=[span])


@pytest.mark.parametrize(
    ("made", "faults"),
    [
        (summary("q1q asks, q2q asks"), 0),
        (summary("q1q..q2q"), 0),
        (summary("q1q"), 1),
        (summary("q1q..q2q q2q"), 1),
        (summary("q2q q1q"), 1),
        (summary("q1q..q3q"), 1),
        (summary("q1q..q2q", first=3), 1),
        (summary("q1q..q2q", last=3), 1),
    ],
)
def test_the_proof_sees_what_is_skipped_doubled_or_parted(made: Summary, faults: int) -> None:
    assert len(list(wrong(made, LOG))) == faults
