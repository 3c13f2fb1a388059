"""Messages in eight languages are found again by questions that people would ask."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from bench.languages import BARS, BEFORE, Table, ask, tables
from keepthread import Hybrid, Memory, Message, View
from keepthread.memory.search.ranking import SearchScope, ranked
from keepthread.protocols import Searchable
from keepthread.recall.query import query_of
from keepthread.recall.weights import DEFAULT
from keepthread.types import Found

TABLES = {table.language: table for table in tables()}


@pytest.mark.parametrize("language", sorted(BARS))
def test_twenty_questions_in_each_language_find_their_messages(language: str) -> None:
    table = TABLES[language]
    found = asyncio.run(ask(table))
    print(f"{language}: {BEFORE[language]} of 20 before, {found.among} now")
    assert len(table.questions) == 20
    assert found.among >= BARS[language] >= BEFORE[language], found.missed


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_store_finds_the_same_messages_in_every_language(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if kind == "sqlite":
        url = f"sqlite:///{tmp_path}/chat.db"
    else:
        url = request.getfixturevalue("postgres").empty()
    for table in tables():
        assert asyncio.run(ask(table, url)) == asyncio.run(ask(table)), table.language


async def _hits(texts: list[str], question: str) -> list[str]:
    async with Memory.open("ram://") as memory:
        session = await memory.session("s", owner="ann")
        for text in texts:
            await session.add_message("user", text)
        return [hit.message.content for hit in await memory.search(question, owner="ann")]


@pytest.mark.parametrize(
    ("text", "question"),
    [
        ("狗的名字是旺财", "我的狗叫什么？"),
        ("我喜欢喝茶", "茶"),
        ("車は赤いトヨタです", "車"),
        ("우리 집은 서울에 있어요", "집이 어디예요?"),
        ("𠮷野家に行く", "𠮷"),
        ("Мою собаку зовут Шарик", "собака"),
        ("Он купил ёлку", "елка"),
        ("Meine Bücher liegen hier", "Wo ist mein Buch?"),
        ("هذا كِتَابٌ قديم", "الكتاب"),
        ("मेरी किताबें यहाँ हैं", "किताब"),
    ],
)
def test_a_word_is_found_as_one_character_or_in_another_form(text: str, question: str) -> None:
    others = [
        "今天天气很好",
        "来週会議があります",
        "회의가 있어요",
        "Сегодня дождь",
        "It rains today",
    ]
    assert asyncio.run(_hits([*others, text], question))[:1] == [text]


def test_a_pair_of_characters_counts_more_than_its_single_characters() -> None:
    texts = ["水果很新鲜", "果然下雨了，水很深", "他喝水"]
    assert asyncio.run(_hits(texts, "水果"))[0] == "水果很新鲜"


def test_a_context_recalls_a_message_by_a_word_of_one_character() -> None:
    async def shown() -> str:
        views = {"chat": View(budget=1500, strategy=Hybrid())}
        async with Memory.open("ram://", views=views, recall="owner") as memory:
            old = await memory.session("old", owner="ann")
            for text in TABLES["chinese"].messages:
                await old.add_message("user", text)
            session = await memory.session("s", owner="ann")
            async with session.turn("我的狗叫什么？") as turn:
                return (await turn.context()).text

    assert "狗的名字是旺财" in asyncio.run(shown())


def test_a_fact_is_found_by_a_word_of_one_character() -> None:
    async def found() -> list[str]:
        async with Memory.open("ram://") as memory:
            facts = memory.for_owner("ann").facts
            await facts.remember("养了一只狗")
            await facts.remember("住在杭州")
            return [fact.text for fact in await facts.search("狗")]

    assert asyncio.run(found()) == ["养了一只狗"]


def test_an_english_question_is_asked_by_its_own_words_alone() -> None:
    for question in ("What did Melanie paint in the den?", "Where is MIT, and was it von Braun?"):
        asked = query_of(question)
        assert not asked.forms
        assert not asked.faint


def test_a_table_has_twenty_questions_and_distractors() -> None:
    def enough(table: Table) -> bool:
        return len(table.questions) == 20 and len(table.messages) >= 35

    assert all(enough(table) for table in tables())


class Bounded:
    """An index that returns the newest twenty places of a word, not thousands."""

    def __init__(self, finder: Searchable) -> None:
        self._finder = finder

    def __getattr__(self, name: str) -> Any:
        return getattr(self._finder, name)

    async def places(self, *args: Any, **named: Any) -> Found:
        return await self._finder.places(*args, **named, max_places=20)


async def test_an_old_message_counts_for_another_form_of_a_frequent_word() -> None:
    between = ["Kuchen"] * 9
    lines = [*between, "Haus, Hafer", *between, "Kuchen, Hafer", *between, *["Haus"] * 30]
    async with await Memory.open("ram://") as memory:
        session = await memory.session("s", owner="ana")
        texts = [*lines, *between * 9]
        await session.append(*(Message(role="user", content=text) for text in texts))
        await memory.index(owner="ana")
        finder = await memory.store.finder()
        assert finder is not None
        asked, scope = query_of("Häuser und Hafer?"), SearchScope("ana", None)
        assert "haus" in asked.forms["hauser"]
        some: Any = Bounded(finder)
        ranking = await ranked(some, asked, scope, vectors=None, weights=DEFAULT)
        (found,), _ = await finder.fetch([ranking.ranked[0].place])
        assert found.message.content == "Haus, Hafer"
