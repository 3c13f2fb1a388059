"""P13: hostile input is stored exactly or refused with an error of ours, alike on all backends.

First the published cases, on each store; then random input, half of it wrong, to two stores side
by side: every answer, every refusal and every log must be the same.
"""

import asyncio
import itertools
import math
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from keepthread.errors import KeepthreadError
from keepthread.protocols import Store
from keepthread.stores.ram import RamStore
from keepthread.testing.hostile import CASES, try_hostile
from keepthread.types import (
    Attachment,
    Message,
    Native,
    Scope,
    SessionInfo,
    SessionKey,
    ToolCall,
)
from proofs import Outcome, Progress, Proof
from proofs.places import file_url, new_place, opened

PER_SESSION = 150
NOW = 1_700_000_000.25


def run(size: int, seed: int, progress: Progress) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(try_all(file_url(Path(folder) / "hostile.db"), size, seed, progress))


def run_on(kind: str, size: int, seed: int, progress: Progress) -> Outcome:
    with new_place(kind) as place:
        return asyncio.run(try_all(place.url, size, seed, progress))


async def try_all(url: str, size: int, seed: int, progress: Progress) -> Outcome:
    """Try the cases and the random input on a store, against the one in memory."""
    figures: Counter[str] = Counter({"fuzzed differing": 0})
    broken: list[str] = []
    ids = _Ids()
    async with _stores(url, ids) as stores:
        await _try_cases(stores, figures, broken)
        rng = random.Random(seed)
        for start in range(0, size, PER_SESSION):
            numbers = range(start, min(size, start + PER_SESSION))
            await _fuzz(stores, ids, numbers, rng, figures, broken)
            progress(numbers.stop, size)
        if not all([(await store.verify()).sound for store in stores]):
            broken.append("verify finds damage")
    return Outcome(figures=figures, broken=tuple(broken))


class _Ids:
    """Ids that say which call they were made for, so that every store gives the same."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._call = 0

    def begin(self, call: int) -> None:
        self._call, self._numbers = call, itertools.count()

    def __call__(self) -> str:
        return f"{self._call:020x}{next(self._numbers):012x}"


@asynccontextmanager
async def _stores(url: str, ids: _Ids) -> AsyncIterator[list[Store]]:
    """Open the store in memory and the one held against it; their clocks stand still."""
    ram = RamStore(clock=lambda: NOW, ids=ids)
    async with ram, opened(url, durability="process", clock=lambda: NOW, ids=ids) as other:
        yield [ram, other]


# --- the published cases ---


async def _try_cases(stores: list[Store], figures: Counter[str], broken: list[str]) -> None:
    for case in CASES:
        outcomes = [await _outcome(try_hostile(store, case)) for store in stores]
        figures["cases"] += 1
        figures["cases stored exactly"] += case.verdict == "stored exactly"
        figures["cases refused"] += case.verdict.startswith("refused")
        figures["cases differing"] += len(set(outcomes)) > 1
        for store, outcome in zip(stores, outcomes, strict=True):
            if outcome != case.verdict:
                kind = type(store).__name__
                broken.append(f"{case.name}: {kind} says {outcome!r}, not {case.verdict!r}")


async def _outcome(attempt: Any) -> Any:
    """Return what an attempt returns, or the kind of error it ends with."""
    try:
        return await attempt
    except KeepthreadError as error:
        return f"refused: {type(error).__name__}"
    except Exception as error:  # noqa: BLE001 - an error that is not ours is what we look for
        return f"broke: {error!r:.200}"


# --- the fuzzer ---


async def _fuzz(
    stores: list[Store],
    ids: _Ids,
    numbers: range,
    rng: random.Random,
    figures: Counter[str],
    broken: list[str],
) -> None:
    """Give a new session of each store the same inputs, and compare all there is to see."""
    info = SessionInfo(id=f"fuzz:{numbers.start}")
    keys = [(await store.put_session(info)).key for store in stores]
    for number in numbers:
        method, seed = _method(rng), rng.getrandbits(64)
        answers: list[Any] = []
        for store, key in zip(stores, keys, strict=True):
            ids.begin(number)
            answers.append(await _outcome(_call(store, key, method, random.Random(seed))))
        figures["fuzzed"] += 1
        figures["fuzzed refused"] += str(answers[0]).startswith("refused")
        _compare(f"input {number}, {method}", answers, figures, broken)
    logs = [await s.read(k, limit=1_000_000) for s, k in zip(stores, keys, strict=True)]
    figures["fuzzed messages stored"] += len(logs[0])
    _compare(f"the log of inputs {numbers}", logs, figures, broken)


def _method(rng: random.Random) -> str:
    return rng.choices(("append", "session", "record", "erase", "tail"), (80, 6, 6, 4, 4))[0]


async def _call(store: Store, key: SessionKey, method: str, rng: random.Random) -> Any:
    if method == "append":
        batch = [_message(rng) for _ in range(rng.choice((1, 1, 1, 2, 5)))]
        return await store.append(
            key, batch, expect=_seldom(rng, _number), turn=_seldom(rng, _number)
        )
    if method == "session":
        return await _put_session(store, rng)
    if method == "record":
        scope = Scope(session=key)
        kind, name = _id(rng), _id(rng)
        await store.put(scope, kind, name, _json(rng, 0))
        record = await store.get(scope, kind, name)
        return record and repr(record.value)
    if method == "erase":
        return await store.erase(key, [_number(rng)])
    return await store.tail(key, tokens=_seldom(rng, _number), limit=rng.randint(0, 20))


async def _put_session(store: Store, rng: random.Random) -> Any:
    """Make a session, look at it and take it away again; keys may differ between stores."""
    made = await store.put_session(
        SessionInfo(
            id=_id(rng),
            owner=_id(rng),
            title=_text(rng),
            tags=_seldom(rng, lambda r: [_text(r)]) or (),
            system_prompt=_seldom(rng, _text),
            meta=_meta(rng),
            parent=_seldom(rng, _id),
        )
    )
    found = await store.get_session(made.id, made.owner)
    await store.delete_session(made.key)
    return found == made, repr((made.id, made.owner, made.title, made.tags, made.meta, made.parent))


def _compare(what: str, answers: list[Any], figures: Counter[str], broken: list[str]) -> None:
    one, other = (repr(answer) for answer in answers)
    if one != other or str(answers[0]).startswith("broke"):
        figures["fuzzed differing"] += 1
        pairs = enumerate(zip(one, other, strict=False))
        start = next((at for at, (a, b) in pairs if a != b), 0)
        near = slice(max(0, start - 40), start + 80)
        broken.append(f"{what}: {one[near]!a} against {other[near]!a}")


# --- random input ---

ALPHABETS = (
    "abc def\n",
    "\x00\x01\x1f\x7f\x85\u2028",
    "\ud800\udbff\udc00\udfff",
    "\U0001f600\U0010ffff\ufeff\ufffe",
    "\u202e\u0301\u00e9\u4e2d\u0e01",
    "'\"\\;%_-/<|>{}[]",
)
STRANGE: tuple[Callable[[], Any], ...] = (
    lambda: math.nan,
    lambda: math.inf,
    lambda: (1, 2),
    lambda: {1},
    lambda: b"x",
    object,
    lambda: {1: 2},
    lambda: 10**4500,
)


def _seldom(rng: random.Random, make: Callable[[random.Random], Any]) -> Any:
    return make(rng) if rng.random() < 0.15 else None


def _text(rng: random.Random) -> Any:
    if rng.random() < 0.02:
        return rng.choice((None, b"bytes", 5, ("text",)))
    letters = "".join(rng.sample(ALPHABETS, 2))
    return "".join(rng.choices(letters, k=int(rng.expovariate(0.05))))


def _id(rng: random.Random) -> Any:
    """Return an id that was likely used before, or a strange one."""
    if rng.random() < 0.1:
        return _text(rng)
    form = rng.choice(("id {}", "{:015}", "{:016}", "{:032}", "{:032x}", "{:032X}", "é{}"))
    return form.format(rng.randrange(40) + 0xABC000)


def _number(rng: random.Random) -> Any:
    if rng.random() < 0.2:
        return rng.choice((-1, True, 0.5, 2**53, 2**64, "1"))
    return rng.randrange(40)


def _json(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(8 if depth < 4 else 6)
    if rng.random() < 0.01:
        return rng.choice(STRANGE)()
    if kind < 6:
        return (
            None,
            rng.random() < 0.5,
            rng.choice((0, -1, 2**53 + 1, 2**80)),
            rng.choice((0.0, -0.0, 1.0, 5e-324, 1e308, rng.random())),
            _text(rng),
            _nested(rng.choice((1, 2, 60, 70))),
        )[kind]
    if kind == 6:
        return [_json(rng, depth + 1) for _ in range(rng.randrange(4))]
    return _meta(rng, depth + 1)


def _meta(rng: random.Random, depth: int = 1) -> Any:
    return {_text(rng): _json(rng, depth) for _ in range(rng.randrange(3))}


def _nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def _message(rng: random.Random) -> Message:
    fields: dict[str, Any] = {
        "role": rng.choice(("system", "user", "user", "assistant", "tool")),
        "content": _text(rng),
    }
    makers: dict[str, Callable[[random.Random], Any]] = {
        "role": lambda r: (
            r.choice(("user", "User", None, ["user"])) if r.random() < 0.1 else "tool"
        ),
        "id": _id,
        "tool_calls": lambda r: [
            ToolCall(id=_text(r), name=_text(r), arguments=_text(r)) for _ in range(r.randrange(4))
        ],
        "tool_call_id": _text,
        "name": _text,
        "author": _id,
        "origin": lambda r: r.choice(("operator", "user", "web", "import", "god")),
        "source": _text,
        "attachments": lambda r: [Attachment(media_type=_text(r), name=_text(r), uri=_text(r))],
        "native": lambda r: Native(wire="anthropic", items=[_json(r, 0)]),
        "meta": _meta,
        "tokens": _number,
        "counter": _id,
        "created_at": lambda r: r.choice((0.0, 1, 1e9, 2**60, r.random(), -1.0, math.nan)),
    }
    for field, make in makers.items():
        if rng.random() < 0.2:
            fields[field] = make(rng)
    return Message(**fields)


PROOF = Proof(
    name="P13",
    promise="hostile input is stored exactly or refused with our own error, alike on all backends",
    unit="fuzzed inputs beyond the cases",
    small=100,
    closing=3000,
    long=1_000_000,
    run=run,
    on={kind: partial(run_on, kind) for kind in ("postgres", "redis", "cluster")},
)
