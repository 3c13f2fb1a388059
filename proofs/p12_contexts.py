"""P12: whatever a history holds, a provider takes the context, and it is within its budget.

Histories are written through the public surface, from a seed: turns with tools in parallel and out
of order, broken off, abandoned and interleaved; steps that sub-agents work on; system messages of
the operator and of others; hostile ids, names, arguments and texts; providers' own items; notes,
remembered results, and summaries by a model that answers well, badly or not at all; compactions
that die in the middle; pins, clears, rewinds, forks, erasures, damage and changed counters.
Contexts of every strategy and many budgets are then held against the providers' rules, counted
again as they would be sent, and searched for what was erased or hidden.
"""

import asyncio
import hashlib
import json
import os
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from keepthread import Context, Message, Turn, Window
from keepthread.context.quoting import sendable
from keepthread.errors import BudgetTooSmall
from keepthread.testing.wires import anthropic, openai_chat, openai_responses
from keepthread.types import Choice, Scope, SessionKey
from proofs import Outcome, Progress, Proof
from proofs.histories import Estimate, Exact, History, counters, marks_in
from proofs.laws import (
    FRAME,
    NO_RESULT,
    PAST,
    Log,
    Rules,
    Start,
    blocks_of,
    claimed,
    given,
    oldest_that_fit,
    start_of,
    wrong_results,
    wrong_start,
)
from proofs.processes import fresh_processes
from proofs.views import STRATEGIES

PER_HISTORY: Final = 2
PER_BATCH: Final = 400
ALONE: Final = 20_000
"""Sizes up to this one run in one process."""
CHAT_MESSAGE: Final = 3
"""What OpenAI documents for every message beside its fields, and once for the reply."""
BESIDE: Final = ("pins", "notes", "important", "tools")
"""Sections beside the window; the log is parted among them, the window and what is left out."""
OLDER: Final = ("older than the window", "one line per turn", "covered by the summary")
ORDER: Final = "an operator's system message"
MOST_ORDERS: Final = 32
NOT_SHOWN_BESIDE: Final = (ORDER, "pinned", "a note, but", "important", "cached")
"""How the reasons begin of what was left out of them."""
DOES_NOT_FIT: Final = "does not fit"
QUOTED: Final = frozenset({"facts", "summary", "recalled"})
QUOTED_LINE: Final = re.compile(">")
RECALLED_LINE: Final = re.compile(r"\d{4}-\d\d-\d\d$|  |… |[^:]*: ?")
"""A day, what goes on, another piece, or who says it."""
TEMPLATES: Final = re.compile(
    r"<\|?(?:im_start|im_end|endoftext|/?s|start_of_turn)\|?>|\[/?INST\]", re.IGNORECASE
)

Random = random.Random


# --- one context, checked ---


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A context that was asked for, and what is known of the session it came from."""

    budget: int
    strategy: Window
    newest: bool
    log: Sequence[Message]
    hidden: Sequence[tuple[int, int]]
    beside: int
    """How many pins, notes and remembered results there are."""
    delimiter: str
    system_tokens: int
    turn: Turn | None
    counter: "Exact | Estimate"
    marks: frozenset[str]
    """Marks that nobody hid or erased."""
    rules: Rules
    pinned: frozenset[int] = frozenset()
    noted: frozenset[int] = frozenset()
    ordered: frozenset[int] = frozenset()
    """Positions that pins, notes and records of system messages name."""
    has_facts: bool = False

    def present(self) -> frozenset[str]:
        """Return the sections that have something to show, used or not."""
        passed = self.passed()
        live = {m.seq for m in self.visible() if m.state == "live" and m.seq != passed}
        found = {"summary", "important", "tools", "recalled"}
        found |= {"system"} if live & self.ordered else set()
        found |= {"pins"} if live & self.pinned else set()
        found |= {"notes"} if live & self.noted - self.ended() else set()
        return frozenset(found | ({"facts"} if self.has_facts else set()))

    def ended(self) -> frozenset[int]:
        """Return the positions of notes that hold no longer."""
        user, visible = self.user(), self.visible()
        turn = user.turn if user else max([m.turn for m in visible[-1:]], default=0)
        return frozenset(
            m.seq
            for m in self.log
            if m.role == "system" and (m.source or "").startswith("note:")
            if isinstance(until := m.meta.get("until"), int) and until < turn
        )

    def orders(self) -> list[Message]:
        """Return the system messages that every context shows, as they are counted now."""
        passed, recounted = self.passed(), self.recounted()
        live = [m for m in self.visible() if m.state == "live" and m.seq != passed]
        kept = [m for m in live if m.seq in self.ordered]
        return [replace(m, tokens=recounted.get(m.seq, m.tokens)) for m in kept]

    def under(self) -> Rules:
        """Return the rules for this budget, with the claims of system messages."""
        rules = self.rules.at(self.budget)
        tokens = sum(m.tokens for m in self.orders())
        limits = claimed(rules.limits, self.present(), self.room, tokens)
        return replace(rules, limits=limits)

    def passed(self) -> int:
        """Return the position that is to be left out, or 0."""
        user = self.user()
        return user.seq if user and not self.newest else 0

    def visible(self) -> list[Message]:
        return _outside(self.log, self.hidden)

    @property
    def room(self) -> int:
        """Return what the system prompt leaves."""
        return self.budget - FRAME - self.system_tokens

    def missing(self, call: Message, index: int) -> int:
        """Return what the stand-in costs for a result that a call lacks."""
        wish = call.tool_calls[index]
        blank = Message(role="tool", content=NO_RESULT, tool_call_id=wish.id, name=wish.name)
        return self.counter.count(replace(blank, origin="tool"))

    def recounted(self) -> dict[int, int]:
        """Return what messages cost that another counter counted."""
        counter = self.counter
        foreign = (m for m in self.visible() if m.state == "live" and m.counter != counter.name)
        return {m.seq: counter.count(m) for m in foreign}

    def user(self) -> Message | None:
        """Return the user message that a model is to answer: a turn's own, be it hidden."""
        users = [m for m in self.visible() if m.role == "user" and m.state == "live"]
        if self.turn and (own := [m for m in users if m.seq == self.turn.user.seq]):
            return own[0]
        return users[-1] if users else None


def faults(context: Context, asked: Asked) -> Iterator[tuple[str, str]]:
    """Yield every way in which a context is not what was promised: a figure, and the details."""
    chat, responses = context.to_openai_chat(), context.to_openai_responses()
    claude = context.to_anthropic()
    yield from _undercounts(context, asked, chat, responses, claude)
    yield from _returned(context, asked, (chat, responses, claude))
    yield from _ordering(context, asked, chat, responses, claude)
    yield from _undelimited(context, asked, (chat, responses, claude))
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
    yield from _out_of_step(context, asked)
    yield from _unaccounted(context, asked)
    yield from _greedy(context, asked)


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
    if asked.strategy.overflow != "keep" or user is None or rest > asked.budget:
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


def _returned(context: Context, asked: Asked, wires: Any) -> Iterator[tuple[str, str]]:
    """Look for what was erased or hidden, wherever it may have gone."""
    everything = [context.text, context.system, str(context.why), json.dumps(wires)]
    returned = marks_in("".join(everything)) - asked.marks
    if returned:
        yield "hidden text returned", f"{sorted(returned)}"


def _ordering(
    context: Context, asked: Asked, chat: Any, responses: Any, claude: Any
) -> Iterator[tuple[str, str]]:
    """Hold the system text against what the operator said: nobody else gives orders."""
    log = {message.seq: message for message in asked.log}
    orders = [m for m in context.messages if m.role == "system" and m.origin == "operator"]
    for order in orders:
        known = log.get(order.seq)
        if known is None or (known.role, known.origin) != ("system", "operator"):
            yield "gives orders", f"position {order.seq}"
    said = [(context.system, 0), *((order.content, len(order.attachments)) for order in orders)]
    parts = [_pattern_of(text, files) for text, files in said if text.strip() or files]
    right = re.compile("\n\n".join(parts))
    firsts = [m["content"] for m in chat["messages"] if m["role"] == "system"]
    given = ("".join(firsts), responses.get("instructions", ""), claude.get("system", ""))
    if len(set(given)) != 1 or not right.fullmatch(given[0]):
        yield "gives orders", f"the system text is {given}, not {right.pattern!r}"


def _pattern_of(text: str, attachments: int) -> str:
    """Return a pattern of an order: its text, and a line of one word for each attachment."""
    lines = [re.escape(sendable(text))] if text else []
    return "\n".join([*lines, *[r"\[attached: \S{1,64}\]"] * attachments])


def _undelimited(context: Context, asked: Asked, wires: Any) -> Iterator[tuple[str, str]]:
    """Hold what is quoted against its delimiter: a quotation that nothing in it can end."""
    told = [m for m in context.messages if not m.seq and m.role == "user"]
    if len(told) != len(QUOTED.intersection(context.why.sections)):
        yield "undelimited", f"{len(told)} quotations"
    for block in (sendable(message.content) for message in told):
        head, *lines, end = block.splitlines()
        if (
            f"delimiter {asked.delimiter}]" not in head
            or end != f"[end of quote, delimiter {asked.delimiter}]"
        ):
            yield "undelimited", f"it is between {head!r} and {end!r}"
        law = RECALLED_LINE if head.startswith("[recalled") else QUOTED_LINE
        if block.count(asked.delimiter) != 2 or not all(law.match(line) for line in lines):
            yield "undelimited", f"{block!r}"
        if found := TEMPLATES.search(block):
            yield "undelimited", f"a chat template would obey {found[0]!r}"
        if any(block not in leaves(wire) for wire in wires):
            yield "undelimited", "it is not on every wire as it is"


def _greedy(context: Context, asked: Asked) -> Iterator[tuple[str, str]]:
    """Hold each section against the most that it may take."""
    shares = {name: each.at_all(asked.room) for name, each in asked.under().limits.items()}
    shares["system"] = shares.get("system", 0) + asked.system_tokens
    for name, tokens in context.why.sections.items():
        if name in ("system", *BESIDE, *QUOTED) and tokens > shares.get(name, 0):
            yield "over its share", f"{name} takes {tokens} tokens of {asked.room}"


def _out_of_step(context: Context, asked: Asked) -> Iterator[tuple[str, str]]:
    """Hold the window's start against the law of steps, and each result against its call."""
    unfit = [c for c in context.why.left_out if c.reason == DOES_NOT_FIT]
    dropped = frozenset(m.seq for m in asked.visible() if _times(unfit, m.seq))
    log = Log(
        asked.log,
        asked.visible(),
        asked.passed(),
        asked.ended(),
        asked.missing,
        asked.recounted(),
        asked.rules.tool_calls,
    )
    window = frozenset(
        m.seq for m in context.messages if m.seq and _times(context.why.shown, m.seq, "window")
    )
    said = {message.seq: message for message in asked.log}
    for problem in wrong_results(log, window, said, context.messages):
        yield "wrong result", problem
    if not _has_a_law(asked):
        return
    user = asked.user() if asked.newest else None
    newest = next((m for m in context.messages if user and m.seq == user.seq), None)
    start = start_of(log, asked.under(), asked.room, asked.present(), newest)
    for problem in wrong_start(log, start, newest, window, dropped):
        yield "out of step", f"{problem}, with {start.room} tokens"
    if asked.rules.tool_calls != "recent":  # lines of calls may make the past needless
        yield from _missing_orders(context, asked, start)


def _missing_orders(context: Context, asked: Asked, start: Start) -> Iterator[tuple[str, str]]:
    """Hold the system messages that are shown against their share: the oldest that fit."""
    tells = start.block > 0
    limits = {
        name: each
        for name, each in asked.under().limits.items()
        if name in asked.present() and (tells or name not in PAST)
    }
    room = given(limits, asked.room, asked.room - start.room).get("system", 0)
    seen = context.why.shown
    beside = ("window", "newest")
    orders = [m for m in asked.orders() if not any(_times(seen, m.seq, name) for name in beside)]
    # Sections give way to the turn in hand as far as it was read; of a long one that is a part.
    most = limits["system"].most_of(asked.room) if "system" in limits else 0
    right = [{m.seq for m in oldest_that_fit(orders, some)} for some in (room, most)]
    shown = {m.seq for m in orders if _times(seen, m.seq, "system")}
    if shown not in right:
        yield "order missing", f"{sorted(shown)} are shown, not {right} in {room} tokens"


def _has_a_law(asked: Asked) -> bool:
    """Tell whether the law says where the window starts.

    It does not where a message is damaged.
    """
    return all(m.state != "damaged" for m in asked.log)


def _unaccounted(context: Context, asked: Asked) -> Iterator[tuple[str, str]]:
    """Hold `why` against the log: every visible position is shown or left out, and once."""
    shown = {m.seq for m in context.messages if m.seq}
    in_lines = _in_lines(context, asked)  # a pinned result is shown whole beside it
    user = asked.user()
    spared = user.seq if user and not asked.newest else 0
    seen = context.why.shown
    main = [c for c in seen if c.section in ("window", "newest")]
    beside = [c for c in seen if c.first and c.section in (*BESIDE, "system")]
    gone = [
        c
        for c in context.why.left_out
        if (c.first, c.last) not in asked.hidden
        and not c.session
        and not c.reason.startswith(NOT_SHOWN_BESIDE)
    ]
    for message in asked.visible():
        seq = message.seq
        times = _times(seen, seq)
        if times != (seq in shown) + (seq in in_lines):
            yield "unaccounted", f"position {seq} is said to be shown {times} times"
        out = _times(gone, seq)
        if not _times(main, seq) and seq != spared and out != (not _times(beside, seq)):
            yield "unaccounted", f"position {seq} is not in the window and left out {out} times"
    counted = sum(c.messages for c in (*main, *gone))
    counted += sum(bool(_times(beside, m.seq)) and not _times(main, m.seq) for m in asked.visible())
    if counted != len(asked.visible()) - bool(spared):
        yield "unaccounted", f"{counted} of {len(asked.visible())} visible messages"
    if context.tokens != sum(c.tokens for c in seen) + context.why.sections["overhead"]:
        yield "unaccounted", "the sections do not add up"
    older = max((c.last for c in gone if c.reason.startswith(OLDER)), default=0)
    lines = sum(not c.session for c in context.why.choices)
    # One line for each, as many as their share; and around each, the older ones in two parts.
    lines -= 2 * sum(c.section == "important" for c in seen) + sum(
        c.section == "facts" for c in seen
    )
    newer = sum(m.seq > older for m in asked.log)
    # However long the history: the system prompt, the summary, the frame of what was recalled, the
    # newest user message, facts left out, important messages left out; older messages summarized,
    # in short, and neither, in two parts around a newest user message that is one of them.
    most = 9 + bool(user and user.seq < older) + newer + len(asked.hidden) + 3 * asked.beside
    if lines > most:
        yield "unaccounted", f"{lines} lines for {newer} newer messages"


def _in_lines(context: Context, asked: Asked) -> set[int]:
    """Return the results that the line of their call shows."""
    said = {m.seq: m for m in asked.log}
    lines = {
        m.seq
        for m in context.messages
        if m.seq and m.role == "user" and said[m.seq].role == "assistant"
        if _times(context.why.shown, m.seq, "window")  # a call that is pinned is quoted, too
    }
    passed = asked.passed()
    blocks = blocks_of([m for m in asked.visible() if m.seq != passed]) if lines else []
    return {r.seq for b in blocks if b.first.seq in lines for r in b.results.values()}


def _times(choices: Sequence[Choice], seq: int, section: str | None = None) -> int:
    here = (choice for choice in choices if not choice.session)  # others were recalled
    here = (choice for choice in here if section in (None, choice.section))
    return sum(choice.first <= seq <= choice.last for choice in here)


def needless(refusal: BudgetTooSmall, asked: Asked) -> Iterator[tuple[str, str]]:
    """Yield what is wrong with a refusal: it names both numbers, and nothing would have fitted."""
    numbers = [int(number) for number in re.findall(r"\d+", str(refusal))]
    if len(numbers) < 2 or asked.budget not in numbers:
        yield "refused without numbers", str(refusal)
    user = asked.user() if asked.newest else None
    least = 1 if user is None else asked.counter.count(_least(user, asked.strategy))
    if asked.room >= least:
        yield "refused needlessly", f"{refusal}; {least} would do"


def _least(user: Message, strategy: Window) -> Message:
    if strategy.overflow != "trim":
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

    def count(self, context: Context) -> None:
        """Note what a context holds, so that it is known what was looked at."""
        self.figures["contexts"] += 1
        for section in context.why.sections:
            self.figures[f"with {section}"] += 1
        reasons = {choice.reason.partition(",")[0] for choice in context.why.choices}
        self.figures["with answers in short"] += "an older answer" in reasons
        self.figures["with the past shown in short"] += "one line per turn" in reasons
        self.figures["with system messages"] += any(
            choice.first and choice.section == "system" for choice in context.why.shown
        )
        self.figures["with calls in a line each"] += any(
            "in a line each" in choice.reason for choice in context.why.shown
        )

    def add(self, other: "Tally") -> None:
        self.figures += other.figures
        self.histories |= other.histories
        self.broken += other.broken[:100]


async def _write(rng: Random, name: str) -> History:
    """Write a history."""
    history = await History.begin(rng, name)
    await history.write(rng.choice((1, 2, 3, 5, 8, 13, 21)))
    return history


async def _look(history: History, tally: Tally, name: str) -> None:
    """Ask for a few contexts of one history and check each."""
    known = await _known(history)
    if lost := _not_kept(known):
        tally.figures["order not kept"] += 1
        tally.broken.append(f"{name}: order not kept: positions {lost}")
    tally.figures["histories with sub-agents"] += history.delegations > 0
    tally.histories.add(await _digest(history, known["log"]))
    for _ in range(PER_HISTORY):
        await _check(history, known, tally, name)


def _not_kept(known: dict[str, Any]) -> list[int]:
    """Return the operator's system messages that no record names, though there is room."""
    orders = {
        m.seq
        for m in known["log"]
        if m.role == "system" and m.state == "live" and m.origin in (None, "operator")
        if not (m.source or "").startswith("note:")
    }
    hidden = {seq for first, last in known["hidden"] for seq in range(first, last + 1)}
    lost = orders - hidden - known["ordered"]
    return sorted(lost) if len(known["ordered"]) < MOST_ORDERS else []


async def _known(history: History) -> dict[str, Any]:
    """Return what is known of a history, whatever context is asked for."""
    session, store = history.session, history.memory.store
    log = await history.log()
    scope = Scope(session=session.key)
    hidden = await _hidden(history, session.key)
    seen = _outside(log, hidden)
    gone = {m.id for m in log} - {m.id for m in seen if m.state == "live"}
    elsewhere = [m for m in await _elsewhere(history) if m.id not in gone]
    records = await store.scan(scope)
    named = {
        kind: frozenset(
            seq
            for record in records
            for span in record.made_of
            if record.kind == kind and span.session == session.key
            for seq in range(span.first, span.last + 1)
        )
        for kind in ("pin", "note", "system")
    }
    prompt = session.info.system_prompt
    system = Message(role="system", content=prompt) if prompt else None
    return {
        "log": log,
        "hidden": hidden,
        "beside": len([r for r in records if r.kind in ("pin", "note", "tool", "system")]),
        "pinned": named["pin"],
        "noted": named["note"],
        "ordered": named["system"],
        "has_facts": bool(await store.scan(Scope(owner="default"), "fact")),
        "delimiter": session.info.delimiter,
        "system_tokens": history.counter.count(system) if system else 0,
        "counter": history.counter,
        "marks": frozenset(marks_in(seen) | marks_in(elsewhere) | history.spoilt),
    }


async def _elsewhere(history: History) -> list[Message]:
    """Return what the owner's other sessions show: it may be recalled."""
    store = history.memory.store
    found: list[Message] = []
    for session in await store.list_sessions(limit=100):
        if session.key != history.session.key:
            log = await store.read(session.key, limit=session.messages + 1)
            found += _outside(log, await _hidden(history, session.key))
    return found


async def _hidden(history: History, session: SessionKey) -> list[tuple[int, int]]:
    marks = await history.memory.store.get(Scope(session=session), "marks", "marks")
    spans: Any = marks.value if marks else []
    return [(span["first"], span["last"]) for span in spans]


def _outside(log: Sequence[Message], spans: Sequence[tuple[int, int]]) -> list[Message]:
    return [m for m in log if not any(first <= m.seq <= last for first, last in spans)]


async def _check(history: History, known: dict[str, Any], tally: Tally, name: str) -> None:
    """Ask for one context, and hold it against everything that was promised."""
    rng = history.rng
    number = rng.randrange(len(STRATEGIES))
    turns = history.open_turns if rng.random() < 0.5 else []
    asked = Asked(
        budget=_budget(rng, known["log"]),
        strategy=STRATEGIES[number].strategy,
        rules=STRATEGIES[number].rules,
        newest=rng.random() < 0.9,
        turn=rng.choice(turns) if turns else None,
        **known,
    )
    asked = _with_own(asked)
    ask = (asked.turn or history.session).context
    try:
        context = await ask(f"view {number}", budget=asked.budget, newest=asked.newest)
    except BudgetTooSmall as refusal:
        tally.figures["budgets refused"] += 1
        found = list(needless(refusal, asked))
    else:
        tally.count(context)
        tally.figures["starts held against the law of steps"] += _has_a_law(asked)
        found = list(faults(context, asked))
        again = await ask(f"view {number}", budget=asked.budget, newest=asked.newest)
        if _bytes(again) != _bytes(context):
            found.append(("not the same twice", "the second one is another"))
    for figure in {figure for figure, _ in found}:
        tally.figures[figure] += 1
    where = f"{name}, budget {asked.budget}, {asked.strategy}, newest={asked.newest}"
    tally.broken += [f"{figure}: {what} ({where})"[:900] for figure, what in found[:3]]


def _with_own(asked: Asked) -> Asked:
    """Return what is known to a turn: its own user message is not hidden from it."""
    seq = asked.turn.user.seq if asked.turn else 0
    own = [m for m in asked.log if m.seq == seq and m.state == "live"]
    if not own or not any(first <= seq <= last for first, last in asked.hidden):
        return asked
    before = [(first, min(last, seq - 1)) for first, last in asked.hidden]
    behind = [(max(first, seq + 1), last) for first, last in asked.hidden]
    return replace(
        asked,
        hidden=sorted({span for span in (*before, *behind) if span[0] <= span[1]}),
        marks=asked.marks | marks_in(own),
    )


def _bytes(context: Context) -> tuple[str, str]:
    wires = (context.to_openai_chat(), context.to_openai_responses(), context.to_anthropic())
    return repr(context.selection), json.dumps([context.text, *wires])


def _budget(rng: Random, log: Sequence[Message]) -> int:
    """Return a budget: any size up to 32k, small ones as likely as large ones, or what cuts.

    That is less than all the messages take, so that there is a past to tell.
    """
    size = sum(message.tokens for message in log)
    if rng.random() < 0.5 or size < 100:
        return int(2 ** rng.uniform(4, 15))
    return min(int(size * rng.uniform(0.1, 1.0)), 1 << 15)


async def _digest(history: History, log: Sequence[Message]) -> bytes:
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
            m.turn,
            m.counter,
            m.state,
        )
        for m in log
    ]
    records = await history.memory.store.scan(Scope(session=history.session.key))
    shelf = [
        (
            r.kind,
            r.value if r.kind in ("marks", "compact") else [(s.first, s.last) for s in r.made_of],
        )
        for r in records
        if r.kind != "lease"
    ]
    prompt = history.session.info.system_prompt
    return hashlib.sha256(repr((bodies, shelf, prompt)).encode()).digest()[:12]


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
        with fresh_processes().Pool(os.cpu_count()) as pool:
            for done in pool.imap_unordered(work, tasks):
                tally.add(done)
                progress(min(tally.figures["contexts"], size), size)
    names = (
        "contexts",
        "distinct histories",
        *(f"with {section}" for section in (*BESIDE, "summary")),
        "with the past shown in short",
        "with answers in short",
        "with system messages",
        "with calls in a line each",
        "histories with sub-agents",
        "starts held against the law of steps",
        "invalid for openai-chat",
        "invalid for openai-responses",
        "invalid for anthropic",
        "over budget",
        "under-counted",
        "newest missing",
        "newest not left out",
        "parted",
        "wrong result",
        "out of step",
        "unaccounted",
        "hidden text returned",
        "gives orders",
        "order missing",
        "order not kept",
        "undelimited",
        "over its share",
        "not the same twice",
        "budgets refused",
        "refused without numbers",
        "refused needlessly",
    )
    tally.figures["distinct histories"] = len(tally.histories)
    if len(tally.histories) < size / 2 - 2 * size**0.5:  # the root: what chance may take away
        tally.broken.append(f"only {len(tally.histories)} distinct histories")
    figures = {name: tally.figures[name] for name in names}
    counted = " and ".join(counter.name for counter in counters())
    return Outcome(figures={**figures, "counters": counted}, broken=tuple(tally.broken))


PROOF: Final = Proof(
    name="P12",
    promise="a provider never rejects the context",
    unit="contexts",
    small=150,
    closing=5_000,
    long=500_000,
    run=run,
)
