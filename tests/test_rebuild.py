"""Stored explanations: they rebuild exactly the prompt that was shown, or say what changed."""

import json
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keepthread import (
    Explanation,
    Hybrid,
    Memory,
    Message,
    Options,
    Reference,
    References,
    Session,
    View,
    Window,
)
from keepthread.context import prompt_digests
from keepthread.errors import InvalidInput
from keepthread.models.tokens import Estimator
from keepthread.protocols import Store
from keepthread.references import SIZE, ChunkReference, FactReference, SummaryReference
from keepthread.stores.ram import RamStore
from keepthread.testing.contract import Letters
from keepthread.types import Scope
from proofs import Run
from proofs.p34_rebuild import PROOF, prompt_of
from tests.every_store import store
from tests.proving import hold
from tests.seeds import examples

__all__ = ["store"]

VIEWS = {"chat": View(4000, Hybrid()), "plain": View(4000, Window())}


def remembering(store: Store, **options: Any) -> Memory:
    chosen: Any = {"views": VIEWS, "counter": Letters(), "keep_why": 20, "recall": "owner"}
    return Memory(store, Options(**{**chosen, **options}))


async def talk(session: Session, turns: int = 3) -> None:
    for n in range(turns):
        await session.add_message("user", f"question {n} about the quince jam")
        await session.add_message("assistant", f"answer {n}: boil it slowly")


async def only(session: Session) -> Explanation:
    (found,) = await session.explanations(1)
    return found


def reasons(rebuilt: Any) -> set[tuple[str, str]]:
    return {(change.reason, change.what) for change in rebuilt.changes}


async def test_a_prompt_is_rebuilt_exactly(store: Store) -> None:
    memory = remembering(store)
    session = await memory.session("s", system_prompt="Be brief.")
    await talk(session)
    for view, text in (("chat", False), ("plain", True)):
        context = await session.context(view, text=text)
        rebuilt = await session.rebuild(await only(session))
        assert rebuilt.matches
        assert not rebuilt.changes
        assert rebuilt.context is not None
        assert prompt_of(rebuilt.context) == prompt_of(context)
        assert rebuilt.context.tokens == context.tokens
        assert rebuilt.messages == context.messages
    stored = await store.scan(Scope(session=session.key), "why")
    assert "quince" not in json.dumps([record.value for record in stored])


async def test_what_is_not_an_explanation_is_refused() -> None:
    session = await remembering(RamStore()).session("s")
    with pytest.raises(InvalidInput, match=r"one of `await session.explanations\(\)`, not 'x'"):
        await session.rebuild(cast(Any, "x"))


async def test_a_forgotten_message_takes_its_digests_and_leaves_the_explanation(
    store: Store,
) -> None:
    memory = remembering(store)
    session = await memory.session("s")
    await talk(session)
    await session.context("plain", budget=100)  # shows the last ones only
    await session.context("plain")
    first = (await session.messages())[0]
    await memory.forget(session="s", owner="default", message=first.id)
    with_it, without_it = await session.explanations()
    assert with_it.references
    assert without_it.references
    digests = {m.seqs[0]: m.digest for m in with_it.references.messages}
    assert digests.pop(1) == ""
    assert with_it.references.digest == ""
    assert all(digests.values())
    rebuilt = await session.rebuild(with_it)
    assert not rebuilt.matches
    assert rebuilt.context is None
    assert reasons(rebuilt) == {("erased", "message")}
    assert [m.seq for m in rebuilt.messages] == [2, 3, 4, 5, 6]
    assert (await session.rebuild(without_it)).matches


async def test_what_is_erased_meanwhile_leaves_no_digest(store: Store) -> None:
    memory = remembering(store)
    session = await memory.session("s")
    await talk(session)
    await session.context("plain")
    await store.erase(session.key, [2])  # before the explanation is written
    found = await only(session)
    assert found.references
    assert found.references.digest == ""
    empty = [m.seqs[0] for m in found.references.messages if not m.digest]
    assert empty == [2]


async def test_hidden_and_recounted_messages_are_said_and_still_match(store: Store) -> None:
    memory = remembering(store)
    session = await memory.session("s")
    await talk(session)
    context = await session.context("plain")
    explanation = await only(session)
    await session.rewind(4)
    rebuilt = await session.rebuild(explanation)
    assert rebuilt.matches
    assert [tuple(c[:4]) for c in rebuilt.changes] == [("hidden", "message", 5, 6)]
    other = remembering(store, counter=Estimator())
    rebuilt = await (await other.get_session("s")).rebuild(explanation)
    assert rebuilt.context is not None
    assert prompt_of(rebuilt.context) == prompt_of(context)
    assert reasons(rebuilt) == {("hidden", "message"), ("recounted", "counter")}


async def test_another_system_prompt_is_said(store: Store) -> None:
    session = await remembering(store).session("s", system_prompt="Be brief.")
    await talk(session)
    await session.context("plain")
    explanation = await only(session)
    await session.update(system_prompt="Be long.")
    rebuilt = await session.rebuild(explanation)
    assert not rebuilt.matches
    assert reasons(rebuilt) == {("changed", "system")}


async def test_changed_and_forgotten_facts_are_said(store: Store) -> None:
    if await store.finder() is None:
        pytest.skip("this store knows no facts")
    memory = remembering(store)
    facts = memory.for_owner("default").facts
    tea, hat = await facts.remember("Likes tea."), await facts.remember("Has a hat.")
    session = await memory.session("s")
    await talk(session)
    await session.context("chat")
    explanation = await only(session)
    assert (await session.rebuild(explanation)).matches
    await facts.edit(tea.key, text="Likes coffee.")
    rebuilt = await session.rebuild(explanation)
    assert not rebuilt.matches
    assert [(c.reason, c.key) for c in rebuilt.changes] == [("changed", tea.key)]
    key = await store.get(Scope(owner="default"), "why_key", "why_key")
    await facts.forget(hat.key)
    assert key is not None  # its digest can no longer be guessed: the key is gone
    assert await store.get(Scope(owner="default"), "why_key", "why_key") is None
    rebuilt = await session.rebuild(explanation)
    gone = {(c.reason, c.key) for c in rebuilt.changes if c.key == hat.key}
    assert gone
    assert gone <= {("erased", hat.key), ("deleted", hat.key)}


async def test_a_fact_goes_with_its_message_and_its_key(store: Store) -> None:
    if await store.finder() is None:
        pytest.skip("this store knows no facts")
    memory = remembering(store)
    session = await memory.session("s")
    (said,) = await session.append(Message(role="user", content="I like tea."))
    facts = memory.for_owner("default").facts
    await facts.remember("Likes tea.", session="s", messages=[said.id])
    other = await memory.session("t")
    await talk(other)
    await other.context("chat")
    assert (await other.rebuild(await only(other))).matches
    await memory.forget(session="s", owner="default", message=said.id)
    assert await store.get(Scope(owner="default"), "why_key", "why_key") is None
    rebuilt = await other.rebuild(await only(other))
    assert not rebuilt.matches
    assert any(change.what == "fact" for change in rebuilt.changes)


async def test_what_was_recalled_is_rebuilt_until_its_session_goes(store: Store) -> None:
    if await store.finder() is None:
        pytest.skip("this store recalls nothing")
    memory = remembering(store)
    old = await memory.session("old")
    await talk(old)
    session = await memory.session("s")
    await session.add_message("user", "What was it about the quince jam?")
    context = await session.context("chat")
    explanation = await only(session)
    assert explanation.references
    chunks = [chunk for m in explanation.references.messages for chunk in m.chunks]
    assert any(chunk.session == "old" for chunk in chunks)
    rebuilt = await session.rebuild(explanation)
    assert rebuilt.context is not None
    assert prompt_of(rebuilt.context) == prompt_of(context)
    await old.rewind(0)
    assert ("hidden", "message") in reasons(await session.rebuild(explanation))
    await memory.delete_session("old")
    rebuilt = await session.rebuild(explanation)
    assert not rebuilt.matches
    assert ("deleted", "message") in reasons(rebuilt)


async def test_references_resolve_within_their_owner_only(store: Store) -> None:
    memory = remembering(store)
    searches = await store.finder() is not None
    bob = memory.for_owner("bob")
    secret = await bob.session("diary", system_prompt="quetzal")
    await secret.add_message("user", "a quetzal")
    await secret.context("plain")
    theirs = await only(secret)
    fact = await bob.facts.remember("Has a quetzal.") if searches else None
    ann = await memory.for_owner("ann").session("diary")
    rebuilt = await ann.rebuild(theirs)
    assert (rebuilt.matches, rebuilt.context, rebuilt.messages) == (False, None, ())
    assert theirs.references
    for id in ("diary", "diary2"):  # forged: her own session, with what is another's
        made = [
            Reference("recalled", chunks=(ChunkReference(id, 1, 0, 0.0),)),
            Reference("facts", facts=(FactReference(fact.key if fact else "0", 1),)),
            Reference("whole", (1,)),
        ]
        forged = theirs.references._replace(session=ann.key, messages=made)
        rebuilt = await ann.rebuild(theirs._replace(references=forged))
        assert not rebuilt.matches
        assert "quetzal" not in repr(rebuilt)
        assert {reason for reason, _ in reasons(rebuilt)} <= {"deleted", "unknown", "changed"}


async def test_an_explanation_without_references_rebuilds_nothing(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_digests, "MOST_MESSAGES", 3)
    session = await remembering(store).session("s")
    await talk(session)
    await session.context("plain")
    explanation = await only(session)
    assert explanation.references is None
    assert reasons(await session.rebuild(explanation)) == {("unknown", "prompt")}


async def test_a_fork_rebuilds_what_it_copied(store: Store) -> None:
    session = await remembering(store).session("s")
    await talk(session)
    context = await session.context("plain")
    await only(session)
    fork = await session.fork(id="f")
    rebuilt = await fork.rebuild(await only(fork))
    assert rebuilt.context is not None
    assert prompt_of(rebuilt.context) == prompt_of(context)
    assert (await session.rebuild(await only(fork))).messages == ()


_POSITIONS = st.integers(1, 50)
_DIGESTS = st.sampled_from(["", "0" * SIZE, "ab" * (SIZE // 2)])
_WHOLE = st.builds(lambda seq, digest: Reference("whole", (seq,), digest), _POSITIONS, _DIGESTS)
_OTHER = st.builds(
    Reference,
    st.sampled_from(["alone", "cut", "short", "lines", "no_result", "facts", "recalled"]),
    st.lists(st.integers(0, 50)).map(tuple),
    _DIGESTS,
    st.integers(0, 99),
    st.booleans(),
    st.lists(st.builds(FactReference, st.text(), _POSITIONS)).map(tuple),
    st.lists(st.builds(ChunkReference, st.text(), _POSITIONS, _POSITIONS, st.just(1.5))).map(tuple),
    st.none() | st.builds(SummaryReference, _POSITIONS, _POSITIONS, _POSITIONS),
)


@settings(max_examples=examples(20))
@given(st.lists(_WHOLE | _OTHER, max_size=6), st.integers(1, 50))
def test_references_come_back_from_their_records(made: list[Reference], gone: int) -> None:
    given_ = References("k", "Window()", "c", False, "f", 3, "", made, "key", "whole")
    value = json.loads(json.dumps(given_.to_record()))
    back = References.from_record(value, "k")
    assert back is not None
    assert back.to_json() == given_.to_json()
    left = given_.without_digests(lambda id, first, last: not id and first <= gone <= last)
    touched = [each for each in made if gone in each.positions()]
    assert not any(each.digest for each in left.messages if gone in each.positions())
    assert not (touched and left.digest)


@pytest.mark.parametrize("run", [PROOF.run, PROOF.on["ram"]], ids=["sqlite", "ram"])
def test_every_context_is_rebuilt_or_says_what_changed(run: Run) -> None:
    outcome = hold(PROOF, run)
    assert int(outcome.figures["contexts"]) >= PROOF.small
