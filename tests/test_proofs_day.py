"""P29 at a small size, and that its checks notice what they are for."""

from dataclasses import replace
from typing import Any

import pytest

from keepthread.types import Message
from proofs import p29_day
from proofs.day_check import MEBIBYTE, Sample, Verdict, check_growth, check_logs
from tests.conftest import started
from tests.seeds import SEED


@pytest.mark.parametrize("backend", sorted(p29_day.PROOF.on))
def test_a_mixed_day_loses_nothing_and_hangs_nowhere(backend: str) -> None:
    proof = p29_day.PROOF
    outcome = started(lambda: proof.on[backend](proof.small, SEED, lambda done, of: None))
    print(dict(outcome.figures))
    assert outcome.held, f"{proof.name} with seed {SEED}: {outcome.broken[:10]}"
    for what in ("acknowledged", "kills", "outages", "children of forks", "forgotten"):
        assert int(outcome.figures[what]) > 0, what


def said(id: str, begun: float, *, session: str = "lasting-0", tenant: str = "") -> dict[str, Any]:
    line = {"kind": "said", "lane": "a.0", "id": id, "session": session, "tenant": tenant}
    return line | {"begun": begun, "ended": begun + 0.1}


def stored(*ids: str) -> list[Message]:
    return [Message(role="user", id=id, content="text") for id in ids]


LINES = [said("1", 0.0), said("2", 1.0), said("3", 2.0)]


@pytest.mark.parametrize(
    ("what", "log"),
    [
        ("lost", stored("1", "3")),
        ("stored twice", stored("1", "2", "2", "3")),
        ("out of order", stored("2", "1", "3")),
    ],
)
def test_a_log_that_differs_from_the_journal_is_noticed(what: str, log: list[Message]) -> None:
    assert not check_logs(LINES, {"/lasting-0": stored("1", "2", "3")}).broken
    assert check_logs(LINES, {"/lasting-0": log}).counts[what] == 1


def test_a_session_that_is_gone_altogether_is_noticed() -> None:
    assert check_logs(LINES, {}).counts["lost"] == 3


def test_only_a_session_that_rested_may_have_been_pruned() -> None:
    short = {"session": "short-0", "tenant": "short"}
    rested = [said("1", 0.0, **short), said("2", 9.0, **short), said("3", 9.5, **short)]
    logs = {"short/short-0": stored("2", "3")}
    assert not check_logs(rested, logs).broken
    busy = [said("1", 0.0, **short), said("2", 3.0, **short), said("3", 5.0, **short)]
    logs = {"short/short-0": stored("1", "3")}
    assert check_logs(busy, logs).counts["lost"] == 1


def test_a_forgotten_message_that_stays_is_noticed() -> None:
    lines = [*LINES, {"kind": "forgotten", "id": "2"}]
    log = stored("1", "2", "3")
    assert check_logs(lines, {"/lasting-0": log}).counts["not forgotten"] == 1
    log[1] = replace(log[1], state="erased", content="")
    assert not check_logs(lines, {"/lasting-0": log}).broken


def test_errors_and_damage_that_workers_saw_are_noticed() -> None:
    error = {"kind": "error", "lane": "a.0", "what": "append", "error": "Damaged()"}
    damage = {"kind": "verified", "damages": ["a gap"]}
    counts = check_logs([error, damage], {}).counts
    assert (counts["errors"], counts["false damages"]) == (1, 1)


@pytest.mark.parametrize("grows", ["threads", "descriptors", "memory"])
def test_what_grows_in_the_second_half_is_noticed(grows: str) -> None:
    flat = [Sample(at=10 * n, threads=5, descriptors=20, memory=50 * MEBIBYTE) for n in range(40)]
    verdict = Verdict()
    check_growth("a", flat, verdict)
    assert not verdict.broken
    step = {"threads": 1, "descriptors": 2, "memory": 2 * MEBIBYTE}[grows]
    rising = [one._replace(**{grows: getattr(one, grows) + n * step}) for n, one in enumerate(flat)]
    check_growth("a", rising, verdict)
    assert verdict.counts["growing"] == 1
