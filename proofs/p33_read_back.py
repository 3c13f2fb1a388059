"""P33: what is read from a request is what was sent; rendered again, it is the same request.

Conversations of several turns move between providers of three wires, as in P31: native parts,
images, parallel calls, odd ids, truncated streams. Each is rendered for several hosts and read
back as messages.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from keepthread import (
    Context,
    Message,
    fit,
    from_anthropic,
    from_openai_chat,
    from_openai_responses,
)
from keepthread.context.wires import anthropic, openai_chat, openai_responses
from keepthread.errors import BudgetTooSmall
from keepthread.models.tokens import Estimator
from keepthread.types import Selection, Wire
from proofs import Outcome, Progress, Proof
from proofs.wire_conversations import PROVIDERS, Conversation, Provider

COUNTER: Final = Estimator()
ROOM: Final = 1_000_000

LOST: Final = (
    "read back otherwise",
    "results lost on the way back",
    "images lost on the way back",
)
READ: Final[Mapping[Wire, Any]] = {
    "openai-chat": (from_openai_chat, openai_chat.render, "messages"),
    "openai-responses": (from_openai_responses, openai_responses.render, "input"),
    "anthropic": (from_anthropic, anthropic.render, "messages"),
}

_IMAGE: Final[Mapping[Wire, str]] = {
    "openai-chat": '"type": "image_url"',
    "openai-responses": '"type": "input_image"',
    "anthropic": '"type": "image"',
}


def differences(context: Context, to: Provider) -> Iterator[tuple[str, str]]:
    """Yield what is not as it was, after a context was rendered, read and rendered again."""
    parse, render, field = READ[to.wire]
    selection = context.selection
    sent = render(selection, to.host)
    read: list[Message] = parse(json.loads(json.dumps(sent[field])), provider=to.host)
    system = sent.get("system" if to.wire == "anthropic" else "instructions", "")
    again = render(Selection(0, 0, system, read, ()), to.host)
    if again != sent:
        pairs = zip(again[field], sent[field], strict=False)
        first = next((f"{now} was {then}" for now, then in pairs if now != then), "")
        counts = f"{len(again[field])} items of {len(sent[field])}"
        yield LOST[0], f"{to}: {counts}; {first}"[:2000]
    ours = [m for m in selection.messages if m.role == "tool"]
    results = [m for m in read if m.role == "tool"]
    if len(results) != len(ours):
        yield LOST[1], f"{to}: {len(results)} of {len(ours)}"
    images = sum(len(m.attachments) for m in read)
    if images != json.dumps(sent[field]).count(_IMAGE[to.wire]):
        yield LOST[2], f"{to}: {images}"


def _run(size: int, seed: int, progress: Progress) -> Outcome:
    figures: Counter[str] = Counter()
    broken: list[str] = []
    hosts = (*PROVIDERS, *(Provider(wire, "") for wire in READ))
    for number in range(size):
        rng = random.Random(f"{seed} {number}")
        made = Conversation(rng)
        messages = made.made()
        figures.update(made.figures)
        budget = ROOM if rng.random() < 0.6 else rng.randint(60, 6000)
        try:
            context = fit(messages, budget, system_prompt="Be brief.", counter=COUNTER)
        except BudgetTooSmall:
            figures["budgets refused"] += 1
            continue
        for to in hosts:
            figures["requests"] += 1
            for figure, problem in differences(context, to):
                figures[figure] += 1
                broken.append(f"conversation {number}: {figure}: {problem[:600]}")
        progress(number + 1, size)
    return Outcome(figures={**figures, **{n: figures[n] for n in LOST}}, broken=tuple(broken))


PROOF: Final = Proof(
    name="P33",
    promise="what is read from a provider's wire is what was sent",
    unit="conversations",
    small=25,
    closing=10_000,
    long=200_000,
    run=_run,
)
