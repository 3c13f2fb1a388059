"""Type what README says into an empty environment, with a real model, and judge at the wire.

`python -m scripts.newcomer PYTHON` with an interpreter that has xllamacpp; see scripts/newcomer.
"""

import sys
import tempfile
from pathlib import Path

from scripts.smoke_server import served
from tests.newcomer import JAKARTA, ROOT, TOKYO, typed

MOST_COMMANDS = 5
MOST_SECONDS = 120.0


def main(python: str) -> int:
    """Print commands and seconds; return 1 if something did not hold."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder, served(python) as server:
        seen = typed(Path(folder), f"{server.url}/v1")
        read = server.read()
    for command, seconds in zip(seen.commands, seen.each, strict=True):
        print(f"{seconds:7.1f} s  $ {command}")
    install, *others = seen.each
    print(f"{sum(others):7.1f} s  without the installation, which took {install:.1f} s")
    print("\n".join(f"  | {line}" for line in read.splitlines()))
    first, second = read.find(JAKARTA), read.find(TOKYO)
    checks = {
        "README names each command": all(
            " ".join(command.split()[:2]) in readme for command in seen.commands
        ),
        f"at most {MOST_COMMANDS} commands": len(seen.commands) <= MOST_COMMANDS,
        f"at most {MOST_SECONDS:.0f} s": sum(others) <= MOST_SECONDS,
        "the model read the first question and its answer before the second": (
            0 <= first < read.find("assistant", first) < second
        ),
    }
    for what, held in checks.items():
        print(f"  {'ok ' if held else 'NOT'} {what}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
