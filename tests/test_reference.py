"""The reference says what the code says."""

import inspect
from pathlib import Path

from keepthread import errors

DOCS = Path(__file__).parents[1] / "docs"


def test_the_catalogue_of_errors_is_the_tree_of_errors() -> None:
    page = (DOCS / "reference" / "errors.md").read_text()
    rows = [line.split("|") for line in page.splitlines() if line.startswith("| `")]
    listed = {row[1].strip(" `"): row[2].strip() for row in rows}
    found = {
        name: inspect.getdoc(kind)
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, Exception)
    }
    assert listed == found
