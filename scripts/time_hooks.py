"""Measure hooks as an agent starts them: processes of their own, without a helper and with one.

The figures of a hook are its own; what the helper spends on a request is in a column of its own,
because nobody waits for all of it.
"""

import argparse
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

MESSAGES = 1000
ADDITIONS = "total = 0\nfor n in range(10_000_000): total += n"
"""As the build measures a machine."""
PROGRAM = str(Path(sys.executable).with_name("keepthread"))
TICKS = os.sysconf("SC_CLK_TCK")


class Timed(NamedTuple):
    """One run: milliseconds of CPU and on the clock, and the bytes of its answer."""

    cpu: float
    wall: float
    answer: int


def run(command: list[str], environ: Mapping[str, str], folder: Path, data: bytes = b"") -> Timed:
    """Run a program, and measure it alone."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(  # noqa: S603 - programs of ours
        command, env=environ, cwd=folder, input=data, capture_output=True, check=True
    )
    wall, after = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Timed(cpu * 1000, wall * 1000, len(done.stdout))


class Person:
    """A home folder with a session file of a thousand messages, and a helper or none."""

    def __init__(self, home: Path) -> None:
        """Write the file."""
        self.home = home
        self.project = home / "shop"
        self.project.mkdir()
        (home / "run").mkdir(mode=0o700)
        kept = ("PATH", "LANG", "TIKTOKEN_CACHE_DIR")
        self.environ = {name: os.environ[name] for name in kept if name in os.environ}
        self.environ |= {"HOME": str(home), "XDG_RUNTIME_DIR": str(home / "run")}
        self.file = home / ".claude" / "projects" / "shop" / "s1.jsonl"
        self.file.parent.mkdir(parents=True)
        about = {"sessionId": "s1", "cwd": str(self.project), "timestamp": "2026-11-01T10:00:00Z"}
        lines = (
            {
                "type": ("user", "assistant")[n % 2],
                "uuid": str(n),
                "message": {"content": f"Lighthouse {n}: its lamp turns every {n % 60} seconds."},
                **about,
            }
            for n in range(MESSAGES)
        )
        self.file.write_text("".join(json.dumps(line) + "\n" for line in lines))

    def hook(self, event: str, session: str = "s1", store: str = "") -> Timed:
        """Run a hook."""
        payload = {
            "hook_event_name": event,
            "session_id": session,
            "transcript_path": str(self.file),
            "cwd": str(self.project),
            "prompt": "How often does the lamp of lighthouse 500 turn?",
        }
        command = [PROGRAM, "hook", "claude-code", *(["--store", store] if store else [])]
        return run(command, self.environ, self.project, json.dumps(payload).encode())

    def helpers(self) -> list[int]:
        """Return the processes of the helper."""
        found = subprocess.run(  # noqa: S603 - a program of the system
            ["/usr/bin/pgrep", "-f", f"hooks.helper {self.home}/"],
            capture_output=True,
            text=True,
            check=False,
        )
        return [int(line) for line in found.stdout.split()]

    def helper_cpu(self) -> float:
        """Return the milliseconds of CPU that the helper has taken so far."""
        stats = [Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1] for pid in self.helpers()]
        return sum(sum(map(int, each.split()[11:13])) for each in stats) * 1000 / TICKS

    def end_helper(self) -> None:
        """End the helper."""
        for pid in self.helpers():
            os.kill(pid, signal.SIGKILL)
        while self.helpers():
            time.sleep(0.01)

    def settle(self) -> None:
        """Wait until the helper has nothing left to do."""
        waiting = self.home / ".local" / "state" / "keepthread" / "hooks"
        before = -1.0
        while any(waiting.rglob("*.json*")) or self.helper_cpu() != before:
            before = self.helper_cpu()
            time.sleep(0.3)


def line(name: str, runs: list[Timed], bare: float, helper: float) -> str:
    """Return a row of the table."""
    cpu, wall = median(each.cpu for each in runs), sorted(each.wall for each in runs)
    told = sum(each.answer > 0 for each in runs)
    cells = [f"{cpu:.0f}", f"{cpu - bare:.0f}", f"{median(wall):.0f}", f"{wall[-1]:.0f}"]
    return f"| {name} | {' | '.join(cells)} | {helper:.0f} | {told} of {len(runs)} |"


def measure(person: Person, runs: int) -> None:
    """Print the table."""
    speed = run([sys.executable, "-c", ADDITIONS], person.environ, person.home).cpu / 1000
    empty = [run([sys.executable, "-c", "pass"], person.environ, person.home) for _ in range(runs)]
    bare = median(each.cpu for each in empty)
    print(f"Python {sys.version.split()[0]}: ten million additions take {speed:.1f} s of CPU;")
    print(
        f"`python -c pass` takes {bare:.0f} ms. {MESSAGES:,} messages; {runs} runs; milliseconds.\n"
    )
    head = ("hook", "CPU", "above Python", "wall, median", "wall, longest", "CPU of the helper")
    print(f"| {' | '.join(head)} | answers |\n|{'---|' * (len(head) + 1)}")
    person.hook("Stop")
    person.settle()
    cases: list[tuple[str, bool, dict[str, Any]]] = [
        ("prompt, cold", True, {"event": "UserPromptSubmit", "session": "s2"}),
        ("prompt, warm", False, {"event": "UserPromptSubmit", "session": "s2"}),
        ("answer, cold", True, {"event": "Stop"}),
        ("answer, warm", False, {"event": "Stop"}),
        (
            "prompt, store away",
            False,
            {"event": "UserPromptSubmit", "store": "postgresql://127.0.0.1:1/x"},
        ),
    ]
    for name, cold, given in cases:
        done: list[Timed] = []
        spent: list[float] = []
        for _ in range(max(3, runs // 4) if cold else runs):
            if cold:
                person.end_helper()
            before = person.helper_cpu()
            done.append(person.hook(**given))
            person.settle()
            spent.append(person.helper_cpu() - before)
        print(line(name, done, bare, median(spent)), flush=True)
    person.end_helper()


def main() -> None:
    """Measure in a home folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=20)
    options = parser.parse_args()
    home = Path(tempfile.mkdtemp(prefix="kt-"))
    try:
        measure(Person(home), options.runs)
    finally:
        shutil.rmtree(home, ignore_errors=True)


if __name__ == "__main__":
    main()
