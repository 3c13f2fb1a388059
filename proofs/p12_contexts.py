"""P12: whatever a history holds, a provider takes the context, and it is within its budget.

Histories are written through the public surface, from a seed: turns with tools in parallel and out
of order, broken off, abandoned and interleaved; hostile ids, names, arguments and texts; providers'
own items; pins, clears, rewinds, forks, erasures, damage and changed counters. Contexts of many
budgets are then held against the providers' rules, and counted again as they would be sent.
"""

import asyncio
import hashlib
import json
import multiprocessing
import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from keepthread import (
    Context,
    Memory,
    Message,
    Turn,
    Window,
)
from keepthread.context.window import CONTEXT_FRAME
from keepthread.errors import BudgetTooSmall
from keepthread.types import Scope
from proofs import Outcome, Progress, Proof
from proofs.histories import VIEWS, WINDOWS, Estimate, Exact, History, counters, prose
from tests.validators import anthropic, openai_chat, openai_responses

PER_HISTORY: Final = 2
PER_BATCH: Final = 400
ALONE: Final = 20_000
"""Sizes up to this one run in one process."""
CHAT_MESSAGE: Final = 3
"""What OpenAI documents for every message beside its fields, and once for the reply."""

Random = random.Random


# --- one context, checked ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A context that was asked for, and what is known of the session it came from."""

    budget: int
    window: Window
    newest: bool
    log: Sequence[Message]
    hidden: Sequence[tuple[int, int]]
    pinned: frozenset[str]
    system_tokens: int
    turn: Turn | None
    counter: "Exact | Estimate"

    def visible(self) -> list[Message]:
        spans = self.hidden
        return [m for m in self.log if not any(first <= m.seq <= last for first, last in spans)]

    def user(self) -> Message | None:
        """Return the user message that a model is to answer."""
        users = [m for m in self.visible() if m.role == "user" and m.state == "live"]
        if self.turn and (own := [m for m in users if m.seq == self.turn.user.seq]):
            return own[0]
        return users[-1] if users else None


def faults(context: Context, asked: Asked) -> Iterator[tuple[str, str]]:
    """Yield every way in which a context is not what was promised: a figure, and the details."""
    chat, responses = context.to_openai_chat(), context.to_openai_responses()
    claude = context.to_anthropic()
    yield from _undercounts(context, asked, chat, responses, claude)
    if not asked.newest or not _speaks(context):
        _place_newest(chat, responses, claude)
    for wire, check, request in (
        ("openai-chat", openai_chat.check, chat),
        ("openai-responses", openai_responses.check, responses),
        ("anthropic", anthropic.check, claude),
    ):
        yield from ((f"invalid for {wire}", problem) for problem in check(request))
    yield from _over_budget(context, asked)
    yield from _newest(context, asked, chat)
    yield from _parted(context.messages)
    yield from _unaccounted(context, asked)


def _speaks(context: Context) -> bool:
    """Tell whether anybody but the operator says anything."""
    return any(m.role != "system" or m.origin != "operator" for m in context.messages)


def _place_newest(chat: Any, responses: Any, claude: Any) -> None:
    """Put the newest message where callers put it who place it themselves."""
    said = {"role": "user", "content": "And now?"}
    chat["messages"].append(said)
    responses["input"].append(said)
    block = {"type": "text", "text": "And now?"}
    if claude["messages"] and claude["messages"][-1]["role"] == "user":
        claude["messages"][-1]["content"].append(block)
    else:
        claude["messages"].append({"role": "user", "content": [block]})


def _undercounts(
    context: Context, asked: Asked, chat: Any, responses: Any, claude: Any
) -> Iterator[tuple[str, str]]:
    measure = asked.counter.measure
    framed = CHAT_MESSAGE * (len(chat["messages"]) + 1)
    for form, size in (
        ("text", measure(context.text) + measure(context.system)),
        ("openai-chat", framed + sum(map(measure, leaves(chat)))),
        ("openai-responses", sum(map(measure, leaves(responses)))),
        ("anthropic", sum(map(measure, leaves(claude)))),
    ):
        if size > context.tokens:
            yield "under-counted", f"{form} takes {size} tokens, not {context.tokens}"


def leaves(value: Any, key: str = "") -> Iterator[str]:
    """Yield every text that is sent; pictures have a price of their own."""
    if isinstance(value, str):
        if key not in ("image_url", "url", "data"):
            yield value
    elif key == "input" and isinstance(value, dict):
        yield json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from leaves(inner)


def _over_budget(context: Context, asked: Asked) -> Iterator[tuple[str, str]]:
    if context.tokens <= asked.budget:
        return
    user = asked.user()
    rest = context.tokens - max((m.tokens for m in context.messages if m.role == "user"), default=0)
    if asked.window.overflow != "keep" or user is None or rest > asked.budget:
        yield "over budget", f"{context.tokens} tokens, and the budget is {asked.budget}"


def _newest(context: Context, asked: Asked, chat: Any) -> Iterator[tuple[str, str]]:
    user = asked.user()
    if user is None:
        return
    shown = [m for m in context.messages if m.seq == user.seq]
    if not asked.newest:
        if shown:
            yield "newest not left out", f"position {user.seq} is shown"
    elif len(shown) != 1:
        yield "newest missing", f"position {user.seq} is shown {len(shown)} times"
    elif shown[0].content != user.content:
        if "characters left out …]" not in shown[0].content:
            yield "newest missing", f"position {user.seq} is not what was said"
    elif user.content.isprintable() and not any(user.content in said for said in leaves(chat)):
        yield "newest missing", f"position {user.seq} is not on the wire"


def _parted(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Hold every call against the results behind it."""
    waiting: list[str] = []
    for message in messages:
        if message.state != "live":
            yield "parted", f"position {message.seq} is {message.state}"
        if waiting:
            id = waiting.pop(0)
            if message.role != "tool" or message.tool_call_id != id:
                yield "parted", f"call {id!r} has no result behind it"
        elif message.role == "tool":
            yield "parted", f"result {message.tool_call_id!r} has no call before it"
        elif message.role == "assistant":
            waiting = [c.id for c in message.tool_calls]
    if waiting:
        yield "parted", f"calls {waiting} have no results"


def _unaccounted(context: Context, asked: Asked) -> Iterator[tuple[str, str]]:
    """Hold `why` against the log: every visible position is shown or left out, and once."""
    shown = {m.seq for m in context.messages if m.seq}
    user = asked.user()
    spared = user.seq if user and not asked.newest else 0
    seen, gone = context.why.shown, context.why.left_out
    hidden = [c for c in gone if (c.first, c.last) in asked.hidden]
    gone = tuple(c for c in gone if c not in hidden)
    for message in asked.visible():
        seq = message.seq
        times = sum(c.first <= seq <= c.last for c in seen)
        if times != (seq in shown):
            yield "unaccounted", f"position {seq} is said to be shown {times} times"
        if seq not in shown and seq != spared and not any(c.first <= seq <= c.last for c in gone):
            yield "unaccounted", f"position {seq} is not shown and not left out"
    counted = sum(c.messages for c in seen if c.section in ("window", "newest"))
    counted += sum(c.messages for c in gone if not c.reason.startswith("pinned"))
    if counted != len(asked.visible()) - bool(spared):
        yield "unaccounted", f"{counted} of {len(asked.visible())} visible messages"
    if context.tokens != sum(c.tokens for c in seen) + context.why.sections["frame"]:
        yield "unaccounted", "the sections do not add up"
    older = max((c.last for c in gone if c.reason == "older than the window"), default=0)
    newer = sum(m.seq > older for m in asked.log)
    if len(context.why.choices) > 4 + newer + len(asked.hidden) + 2 * len(asked.pinned):
        yield "unaccounted", f"{len(context.why.choices)} lines for {newer} newer messages"


def needless(refusal: BudgetTooSmall, asked: Asked) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a refusal: it names both numbers, and nothing would have fitted."""
    numbers = [int(number) for number in re.findall(r"\d+", str(refusal))]
    if len(numbers) < 2 or asked.budget not in numbers:
        yield "refused without numbers", str(refusal)
    room = asked.budget - CONTEXT_FRAME - asked.system_tokens
    user = asked.user() if asked.newest else None
    least = 1 if user is None else asked.counter.count(_least(user, asked.window))
    pins = 0.75 if asked.pinned else 1
    if int(room * pins) >= least:
        yield "refused needlessly", f"{refusal}; {least} would do"


def _least(user: Message, window: Window) -> Message:
    if window.overflow != "trim":
        return user
    size = len(user.content)
    content = user.content
    if size > 16:
        content = content[:8] + f"\n[… {size - 16:,} characters left out …]\n" + content[-8:]
    return replace(user, content=content, native=None, attachments=())


# --- many of them ---


@dataclass(slots=True)
class Tally:
    """What a run saw."""

    figures: Counter[str] = field(default_factory=Counter[str])
    histories: set[bytes] = field(default_factory=set[bytes])
    broken: list[str] = field(default_factory=list[str])

    def add(self, other: "Tally") -> None:
        self.figures += other.figures
        self.histories |= other.histories
        self.broken += other.broken[:100]


async def _write(rng: Random, name: str) -> History:
    """Write a history; its ids come from the seed as well."""
    memory = await Memory.open(
        "ram://",
        views=VIEWS,
        counter=rng.choices(counters(), (7, 3))[0],
        clock=lambda: 1_700_000_000.0,
        ids=lambda: f"{rng.getrandbits(128):032x}",
    )
    prompt = rng.choice((None, None, "", " ", "Be brief.", prose(rng, 40), "Be\0 \ud800brief"))
    history = History(rng, memory, await memory.session(name, system_prompt=prompt))
    await history.write(rng.choice((1, 2, 3, 5, 8, 13)))
    return history


async def _look(history: History, tally: Tally, name: str) -> None:
    """Ask for a few contexts of one history and check each."""
    rng, session, store = history.rng, history.session, history.memory.store
    log = await history.log()
    scope = Scope(session=session.key)
    marks = await store.get(scope, "marks", "marks")
    spans: Any = marks.value if marks else []
    pins = frozenset(record.key for record in await store.scan(scope, "pin"))
    tally.histories.add(_digest(log, spans, pins, session.info.system_prompt))
    counter: Any = history.memory.counter
    prompt = session.info.system_prompt
    known = {
        "log": log,
        "hidden": [(span["first"], span["last"]) for span in spans],
        "pinned": pins,
        "system_tokens": counter.count(Message(role="system", content=prompt)) if prompt else 0,
        "counter": counter,
    }
    for _ in range(PER_HISTORY):
        number = rng.randrange(len(WINDOWS))
        asked = Asked(
            budget=_budget(rng),
            window=WINDOWS[number],
            newest=rng.random() < 0.9,
            turn=rng.choice(history.open_turns)
            if history.open_turns and rng.random() < 0.5
            else None,
            **known,
        )
        ask = (asked.turn or session).context
        try:
            context = await ask(f"window {number}", budget=asked.budget, newest=asked.newest)
        except BudgetTooSmall as refusal:
            tally.figures["budgets refused"] += 1
            found = list(needless(refusal, asked))
        else:
            tally.figures["contexts"] += 1
            found = list(faults(context, asked))
        for figure in {figure for figure, _ in found}:
            tally.figures[figure] += 1
        where = f"{name}, budget {asked.budget}, {asked.window}, newest={asked.newest}"
        tally.broken += [f"{where}: {figure}: {what}"[:600] for figure, what in found[:3]]


def _budget(rng: Random) -> int:
    """Return a budget: any size up to 32k, small ones as likely as large ones."""
    return int(2 ** rng.uniform(4, 15))


def _digest(log: Sequence[Message], spans: Any, pins: frozenset[str], prompt: str | None) -> bytes:
    """Return what tells one history from another; ids and times do not."""
    bodies = [
        (
            m.role,
            m.content,
            m.tool_calls,
            m.tool_call_id,
            m.name,
            m.author,
            m.origin,
            m.attachments,
            m.native,
            m.exchange,
            m.counter,
            m.state,
        )
        for m in log
    ]
    pinned = [m.seq for m in log if m.id in pins]
    return hashlib.sha256(repr((bodies, spans, pinned, prompt)).encode()).digest()[:12]


async def _batch(seed: int, batch: int, wanted: int, progress: Progress | None) -> Tally:
    tally = Tally()
    number = 0
    while tally.figures["contexts"] < wanted:
        name = f"history {batch}/{number}"
        history = await _write(Random(f"{seed} {name}"), name)
        await _look(history, tally, name)
        number += 1
        if progress:
            progress(min(tally.figures["contexts"], wanted), wanted)
    return tally


def work(task: tuple[int, int, int]) -> Tally:
    """Do one batch in a process of its own."""
    return asyncio.run(_batch(*task, None))


def run(size: int, seed: int, progress: Progress) -> Outcome:
    tally = Tally()
    if size <= ALONE:
        tally = asyncio.run(_batch(seed, 0, size, progress))
    else:
        sizes = [min(PER_BATCH, size - start) for start in range(0, size, PER_BATCH)]
        tasks = [(seed, batch, wanted) for batch, wanted in enumerate(sizes)]
        with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
            for done in pool.imap_unordered(work, tasks):
                tally.add(done)
                progress(min(tally.figures["contexts"], size), size)
    names = (
        "contexts",
        "distinct histories",
        "invalid for openai-chat",
        "invalid for openai-responses",
        "invalid for anthropic",
        "over budget",
        "under-counted",
        "newest missing",
        "newest not left out",
        "parted",
        "unaccounted",
        "budgets refused",
        "refused without numbers",
        "refused needlessly",
    )
    tally.figures["distinct histories"] = len(tally.histories)
    if 2 * len(tally.histories) < size:
        tally.broken.append(f"only {len(tally.histories)} distinct histories")
    figures = {name: tally.figures[name] for name in names}
    counted = " and ".join(counter.name for counter in counters())
    return Outcome(figures={**figures, "counters": counted}, broken=tuple(tally.broken))


PROOF: Final = Proof(
    name="P12",
    promise="a provider never rejects the context",
    unit="contexts",
    small=300,
    closing=5_000,
    long=500_000,
    run=run,
)
