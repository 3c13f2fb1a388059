"""Hold the journal of P29 against the logs, and its samples against each other."""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Final, NamedTuple

from keepthread.types import Message
from proofs.day_worker import AGE, SECRET, SHORT_TENANT

Line = Mapping[str, Any]
Logs = Mapping[str, Sequence[Message]]
"""The messages of each session, by tenant and id: `short/short-1`, `/lasting-0`."""

MEBIBYTE: Final = 1 << 20
LEAST_SECONDS: Final = 300.0  # caches fill in the first minutes


@dataclass(slots=True)
class Verdict:
    """What was counted, and each way in which a promise did not hold."""

    counts: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)

    def fail(self, what: str, text: str) -> None:
        self.counts[what] += 1
        self.broken.append(f"{what}: {text}")


def check_logs(lines: Sequence[Line], logs: Logs) -> Verdict:
    """Find messages that are lost, stored twice, out of order, or still there once forgotten."""
    verdict = Verdict()
    said: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        if line["kind"] == "said":
            said[f"{line['tenant']}/{line['session']}"].append(line)
        elif line["kind"] == "error":
            verdict.fail("errors", f"{line['lane']} {line['what']}: {line['error']}")
        elif line["kind"] == "verified" and line["damages"]:
            verdict.fail("false damages", str(line["damages"]))
        elif line["kind"] == "pruned":
            verdict.counts["pruned"] += line["count"]
        elif line["kind"] in ("verified", "forgotten"):
            verdict.counts[line["kind"]] += 1
    end = max((line["ended"] for each in said.values() for line in each), default=0.0)
    for name in {*logs, *said}:
        _check_session(name, said[name], logs.get(name, ()), end, verdict)
    _check_forgotten(lines, logs, verdict)
    return verdict


def _check_session(
    name: str, said: Sequence[Line], log: Sequence[Message], end: float, verdict: Verdict
) -> None:
    places = {message.id: place for place, message in enumerate(log)}
    verdict.counts["acknowledged"] += len(said)
    for id, times in Counter(message.id for message in log).items():
        if times > 1:
            verdict.fail("stored twice", f"{id} in {name}")
    pauses = _pauses(said, end) if name.startswith(f"{SHORT_TENANT}/") else None
    latest: dict[str, int] = {}
    for line in said:
        place = places.get(line["id"])
        if place is None:
            # Only a session that nobody used for long enough may have gone.
            if pauses is None or bisect_left(pauses, line["begun"]) == len(pauses):
                verdict.fail("lost", f"{line['id']} in {name}")
            continue
        if place < latest.get(line["lane"], -1):
            verdict.fail("out of order", f"{line['id']} in {name}")
        latest[line["lane"]] = place


def _pauses(said: Sequence[Line], end: float) -> list[float]:
    """Return when each pause began that was long enough for the session to be pruned."""
    used = sorted((line["begun"], line["ended"]) for line in said)
    next_ends = [*(ended for _, ended in used[1:]), end]
    pairs = zip(used, next_ends, strict=False)  # nobody may have used it at all
    return [begun for (begun, _), ended in pairs if ended - begun >= AGE]


def _check_forgotten(lines: Sequence[Line], logs: Logs, verdict: Verdict) -> None:
    forgotten = {line["id"] for line in lines if line["kind"] == "forgotten"}
    for name, log in logs.items():
        for message in log:
            if message.id in forgotten and (message.state != "erased" or SECRET in message.content):
                verdict.fail("not forgotten", f"{message.id} in {name}")


class Sample(NamedTuple):
    """What one process used at one moment."""

    at: float
    threads: int
    descriptors: int
    memory: int


def check_growth(name: str, samples: Sequence[Sample], verdict: Verdict) -> str:
    """Compare the third quarter of a run with the last; return both in words."""
    if not samples or samples[-1].at - samples[0].at < LEAST_SECONDS:
        return "too short to judge"
    quarter = len(samples) // 4
    third, last = samples[2 * quarter : 3 * quarter], samples[3 * quarter :]
    rows: list[str] = []
    limits = {"threads": 2.0, "descriptors": 4.0, "memory": 8.0 * MEBIBYTE}
    for index, (what, slack) in enumerate(limits.items(), 1):
        before = median(sample[index] for sample in third)
        after = median(sample[index] for sample in last)
        if after > before * 1.05 + slack:
            verdict.fail("growing", f"{what} of {name}: {before:,.0f} to {after:,.0f}")
        unit = f"{before / MEBIBYTE:.0f} → {after / MEBIBYTE:.0f} MiB"
        rows.append(unit if what == "memory" else f"{what} {before:.0f} → {after:.0f}")
    return ", ".join(rows)
