"""The list of planted bugs fits the tree; `scripts/mutate` plants them, by hand."""

from pathlib import Path

import pytest

from scripts.mutate import ROOT, Mutation, mutations


@pytest.mark.parametrize("mutation", mutations(), ids=lambda m: f"{m.file}: {m.what}")
def test_a_listed_bug_can_be_planted_and_its_tests_exist(mutation: Mutation) -> None:
    assert mutation.problem(ROOT) is None


def test_an_entry_that_does_not_fit_the_tree_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\ny = 1\n")
    (tmp_path / "test_a.py").write_text("def test_x():\n    pass\n")

    def problem(
        file: str = "a.py", old: str = "x = 1", new: str = "x = 2", test: str = "test_a.py::test_x"
    ) -> str | None:
        tests = [test] if test else []
        entry = Mutation(file=file, what="a bug", old=old, new=new, tests=tests)
        return entry.problem(tmp_path)

    assert problem() is None
    assert problem(file="b.py") == "b.py does not exist"
    assert problem(old="= 1") == "the text to replace occurs 2 times in a.py, not once"
    assert problem(old="z") == "the text to replace occurs 0 times in a.py, not once"
    assert problem(new="x = 1") == "the replacement changes nothing"
    assert problem(test="test_b.py") == "test_b.py does not exist"
    assert problem(test="test_a.py::test_y") == "test_a.py has no test test_y"
    assert problem(test="") == "no test is named"
