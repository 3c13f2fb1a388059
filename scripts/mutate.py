"""Plant known bugs one at a time and check that the tests named for each of them fail.

The bugs are in `scripts/mutations.toml`: a file, a text that occurs in it exactly once, the text
that replaces it, and the tests that must notice. Everything happens in a copy of the tree, so that
an interrupt cannot leave a planted bug behind. The exit status is 1 if a bug was not noticed.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIST = ROOT / "scripts" / "mutations.toml"
CONTRACT = "src/keepthread/testing"
TIMEOUT = 600.0
"""Seconds for the tests of one bug; a bug that makes them hang was noticed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutation:
    """A bug to plant, and the tests that must fail because of it."""

    file: str
    what: str
    old: str
    new: str
    tests: Sequence[str]

    def problem(self, root: Path) -> str | None:
        """Return why the bug cannot be planted in a tree, or None if it can."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file} does not exist"
        if self.old == self.new:
            return "the replacement changes nothing"
        if (count := path.read_text(encoding="utf-8").count(self.old)) != 1:
            return f"the text to replace occurs {count} times in {self.file}, not once"
        for test in self.tests:
            name, _, function = test.partition("::")
            source = root / name
            if not source.is_file():
                return f"{name} does not exist"
            last = function.rpartition("::")[2].partition("[")[0]
            # What a class inherits is in the contract.
            places = [source, *(root / CONTRACT).glob("*.py")] if "::" in function else [source]
            if last and not any(f"def {last}(" in p.read_text(encoding="utf-8") for p in places):
                return f"{name} has no test {last}"
        return None if self.tests else "no test is named"


def mutations(path: Path = LIST) -> list[Mutation]:
    """Return all listed bugs."""
    return [Mutation(**entry) for entry in tomllib.loads(path.read_text("utf-8"))["mutation"]]


def copy_tree(target: Path) -> None:
    """Copy what git tracks, and new files that it does not ignore, as they are now."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    output = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True).stdout  # noqa: S603
    for name in filter(None, output.decode().split("\0")):
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target / name)


class Copy:
    """A copy of the tree in which tests run."""

    def __init__(self, root: Path) -> None:
        """Copy the tree and check that its own source is what tests import."""
        self.root = root
        copy_tree(root)
        # The environment installs the real tree; PYTHONPATH comes before that, in children too.
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(root / "src"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        found = self._python("-c", "import keepthread; print(keepthread.__file__)").stdout
        if not Path(found.strip()).is_relative_to(root):
            sys.exit(f"tests would import {found.strip()}, not the copy in {root}")

    def _python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603
            [sys.executable, *arguments],
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )

    def run(self, tests: Iterable[str]) -> tuple[int, str]:
        """Run tests; return pytest's exit status and output, 1 if they did not end in time."""
        options = ["-m", "pytest", "-x", "-q", "-p", "no:cacheprovider"]
        try:
            done = self._python(*options, *dict.fromkeys(tests))
        except subprocess.TimeoutExpired:
            return 1, f"no end after {TIMEOUT:.0f} seconds"
        return done.returncode, done.stdout

    def try_mutation(self, mutation: Mutation) -> tuple[str, str]:
        """Plant a bug, run its tests, and take it out; return the verdict and the output."""
        path = self.root / mutation.file
        before = path.read_text(encoding="utf-8")
        path.write_text(before.replace(mutation.old, mutation.new), encoding="utf-8")
        try:
            status, output = self.run(mutation.tests)
        finally:
            path.write_text(before, encoding="utf-8")
        # pytest: 0 all passed, 1 some failed; all else means that the tests did not run.
        return {0: "SURVIVED", 1: "noticed"}.get(status, "ERROR"), output


def main() -> int:
    """Plant the chosen bugs one after the other and print what became of each."""
    parser = argparse.ArgumentParser(prog="scripts/mutate", description=__doc__)
    parser.add_argument("words", nargs="*", help="plant only bugs whose file or text has a word")
    parser.add_argument("--list", action="store_true", help="list them and plant nothing")
    options = parser.parse_args()
    chosen = [
        m
        for m in mutations()
        if not options.words or any(word in f"{m.file} {m.what}" for word in options.words)
    ]
    problems = [f"{m.file}, {m.what}: {why}" for m in chosen if (why := m.problem(ROOT))]
    if problems or not chosen:
        print("\n".join(problems) or "no bug matches", file=sys.stderr)
        return 2
    if options.list:
        print("\n".join(f"{m.file}: {m.what}" for m in chosen))
        return 0
    with tempfile.TemporaryDirectory(prefix="keepthread-mutate-") as folder:
        return _run(Copy(Path(folder).resolve()), chosen)


def _run(copy: Copy, chosen: Sequence[Mutation]) -> int:
    tests = list(dict.fromkeys(test for mutation in chosen for test in mutation.tests))
    print(f"{len(chosen)} bugs; first the {len(tests)} tests without any …", flush=True)
    status, output = copy.run(tests)
    if status:
        print(f"{output}\nThe tests fail without a planted bug.", file=sys.stderr)
        return 2
    verdicts: list[str] = []
    for number, mutation in enumerate(chosen, 1):
        start = time.monotonic()
        verdict, output = copy.try_mutation(mutation)
        verdicts.append(verdict)
        seconds = time.monotonic() - start
        where = mutation.file.removeprefix("src/keepthread/")
        row = f"{number:3}/{len(chosen)}  {verdict:8}  {seconds:5.1f} s  {where}: {mutation.what}"
        print(row, flush=True)
        if verdict == "ERROR":
            print(output[-2000:], file=sys.stderr)
    noticed = verdicts.count("noticed")
    print(f"{noticed} of {len(chosen)} bugs were noticed")
    return 0 if noticed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
