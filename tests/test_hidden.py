"""Which turn a message belongs to after questions were hidden: as a plain model says, and fast."""

import time
from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from keepthread.context.hidden import CLEARED, REWOUND, HiddenRanges, QuestionTracker
from keepthread.context.ranges import without
from keepthread.types import Message
from tests.seeds import examples

STEPS = st.lists(st.one_of(st.sampled_from("qa"), st.integers(1, 6)), min_size=4, max_size=40)
"""Questions, answers, and how many messages a rewind hides; six hide all."""


def log_of(steps: Sequence[str | int]) -> tuple[list[Message], HiddenRanges]:
    """Return a log of questions and answers, and what rewinds have hidden."""
    log: list[Message] = []
    ranges, turn = HiddenRanges(), 0
    for step in steps:
        if isinstance(step, str):
            turn += step == "q"
            role = "user" if step == "q" else "assistant"
            log.append(Message(role=role, content="so", seq=len(log) + 1, turn=max(turn, 1)))
        elif log:
            clears = step == 6
            first = 1 if clears else ranges.next_visible(max(1, len(log) - step + 1))
            if first <= len(log):
                ranges = ranges.hide(first, len(log), 1, CLEARED if clears else REWOUND)
    return log, ranges


def plain_turns(log: Sequence[Message], ranges: HiddenRanges) -> list[int]:
    """Return the turns by looking at everything before each message."""
    spans = [*ranges.hidden, *ranges.inner]
    found: list[int] = []
    for message in log:
        before = [span for span in spans if span.last < message.seq]
        seen: dict[int, int] = {}
        for other in log[: message.seq]:
            hidden = any(span.first <= other.seq <= span.last for span in before)
            if other.role == "user" and not hidden:
                seen.setdefault(other.turn, other.seq)
        latest = max(seen, key=lambda turn: seen[turn], default=message.turn)
        found.append(message.turn if message.turn in seen else min(latest, message.turn))
    return found


@settings(max_examples=examples(500))
@given(steps=STEPS)
@example(steps=["q", "q", 1, "a"])
def test_a_message_belongs_to_the_turn_of_the_latest_question_that_is_not_hidden(
    steps: Sequence[str | int],
) -> None:
    log, ranges = log_of(steps)
    tracker = QuestionTracker(ranges)
    assert [tracker.turn(message) for message in log] == plain_turns(log, ranges)


RANGES = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 12)), max_size=8)


@given(ranges=RANGES, gone=RANGES)
def test_positions_without_others(
    ranges: Sequence[tuple[int, int]], gone: Sequence[tuple[int, int]]
) -> None:
    def positions(some: Sequence[tuple[int, int]]) -> set[int]:
        return {at for first, last in some for at in range(first, last + 1)}

    kept, cut = ([(first, first + more) for first, more in each] for each in (ranges, gone))
    left = without(kept, cut)
    assert positions(left) == positions(kept) - positions(cut)
    assert left == sorted(left)
    assert sum(last - first + 1 for first, last in left) == len(positions(left))


def test_the_turns_of_a_log_take_time_in_proportion_to_it() -> None:
    def seconds(number: int) -> float:
        """Track answers whose own questions are hidden, one by one."""
        log = [Message(role="user", seq=1, turn=1)]
        for place in range(number):
            log.append(Message(role="user", seq=2 * place + 2, turn=2 * place + 2))
            log.append(Message(role="assistant", seq=2 * place + 3, turn=2 * place + 3))
        best = float("inf")
        for _ in range(3):
            tracker, begun = QuestionTracker(), time.process_time()
            for message in log:
                tracker.turn(message)
            best = min(best, time.process_time() - begun)
        return best

    assert seconds(5000) < 50 * seconds(500)  # 10 times as much; by the square it would be 100
