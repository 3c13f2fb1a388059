"""P31 at a small size, and that its rules notice what they are for."""

import random
from dataclasses import replace
from typing import Any

import pytest

from keepthread import Attachment, Message, Native, ToolCall, fit
from keepthread.models.tokens import Estimator
from proofs.p31_wires import PROOF, request_for
from proofs.responses_rules import refused
from proofs.wire_conversations import PROVIDERS, Provider
from proofs.wire_laws import faults
from proofs.wire_streams import answer, problems_with
from tests import known_bad
from tests.proving import hold
from tests.seeds import SEED

COUNTER = Estimator()
PICTURE = Attachment(media_type="image/png", name="pic1z.file", uri="https://example.org/pic1z.png")


def test_every_provider_takes_what_was_said_with_any_other_and_no_stream_is_misread() -> None:
    outcome = hold(PROOF)
    for figure in ("provider switches", "attachments", "odd ids", "parallel calls", "native parts"):
        assert int(outcome.figures[figure]) > 0, f"seed {SEED}: no {figure}"
    assert int(outcome.figures["cuts"]) > 1000


@pytest.mark.parametrize("bad", range(len(known_bad.BAD_RESPONSES)))
def test_the_rules_for_responses_refuse_what_the_provider_refuses(bad: int) -> None:
    reason, request = known_bad.BAD_RESPONSES[bad]
    assert list(refused(request)), reason


def test_the_rules_for_responses_accept_what_we_may_send() -> None:
    call = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
    picture = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
    output = [{"type": "input_text", "text": "a"}, picture]
    asked = {"role": "user", "content": "Hi"}
    thought = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "g"}
    answered = {"type": "function_call_output", "call_id": "a", "output": output}
    said = {"role": "assistant", "content": "Hello."}
    request = {"input": [asked, thought, call, answered, said, asked], "instructions": "Be brief."}
    assert not list(refused(request))


def log() -> list[Message]:
    calls = [ToolCall(id=id, name="look", arguments=f'{{"mark":"call1z-{id}"}}') for id in "01"]
    thought = {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in calls
        ],
        "reasoning_content": "thought1zapi.deepseek.com",
    }
    native = Native("openai-chat", [thought], "api.deepseek.com")
    results = [
        Message(role="tool", tool_call_id=call.id, content=f"result for {call.arguments}")
        for call in calls
    ]
    return [
        Message(role="user", content="Look."),
        Message(role="assistant", tool_calls=calls, native=native),
        replace(results[0], attachments=[PICTURE]),
        results[1],
        Message(role="user", content="And?"),
    ]


DEEPSEEK = Provider("openai-chat", "api.deepseek.com")


def found(said: list[Message], to: Provider, **changed: Any) -> set[str]:
    context = fit(said, 10_000, counter=COUNTER)
    request = request_for(context, to) | changed
    return {figure for figure, _ in faults(context, to, request, COUNTER)}


def test_the_laws_find_nothing_wrong_with_what_is_right() -> None:
    for to in PROVIDERS:
        assert found(log(), to) == set()


def test_the_laws_see_results_that_were_exchanged_or_lost() -> None:
    sent = request_for(fit(log(), 10_000, counter=COUNTER), DEEPSEEK)["messages"]
    user, said, one, two, *rest = sent
    swapped = [{**one, "content": two["content"]}, {**two, "content": one["content"]}]
    assert "wrong result" in found(log(), DEEPSEEK, messages=[user, said, *swapped, *rest])
    assert "results lost" in found(log(), DEEPSEEK, messages=[user, said, one, *rest])


def test_the_laws_see_images_and_thoughts_out_of_place() -> None:
    sent = request_for(fit(log(), 10_000, counter=COUNTER), DEEPSEEK)["messages"]
    without = [message for message in sent if isinstance(message["content"], str | None)]
    assert found(log(), DEEPSEEK, messages=without) == {"attachments missing"}
    unthought = [{k: v for k, v in m.items() if k != "reasoning_content"} for m in sent]
    assert found(log(), DEEPSEEK, messages=unthought) == {"thoughts lost"}
    stranger = Provider("openai-chat", "openrouter.ai")
    assert found(log(), stranger, messages=sent) == {"thoughts to strangers"}


def test_an_answer_is_held_against_what_was_sent() -> None:
    rng = random.Random(SEED)
    said = next(a for a in iter(lambda: answer(rng), None) if len(a.calls) > 1)
    calls = [
        ToolCall(id=f"c{n}", name=name, arguments=arguments)
        for n, (_, name, arguments) in enumerate(said.calls)
    ]
    said = said._replace(calls=[(c.id, c.name, c.arguments) for c in calls])
    assert problems_with(said, said.text, calls, cut=False) == []
    assert problems_with(said, said.text, calls[::-1], cut=False)
    assert problems_with(said, said.text, [replace(c, id="c0") for c in calls], cut=False)
    assert problems_with(said, f"{said.text}.", calls, cut=False)
    assert problems_with(said, said.text, calls, cut=True)
