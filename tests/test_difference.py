"""Two contexts side by side: what came in, what went out, what each section gained or lost."""

import json

from hypothesis import given
from hypothesis import strategies as st

from keepthread import Choice, Why, difference
from keepthread.context.ranges import count, merged, shared, without, written
from keepthread.types import Selection

FITS = "among the newest messages that fit"
OLDER = "older than the window"


def account(*choices: Choice, budget: int = 1000) -> Why:
    tokens = 16 + sum(choice.tokens for choice in choices if choice.section)
    return Why(Selection(budget, tokens, "", (), choices))


def choice(first: int, last: int, section: str, reason: str = FITS, tokens: int = 10) -> Choice:
    return Choice(first, last, last - first + 1, tokens * (last - first + 1), section, reason)


BEFORE = account(
    choice(0, 0, "system", "the system prompt"),
    choice(5, 12, "window"),
    choice(13, 13, "newest", "the newest user message, always shown"),
    choice(1, 4, "", OLDER),
)
AFTER = account(
    choice(0, 0, "system", "the system prompt"),
    choice(0, 0, "summary", "a summary of everything up to 8", tokens=30),
    choice(6, 6, "pins", "pinned"),
    choice(11, 14, "window"),
    choice(15, 15, "newest", "the newest user message, always shown"),
    choice(1, 8, "", "covered by the summary"),
    choice(9, 10, "", OLDER),
    budget=500,
)


def test_what_came_in_and_went_out_is_told_in_ranges_with_the_reason() -> None:
    changes = difference(BEFORE, AFTER)
    assert [(p.section, p.ranges, p.reason) for p in changes.came] == [
        ("window", ((14, 14),), FITS),
        ("newest", ((15, 15),), "the newest user message, always shown"),
    ]
    assert [(p.section, p.ranges, p.reason) for p in changes.went] == [
        ("window", ((9, 10),), OLDER),
        ("window", ((5, 5), (7, 8)), "covered by the summary"),
    ]
    assert changes.went[1].messages == 3


def test_what_another_section_shows_now_has_moved_and_neither_came_nor_went() -> None:
    changes = difference(BEFORE, AFTER)
    assert [(m.before, m.after, m.ranges) for m in changes.moved] == [
        ("window", "pins", ((6, 6),)),
        ("newest", "window", ((13, 13),)),
    ]


def test_each_section_says_what_it_gained_or_lost() -> None:
    changes = difference(BEFORE, AFTER)
    assert {c.section: c.gained for c in changes.sections} == {
        "system": 0,
        "pins": 10,
        "summary": 30,
        "window": -40,
        "newest": 0,
        "overhead": 0,
    }
    assert [c.section for c in changes.sections][:3] == ["system", "pins", "summary"]
    assert changes.tokens == (116, 116)
    assert changes.budget == (1000, 500)


def test_a_context_does_not_differ_from_itself() -> None:
    changes = difference(AFTER, AFTER)
    assert (changes.came, changes.went, changes.moved) == ((), (), ())
    assert not any(change.gained for change in changes.sections)


def test_the_closest_reason_is_given_and_a_range_with_gaps_is_none() -> None:
    gone = account(
        choice(1, 20, "", OLDER),
        Choice(3, 9, 2, 20, "", "two of seven"),
        choice(5, 5, "", "this very one"),
    )
    (older, this) = sorted(difference(account(choice(4, 6, "window")), gone).went)
    assert this.reason == "this very one"
    assert (older.ranges, older.reason) == (((4, 4), (6, 6)), OLDER)


def test_people_can_read_it_and_programs_too() -> None:
    changes = difference(BEFORE, AFTER)
    assert str(changes).splitlines() == [
        "116 of 1,000 tokens before, 116 of 500 after",
        "    pins        0 ->      10  +10",
        " summary        0 ->      30  +30",
        "  window       80 ->      40  -40",
        "   added  14: 1 message, window: among the newest messages that fit",
        "   added  15: 1 message, newest: the newest user message, always shown",
        " removed  9-10: 2 messages, window: older than the window",
        " removed  5, 7-8: 3 messages, window: covered by the summary",
        "   moved  6: 1 message, window to pins",
        "   moved  13: 1 message, newest to window",
    ]
    told = json.loads(json.dumps(changes.to_json()))
    assert told["sections"]["window"] == {"before": 80, "after": 40}
    assert told["went"][1]["ranges"] == [[5, 5], [7, 8]]


def test_an_account_survives_json() -> None:
    again = Why.from_json(json.loads(json.dumps(AFTER.to_json())))
    assert str(again) == str(AFTER)
    assert again.choices == AFTER.choices
    assert difference(AFTER, again) == difference(AFTER, AFTER)


def test_the_bar_follows_the_prompt_and_shows_the_smallest_section() -> None:
    sections = [
        "newest",
        "tools",
        "window",
        "notes",
        "important",
        "summary",
        "pins",
        "system",
        "mine",
    ]
    tokens = {"window": 400, "notes": 1}
    choices = [choice(n, n, s, tokens=tokens.get(s, 50)) for n, s in enumerate(sections)]
    why = account(*choices)
    drawn = why.bar().strip("[]·")
    assert "".join(dict.fromkeys(drawn)) == "SPsinwtmNo"
    assert list(why.sections) == [
        *sections[7:2:-1],
        "window",
        "tools",
        "mine",
        "newest",
        "overhead",
    ]
    assert len(why.bar(10)) == 12


# --- ranges ---

RANGES = st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)).map(lambda p: (p[0], sum(p))))


def places(ranges: list[tuple[int, int]]) -> set[int]:
    return {n for first, last in ranges for n in range(first, last + 1)}


@given(RANGES, RANGES)
def test_ranges_are_sets_of_positions(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    assert places(merged(a)) == places(a)
    assert places(without(a, b)) == places(a) - places(b)
    assert places(shared(a, b)) == places(a) & places(b)
    assert count(merged(a)) == len(places(a))
    for made in (merged(a), without(a, b), shared(a, b)):
        assert merged(made) == made


def test_ranges_are_written_for_people() -> None:
    assert written([(3, 3), (7, 1200)]) == "3, 7-1,200"


def test_explanations_stored_under_earlier_names_of_sections_are_read() -> None:
    stored = account(choice(1, 1, "kept"), choice(2, 2, "live"), choice(3, 3, "window")).to_json()
    assert [c.section for c in Why.from_json(stored).shown] == ["important", "tools", "window"]
