"""Words and parts: what of a text an index keeps, whatever the text is."""

import re
import sqlite3
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from keepthread.recall import chunks as flags
from keepthread.recall.chunks import PAUSE, parts_of, pieces_of, segments_of, total_of
from keepthread.recall.positions import MOST_PARTS, length_of, part_of, seq_of, session_of
from keepthread.recall.stemming import stem
from keepthread.recall.words import LONGEST, MOST, marked, query_words, words_of
from keepthread.types import Message, SessionKey, Unread
from tests.spent import least_ratio

anything = st.text(st.characters(codec=None), max_size=300)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Caroline's TRIPS to Berlin", "carolin trip to berlin"),
        ("we\u2019re sure you'll say don't", "we sure you sai dont"),
        ("naïve Ångström, Straße", "naiv angstrom strass"),
        ("snake_case x² H₂O 3.14", "snake case x2 h2o 3 14"),
        ("東京に行く iPhone15を", "東京 京に に行 行く iphone15 を"),
        ("ｶﾌｪ", "カフ フェ"),
        ("한국어 공부", "한국 국어 공부"),
        ("ไทย", "ไท ทย"),
        ("हिन्दी में", "हिन्द में"),
        ("ज़रूरतें माँ", "जरूरत मां"),
        ("собака собаку собаками", "собак собак собак"),
        ("ёлка за́мок красивейшая", "елк замок красив"),
        ("والكتاب كِتَابٌ كتبها", "كتاب كتاب كتب"),
        ("a\x00b\ud800c", "a b c"),
    ],
)
def test_words_are_found_whatever_their_spelling_case_and_endings(text: str, words: str) -> None:
    assert words_of(text) == words.split()


def test_stems_are_those_of_sqlite() -> None:
    source = " ".join(filter(None, (stem.__doc__, re.__doc__, st.__doc__, sqlite3.__doc__)))
    ends = "s es ed ing ly ness ment ational izer fulness ity able ion ful ive ence ous eed y"
    heads = "hope run tri relat happ conflat size fall agre commun probat ceas roll electr fil ho"
    made = {head + end for head in heads.split(" ") for end in ends.split(" ")}
    words = sorted(made | set(re.findall("[a-z]{3,}", source)))
    file = sqlite3.connect(":memory:")
    file.execute("create virtual table told using fts5(word, tokenize='porter ascii')")
    file.execute("create virtual table terms using fts5vocab(told, 'instance')")
    file.executemany("insert into told(rowid, word) values (?, ?)", enumerate(words))
    theirs = dict(file.execute("select doc, term from terms"))
    file.close()
    assert {word: stem(word) for word in words} == {w: theirs[n] for n, w in enumerate(words)}


@given(anything)
@example("\ud83d\u0000²³ ' '' n't")
def test_no_text_makes_a_word_that_an_index_cannot_hold(text: str) -> None:
    for word in words_of(text):
        assert 0 < len(word) <= LONGEST
        word.encode()
        assert not re.search(r"[\s\x00!-/:-@\[-`{-~²³]", word)
    assert set(query_words(text)) <= set(words_of(text))
    assert bool(query_words(text)) == bool(words_of(text))


def test_a_question_is_asked_by_its_telling_words() -> None:
    assert query_words("What did Melanie's kids do in the museum?") == ["melani", "kid", "museum"]
    assert query_words("what is it?") == ["what", "is", "it"]
    assert query_words('") OR NEAR(* AND "') == ["near"]


def test_a_very_long_question_is_asked_by_few_words_and_soon() -> None:
    asked = " ".join(f"word{n}" for n in range(20_000)) + " berlin"
    words = query_words(asked)
    assert len(words) == MOST
    assert "word0" in words
    assert "berlin" in words

    def cpu(work: Callable[[str], object]) -> float:
        begin = time.process_time()
        work(asked)
        return time.process_time() - begin

    assert least_ratio(lambda: cpu(query_words), lambda: cpu(words_of), 3) <= 3


def test_a_word_is_marked_up_to_three_times() -> None:
    assert marked("abacaab") == ["a", "b", "c", "a²", "b²", "a³"]


def test_short_messages_stay_whole_and_long_ones_are_parted_by_sentences() -> None:
    sentence = "The train to Leipzig leaves at nine in the morning. "
    user = Message(role="user", content=sentence * 18, author="Ann", seq=7)
    assert pieces_of(user) == [user.content.strip()]
    answer = Message(role="assistant", content=sentence * 18, seq=8)
    pieces = pieces_of(answer)
    assert len(pieces) > 2
    assert " ".join(pieces) == answer.content.strip()
    assert all(piece.endswith("morning.") for piece in pieces)

    (part,) = parts_of(3, user)
    assert (session_of(part.place), seq_of(part.place), part_of(part.place)) == (3, 7, 0)
    assert length_of(part.place) == 1 + 18 * 10
    assert "ann" in part.words
    assert part.speaker == "Ann"
    parted = parts_of(3, answer)
    assert [part_of(part.place) for part in parted] == list(range(len(pieces)))
    assert [bool(part.flags & flags.FIRST) for part in parted] == [True] + [False] * (
        len(parted) - 1
    )
    assert {total_of(part.flags) for part in parted} == {sum(part.tokens for part in parted)}


@given(
    st.lists(st.sampled_from(["\n", ". ", "。", "a", "東", "word ", "x" * 900, "\ud800"])),
    st.sampled_from([1, 40, 4000]),
)
def test_nothing_of_a_long_message_is_lost(bits: list[str], times: int) -> None:
    text = "".join(bits) * times
    pieces = pieces_of(Message(role="tool", content=text[:200_000]))
    assert len(pieces) <= MOST_PARTS
    assert re.sub(r"\s", "", "".join(pieces)) == re.sub(r"\s", "", text[:200_000])
    assert all(pieces)


@pytest.mark.parametrize("line", ["a\n", "。", "word. ", "x"])
def test_a_huge_message_has_few_enough_pieces(line: str) -> None:
    pieces = pieces_of(Message(role="assistant", content=line * (3_000_000 // len(line))))
    assert len(pieces) <= MOST_PARTS


def test_what_can_be_told_at_a_glance() -> None:
    def told(text: str, **more: str) -> int:
        message = Message(role="user", content=text, **more)  # pyright: ignore[reportArgumentType]
        return parts_of(1, message)[0].flags & 1023

    plain = flags.USER | flags.FIRST
    assert told("Hello there.") == plain
    assert told('"Is it so?"') == plain | flags.ASKS
    assert told("We met last Friday.") == plain | flags.TIMED
    assert told("I have 3 cats.") == plain | flags.NUMBERED
    assert told("From now on answer in French.") == plain | flags.STANDING
    assert told("Hello", origin="web") == plain | flags.FOREIGN
    tool = Message(role="tool", content="sunny", name="weather")
    assert parts_of(1, tool)[0].flags & 1023 == flags.TOOL | flags.FIRST | flags.FOREIGN
    assert parts_of(1, tool)[0].speaker == "weather"


def test_what_was_erased_or_is_empty_has_no_parts() -> None:
    assert parts_of(1, Message(role="user", content=" \n")) == []
    assert parts_of(1, Message(role="user", content="gone", state="erased")) == []
    assert parts_of(1, Message(role="user", content="rotten", state="damaged")) == []


def test_a_long_pause_begins_a_segment_and_reading_on_prolongs_it() -> None:
    times = [0.0, 60.0, 60.0 + PAUSE, 61.0 + 2 * PAUSE, 62.0 + 2 * PAUSE]
    roles = ["user", "assistant", "user", "user", "assistant"]
    log = [
        Message(role=role, content="two words", seq=seq, created_at=at)  # pyright: ignore[reportArgumentType]
        for seq, (role, at) in enumerate(zip(roles, times, strict=True), 1)
    ]
    new = Unread(session=SessionKey("4"), until=0, last=5, epoch=0)
    whole = segments_of(new, log)
    assert [(s.first, s.parts, s.length, s.answers) for s in whole] == [(1, 3, 6, 1), (4, 2, 4, 1)]
    assert (whole[0].started_at, whole[0].ended_at) == (0.0, 60.0 + PAUSE)
    for cut in range(6):
        before = segments_of(new, log[:cut])
        rest = new._replace(until=cut, segment=before[-1] if before else None)
        after = segments_of(rest, log[cut:])
        grown = {segment.first: segment for segment in (*before, *after)}
        assert list(grown.values()) == whole
