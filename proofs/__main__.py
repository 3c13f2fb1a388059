"""`python -m proofs NAME [--on BACKEND] [--long] [--size N] [--seed N] [--json]`: try one."""

import argparse
import importlib
import json
import pkgutil
import secrets
import sys
import time

import proofs
from proofs import Proof, Run


def all_proofs() -> dict[str, Proof]:
    """Return every proof by its name."""
    names = [module.name for module in pkgutil.iter_modules(proofs.__path__)]
    modules = [
        importlib.import_module(f"proofs.{n}")
        for n in names
        if n.startswith("p") and n[1:3].isdigit()
    ]
    found: list[Proof] = [module.PROOF for module in modules]
    return {proof.name: proof for proof in found}


def main() -> int:
    """Run one proof; list them when none is named."""
    parser = argparse.ArgumentParser(prog="python -m proofs", description=__doc__)
    parser.add_argument("name", nargs="?", help="P1, P2, …; none lists them")
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--long", action="store_true", help="run at length")
    size.add_argument("--size", type=int, help="run at any size")
    parser.add_argument("--on", help="the backend, where there are several: postgres, redis, …")
    parser.add_argument("--seed", type=int, help="replay a run")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    known = all_proofs()
    if options.name is None:
        for proof in sorted(known.values(), key=lambda p: int(p.name[1:])):
            sizes = f"{proof.closing:,} {proof.unit}; {proof.long:,} --long"
            places = f"; --on {', '.join(proof.on)}" if proof.on else ""
            print(f"{proof.name:4} {proof.promise} ({sizes}{places})")
        return 0
    proof = known.get(options.name.upper())
    if proof is None:
        parser.error(f"there is no proof {options.name}; there are {', '.join(known)}")
    if options.on is not None and options.on not in proof.on:
        known_places = ", ".join(proof.on) or "none"
        parser.error(f"{proof.name} does not run on {options.on}; --on takes: {known_places}")
    run = proof.on[options.on] if options.on else proof.run
    chosen = options.size or (proof.long if options.long else proof.closing)
    seed = secrets.randbits(32) if options.seed is None else options.seed
    where = options.on or ""
    return _run(proof, run, where, chosen, seed, as_json=options.json)


def _run(proof: Proof, run: Run, where: str, size: int, seed: int, *, as_json: bool) -> int:
    name = f"{proof.name} on {where}" if where else proof.name
    if not as_json:
        print(f"{name}: {proof.promise}\n{size:,} {proof.unit}, seed {seed}", flush=True)
    start = time.monotonic()
    outcome = run(size, seed, _silent if as_json else _show)
    seconds = round(time.monotonic() - start, 1)
    if as_json:
        row = {
            "name": name,
            "size": size,
            "seed": seed,
            "seconds": seconds,
            "held": outcome.held,
        }
        print(json.dumps(row | {"figures": dict(outcome.figures), "broken": list(outcome.broken)}))
        return 0 if outcome.held else 1
    for what, figure in outcome.figures.items():
        print(f"  {what}: {figure:,}" if isinstance(figure, int) else f"  {what}: {figure}")
    for line in outcome.broken[:20]:
        print(f"  BROKEN: {line}")
    verdict = "held" if outcome.held else f"BROKEN, seed {seed}"
    print(f"{name} {verdict} in {seconds} s")
    return 0 if outcome.held else 1


def _show(done: int, of: int) -> None:
    if sys.stderr.isatty():
        print(
            f"\r  {done:,} of {of:,}", end="\n" if done >= of else "", file=sys.stderr, flush=True
        )


def _silent(done: int, of: int) -> None:
    pass


if __name__ == "__main__":
    sys.exit(main())
