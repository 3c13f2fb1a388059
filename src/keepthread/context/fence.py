"""The fence: a text from elsewhere, quoted so that it can neither close the quotation nor pose."""

from keepthread.context.harmless import harmless
from keepthread.context.quote import flat


def fenced(text: str, fence: str, title: str) -> str:
    """Return a text as a quotation, each line marked, between two lines that only we can write.

    `fence` is what the text cannot know: letters and digits drawn by chance.
    """
    lines = [f"> {line}" for line in harmless(text, fence).splitlines()] or [">"]
    head = f"[{flat(harmless(title, fence))}, quoted, fence {fence}]"
    return "\n".join([head, *lines, f"[end of quote, fence {fence}]"])
