"""Ranking: what bears on a question comes first, and what is packed fits."""

import math
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread.recall.bm25 import CUT, newest
from keepthread.recall.candidates import Candidate, candidates
from keepthread.recall.chunks import (
    ASKS,
    FIRST,
    NUMBERED,
    STANDING,
    TIMED,
    USER,
    parts_of,
    segments_of,
)
from keepthread.recall.corpus import CorpusStats
from keepthread.recall.positions import LENGTH_BITS, MESSAGE, SEQ_BITS, part_of, place, seq_of
from keepthread.recall.query import Named, nearness, query_of
from keepthread.recall.rank import Ranked, rank
from keepthread.recall.snippet import LEAST, MISSES, pack
from keepthread.recall.weights import DEFAULT, ConversationKind, Profile, Weights
from keepthread.recall.words import characters_of, words_of
from keepthread.types import Embedding, Found, Message, Part, Role, Segment, SessionKey, Unread

DAY = 86_400.0
TOTAL = 10
"""Where the cost of the whole message begins among a part's flags."""


class Index:
    """What a store would have of some sessions: number by number, with its messages."""

    def __init__(self, sessions: Mapping[int, Sequence[Message]]) -> None:
        self.parts: dict[int, Part] = {}
        self.texts: dict[int, str] = {}
        places: dict[str, list[int]] = defaultdict(list)
        segments: list[Segment] = []
        for number, messages in sessions.items():
            made = [part for message in messages for part in parts_of(number, message)]
            read = Unread(SessionKey(str(number)), 0, len(messages), 0)
            segments += segments_of(read, messages, made)
            for part in made:
                self.parts[part.place >> LENGTH_BITS] = part
                for word in part.words:
                    places[word].append(part.place)
            for message in messages:
                self.texts[number << SEQ_BITS | message.seq] = message.content
        self.found = Found({w: sorted(p) for w, p in places.items()}, segments[::-1])

    def ask(
        self,
        question: str,
        *,
        asked: Embedding | None = None,
        vectors: dict[int, Embedding] | None = None,
        most: int = 400,
        weights: Weights = DEFAULT,
    ) -> list[Ranked]:
        query = query_of(question)
        found = candidates(query, self.found, most=most)
        parts = {
            key: self.parts[key] for c in found if (key := c.place >> LENGTH_BITS) in self.parts
        }
        return rank(
            query, self.found, found, parts, asked=asked, vectors=vectors or {}, weights=weights
        )

    def said(self, ranked: Sequence[Ranked]) -> list[str]:
        return [self.texts[each.place >> MESSAGE] for each in ranked]


def talk(*lines: str, at: float = 0.0) -> list[Message]:
    """Return a talk of named speakers, a minute between two lines."""
    said = [line.split(": ", 1) for line in lines]
    return [
        Message(role="user", author=who, content=text, seq=seq, created_at=at + 60 * seq)
        for seq, (who, text) in enumerate(said, 1)
    ]


def chat(*texts: str, at: float = 0.0) -> list[Message]:
    """Return a chat with an assistant, by turns."""
    roles: Sequence[Role] = ("user", "assistant")
    return [
        Message(role=roles[n % 2], content=text, seq=n + 1, created_at=at + 60 * n)
        for n, text in enumerate(texts)
    ]


FRIENDS = {
    1: talk(
        "Ann: Hey Bob, how was the weekend?",
        "Bob: Great, we went to the lake with the dogs.",
        "Ann: When did you get the second one?",
        "Bob: Yes, in March, from the shelter.",
        at=datetime(2023, 4, 3, tzinfo=UTC).timestamp(),
    ),
    2: talk(
        "Ann: I signed up for a pottery class.",
        "Bob: Nice! Do you like it?",
        "Ann: I love it, I made a blue bowl yesterday.",
        at=datetime(2023, 7, 15, tzinfo=UTC).timestamp(),
    ),
}


# --- words ---


def bm25(index: Index, words: Sequence[str], part: Part) -> float:
    """Return the textbook's BM25 of one piece."""
    total = len(index.parts)
    average = round(sum(p.place & 255 for p in index.parts.values()) / total)
    score = 0.0
    for word in words:
        holding = [p for p in index.parts.values() if word in p.words]
        times = sum(word + mark in part.words for mark in ("", "²", "³"))
        idf = math.log(1 + (total - len(holding) + 0.5) / (len(holding) + 0.5))
        length = (part.place & 255) / average
        score += idf * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * length))
    return score


@given(
    st.lists(
        st.lists(st.sampled_from(["lake", "dog", "bowl", "blue", "class"]), min_size=1),
        min_size=1,
        max_size=30,
    ),
    st.lists(st.sampled_from(["lake", "dog", "bowl", "tree"]), min_size=1, max_size=3),
)
def test_words_are_weighed_as_by_bm25(texts: list[list[str]], question: list[str]) -> None:
    index = Index({7: talk(*(f"Ann: {' '.join(text)}" for text in texts))})
    query = query_of(" ".join(question))
    for found in candidates(query, index.found):
        part = index.parts.get(found.place >> LENGTH_BITS)
        if part is not None:
            assert found.own == pytest.approx(bm25(index, query.words, part))


def test_what_was_asked_before_it_finds_an_answer_without_the_words() -> None:
    index = Index(FRIENDS)
    found = index.said(index.ask("When did Bob get his second dog?"))
    assert found[0] == "Yes, in March, from the shelter."
    assert found.index("I love it, I made a blue bowl yesterday.") > 3


def test_neighbours_lend_nothing_beyond_their_segment() -> None:
    first = talk("Ann: The lake was cold.", "Bob: Oh.")
    later = [
        Message(role="user", author="Bob", content=text, seq=seq, created_at=DAY + seq)
        for seq, text in ((3, "Good morning."), (4, "And so on."))
    ]
    index = Index({1: [*first, *later]})
    assert len(index.found.segments) == 2
    assert index.said(index.ask("the cold lake")) == ["The lake was cold.", "Oh."]


def test_a_neighbour_is_known_by_message_and_part_alone() -> None:
    index = Index(FRIENDS)
    found = {seq_of(c.place): c for c in candidates(query_of("lake"), index.found) if c.near}
    assert found[2].own > 0
    assert found[1].own == 0
    assert found[1].place == place(1, 1, 0, 0)
    assert Candidate(*found[3]).near > Candidate(*found[1]).near > 0


def test_a_word_of_which_not_all_places_are_known_is_taken_to_be_frequent_before_them() -> None:
    sessions = [Segment(SessionKey(str(n)), 1, n * DAY, n * DAY, 1000, 9000, 0) for n in range(20)]
    known = [place(19 - n // 1000, 1 + n % 1000, 0, 9) for n in range(CUT)][::-1]
    rare = [place(3, seq, 0, 9) for seq in range(1, 60)]
    found = Found({"often": sorted(known), "rare": rare, "both": sorted(known)}, sessions)
    often = candidates(query_of("often"), found, most=10)[0]
    whole = Found(
        {"often": [place(n, s, 0, 9) for n in range(20) for s in range(1, 1001)]}, sessions
    )
    exact = candidates(query_of("often"), whole, most=10)[0]
    assert often.own == pytest.approx(exact.own, abs=0.01)
    assert candidates(query_of("rare often"), found, most=10)[0].place in rare


def test_of_a_word_in_every_second_piece_the_last_places_will_do() -> None:
    lines = [f"Ann: dull {'bowl' if n == 40 else 'lake'}" for n in range(3000)]
    index = Index({1: talk(*lines)})
    dull = candidates(query_of("dull"), index.found, most=100)
    assert min(seq_of(each.place) for each in dull if each.own) > 2500
    assert (
        candidates(query_of("dull bowl"), index.found, most=100)[0].place
        in (index.found.places["bowl"])
    )


def test_a_word_may_stand_twice_before_the_first_place_that_is_known() -> None:
    segment = Segment(SessionKey("1"), 1, 0.0, DAY, 20_000, 180_000, 10_000)
    known = [place(1, seq, 0, 9) for seq in range(10_001, 10_001 + CUT)]
    twice = [place(1, seq, 0, 9) for seq in range(1, 10_002)]
    found = candidates(query_of("often"), Found({"often": known, "often²": twice}, [segment]))
    assert min(seq_of(each.place) for each in found if each.own) >= 10_001


def test_only_as_many_as_asked_for_come_from_a_large_scope() -> None:
    lines = [f"Ann: The bowl number {n} is blue." for n in range(1500)]
    index = Index({1: talk(*lines)})
    found = candidates(query_of("blue bowl 77"), index.found, most=50)
    assert len(found) == 50
    assert "77" in index.texts[found[0].place >> MESSAGE]


def test_a_very_long_question_over_many_messages_is_answered_soon() -> None:
    lines = [f"Ann: word{n % 50} word{n % 49} and word{n % 47} are said here" for n in range(5000)]
    index = Index({1: talk(*lines)})
    begin = time.process_time()
    assert index.ask(" ".join(f"word{n}" for n in range(20_000)))
    assert time.process_time() - begin < 2


# --- signs ---


def test_a_neighbor_ranks_after_the_match_that_brought_it() -> None:
    long = "There is more about that topic which may be useful for the coming weeks. " * 8
    lines = ("Ann: I am allergic to hazelnuts.", f"Bob: {long}", "Ann: Yes.", f"Bob: {long}")
    asking = [Message(role="user", content="May I eat hazelnuts?", seq=1, created_at=9 * DAY)]
    index = Index({1: talk(*lines), 2: asking})
    ranked = index.ask("May I eat hazelnuts?")
    assert index.said(ranked)[:2] == ["May I eat hazelnuts?", "I am allergic to hazelnuts."]
    assert [each.reason for each in ranked[2:]] == ["next to a matching message"] * 2
    assert [each.score for each in ranked] == sorted([r.score for r in ranked], reverse=True)


def test_one_earlier_chat_with_an_assistant_is_ranked_as_one() -> None:
    """The question, not answered yet, is a segment without an assistant."""
    asking = [Message(role="user", content="May I eat nuts?", seq=1, created_at=9 * DAY)]
    assert CorpusStats.of(Index({1: chat("Hello.", "Hi."), 2: asking}).found.segments).assisted
    assert not CorpusStats.of(Index({1: asking}).found.segments).assisted
    assert not CorpusStats().assisted


def test_who_is_named_goes_first() -> None:
    index = Index({1: talk("Ann: I like tea.", "Bob: I like tea.", "Cid: Fine.")})
    ranked = index.ask("What does Bob like, tea?")
    assert index.said(ranked)[0] == "I like tea."
    assert index.parts[ranked[0].place >> LENGTH_BITS].speaker == "Bob"
    assert "said by Bob" in ranked[0].reason
    both = index.ask("Do Ann and Bob like tea?")
    assert "said by" not in both[0].reason


def test_an_old_piece_counts_for_a_frequent_word_beside_a_rarer_one() -> None:
    between = ["cake"] * 9
    lines = [*between, "tea and oat", *between, "cake and oat", *between, *["tea again"] * 20]
    index = Index({1: talk(*(f"Ann: {line}" for line in [*lines, *between * 9]))})
    best = index.said(index.ask("tea, oat?"))[0]
    whole = index.ask("tea, oat?")[0]
    places, older = newest({word: index.found.places[word] for word in ("tea", "oat")}, 20)
    index.found = index.found._replace(places=places, older=older)
    assert [seq_of(place) for place in older["tea"]] == [10]
    assert index.said(index.ask("tea, oat?"))[0] == best == "tea and oat"
    assert index.ask("tea, oat?")[0].reason == whole.reason == "matches: tea, oat"


def test_a_named_month_brings_in_what_was_said_in_it_whatever_the_words() -> None:
    index = Index(FRIENDS)
    ranked = index.ask("What happened in July 2023?")
    assert set(index.said(ranked)[:3]) == {m.content for m in FRIENDS[2]}
    assert all("near the month in the question" in each.reason for each in ranked[:3])


def test_whoever_asks_when_is_told_what_says_when() -> None:
    index = Index({1: talk("Ann: I made a bowl.", "Bob: Oh.", "Ann: I made a bowl on Friday.")})
    ranked = index.ask("When did Ann make the bowl?")
    assert index.said(ranked)[0] == "I made a bowl on Friday."
    assert ranked[0].reason == "matches: ann, bowl; said by Ann; mentions a time"


def test_users_come_before_the_pages_an_assistant_wrote() -> None:
    page = "The budget of a trip depends on many things. " * 30
    index = Index({1: chat("My budget for the trip is 900 euros.", page, "Thanks.", "Welcome.")})
    ranked = index.ask("What is my budget for the trip?")
    assert index.said(ranked)[0] == "My budget for the trip is 900 euros."
    assert any(part_of(each.place) for each in ranked)


def test_what_no_word_and_no_date_speaks_for_is_left_out() -> None:
    index = Index(FRIENDS)
    assert index.ask("xylophone") == []
    assert index.ask("") == []
    assert Index({}).ask("lake") == []


def test_what_has_no_part_any_more_is_left_out() -> None:
    index = Index(FRIENDS)
    best = index.ask("the lake with the dogs")[0]
    del index.parts[best.place >> LENGTH_BITS]
    assert best.place not in [each.place for each in index.ask("the lake with the dogs")]


def test_weights_are_settings() -> None:
    lines = ("Ann: bowl", "Bob: x", "Ann: y", "Bob: z", "Ann: a bowl of soup that I had on a day")
    index = Index({1: talk(*lines)})
    for length, first in ((-9.0, "bowl"), (9.0, "a bowl of soup that I had on a day")):
        profile = Profile(own=0.1, length=length)
        kind = ConversationKind(words=profile, tokens=profile, pooled=profile)
        ranked = index.ask("bowl", weights=Weights(speakers=kind, assisted=kind))
        assert index.said(ranked)[0] == first


def test_a_sign_speaks_for_a_piece_or_against_it_as_its_weight_says() -> None:
    """One pair for each weight: two pieces that are alike but for one sign."""
    for way, name, profile in every_weight():
        only = Profile(**{name: getattr(profile, name)})
        kind = ConversationKind(words=only, tokens=only, pooled=only)
        less, more = scores_of_a_pair(way, Weights(speakers=kind, assisted=kind))
        assert less != more, (way, name)
        assert (more < less) is (name in AGAINST[way]), (way, name)


Way = tuple[str, str]
AGAINST: Mapping[Way, Sequence[str]] = {
    ("speakers", "words"): ("asks",),
    ("speakers", "tokens"): ("asks", "own"),
    ("speakers", "pooled"): ("asks",),
    ("assisted", "words"): ("length", "near", "total"),
    ("assisted", "tokens"): ("length", "total"),
    ("assisted", "pooled"): ("length", "total"),
}
"""Signs that speak against a piece; all others speak for it."""


def every_weight() -> Iterator[tuple[Way, str, Profile]]:
    """Yield every weight that is not zero, with the way of ranking it belongs to."""
    for way in AGAINST:
        profile = getattr(getattr(DEFAULT, way[0]), way[1])
        for each in fields(Profile):
            if getattr(profile, each.name):
                yield way, each.name, profile


def scores_of_a_pair(way: Way, weights: Weights) -> tuple[float, float]:
    """Return the scores of two pieces: the second has more of every sign."""
    query = query_of("When did Bob go there?")
    assert query.when
    answers = int(way[0] == "assisted")
    segments = [Segment(SessionKey("1"), n, 0.0, 1.0, 3, 30, answers) for n in (1, 15)]
    both = ASKS | TIMED | NUMBERED | STANDING | USER | FIRST
    less, more, after = (place(1, seq, 0, 9) for seq in (10, 20, 21))
    found = [
        Candidate(less, 1.0, 1.0, 1.0, 1.0, 0, 1.0, 0.0),
        Candidate(more, 2.0, 2.0, 2.0, 2.0, 1, 2.0, 1.0),
        Candidate(after, 1.0, 1.0, 1.0, 1.0, 1, 1.0, 0.0),
    ]
    parts = [
        Part(less, (), 20, 40 << TOTAL, "Ann"),
        Part(more, (), 30, 80 << TOTAL | both, "Bob"),
        Part(after, (), 20, 40 << TOTAL, "Ann"),
    ]
    by_token = way[1] == "tokens"
    meant = {less: NORTH, more: EAST, after: EAST}
    vectors = {key >> LENGTH_BITS: vector((5, value)) for key, value in meant.items()}
    asked = vector((9, EAST))
    if not by_token:
        vectors = {key: each._replace(ids=()) for key, each in vectors.items()}
        asked = asked._replace(ids=())
    ranked = rank(
        query,
        Found({}, segments),
        found,
        {part.place >> LENGTH_BITS: part for part in parts},
        asked=None if way[1] == "words" else asked,
        vectors={} if way[1] == "words" else vectors,
        weights=weights,
    )
    scores = {each.place: each.score for each in ranked}
    return scores[less], scores[more]


# --- meaning ---


def vector(*tokens: tuple[int, Sequence[float]]) -> Embedding:
    """Return token vectors of four dimensions."""
    flat = [round(127 * x) for _, values in tokens for x in values]
    return Embedding(bytes(x % 256 for x in flat), 4, tuple(id for id, _ in tokens))


EAST, NORTH, UP = (1.0, 0.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (0.0, 0.0, 1.0, 0.0)


@pytest.mark.parametrize("by_token", [True, False])
def test_what_means_the_same_is_found_without_a_word_in_common(by_token: bool) -> None:
    index = Index(FRIENDS)
    meant = "I love it, I made a blue bowl yesterday."
    vectors: dict[int, Embedding] = {}
    for key, part in index.parts.items():
        near = EAST if index.texts[part.place >> MESSAGE] == meant else NORTH
        vectors[key] = (
            vector((5, near), (6, UP)) if by_token else vector((0, near))._replace(ids=())
        )
    asked = vector((9, EAST)) if by_token else vector((0, EAST))._replace(ids=())
    ranked = index.ask("ceramics", asked=asked, vectors=vectors)
    assert index.said(ranked)[0] == meant
    assert ranked[0].reason == "similar meaning"
    assert len(ranked) == len(index.parts)


def test_a_piece_without_vectors_is_ranked_by_its_words() -> None:
    index = Index(FRIENDS)
    lake = index.found.places["lake"][0]
    vectors = {key: vector((5, NORTH)) for key in index.parts if key != lake >> LENGTH_BITS}
    vectors[index.found.places["bowl"][0] >> LENGTH_BITS] = vector()
    ranked = index.ask("lake", asked=vector((9, EAST), (5, NORTH)), vectors=vectors)
    assert ranked[0].place == lake
    empty = dict.fromkeys(index.parts, vector())
    assert index.ask("lake", asked=vector((9, EAST)), vectors=empty)[0].place == lake
    assert index.ask("lake", asked=vector(), vectors=vectors)[0].place == lake


def test_without_vectors_no_numpy_is_loaded() -> None:
    code = "import sys, keepthread.recall.rank; sys.exit('numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- questions ---


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("What did she do on 8 May 2023?", Named(2023, 5, 8)),
        ("What did she do on May 8th, 2023?", Named(2023, 5, 8)),
        ("on the 3rd of june", Named(0, 6, 3)),
        ("Who came in December?", Named(0, 12, 0)),
        ("in may 2022", Named(2022, 5, 0)),
        ("on 2023-05-08", Named(2023, 5, 8)),
        ("what was in 2021", Named(2021, 0, 0)),
        ("What may I do? We march on.", None),
        ("2023-13-01", None),
        ("no time at all", None),
    ],
)
def test_the_time_that_a_question_names(text: str, named: Named | None) -> None:
    assert query_of(text).named == named


def test_of_a_day_one_talks_in_the_days_behind_it() -> None:
    def on(year: int, month: int, day: int, named: Named) -> float:
        return nearness(named, datetime(year, month, day, tzinfo=UTC).timestamp())

    day = Named(2023, 5, 8)
    assert on(2023, 5, 8, day) == on(2023, 5, 7, day) == 1
    assert 1 > on(2023, 5, 9, day) > on(2023, 5, 20, day) > 0
    assert on(2023, 5, 1, day) == 0.3
    assert on(2022, 5, 8, day) == on(2023, 9, 8, day) == 0
    month = Named(0, 12, 0)
    assert [on(2023, 12, 1, month), on(2024, 1, 5, month), on(2024, 3, 1, month)] == [1, 0.5, 0]
    assert on(2024, 2, 29, Named(2024, 2, 31)) > 0
    assert nearness(month, 1e18) == nearness(month, -1e18) == 0


@given(st.text(st.characters(codec=None), max_size=200))
def test_no_question_is_refused(text: str) -> None:
    query = query_of(text)
    assert list(query.spelled) == list(query.words)
    assert set(query.words) <= {*words_of(text), *characters_of(text)}
    assert set(query.faint) <= set(query.words)
    assert set(query.forms) <= set(query.words)
    Index(FRIENDS).ask(text)


# --- packing ---


def packed(pieces: Sequence[tuple[int, int]], room: int, header: int) -> list[int]:
    """Pack pieces by their tokens and headers; of one that is too large, that alone is told."""
    return pack(
        [day for _, day in pieces],
        room,
        header,
        lambda number, left: min(pieces[number][0], left + 1),
    )


numbers = st.integers(0, 9)
runs = st.lists(st.tuples(st.integers(1, 50), numbers, numbers, numbers), max_size=4)


def _segments(session: int, rows: Sequence[tuple[int, int, int, int]]) -> list[Segment]:
    """Return segments of a session, each position once."""
    by_first = {first: (first, parts, words, answers) for first, parts, words, answers in rows}
    key = SessionKey(str(session))
    return [Segment(key, a, a * DAY, (a + 1) * DAY, b, c, d) for a, b, c, d in by_first.values()]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 6), runs), max_size=20))
def test_changed_statistics_are_those_of_all_segments(
    changes: list[tuple[bool, int, list[tuple[int, int, int, int]]]],
) -> None:
    stats, known = CorpusStats(), dict[int, list[Segment]]()
    some: dict[int, list[Segment]] = {}
    for last, session, rows in [*changes, (True, 1, [])]:
        some[session] = _segments(session, rows)
        if not last:
            continue
        known |= some
        stats, some = stats.changed(some), {}
        whole = CorpusStats.of([each for segments in known.values() for each in segments])
        assert list(stats) == list(whole)
        assert (stats.parts, stats.length, stats.assisted) == (
            whole.parts,
            whole.length,
            whole.assisted,
        )
        messages = [session << SEQ_BITS | seq for session in range(8) for seq in (0, 7, 60)]
        for message in messages if len(whole) else ():
            assert stats.at(message) == whole.at(message)
            assert stats.began(message) == whole.began(message)
            assert stats.parts_from(message) == whole.parts_from(message)
            assert stats.between(message, messages[-1]) == whole.between(message, messages[-1])
        assert stats.spans_within(3 * DAY, 9 * DAY) == whole.spans_within(3 * DAY, 9 * DAY)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(0, 4)), max_size=60),
    st.integers(0, 400),
    st.integers(0, 9),
)
def test_what_is_packed_fits_and_the_best_goes_first(
    pieces: list[tuple[int, int]], room: int, header: int
) -> None:
    chosen = packed(pieces, room, header)
    assert chosen == sorted(set(chosen))
    days = {pieces[n][1] for n in chosen}
    assert sum(pieces[n][0] for n in chosen) + header * len(days) <= room
    if pieces and pieces[0][0] + header <= room:
        assert chosen[0] == 0


def test_packing_passes_over_what_does_not_fit_but_not_for_ever() -> None:
    assert packed([(50, 0), (80, 0), (30, 0)], 100, 5) == [0, 2]
    large = [(90, 0)] * MISSES
    assert packed([(50, 0), *large, (30, 0)], 100, 0) == [0, MISSES + 1]
    assert packed([(50, 0), *large, (90, 0), (30, 0)], 100, 0) == [0]
    assert packed([(100 - LEAST + 1, 0), (90, 0), (5, 0)], 100, 0) == [0]
