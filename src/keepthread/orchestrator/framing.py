"""How the conversation stands in a prompt of one text: framed, between two marks."""

from typing import Final

BEGIN: Final = "[conversation]"
END: Final = "[end of conversation]"


def framed(title: str, context: str, request: str) -> str:
    """Return a request behind what was said before; without that, the request alone."""
    return f"{title}\n{BEGIN}\n{context}\n{END}\n\n{request}" if context else request
