"""Add up the last lines of several runs of pytest: one line, in pytest's own format."""

import re
import sys
from collections import Counter
from pathlib import Path

_LAST = re.compile(r"=+ (?P<counts>.+) in (?P<seconds>[\d.]+)s(?: \([\d:]+\))? =+")
_COUNT = re.compile(r"(\d+) ([a-z]+)")
_ONE = {"error": "errors", "warning": "warnings"}


def read(log: Path) -> tuple[Counter[str], float]:
    """Return what a run counted and how many seconds it took; a run that broke off is an error."""
    text = log.read_text(errors="replace") if log.exists() else ""
    found = list(_LAST.finditer(text))
    if not found:
        return Counter(errors=1), 0.0
    counts: Counter[str] = Counter()
    for number, what in _COUNT.findall(found[-1]["counts"]):
        counts[_ONE.get(what, what)] += int(number)
    return counts, float(found[-1]["seconds"])


def main(logs: list[Path]) -> int:
    """Print the sums; fail where anything failed."""
    total: Counter[str] = Counter()
    seconds = 0.0
    for log in logs:
        counts, took = read(log)
        total += counts
        seconds += took
    del total["deselected"]  # the other run had them
    order = ["failed", "passed", "skipped", "xfailed", "xpassed", "warnings", "errors"]
    shown = sorted(total, key=lambda what: order.index(what) if what in order else len(order))
    words = ", ".join(f"{total[what]} {what}" for what in shown) or "no tests ran"
    print(f" {words} in {seconds:.2f}s ".center(80, "="))
    return 1 if total["failed"] or total["errors"] or not total["passed"] else 0


if __name__ == "__main__":
    sys.exit(main([Path(name) for name in sys.argv[1:]]))
