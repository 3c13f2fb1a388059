"""How far common calls travel through the package: files are free, moves between packages cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from scripts.trace import Step, Trace, traces

if TYPE_CHECKING:
    from pathlib import Path

BARS = {
    "session.append": (5, 9),
    "turn.context() with Window": (3, 13),
    "turn.context() with Hybrid": (4, 44),
    "memory.forget": (4, 117),
}


async def test_common_calls_stay_within_few_packages(tmp_path: Path) -> None:
    found = {trace.name: trace for trace in await traces(tmp_path)}
    assert found.keys() == BARS.keys()
    for name, (packages, moves) in BARS.items():
        trace = found[name]
        assert len(trace.roots) <= packages, (name, trace.roots)
        assert len(trace.moves) <= moves, (name, trace.moves)


def test_a_move_is_a_step_into_another_package() -> None:
    steps = [
        Step(file, "f") for file in ("memory/a.py", "types.py", "memory/b.py", "stores/x/c.py")
    ]
    trace = Trace("call", steps)
    assert trace.roots == ["memory", "stores"]
    assert trace.moves == [(steps[2], steps[3])]
    assert len(trace.files) == 4
