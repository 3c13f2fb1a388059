"""What is marked as worth keeping, and why."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread.context.importance import CUES, Cue, Cues
from keepthread.protocols import Scorer
from keepthread.testing.hostile import CASES
from keepthread.types import Importance, Message, ToolCall


def score(text: str, **fields: object) -> Importance | None:
    fields.setdefault("role", "user")
    return Cues().score(Message(content=text, **fields))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("After the call we decided to ship in May.", "a decision: “we decided”"),
        ("I've decided against it.", "a decision: “I've decided”"),
        ("Let’s go with the blue one.", "a decision: “Let’s go with”"),
        ("Always use metric units.", "a constraint: “Always use”"),
        ("- please never call me before nine", "a constraint: “please never call”"),
        ("My budget is 500 euros.", "a constraint: “My budget is”"),
        ("The file must be under 2 MB; it must be under that.", "a constraint: “it must be under”"),
        ("By the way, I'm allergic to nuts.", "a constraint: “I'm allergic”"),
        ("I prefer tea.", "a preference: “I prefer”"),
        ("I prefer tea, can you find a shop?", "a preference: “I prefer”"),
        ("I can't stand long mails.", "a preference: “I can't stand”"),
        ("Remember that my name is Ann.", "a request to remember: “Remember that”"),
        (
            "Wir haben uns gestern für Berlin entschieden.",
            "a decision: “haben uns gestern für Berlin entschieden”",
        ),
        ("Je préfère le train.", "a preference: “Je préfère”"),
        ("Hemos decidido esperar.", "a decision: “Hemos decidido”"),
        ("我们决定明天去北京。", "a decision: “我们决定”"),
        ("我更喜欢绿茶。", "a preference: “我更喜欢”"),
        ("京都に行くことにしました。", "a decision: “ことにしました”"),
    ],
)
def test_what_was_decided_demanded_or_preferred_is_marked(text: str, reason: str) -> None:
    found = score(text)
    assert found is not None
    assert found.reason == reason
    assert 0.5 <= found.score <= 1


@pytest.mark.parametrize(
    "text",
    [
        "",
        "What is the weather like?",
        "Have we decided on a date?",
        "So what have we agreed on, and which do I prefer?",
        "I am trying to decide between two phones.",
        "I don't know if we decided that.",
        "It must be lovely there.",
        "Always happy to help!",
        "Never mind.",
        "I love it!",
        "The parser must be called before the lexer.",
        "这个城市有多少人？",
    ],
)
def test_questions_doubts_and_small_talk_are_not_marked(text: str) -> None:
    assert score(text) is None


def test_the_users_word_weighs_more_than_the_answer() -> None:
    theirs, ours = score("We agreed on May."), score("We agreed on May.", role="assistant")
    assert theirs is not None
    assert ours is not None
    assert theirs.score > ours.score


def test_advice_in_an_answer_is_not_marked() -> None:
    assert score("Always test your code. Remember that tests help.", role="assistant") is None


def test_a_long_message_weighs_little() -> None:
    short, long = score("We decided to go."), score("We decided to go. " + "And so on. " * 300)
    assert short is not None
    assert long is not None
    assert long.score < short.score / 2


@pytest.mark.parametrize(
    "fields",
    [
        {"role": "tool"},
        {"role": "system"},
        {"origin": "web"},
        {"origin": "tool"},
        {"state": "erased"},
        {"role": "assistant", "tool_calls": (ToolCall(id="1", name="f"),)},
    ],
)
def test_what_neither_person_nor_answer_says_cannot_ask_to_be_kept(
    fields: dict[str, object],
) -> None:
    assert score("We decided that. Remember that I prefer tea.", **fields) is None


def test_several_kinds_count_for_more() -> None:
    one, two = score("We decided to go."), score("We decided to go. I prefer trains to planes.")
    assert one is not None
    assert two is not None
    assert two.score > one.score
    assert two.reason == one.reason


def test_the_table_can_be_replaced() -> None:
    cues = Cues(table=(Cue("an order number", 1.0, r"\bNR-\d+"),))
    assert cues.score(Message(role="user", content="We decided.")) is None
    found = cues.score(Message(role="user", content="It is nr-42 again."))
    assert found == Importance(1.0, "an order number: “nr-42”")


def test_cues_fit_the_socket() -> None:
    def judge(scorer: Scorer) -> Importance | None:
        return scorer.score(Message(role="user"))

    assert judge(Cues()) is None
    assert all(0 < cue.weight <= 1 for cue in CUES)


@given(st.text(alphabet=st.characters(), max_size=300), st.sampled_from(["", "We decided. "]))
def test_a_score_is_between_nought_and_one_and_always_the_same(text: str, start: str) -> None:
    found = score(start + text)
    assert found == score(start + text)
    if found:
        assert 0 <= found.score <= 1
        assert len(found.reason.splitlines()) == 1


def test_hostile_texts_are_scored_in_little_time() -> None:
    start = time.process_time()
    for case in CASES:
        for message in case.messages() if case.messages else ():
            if type(message.content) is str and len(message.content) <= 1 << 20:
                Cues().score(message)
    for text in ("i have " * 150_000, "a" * (1 << 20), "haben " * 170_000, ", so " * 200_000 + "?"):
        score(text)
        score(text[:2000])
    assert time.process_time() - start < 5
