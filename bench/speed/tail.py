"""The newest 4,096 tokens: `await store.tail` and its parts, against a bare read of the same."""

from collections.abc import Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from bench import Bar, Row, Run
from bench.bare import BareReader
from bench.corpus import messages
from bench.measure import Work, cpu_in_turn
from bench.ours import TENANT, Awaited, Inside
from bench.peer import INSTALLED, NAME, Peer
from bench.speed.rows import microseconds, named, times
from keepthread.stores.codec import digest, guard_of
from keepthread.stores.sqlite.schema import SQL
from keepthread.stores.validation import MAX_COUNT

GROUP = "tail of 4,096 tokens, CPU"
TOKENS = 4096
_MESSAGES = 1000
_BAR = Bar(4)
_NEWEST = SQL["newest"]


def measure(run: Run, size: int) -> Sequence[Row]:
    """Measure rounds on one file; reading changes nothing in it."""
    rounds: list[dict[str, float]] = []
    with TemporaryDirectory(dir=run.memory) as folder, ExitStack() as stack:
        work, count = _contenders(Path(folder), size, stack)
        slices, each = (4, 20) if run.quick else (10, 60)
        cpu_in_turn(work, slices=1, count=each)
        for number in range(run.rounds):
            run.progress(f"tail, {size} bytes: round {number + 1} of {run.rounds}")
            rounds.append(cpu_in_turn(work, slices=slices, count=each))
    parts = {
        "query": [r["query"] for r in rounds],
        "check": [r["check"] for r in rounds],
        "decode": [r["inside"] - r["query"] - r["check"] for r in rounds],
        "hop to the thread and back": [r["awaited"] - r["inside"] for r in rounds],
    }
    bare = named(f"bare read of {count} rows", size)
    found = [
        microseconds(GROUP, bare, [r["bare"] for r in rounds]),
        times(
            GROUP,
            named("await store.tail", size),
            rounds,
            "awaited",
            "bare",
            unit="× bare read",
            bar=_BAR,
        ),
        *(microseconds(GROUP, named(f"tail, {part}", size), s) for part, s in parts.items()),
    ]
    if INSTALLED:
        name = named(f"{NAME}.get_items", size)
        found.append(times(GROUP, name, rounds, "peer", "bare", unit="× bare read"))
    return found


def _contenders(folder: Path, size: int, stack: ExitStack) -> tuple[dict[str, Work], int]:
    """Return what is measured, and how many messages the tail has."""
    path = folder / "ours"
    some = messages(size, _MESSAGES)
    inside = stack.enter_context(closing(Inside(path)))
    inside.fill(some)
    awaited = stack.enter_context(closing(Awaited(path)))
    count = awaited.tail_length(TOKENS)
    steps = Steps(inside, count)
    bare = stack.enter_context(closing(BareReader(path, steps.sid, count)))
    work: dict[str, Work] = {
        "bare": bare.read,
        "query": steps.query,
        "check": steps.check,
        "inside": partial(inside.tail, tokens=TOKENS),
        "awaited": partial(awaited.tail, tokens=TOKENS),
    }
    if INSTALLED:
        peer = stack.enter_context(closing(Peer(folder / "peer", some)))
        peer.fill()
        work["peer"] = partial(peer.read, limit=count)
    return work, count


class Steps:
    """Two steps of a tail by themselves, on the connection that reads."""

    def __init__(self, inside: Inside, length: int) -> None:
        self.sid = int(inside.keys[0])
        self._db = inside.reading
        self._what = (self.sid, TENANT, MAX_COUNT, 0)
        self._rows = self._db.execute(_NEWEST, self._what).fetchall()[:length]

    def query(self, count: int) -> None:
        """Step the cursor back for as long as the rows fit."""
        for _ in range(count):
            left = TOKENS
            cursor = self._db.execute(_NEWEST, self._what)
            for row in cursor:
                left -= row[5]
                if left < 0:
                    break
            cursor.close()

    def check(self, count: int) -> None:
        """Compare each row's guard and digest with what they should be."""
        for _ in range(count):
            for row in self._rows:
                assert _intact(self.sid, row)


def _intact(place: int, row: tuple) -> bool:
    seq, id, role, content, extra, tokens, counter, turn, turns, total, at, sha, guard = row
    right = guard_of(place, seq, tokens, counter, turn, turns, total, at, sha)
    return guard == right and sha == digest(id.hex(), role, content, extra)
