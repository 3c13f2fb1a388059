"""Write into the docs what people type and see, taken from the program itself.

It is between `<!-- begin: transcript -->` and `<!-- end: transcript -->` of a page: a newcomer's
first chat, and a chat with a plan. What is around it is written by hand and stays.
"""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.newcomer import first_chat, planned_chat

_DOCS = Path(__file__).parents[1] / "docs"
PAGE = _DOCS / "start" / "chat.md"
PLANNED_PAGE = _DOCS / "how-to" / "orchestrate.md"
PLACE = re.compile(
    r"(?<=^<!-- begin: transcript -->\n).*(?=^<!-- end: transcript -->$)", re.MULTILINE | re.DOTALL
)


def written(transcript: str) -> str:
    """Return a transcript as it stands in the page."""
    return f"\n```console\n{transcript}\n```\n\n"


def _write(page: Path, transcript: str) -> None:
    page.write_text(PLACE.sub(lambda _: written(transcript), page.read_text(), count=1))


def main() -> None:
    """Drive the program, write the page, and tell how long it took."""
    with TemporaryDirectory() as folder:
        found = first_chat(Path(folder))
    _write(PAGE, found.transcript)
    print(f"{PAGE}: {len(found.commands)} commands, {found.seconds:.0f} s")
    with TemporaryDirectory() as folder:
        _write(PLANNED_PAGE, planned_chat(Path(folder)))
    print(PLANNED_PAGE)


if __name__ == "__main__":
    main()
