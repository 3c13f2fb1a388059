"""The prompts, as files: `prompt("router")`."""

from functools import cache
from importlib.resources import files


@cache
def prompt(name: str) -> str:
    """Return the text of a prompt."""
    return files(__name__).joinpath(f"{name}.md").read_text("utf-8").strip()
