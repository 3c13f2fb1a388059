"""The digest, the account of a turn, and the compressing of such accounts."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread.context.digest import (
    GAP,
    compressed,
    digest,
    sentences,
    size,
    turn_line,
)
from keepthread.testing.hostile import CASES
from keepthread.types import Message, ToolCall

MIB = 1 << 20

words = st.sampled_from(
    [
        "the",
        "Anna",
        "3",
        "decided",
        "we",
        "é",
        "e\u0301",
        "你好",
        "👨\u200d👩\u200d👧",
        "\ud83d",
        "¦",
        "|",
    ]
)
breaks = st.sampled_from([" ", ". ", "! ", "? ", "。", "！", "\n", "\r\n", "\u2028", " … ", ""])
prose = st.lists(st.tuples(words, breaks), max_size=120).map(
    lambda pairs: "".join(word + end for word, end in pairs)
)
texts = st.text(alphabet=st.characters(), max_size=300) | prose
limits = st.integers(min_value=-3, max_value=400)


def hostile_texts() -> list[str]:
    """Return the contents of every hostile message that is a text and not outsized."""
    messages = (m for case in CASES if case.messages for m in case.messages())
    return [m.content for m in messages if type(m.content) is str and len(m.content) <= MIB]


@given(texts, limits)
def test_a_digest_never_exceeds_its_limit_or_its_text(text: str, limit: int) -> None:
    short = digest(text, limit)
    assert size(short) <= max(limit, 0)
    assert size(short) <= size(text)


@given(texts, limits)
def test_a_digest_is_always_the_same(text: str, limit: int) -> None:
    assert digest(text, limit) == digest(text, limit)


@given(texts)
def test_a_text_that_fits_is_its_own_digest(text: str) -> None:
    assert digest(text, size(text)) == text


@given(prose, st.integers(min_value=0, max_value=400))
def test_the_first_and_the_last_sentence_stay_where_there_is_room(text: str, limit: int) -> None:
    pieces = [piece.removesuffix(GAP).rstrip() for piece in sentences(text)]
    if (
        size(text) > limit
        and pieces
        and size(pieces[0]) + len(GAP.encode()) + size(pieces[-1]) <= limit
    ):
        short = digest(text, limit)
        assert short.startswith(pieces[0])
        assert short.endswith(pieces[-1])


@given(texts, limits)
def test_a_digest_invents_no_characters(text: str, limit: int) -> None:
    assert set(digest(text, limit)) <= set(text) | set(" …\n")


@given(prose)
def test_sentences_lose_nothing_but_blanks(text: str) -> None:
    assert "".join("".join(sentences(text)).split()) == "".join(text.split())


def test_what_matters_stays_in_its_order() -> None:
    text = (
        "We met to talk about the launch. The room was rather cold that day. "
        "We decided to ship on 14 May. Somebody told a long joke about a bird. "
        "Nobody laughed much about it at all. Anna must sign the contract first. "
        "That was all for today."
    )
    assert digest(text, 160) == (
        "We met to talk about the launch. … We decided to ship on 14 May. … "
        "Anna must sign the contract first. That was all for today."
    )


def test_chinese_sentences_are_told_apart() -> None:
    text = (
        "今天天气很好我们去公园玩了很久。后来大家一起随便聊了很多事情。"
        "我们决定三月五日再去北京一次。晚上看了一部很普通的电影。"
        "明天还要上班所以早点睡觉！"
    )
    short = digest(text, 160)
    assert short.startswith("今天天气很好我们去公园玩了很久。")
    assert "我们决定三月五日再去北京一次。" in short
    assert short.endswith("明天还要上班所以早点睡觉！")


def test_a_text_without_breaks_keeps_head_and_tail() -> None:
    short = digest("a" * 500 + "z" * 500, 100)
    assert short.startswith("aaa")
    assert GAP in short
    assert short.endswith("zzz")


def test_a_long_middle_is_cut_rather_than_lost() -> None:
    short = digest(f"Hello.\n{'word ' * 500}\nGoodbye then.", 300)
    assert short.startswith("Hello.\nword word")
    assert short.endswith("word\nGoodbye then.")
    assert size(short) > 250


def test_titles_and_numbers_of_lists_end_no_sentence() -> None:
    text = "I met Dr. Miller in Rome. He was well.\n1. Buy milk for us.\n2. Call home now."
    assert sentences(text) == [
        "I met Dr. Miller in Rome. ",
        "He was well.\n",
        "1. Buy milk for us.\n",
        "2. Call home now.\n",
    ]


@pytest.mark.parametrize("accents", [1, 5])
def test_a_character_is_never_cut_from_its_accents(accents: int) -> None:
    cluster = "e" + "\u0301" * accents
    for limit in range(60):
        short = digest(cluster * 100, limit).removesuffix("…")
        assert short == cluster * (len(short) // len(cluster))


def test_a_family_of_emoji_stays_together() -> None:
    family = "👨\u200d👩\u200d👧"
    for limit in range(60):
        short = digest(family * 50, limit).removesuffix("…")
        assert short == family * short.count(family)


@pytest.mark.parametrize("limit", [0, 1, 7, 60, 61, 500, 4000])
def test_hostile_texts_are_digested_and_compressed(limit: int) -> None:
    for text in hostile_texts():
        for short in (digest(text, limit), compressed(text, limit)):
            assert size(short) <= min(limit, size(text))


@pytest.mark.parametrize(
    "text",
    [
        "The committee met on 3 May in Paris. They decided to wait. ".ljust(64) * (MIB // 64),
        "." * MIB,
        "a" + " " * MIB + "b",
        "x" * MIB,
        "a\n" * (MIB // 2),
        "? ! " * (MIB // 4),
        "你好。" * (MIB // 9),
        "e" + "\u0301" * (MIB // 2),
    ],
    ids=["prose", "dots", "blanks", "letters", "lines", "marks", "chinese", "accents"],
)
def test_a_mebibyte_takes_little_time(text: str) -> None:
    def cpu(part: str) -> float:
        start = time.process_time()
        assert size(digest(part, 500)) <= 500
        return time.process_time() - start

    # Eight times the text takes about eight times as long; a square would take 64 times.
    eighth = min(cpu(text[: len(text) // 8]) for _ in range(3))
    assert cpu(text) < 32 * eighth + 0.5


# --- the account of a turn ---


def user(content: str, **fields: object) -> Message:
    return Message(role="user", content=content, **fields)  # pyright: ignore[reportArgumentType]


def answer(content: str, **fields: object) -> Message:
    return Message(role="assistant", content=content, **fields)  # pyright: ignore[reportArgumentType]


def calling(*names: str) -> Message:
    calls = tuple(ToolCall(id=str(n), name=name) for n, name in enumerate(names))
    return Message(role="assistant", tool_calls=calls)


def test_an_turn_is_told_in_one_line() -> None:
    turn = [
        user("How about Tokyo?"),
        calling("weather"),
        Message(role="tool", content="{'sky': 'clear'}", tool_call_id="0"),
        calling("weather"),
        answer("Sunny, 24 °C."),
    ]
    line = "- User: How about Tokyo? | Assistant: Sunny, 24 °C. | used weather"
    assert turn_line(turn, user=200, answer=200) == line


def test_several_people_are_named() -> None:
    line = turn_line([user("Hi", author="ann"), user("Me too", author="bo")], user=99, answer=99)
    assert line == "- User ann: Hi | User bo: Me too"


def test_only_the_last_live_answer_without_calls_is_told() -> None:
    turn = [user("Q"), answer("one"), answer("two"), answer("", state="erased")]
    assert turn_line(turn, user=9, answer=9) == "- User: Q | Assistant: two"


def test_a_given_digest_stands_for_the_answer() -> None:
    turn = [user("Q", seq=1), answer("very long", seq=2)]
    line = turn_line(turn, user=9, answer=20, digests={2: "in\nshort"})
    assert line == "- User: Q | Assistant: in short"


def test_many_tools_are_counted() -> None:
    line = turn_line([calling(*"abcdefgh", "a"), calling("c")], user=9, answer=9)
    assert line == "- used a, b, c, d, e and 3 more"


def test_an_turn_with_nothing_to_say_is_empty() -> None:
    turn = [
        user(" \n "),
        user("secret", state="erased"),
        Message(role="system", content="the screen is off", origin="tool"),
        Message(role="system", content="be kind"),
        Message(role="tool", content="42"),
        answer(""),
    ]
    assert turn_line(turn, user=100, answer=100) == ""
    assert turn_line([], user=100, answer=100) == ""


@given(texts, texts, texts, st.integers(0, 200), st.integers(0, 200))
def test_no_text_breaks_out_of_its_part(
    asked: str, said: str, name: str, most: int, more: int
) -> None:
    turn = [user(asked, author=name), calling(name), answer(said)]
    line = turn_line(turn, user=most, answer=more)
    assert len(line.splitlines()) <= 1
    assert line.count("|") <= 2
    assert size(line) <= most + more + 200


# --- running summaries ---


@given(st.lists(texts, max_size=40).map("\n".join), limits | st.integers(400, 2000))
def test_a_compressed_summary_never_exceeds_its_limit(text: str, limit: int) -> None:
    short = compressed(text, limit)
    assert size(short) <= max(limit, 0)
    assert short == compressed(text, limit)
    assert compressed(short, limit) == short


def accounts(count: int) -> list[str]:
    return [
        f"- User: What about number {n} on the list, please? "
        f"| Assistant: It is {n * n}, which is fine. I checked it against the table of {n}."
        for n in range(count)
    ]


def test_lines_from_all_of_its_length_remain() -> None:
    lines = accounts(200)
    short = compressed("\n".join(lines), 3000).splitlines()
    told = [int(line.split("number ")[1].split()[0]) for line in short]
    assert told == sorted(told)
    assert told[0] == 0
    assert told[-1] == 199
    for start in range(0, 200, 50):
        assert any(start <= n < start + 50 for n in told)


def test_early_lines_survive_being_compressed_again_and_again() -> None:
    summary = ""
    for line in accounts(600):
        summary = f"{summary}\n{line}".lstrip()
        if size(summary) > 4000:
            summary = compressed(summary, 3000)
    told = [int(line.split("number ")[1].split()[0]) for line in summary.splitlines()]
    assert told[0] == 0
    assert any(0 < n < 200 for n in told)
    assert any(200 <= n < 400 for n in told)
    assert told[-1] == 599


def test_each_voice_keeps_its_name_when_its_line_is_cut() -> None:
    line = f"- User: {'why ' * 200}| Assistant: {'because ' * 200}| used search"
    short = compressed("\n".join([line] * 6), 1200).splitlines()
    assert short
    for each in short:
        assert each.startswith("- User: why")
        assert " | Assistant: because" in each
        assert each.endswith(" | used search")


def test_a_long_name_hides_neither_role_nor_origin() -> None:
    said = Message(role="user", author="a" * 64, origin="web", content="word " * 60)
    line = turn_line([said], user=300, answer=99)
    for limit in range(150, 900, 10):
        for each in compressed("\n".join([line] * 3), limit).splitlines():
            assert each.startswith("- User (web) a"), (limit, each)


def test_no_voice_speaks_under_the_name_of_another() -> None:
    line = f"- {' | '.join(f'User u{n}: {str(n) * 90}' for n in range(9))}"
    for each in compressed("\n".join([line] * 3), 400).splitlines():
        assert set(each) <= set("- User(u0): 0…")


def test_short_lines_are_kept_before_long_ones() -> None:
    lines = [f"- User: {n}" for n in range(10)]
    short = compressed("\n".join([*lines, "x" * 5000, "- User: end"]), 500).splitlines()
    assert short[:10] == lines
    assert short[-1] == "- User: end"
