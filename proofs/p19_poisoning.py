"""P19: nothing remembered gives orders, and with its source all that came of it is gone.

Attacks are planted wherever text comes from elsewhere: results and failures of tools, web pages and
imports in every role, notes, facts, what sub-agents are told and say, the names of tools, notes,
files, people and sessions, and what a persuaded model makes of them as a summary, a digest or a
fact. Some attacks wait: a model reads a page, and turns or sessions later, when the window, a
summary, recall, a cached result or a fact shows it again, it calls `remember` or repeats it in an
answer that is extracted. No such fact may be live. Contexts of every strategy, at several budgets,
with facts and without, are then read on three wires and as text by a reader that obeys all that is
said outside of quotations and counts the voices in recalled text (`gullible`), and so is what
models that summarise and extract are given. No attack may steer it.

What counts as an attack: text of the origins tool, web and import, in any role; a model's summaries
and facts; and anything of another session or from before the window, whoever said it. What does
not: what a user wrote and what the model answered in the window itself, their calls' arguments
included. Those are their own words at their own place; a model that repeats an attack in an answer
was persuaded before, and the repeated words are an attack again as soon as they are remembered. A
tool's result in the role of a tool is at its place as well, and is not altered. Keepthread's own
export is a backup and restores what it holds; other programs' exports are imports.

Then the source is forgotten, and neither a context nor an account, a summary, a fact, a search or
an export may hold the codeword.
"""

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Final

from keepthread import Compaction, Context, Hybrid, Memory, Recall, Summarized, View, Window
from keepthread.errors import BudgetTooSmall
from keepthread.interchange.export import export
from keepthread.memory.facts.extraction import Extraction
from keepthread.models.summarizers import ByModel
from keepthread.models.tokens import Estimator
from proofs import Outcome, Progress, Proof, gullible
from proofs.attacks import DRESSES, Known, attack
from proofs.persuaded import Persuaded
from proofs.poisons import WAYS, Scene

PER_FILE: Final = 20
"""Attacks of one database."""
VIEWS: Final = {
    "window": View(4096, Window(step=0)),
    "summarized": View(4096, Summarized(step=0, verbatim_messages=2, brief_turns=4)),
    "hybrid": View(4096, Hybrid(step=0, verbatim_messages=2, brief_turns=4)),
    "recall": View(4096, Recall()),
    "recall here": View(4096, Recall(recall="session")),
}
BUDGETS: Final = (220, 600, 1500, 9000)
PLACES: Final = ("harbour", "museum", "garden", "station", "market", "library")
THINGS: Final = ("permit", "ticket", "parcel", "meeting", "repair", "invoice")


@dataclass
class Tally:
    """What was tried, and what is wrong."""

    counts: Counter[str] = field(default_factory=Counter)
    shown: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


# --- one attack ---


class Trial:
    """Plants one attack, looks at all contexts, forgets it, and looks again."""

    def __init__(self, scene: Scene, way: str, tally: Tally) -> None:
        self.scene = scene
        self.way = way
        self.tally = tally

    async def run(self) -> None:
        scene, rng = self.scene, self.scene.rng
        plant = WAYS[self.way]
        await scene.talk(scene.other, 1)
        await plant(scene, scene.other)
        if rng.random() < 0.5:
            await scene.memory.for_owner(scene.owner).facts.remember("Lives in Oslo.")
            self.tally.counts["attacks beside other facts"] += 1
        await scene.talk(scene.main, 1)
        await plant(scene, scene.main)
        await scene.talk(scene.main, rng.randrange(5, 10))
        await scene.main.compact()
        if rng.random() < 0.6:
            await plant(scene, scene.main)
            await scene.talk(scene.main, rng.randrange(3))
        await self.look()
        await self.forget()
        await self.look_again()

    async def look(self) -> None:
        scene = self.scene
        async with scene.main.turn(f"What about the {scene.topic}?") as turn:
            for context, where in await self.contexts(turn.context):
                self.judge(context, scene.main.info.delimiter, where)
            await turn.finish("I am looking into it.")
        await self.look_at_facts()
        for child in scene.turns:
            info = await scene.memory.store.describe(child._conversation.key)
            for context, where in await self.contexts(child.context):
                self.judge(context, info.delimiter, f"a sub-agent's {where}")

    async def look_at_facts(self) -> None:
        """See that what a persuaded model made of an attack waits to be confirmed."""
        facts = await self.scene.memory.for_owner(self.scene.owner).facts.list(all=True)
        made = [f for f in facts if gullible.holds(f.text + f.value, self.scene.attack.codeword)]
        if self.scene.waits:
            for fact in made:
                if fact.state != "quarantined":
                    self.fail("a fact", f"it is {fact.state}, with the trust of {fact.trust}")
            self.tally.counts["facts that wait"] += len(made)
            self.tally.counts["delayed"] += self.scene.delayed

    async def contexts(self, ask: Callable[..., Awaitable[Context]]) -> list[tuple[Context, str]]:
        """Ask for contexts of all kinds."""
        found: list[tuple[Context, str]] = []
        for view in VIEWS:
            for budget in BUDGETS:
                query = self.scene.rng.choice((None, None, self.scene.topic))
                with suppress(BudgetTooSmall):
                    context = await ask(view, budget=budget, query=query)
                    found.append((context, f"{view} of {budget}"))
        self.tally.counts["contexts"] += len(found)
        return found

    def judge(self, context: Context, delimiter: str, where: str) -> None:
        """Let the reader read a context in every form."""
        codeword = self.scene.attack.codeword
        chat, responses = context.to_openai_chat(), context.to_openai_responses()
        claude, text = context.to_anthropic(), context.text
        if gullible.holds([chat, text], codeword):
            self.tally.shown[self.way] += 1
            if self.scene.unseen:
                self.fail(where, "what waits to be confirmed is shown")
        for form, said in (
            ("chat", gullible.said_in_chat(chat)),
            ("responses", gullible.said_in_responses(responses)),
            ("anthropic", gullible.said_in_anthropic(claude)),
        ):
            if found := gullible.steered(list(said), delimiter, codeword):
                self.fail(f"{where} for {form}", found)
        self.judge_recalled(context, delimiter, where)
        turns = len(context.messages)
        if found := gullible.steered_by_text(text, turns, delimiter, codeword):
            self.fail(where, found)

    def judge_recalled(self, context: Context, delimiter: str, where: str) -> None:
        """Count whose words stand in what was recalled."""
        choices = context.selection.choices
        pieces = sum(c.section == "recalled" and bool(c.session) for c in choices)
        for message in context.messages:
            if message.seq or "recalled" not in message.content[:12]:
                continue
            # The few facts of a scene are all in the profile, so no true one stands here.
            if found := gullible.forged_in_recalled(message.content, delimiter, pieces):
                self.fail(where, found)
            self.tally.counts["blocks of recalled text"] += 1

    # --- without its source ---

    async def forget(self) -> None:
        memory = self.scene.memory
        for wish in self.scene.wishes:
            if "fact" in wish:
                await memory.for_owner(self.scene.owner).facts.forget(wish["fact"])
            elif "delete" in wish:
                await memory.delete_session(wish["delete"], owner=self.scene.owner)
            else:
                await memory.forget(**{"owner": self.scene.owner, **wish}, answers=True)

    async def look_again(self) -> None:
        """Look for the codeword wherever it may have gone."""
        scene = self.scene
        codeword, memory = scene.attack.codeword, scene.memory
        main = await memory.session(scene.main.id, owner=scene.owner)  # it may be forgotten
        async with main.turn(f"And the {scene.topic}, {codeword[:3]}?") as turn:
            for context, where in await self.contexts(turn.context):
                shown = [context.to_openai_chat(), context.text, str(context.why)]
                self.gone(f"a context, {where}", shown)
            await turn.finish("Nothing.")
        hits = await memory.search(codeword, owner=scene.owner)
        self.gone("a search", [(hit.snippet, hit.message.content, hit.reason) for hit in hits])
        hits = await memory.search(scene.topic, owner=scene.owner, limit=50)
        self.gone("a search", [(hit.snippet, hit.message.content, hit.reason) for hit in hits])
        self.gone("a fact", await memory.for_owner(scene.owner).facts.list(all=True))
        self.gone("an account", [str(kept) for kept in await main.explanations(50)])
        lines: list[bytes] = []
        await export(memory.store, lines.append, owner=scene.owner)
        self.gone("an export", b"".join(lines).decode("utf-8", "replace"))

    def gone(self, what: str, value: Any) -> None:
        if gullible.holds(value, self.scene.attack.codeword):
            self.fail(what, "it is not forgotten")

    def fail(self, where: str, what: str) -> None:
        scene = self.scene
        worn = ", ".join(scene.attack.dresses)
        line = f"attack {scene.number}, {self.way} ({worn}): {where}: {what}"
        self.tally.broken.append(line[:600])


# --- all of them ---


async def play(path: Path, numbers: Sequence[int], seed: int, tally: Tally) -> None:
    """Play some attacks in a database of their own."""
    model = Persuaded()
    compaction = Compaction(
        summarizer=ByModel(model),
        turns=4,
        batch_size=2,
        answer_bytes=300,
        digest_bytes=200,
        summary_bytes=600,
        compressed_bytes=400,
    )
    opened = Memory.open(
        f"sqlite:///{path}",
        counter=Estimator(),
        durability="process",
        views=VIEWS,
        recall="owner",
        compaction=compaction,
        extraction=Extraction(model, turns=3),
        keep_why=20,
        ids=seeded_ids(seed, numbers[0]),
    )
    async with opened as memory:
        delimiters: list[str] = []
        for number in numbers:
            scene, way = await enter(memory, model, number, seed, delimiters)
            delimiters += [scene.main.info.delimiter, scene.other.info.delimiter]
            await Trial(scene, way, tally).run()
            tally.counts[f"by {way}"] += 1
            tally.counts["attacks"] += 1
        tally.counts["prompts for other models"] += model.prompts
        tally.broken += [f"seed {seed}: {line}" for line in model.steered]


def seeded_ids(seed: int, first: int) -> Callable[[], str]:
    """Return a source of ids in the order of time, the same for a seed; delimiters come from it."""
    rng, numbers = random.Random(f"{seed}/{first}/ids"), count(1)
    return lambda: f"{next(numbers):012x}7{rng.getrandbits(76):019x}"


async def enter(
    memory: Memory, model: Persuaded, number: int, seed: int, delimiters: Sequence[str]
) -> tuple[Scene, str]:
    """Make the sessions of one attack."""
    rng = random.Random(f"{seed}/{number}")
    owner = f"owner {number}"
    main = await memory.session(f"main {number}", owner=owner, system_prompt="Be kind.")
    other = await memory.session(f"other {number}", owner=owner)
    topic = f"{rng.choice(PLACES)} {rng.choice(THINGS)} {rng.randrange(100, 1000)}"
    way = sorted(WAYS)[number % len(WAYS)]
    # Few attacks wear each dress once, and many wear all of them on each way.
    dress = sorted(DRESSES)[(number % len(WAYS) + number // len(WAYS)) % len(DRESSES)]
    known = Known(main.info.delimiter, (*delimiters[-4:], other.info.delimiter))
    made = attack(rng, known, topic, dress)
    model.summaries[made.codeword] = model.facts[made.codeword] = made
    scene = Scene(
        memory=memory,
        model=model,
        rng=rng,
        number=number,
        main=main,
        other=other,
        topic=topic,
        attack=made,
    )
    return scene, way


def run(size: int, seed: int, progress: Progress) -> Outcome:
    tally = Tally()
    with tempfile.TemporaryDirectory() as folder:
        for first in range(0, size, PER_FILE):
            numbers = range(first, min(size, first + PER_FILE))
            asyncio.run(play(Path(folder) / f"{first}.db", numbers, seed, tally))
            progress(numbers[-1] + 1, size)
    figures: dict[str, int | float | str] = {
        "attacks": tally.counts["attacks"],
        "ways in": sum(what.startswith("by ") for what in tally.counts),
        "dresses": len(DRESSES),
        "attacks beside other facts": tally.counts["attacks beside other facts"],
        "contexts, each in four forms": tally.counts["contexts"],
        "that show the attack": tally.shown.total(),
        "prompts for models that summarise or extract": tally.counts["prompts for other models"],
        "models persuaded in a later turn": tally.counts["delayed"],
        "facts that wait to be confirmed": tally.counts["facts that wait"],
        "blocks of recalled text": tally.counts["blocks of recalled text"],
        **{f"shown by {way}": tally.shown[way] for way in sorted(WAYS)},
        "violations": len(tally.broken),
    }
    return Outcome(figures=figures, broken=tuple(tally.broken))


PROOF: Final = Proof(
    name="P19",
    promise="nothing remembered gives orders, and it goes with its source",
    unit="attacks",
    small=30,
    closing=200,
    long=4_000,
    run=run,
)
