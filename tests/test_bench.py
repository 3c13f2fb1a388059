"""The benchmarks: the frame judges rightly, and what is measured is what is meant."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from bench import Bar, Benchmark, Report, Row, Run, overlap
from bench.__main__ import BENCHMARKS, main
from bench.bare import Bare, rows
from bench.corpus import SIZES, messages, texts
from bench.measure import cpu_in_turn, middle_half, ratios
from bench.places import file_system, folders, sync_times
from bench.prefix.held import hold
from bench.prefix.prompts import Prompts, tail_length
from bench.question import opened
from bench.recall.corpora import Question, Talk
from bench.talks import KINDS, Kind, Talked, talk
from keepthread import Memory, Message, View, fit
from keepthread.models.tokens import Estimator

ROOT = Path(__file__).parents[1]
SIZED = [f"{size:,} bytes" for size in SIZES]


def row(name: str = "a row", value: float = 2.0, bar: Bar | None = None) -> Row:
    return Row(group="a group", name=name, value=value, unit="×", spread=(1.5, 2.5), bar=bar)


def benchmark(*found: Row) -> dict[str, Benchmark]:
    def measure(run: Run) -> Report:
        run.progress("measuring")
        return Report(setting=["on a test bench"], rows=found, notes=["a note"])

    return {"fake": Benchmark(name="fake", about="nothing real", measure=measure)}


def run_fake(tmp_path: Path, found: Row, options: Sequence[str] = ()) -> int:
    return main(["fake", "--dir", str(tmp_path), *options], benchmark(found))


# --- the frame ---


@pytest.mark.parametrize(
    ("bar", "value", "holds"),
    [
        (Bar(3), 3.0, True),
        (Bar(3), 3.01, False),
        (Bar(4, at_least=True), 4.0, True),
        (Bar(4, at_least=True), 3.99, False),
    ],
)
def test_a_bar_holds_up_to_its_limit(bar: Bar, value: float, holds: bool) -> None:
    assert bar.holds(value) is holds


def test_a_bar_that_holds_ends_with_status_0(tmp_path: Path) -> None:
    assert run_fake(tmp_path, row(bar=Bar(3))) == 0


def test_a_row_without_a_bar_ends_with_status_0(tmp_path: Path) -> None:
    assert run_fake(tmp_path, row()) == 0


def test_a_missed_bar_ends_with_status_1_and_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_fake(tmp_path, row(bar=Bar(1.25))) == 1
    printed = capsys.readouterr().out
    assert "≤ 1.25  MISSED" in printed
    assert "1 of 1 bars missed" in printed


@pytest.mark.parametrize("options", [["--quick"], ["--rounds", "8"], ["--quick", "--rounds", "9"]])
def test_too_short_a_run_judges_nothing_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert run_fake(tmp_path, row(bar=Bar(1)), options) == 0
    printed = capsys.readouterr().out
    assert "not judged" in printed
    assert "too few rounds" in printed


def test_json_is_a_list_of_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_fake(tmp_path, row(bar=Bar(1)), ["--json"]) == 1
    assert json.loads(capsys.readouterr().out) == [
        {
            "name": "a row",
            "value": 2.0,
            "unit": "×",
            "spread": [1.5, 2.5],
            "bar": "<= 1",
            "holds": False,
        }
    ]


def test_the_table_shows_setting_groups_rows_and_notes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_fake(tmp_path, row(bar=Bar(3)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["fake: nothing real", "on a test bench"]
    assert lines[3].split() == ["a", "group", "value", "spread", "bar", "verdict"]
    assert lines[4].split() == ["a", "row", "2.00", "×", "1.50–2.50", "≤", "3", "holds"]
    assert lines[6:] == ["a note", "All 1 bars hold."]


def test_an_unknown_name_lists_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["sped"])
    assert end.value.code == 2
    printed = capsys.readouterr().err
    assert "no benchmark sped" in printed
    assert all(name in printed for name in BENCHMARKS)


def test_no_rounds_at_all_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["speed", "--rounds", "0"])
    assert "at least one round" in capsys.readouterr().err


# --- measuring ---


def test_work_is_done_in_turn_and_equally_often() -> None:
    done: list[tuple[str, int]] = []
    work = {name: lambda count, name=name: done.append((name, count)) for name in "abc"}
    spent = cpu_in_turn(work, slices=3, count=5)
    assert done == [(name, 5) for name in "abcbcacab"]
    assert all(seconds >= 0 for seconds in spent.values())


def test_a_ratio_is_taken_within_each_round() -> None:
    assert ratios([{"a": 2, "b": 1}, {"a": 30, "b": 10}], "a", "b") == [2, 3]


def test_the_spread_is_the_middle_half() -> None:
    assert middle_half([9, 1, 2, 3, 4]) == (2, 4)
    assert middle_half([7]) == (7, 7)


def test_folders_are_empty_and_go_away(tmp_path: Path) -> None:
    with folders(tmp_path / "new") as places:
        assert all(list(place.iterdir()) == [] for place in places)
        assert all(seconds > 0 for seconds in sync_times(places[1], 3))
        assert file_system(places[1])
    assert not any(place.exists() for place in places)


# --- what is measured ---


@pytest.mark.parametrize("size", SIZES)
def test_every_text_has_its_size_and_differs(size: int) -> None:
    found = texts(size)
    assert {len(text.encode()) for text in found} == {size}
    assert len(set(found)) == len(found)
    assert [message.content for message in messages(size, len(found))] == found


def test_the_bare_engine_is_as_durable_as_ours(tmp_path: Path) -> None:
    bare = Bare(tmp_path / "bare", rows(110, 6, sessions=2))
    bare.append(6)
    assert bare._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert bare._db.execute("PRAGMA synchronous").fetchone() == (2,)
    stored = bare._db.execute("SELECT session, seq FROM messages ORDER BY rowid").fetchall()
    assert stored == [(name, seq) for seq in (1, 2, 3) for name in ("cli:0001", "cli:0002")]
    bare.close()


def conversation(talked: Talked) -> list[Message]:
    asked = Message(role="user", content=talked.asked)
    rounds = [m for each in talked.rounds for m in (each.call, *each.results)]
    return [asked, *rounds, Message(role="assistant", content=talked.answered)]


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_conversation_is_what_its_kind_says(kind: Kind) -> None:
    turns = list(talk(kind, 1))
    counter = Estimator()
    tokens = sum(counter.count(message) for each in turns for message in conversation(each))
    assert tokens / len(turns) == pytest.approx(kind.tokens, rel=0.1)
    with_tools = sum(bool(each.rounds) for each in turns)
    assert with_tools / len(turns) == pytest.approx(kind.tools, abs=0.06)


def test_a_conversation_is_fixed_by_its_seed() -> None:
    kind = KINDS[0]
    assert list(talk(kind, 1, 5)) == list(talk(kind, 1, 5)) != list(talk(kind, 2, 5))


def test_what_a_prompt_begins_with_as_the_one_before_is_unchanged() -> None:
    prompts = Prompts(Estimator())
    log = [Message(role="user", content=f"message number {n}") for n in range(4)]
    for end in (3, 4):
        prompts.add(fit(log[:end], 4096, counter=Estimator()))
    assert prompts.shares.unchanged == pytest.approx(100 * 3 / 7)
    assert prompts.shares.used is None


def test_a_prompt_that_begins_otherwise_has_nothing_unchanged() -> None:
    prompts = Prompts(Estimator())
    log = [Message(role="user", content=f"message number {n}") for n in range(4)]
    for start in (0, 1):
        prompts.add(fit(log[start:], 4096, counter=Estimator()))
    assert prompts.shares.unchanged == 0


def test_the_budget_counts_as_used_once_something_was_left_out() -> None:
    prompts = Prompts(Estimator())
    log = [Message(role="user", content=f"message number {n}") for n in range(40)]
    contexts = [fit(log[:end], 100, counter=Estimator()) for end in (1, 40)]
    for context in contexts:
        prompts.add(context)
    assert prompts.shares.used == contexts[1].tokens


async def test_the_tail_is_late_results_and_what_came_with_the_newest_message() -> None:
    async with Memory.open("ram://", counter=Estimator()) as memory:
        session = await memory.session("talk")
        await session.cache_tool("look", {}, "found", 99)
        for number in range(30):
            await session.append(
                Message(role="user", content=f"question {number}"),
                Message(role="assistant", content="an answer of some length " * 20),
            )
        context = await session.context(budget=2000)
    assert [m.role for m in context.messages[-4:]] == ["assistant", "tool", "user", "assistant"]
    assert tail_length(context) == 4


async def test_what_is_before_the_tail_has_a_share_of_its_own() -> None:
    kind = KINDS[0]
    found = await hold(kind, 11, 20, {"small": View(1000)}, Estimator(), company=True)
    shares = found["small"]
    assert 0 < shares.tail < 100
    whole = shares.body * (100 - shares.tail) + shares.unchanged_tail * shares.tail
    assert whole / 100 == pytest.approx(shares.unchanged)


async def test_a_conversation_in_company_is_fixed_by_its_seed() -> None:
    views = {"small": View(1000)}
    one, two = [await hold(KINDS[1], 11, 20, views, Estimator(), company=True) for _ in "12"]
    assert one == two


async def test_the_ten_best_are_compared_with_a_ranking_that_reads_all_places() -> None:
    segment = [Message(role="user", content=f"tea and cake {n}", author="Ana") for n in range(30)]
    talk = Talk("t", False, [segment], [Question("What about tea 7?", "single-hop", frozenset())])
    async with await opened("ram://") as memory:
        await overlap.fill(memory, overlap.sessions([talk], 70))
        listed = await memory.list_sessions(owner=overlap.OWNER)
        assert sum(session.messages for session in listed) == 70
        assert await overlap.overlap(memory, ["What about tea 7?", "cake"]) == 1.0
