"""Write into the docs what a newcomer types and sees, taken from the program itself.

It stands between `<!-- begin: transcript -->` and `<!-- end: transcript -->`; what is around it is
written by hand and stays.
"""

import re
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.newcomer import first_chat

PAGE = Path(__file__).parents[1] / "docs" / "start" / "chat.md"
PLACE = re.compile(
    r"(?<=^<!-- begin: transcript -->\n).*(?=^<!-- end: transcript -->$)", re.MULTILINE | re.DOTALL
)


def written(transcript: str) -> str:
    """Return a transcript as it stands in the page."""
    return f"\n```console\n{transcript}\n```\n\n"


def main() -> None:
    """Drive the program, write the page, and tell how long it took."""
    with TemporaryDirectory() as folder:
        found = first_chat(Path(folder))
    page = PAGE.read_text()
    PAGE.write_text(PLACE.sub(lambda _: written(found.transcript), page, count=1))
    print(f"{PAGE}: {len(found.commands)} commands, {found.seconds:.0f} s")


if __name__ == "__main__":
    main()
