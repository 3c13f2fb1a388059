"""P35 at a small size, and that it notices a feed that skips, repeats or reorders."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from keepthread.types import Change, SessionKey
from proofs.p35_changes import PROOF, Write, _disordered, _doubled, _missing, _mistimed
from tests.proving import hold


@pytest.mark.parametrize("where", ["sqlite", *PROOF.on])
def test_the_promise_holds(where: str) -> None:
    outcome = hold(PROOF, PROOF.on.get(where), 60 if where == "cluster" else None)
    assert int(outcome.figures["acknowledged"]) > 20
    assert (int(outcome.figures["calls with a wrong clock"]) > 20) == (where == "sqlite")


def fed() -> tuple[list[Change], list[Write]]:
    """Return a feed of one session, and the writes that made it, one after the other."""
    key = SessionKey("1")
    kinds = ["session_created", *["messages_added"] * 3, "session_deleted"]
    changes: list[Change] = []
    writes: list[Write] = []
    for number, kind in enumerate(kinds):
        ids = [f"m{number}"] if kind == "messages_added" else []
        writes.append(Write(kind, "ana", "s", key, ids, 2 * number, 2 * number + 1))
        changes.append(Change(kind=kind, at=1.0, owner="ana", session="s", key=key, ids=ids))  # pyright: ignore[reportArgumentType]
    return changes, writes


def broken(changes: list[Change], writes: list[Write]) -> list[str]:
    found: list[Iterator[str]] = [_missing(changes, writes), _doubled(changes)]
    found += [_disordered(changes, writes), _mistimed(changes, writes, 0.0)]
    return [line for lines in found for line in lines]


def test_the_check_accepts_a_sound_feed() -> None:
    assert broken(*fed()) == []


@pytest.mark.parametrize(
    "bend",
    [
        lambda changes: changes[:2] + changes[3:],
        lambda changes: changes + changes[1:2],
        lambda changes: [changes[0], changes[2], changes[1], *changes[3:]],
        lambda changes: [replace(c, ids=()) for c in changes],
        lambda changes: [replace(c, owner="bo") for c in changes],
        lambda changes: changes[:-1],
        lambda changes: [replace(c, at=c.at + 86_400) for c in changes],
    ],
    ids=["skipped", "repeated", "reordered", "without ids", "another's", "no end", "other times"],
)
def test_the_check_notices(bend: Callable[[list[Change]], list[Change]]) -> None:
    changes, writes = fed()
    assert broken(bend(changes), writes)
