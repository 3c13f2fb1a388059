"""The runs behind the charts of the docs: `python -m bench.figures NAME… [--data DIR]`.

Each writes `docs/assets/data/NAME.json`, with the machine, the commit and the date.
`scripts/figures` draws the charts from these files alone.
"""

import argparse
import asyncio
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from bench.corpus import messages
from bench.counters import best
from bench.measure import median, no_collection
from bench.peer import NAME as PEER
from bench.peer import Peer
from bench.places import commit, processor
from bench.prefix.alone import SLIDING, STEPPING
from bench.prefix.held import SEED, hold
from bench.recall.asking import HYBRID, RECALL, WINDOW, Room, views
from bench.recall.corpora import Talk, beam, locomo
from bench.talks import KINDS, TURNS
from keepthread import Hybrid, Memory, Session, View, Window

FOLDER = Path(__file__).parents[1] / "docs" / "assets" / "data"
LENGTHS = (100, 300, 1_000, 3_000, 10_000)
BUDGETS = (1024, 2048, 4096, 8192, 16_384, 32_768)
PROOFS = {
    "P1": 30,
    "P2": 300,
    "P5": 4000,
    "P6": 40,
    "P11": 40,
    "P13": 1000,
    "P14": 6,
    "P16": 10,
    "P18": 20,
}
"""The proofs of the chart, and a size of each that takes some minutes."""
_SEED = 20261117
_BUDGET = 4096
_SIZE = 110
_SECONDS = 0.4
_ROUNDS = 5


class Options(NamedTuple):
    """The arguments of the command line."""

    data: Path | None
    turns: int


# --- evidence within a budget ---


def evidence(
    read: Callable[[Path], Sequence[Talk]], budgets: Sequence[int]
) -> Callable[[Options], Mapping[str, Any]]:
    """Return a run that asks the questions of the conversations on which nothing was chosen."""

    def measure(options: Options) -> Mapping[str, Any]:
        if options.data is None:
            sys.exit("name the folder of LoCoMo and BEAM-100K: --data DIR")
        talks = [talk for talk in read(options.data) if talk.held_out]
        return asyncio.run(_ask(talks, budgets))

    return measure


async def _ask(talks: Sequence[Talk], budgets: Sequence[int]) -> Mapping[str, Any]:
    ways = (WINDOW, HYBRID, RECALL)
    with tempfile.TemporaryDirectory() as folder:
        opening = Memory.open(
            f"sqlite:///{folder}/recall.db",
            views=views(budgets),
            counter=best(),
            recall="owner",
            durability="process",
        )
        asked = []
        async with opening as memory:
            for talk in talks:
                print(talk.name, len(talk.questions), "questions", file=sys.stderr)
                room = Room(memory, talk, best())
                await room.fill(ways)
                asked += [await room.ask(question, budgets) for question in talk.questions]
    shares = {
        way: [
            round(100 * fmean(each.shares[way, budget] for each in asked), 1) for budget in budgets
        ]
        for way in ways
    }
    return {"budgets": list(budgets), "questions": len(asked), "evidence_percent": shares}


# --- what a longer history costs ---


def cost(options: Options) -> Mapping[str, Any]:
    """Measure CPU and tokens of one prompt, as a conversation grows."""
    rows = [*asyncio.run(_ours()), *(_theirs(length) for length in LENGTHS)]
    return {"budget": _BUDGET, "message_bytes": _SIZE, "rows": rows}


async def _ours() -> list[dict[str, Any]]:
    kinds = {"keepthread, window": Window(), "keepthread, hybrid": Hybrid()}
    known = {name: View(_BUDGET, strategy) for name, strategy in kinds.items()}
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/chat.db"
        async with Memory.open(url, views=known, counter=best(), durability="process") as memory:
            session = await memory.session("chat")
            for before, length in pairwise((0, *LENGTHS)):
                print(f"{length:,} messages", file=sys.stderr)
                await session.append(*messages(_SIZE, length - before))
                await session.compact()
                await memory.index()
                await memory.idle()
                rows += [
                    {"who": name, "messages": length, **await _context(session, name)}
                    for name in kinds
                ]
    return rows


async def _context(session: Session, view: str) -> dict[str, float]:
    context = await session.context(view, query="what did we say about the weather")

    async def ask(times: int) -> None:
        for _ in range(times):
            await session.context(view, query="what did we say about the weather")

    await ask(3)
    seconds = [await _until(ask) for _ in range(_ROUNDS)]
    return {"cpu_ms": round(1000 * median(seconds), 3), "tokens": context.tokens}


async def _until(work: Callable[[int], Any]) -> float:
    """Return the CPU seconds of one call: as many are made as take a while."""
    times, spent = 0, 0.0
    with no_collection():
        while spent < _SECONDS / _ROUNDS:
            start = time.process_time()
            await work(5)
            spent += time.process_time() - start
            times += 5
    return spent / times


def _theirs(length: int) -> dict[str, Any]:
    """Read the whole history, as a peer's session does unless it is given a number of items."""
    some = messages(_SIZE, length)
    counter = best()
    with tempfile.TemporaryDirectory() as folder:
        peer = Peer(Path(folder) / "peer", some)
        peer.fill()

        async def ask(times: int) -> None:
            for _ in range(times):
                await peer._session.get_items()

        seconds = [peer._runner.run(_until(ask)) for _ in range(_ROUNDS)]
        peer.close()
    tokens = sum(counter.count(message) for message in some[:256]) * length // min(256, length)
    return {
        "who": f"{PEER}, all items",
        "messages": length,
        "cpu_ms": round(1000 * median(seconds), 3),
        "tokens": tokens,
    }


# --- how much of a prompt a cache has seen ---


def prefix(options: Options) -> Mapping[str, Any]:
    """Hold the conversations of `bench prefix` under more budgets, in steps and sliding."""
    ways = {STEPPING: None, SLIDING: 0}
    known = {
        f"{way} {budget}": View(budget, Window(step=step))
        for way, step in ways.items()
        for budget in BUDGETS
    }
    found: dict[str, list[float]] = {way: [0.0] * len(BUDGETS) for way in ways}
    for kind in KINDS:
        print(kind, file=sys.stderr)
        shares = asyncio.run(hold(kind, SEED, options.turns, known, best()))
        for way in ways:
            for at, budget in enumerate(BUDGETS):
                found[way][at] += shares[f"{way} {budget}"].unchanged / len(KINDS)
    unchanged = {way: [round(each, 1) for each in values] for way, values in found.items()}
    kinds = [str(kind) for kind in KINDS]
    return {
        "budgets": list(BUDGETS),
        "turns": options.turns,
        "conversations": kinds,
        "unchanged_percent": unchanged,
    }


# --- faults ---


def faults(options: Options) -> Mapping[str, Any]:
    """Run proofs one after the other, and keep what each counted."""
    return {"proofs": [_proof(name, size) for name, size in PROOFS.items()]}


def _proof(name: str, size: int) -> dict[str, Any]:
    print(name, file=sys.stderr)
    done = subprocess.run(
        [sys.executable, "-m", "proofs", name, "--json", f"--size={size}", f"--seed={_SEED}"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    return json.loads(done.stdout)


# --- writing ---

FIGURES: Mapping[str, Callable[[Options], Mapping[str, Any]]] = {
    "locomo": evidence(locomo, (500, 1000, 2000, 4000)),
    "beam": evidence(beam, (2000, 4000, 8000)),
    "cost": cost,
    "prefix": prefix,
    "faults": faults,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and write a file for each figure."""
    parser = argparse.ArgumentParser(prog="python -m bench.figures", description=__doc__)
    parser.add_argument("names", nargs="+", choices=[*FIGURES], metavar="NAME")
    parser.add_argument("--data", type=Path, help="the folder of LoCoMo and BEAM-100K")
    parser.add_argument("--turns", type=int, default=TURNS, help="prefix: turns of a conversation")
    options = parser.parse_args(arguments)
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in options.names:
        record = {
            "figure": name,
            "command": f"python -m bench.figures {name}",
            "machine": f"{processor()}, {os.cpu_count()} CPUs, {platform.system()}",
            "load": round(os.getloadavg()[0], 1),
            "python": platform.python_version(),
            "commit": commit(),
            "date": datetime.now(UTC).date().isoformat(),
            **FIGURES[name](Options(options.data, options.turns)),
        }
        path = FOLDER / f"{name}.json"
        path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
