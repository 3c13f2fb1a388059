"""`python -m bench NAME [--quick] [--json] [--rounds N] [--dir PATH]`: measure, and judge."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import ENOUGH_ROUNDS, Benchmark, Run
from bench.cache import BENCHMARK as CACHE
from bench.chat import BENCHMARK as CHAT
from bench.context import BENCHMARK as CONTEXT
from bench.everyday import BENCHMARK as EVERYDAY
from bench.everyday.halves import HALVES
from bench.growth import BENCHMARK as GROWTH
from bench.http import BENCHMARK as HTTP
from bench.languages import BENCHMARK as LANGUAGES
from bench.orchestrator import BENCHMARK as ORCHESTRATOR
from bench.places import folders
from bench.postgres import BENCHMARK as POSTGRES
from bench.prefix import BENCHMARK as PREFIX
from bench.process_memory import BENCHMARK as MEMORY
from bench.proxy import BENCHMARK as PROXY
from bench.recall import BENCHMARK as RECALL
from bench.redis import BENCHMARK as REDIS
from bench.report import as_json, as_table, status
from bench.search import BENCHMARK as SEARCH
from bench.speed import BENCHMARK as SPEED

BENCHMARKS: Mapping[str, Benchmark] = {
    each.name: each
    for each in (
        SPEED,
        CONTEXT,
        PREFIX,
        CACHE,
        SEARCH,
        RECALL,
        LANGUAGES,
        EVERYDAY,
        ORCHESTRATOR,
        POSTGRES,
        REDIS,
        HTTP,
        PROXY,
        GROWTH,
        CHAT,
        MEMORY,
    )
}
QUICK_ROUNDS = 1


def main(
    arguments: Sequence[str] | None = None, known: Mapping[str, Benchmark] = BENCHMARKS
) -> int:
    """Run one benchmark and print it; return 1 if a bar does not hold."""
    names = "; ".join(f"{each.name}: {each.about}" for each in known.values())
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("name", help=names)
    parser.add_argument("--quick", action="store_true", help="a small run that judges nothing")
    parser.add_argument("--json", action="store_true", help="print a list of rows")
    parser.add_argument("--rounds", type=_positive, help=f"{ENOUGH_ROUNDS} or more are judged")
    parser.add_argument("--dir", type=Path, help="a folder on the disk to measure")
    parser.add_argument(
        "--data", type=Path, help="recall, everyday: the folder of LoCoMo and BEAM-100K"
    )
    parser.add_argument("--model", type=Path, help="recall: the folder of a model that embeds")
    parser.add_argument("--store", help="recall, everyday: the URL of a store, instead of a file")
    parser.add_argument("--half", choices=(*HALVES, "both"), default="both", help="everyday")
    parser.add_argument("--only", help="growth: OPERATION/DIMENSION/STORE, each with * and ?")
    options = parser.parse_args(arguments)
    benchmark = known.get(options.name)
    if benchmark is None:
        parser.error(f"there is no benchmark {options.name}; there are: {', '.join(known)}")
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ENOUGH_ROUNDS)
    with folders(options.dir) as (memory, disk):
        run = Run(
            quick=options.quick,
            rounds=rounds,
            memory=memory,
            disk=disk,
            progress=_progress,
            data=options.data,
            model=options.model,
            store=options.store,
            only=options.only,
            half=options.half,
        )
        report = benchmark.measure(run)
    _progress("")
    print(as_json(report, run) if options.json else as_table(benchmark, report, run))
    return status(report, run)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least one round is needed")
    return number


def _progress(step: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{step}", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
