"""The benchmark of recall: it reads the corpora as they are, and counts what contexts show."""

import json
from pathlib import Path
from typing import Any

import pytest

from bench.__main__ import main
from bench.counters import best
from bench.recall.asking import HYBRID, RECALL, WINDOW, Room, views
from bench.recall.corpora import Question, Talk, beam, locomo
from keepthread import Memory, Message


def conversation(number: int) -> dict[str, Any]:
    """Return one in LoCoMo's form, with a malformed id and a question of the fifth category."""
    first = [
        {"speaker": "Ann", "dia_id": "D1:1", "text": f"I planted {number} cherry trees."},
        {"speaker": "Bob", "dia_id": "D1:2", "text": "Lovely!", "blip_caption": "a garden"},
    ]
    second = [{"speaker": "Bob", "dia_id": "D2:1", "text": "I sold the boat on Friday."}]
    asked = [
        {"question": "What did Ann plant?", "category": 4, "evidence": ["D1:1; D:1:02", "D9:9"]},
        {"question": "When did Bob sell the boat?", "category": 2, "evidence": ["D2:1"]},
        {"question": "What of the moon?", "category": 5, "evidence": ["D2:1"]},
        {"question": "And nothing?", "category": 1, "evidence": []},
    ]
    talk = {
        "session_1": first,
        "session_1_date_time": "1:56 pm on 8 May, 2023",
        "session_2": second,
        "session_2_date_time": "10:00 am on 2 June, 2023",
    }
    return {"sample_id": f"c{number}", "conversation": talk, "qa": asked}


@pytest.fixture
def corpora(tmp_path: Path) -> Path:
    (tmp_path / "locomo").mkdir()
    samples = [conversation(number) for number in range(10)]
    (tmp_path / "locomo" / "locomo10.json").write_text(json.dumps(samples))
    for number in (2, 11):
        folder = tmp_path / "beam-100k" / str(number)
        folder.mkdir(parents=True)
        turn = [
            {"role": "user", "id": 0, "content": "My cat is Tom. ->-> 1,1"},
            {"role": "assistant", "id": 1, "content": "Noted."},
        ]
        (folder / "chat.json").write_text(json.dumps([{"batch_number": 1, "turns": [turn]}]))
        asked = {"extraction": [{"question": "Who is Tom?", "source_chat_ids": {"a": [[0, "1"]]}}]}
        (folder / "questions.json").write_text(json.dumps(asked))
    return tmp_path


def test_the_corpora_are_read_as_they_are(corpora: Path) -> None:
    talks = locomo(corpora)
    assert [talk.held_out for talk in talks] == [False] * 5 + [True] * 5
    said = [message for segment in talks[3].segments for message in segment]
    assert [(m.author, m.content) for m in said] == [
        ("Ann", "I planted 3 cherry trees."),
        ("Bob", "Lovely! [shares photo: a garden]"),
        ("Bob", "I sold the boat on Friday."),
    ]
    assert said[2].created_at - said[0].created_at == 25 * 86_400 - (13 * 60 + 56 - 600) * 60
    assert talks[3].questions == [
        Question("What did Ann plant?", "single-hop", frozenset({"D1:1", "D1:2"})),
        Question("When did Bob sell the boat?", "temporal", frozenset({"D2:1"})),
    ]
    chats = beam(corpora)
    assert [(chat.name, chat.held_out) for chat in chats] == [("beam-2", False), ("beam-11", True)]
    assert [m.content for m in chats[0].segments[0]] == ["My cat is Tom.", "Noted."]
    assert chats[0].questions == [Question("Who is Tom?", "extraction", frozenset({"0", "1"}))]


async def test_evidence_is_counted_by_what_contexts_show(tmp_path: Path) -> None:
    filler = [
        Message(role="user", author="Bob", content=f"Line {n}.", id=f"f{n}") for n in range(60)
    ]
    gold = Message(role="user", author="Ann", content="My sister lives in Oslo.", id="gold")
    question = Question("Where does Ann's sister live?", "single-hop", frozenset({"gold", "f59"}))
    talk = Talk("t", True, [[gold], filler], [question])
    budgets = (150, 4000)
    async with Memory.open(
        f"sqlite:///{tmp_path}/file.db", views=views(budgets), counter=best(), recall="owner"
    ) as memory:
        room = Room(memory, talk, best())
        await room.fill((WINDOW, HYBRID, RECALL))
        asked = await room.ask(question, budgets)
    assert asked.shares[WINDOW, 150] == 0.5
    assert asked.shares[WINDOW, 4000] == 1
    assert asked.shares[RECALL, 150] == 0.5
    assert asked.best == 0.5


def test_a_quick_run_judges_nothing_and_names_everything(
    corpora: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recall", "--quick", "--data", str(corpora)]) == 0
    printed = capsys.readouterr().out
    assert "recall, 500 tokens" in printed
    assert "sliding window, 4,000 tokens" in printed
    assert "temporal, R@10" in printed
    assert "name a model's folder with --model" in printed
    assert "BEAM-100K, words" not in printed


@pytest.mark.parametrize("options", [[], ["--data", "nowhere"]])
def test_without_the_corpora_it_says_where_to_put_them(options: list[str]) -> None:
    with pytest.raises(SystemExit, match=r"locomo/locomo10\.json"):
        main(["recall", *options])
