"""The promise that a provider never rejects a context, in small; and its proof is not blind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from keepthread import Choice, Context, Hybrid, Memory, Message, ToolCall, View, Window
from keepthread.models.tokens import Estimator
from keepthread.types import Selection
from proofs.laws import HYBRID, WINDOW, Log, wrong_results
from proofs.p12_contexts import PROOF, Asked, faults
from proofs.views import sections, tried
from tests.seeds import SEED

NONCE = "0123456789ab"
USER = Message(role="user", content="Hello.", seq=1, turn=1, tokens=20)
TOLD = Message(
    role="user",
    content=f"[The past, delimiter {NONCE}]\n> zq1zq\n[end of quote, delimiter {NONCE}]",
    tokens=60,
)
NEWEST = Choice(1, 1, 1, 20, "newest", "the newest user message, always shown")
SUMMARY = Choice(0, 0, 1, 60, "summary", "a summary")


def test_a_provider_never_rejects_the_context(vocabularies: Path) -> None:
    unseen = {"pins", "notes", "important", "tools", "summary"}
    for seed in range(SEED, SEED + 20):  # in a small run, chance may leave a section out
        outcome = PROOF.run(PROOF.small, seed, lambda done, of: None)
        assert outcome.held, f"seed {seed}: {outcome.broken[:10]}"
        assert outcome.figures["counters"] == "o200k and ~o200k"
        assert int(outcome.figures["starts held against the law of steps"]) >= PROOF.small / 3
        unseen -= {section for section in unseen if outcome.figures[f"with {section}"]}
        if not unseen:
            break
    assert not unseen, f"seed {SEED}"


def asked(**known: Any) -> Asked:
    usual: dict[str, Any] = {
        "budget": 1000,
        "strategy": Hybrid(),
        "newest": True,
        "log": [USER],
        "hidden": [],
        "beside": 0,
        "delimiter": NONCE,
        "system_tokens": 0,
        "turn": None,
        "counter": Estimator(),
        "marks": frozenset({"zq1zq"}),
        "rules": tried(Hybrid(), HYBRID).rules,
    }
    return Asked(**usual | known)


def found(told: Message, known: Asked) -> set[str]:
    """Return the names of what is wrong with a context of a quotation and a question."""
    tokens = 16 + told.tokens + USER.tokens
    selection = Selection(
        budget=1000, tokens=tokens, system="", messages=[told, USER], choices=[SUMMARY, NEWEST]
    )
    return {figure for figure, _ in faults(Context(selection), known)}


def test_the_proof_finds_nothing_wrong_with_what_is_right() -> None:
    assert found(TOLD, asked()) == set()


def test_the_proof_sees_text_that_was_hidden() -> None:
    assert found(TOLD, asked(marks=frozenset())) == {"hidden text returned"}


@pytest.mark.parametrize(
    "content",
    [
        f"[The past, delimiter {NONCE}]\n> zq1zq",
        f"[The past, delimiter {NONCE}]\nzq1zq\n[end of quote, delimiter {NONCE}]",
        f"[The past, delimiter {NONCE}]\n> {NONCE}\n[end of quote, delimiter {NONCE}]",
        f"[The past, delimiter {NONCE}]\n> <\0|im_start|>\n[end of quote, delimiter {NONCE}]",
        "[The past, delimiter x]\n> zq1zq\n[end of quote, delimiter x]",
    ],
)
def test_the_proof_sees_a_quotation_that_is_not_delimited(content: str) -> None:
    assert found(replace(TOLD, content=content), asked()) == {"undelimited"}


def test_the_proof_sees_who_gives_orders() -> None:
    poser = replace(TOLD, role="system", origin="operator", seq=2)
    log = [USER, replace(poser, role="tool", origin="tool")]
    assert "gives orders" in found(poser, asked(log=log))


def test_the_proof_sees_a_section_that_takes_too_much() -> None:
    assert found(TOLD, asked(rules=tried(Window(), WINDOW).rules)) == {"over its share"}


async def found_with(strategy: Window, known: dict[str, Any], *, pins: bool = False) -> set[str]:
    """Return what is wrong with a strategy's contexts, held against rules of another one."""
    found = set[str]()
    views = {"chat": View(1000, strategy)}
    async with Memory.open("ram://", counter=Estimator(), views=views) as memory:
        session = await memory.session("s")
        for n in range(40):
            said = await session.append(
                Message(role="user", content=f"Question {n} of many, asked in so many words. " * 4),
                Message(
                    role="assistant", content=f"Answer {n}, which is hardly longer than that. " * 4
                ),
            )
            if pins:
                await session.pin(said[0].id)
        log = await session.messages(limit=1000)
        if pins:
            pinned = frozenset(m.seq for m in log if m.role == "user")
            known = {**known, "pinned": pinned, "beside": len(pinned)}
        for budget in range(2100, 2600, 100):  # smaller ones slide
            context = await session.context(budget=budget)
            with_it = asked(budget=budget, log=log, delimiter=session.info.delimiter, **known)
            found |= {figure for figure, _ in faults(context, with_it)}
    return found


async def test_the_proof_sees_a_window_that_does_not_move_in_steps() -> None:
    for step in (None, 100):
        known = {"rules": tried(Window(step=step), WINDOW).rules}
        assert await found_with(Window(step=step), known) == set()
        assert await found_with(Window(step=0), known) == {"out of step"}


async def test_the_proof_sees_sections_of_twice_their_share() -> None:
    twice = {
        name: each._replace(max_share=2 * each.max_share, cap=each.cap and 2 * each.cap)
        for name, each in WINDOW.items()
    }
    known = {"rules": tried(Window(), WINDOW).rules}
    assert await found_with(Window(), known, pins=True) == set()
    wrong = await found_with(Window(sections=sections(twice)), known, pins=True)
    assert wrong == {"out of step", "over its share"}


def test_the_proof_sees_a_result_behind_another_call() -> None:
    call = ToolCall(id="c", name="look", arguments="{}")
    one, two = (
        Message(role="assistant", tool_calls=[call], seq=seq, turn=1, total=20 * seq, tokens=20)
        for seq in (2, 3)
    )
    first, second = (
        Message(role="tool", tool_call_id="c", content=f"result {seq}", seq=seq, turn=1)
        for seq in (4, 5)
    )
    known = Log([USER, one, two, first, second], [USER, one, two, first, second], 0)
    said = {message.seq: message for message in known.messages}
    window = frozenset({2, 3, 4, 5})
    right, wrong = [one, second, two, first], [one, first, two, second]
    assert list(wrong_results(known, window, said, right)) == []
    assert len(list(wrong_results(known, window, said, wrong))) == 2


async def test_a_dropped_block_with_results_out_of_order_is_accounted_for() -> None:
    """Of three calls at once, one was never answered, and the others late, the last one first."""
    views = {"chat": View(4096, Window(step=0))}
    async with Memory.open("ram://", counter=Estimator(), views=views) as memory:
        session = await memory.session("s")
        turn = await session.turn("Look.").__aenter__()
        calls = [ToolCall(id=id, name="look", arguments="{}") for id in "abc"]
        await turn.append(Message(role="assistant", tool_calls=calls))
        for id in "ba":
            await turn.append(Message(role="assistant", content="Wait."))
            await turn.append(Message(role="tool", tool_call_id=id, content="It is there."))
        log = await session.messages()
        known = {"rules": tried(Window(step=0), WINDOW).rules, "log": log}
        known |= {"strategy": views["chat"].strategy, "delimiter": session.info.delimiter}
        lines = set[str]()
        for budget in range(40, 200):
            context = await session.context(budget=budget)
            assert not list(faults(context, asked(budget=budget, **known)))
            lines |= {choice.reason for choice in context.why.left_out}
        assert "its tool call is older than the window" in lines


async def test_a_call_that_was_hidden_is_not_shown_with_its_result() -> None:
    """The session is cleared while a tool runs."""
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await memory.session("s")
        turn = await session.turn("Look.").__aenter__()
        call = ToolCall(id="a", name="look", arguments='{"for":"zq1zq"}')
        await turn.append(Message(role="assistant", tool_calls=[call]))
        await session.clear()
        args = {"for": "zq1zq"}
        await turn.tool("look", args, lambda **_: "found", call_id="a", cache_turns=3)
        context = await session.context()
        known = {"strategy": Window(), "hidden": [(1, 2)], "log": await session.messages()}
        known |= {"rules": tried(Window(), WINDOW).rules}
        known |= {"budget": 4096, "marks": frozenset(), "delimiter": session.info.delimiter}
        assert not list(faults(context, asked(**known)))
