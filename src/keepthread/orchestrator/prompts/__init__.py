"""The prompts, as files: `prompt("router")`."""

from functools import cache
from importlib.resources import files
from typing import Final


@cache
def prompt(name: str) -> str:
    """Return the text of a prompt."""
    return files(__name__).joinpath(f"{name}.md").read_text("utf-8").strip()


BEGIN: Final = "[conversation]"
END: Final = "[end of conversation]"


def framed(title: str, context: str, request: str) -> str:
    """Return a request after the conversation so far; without one, the request alone."""
    return f"{title}\n{BEGIN}\n{context}\n{END}\n\n{request}" if context else request
