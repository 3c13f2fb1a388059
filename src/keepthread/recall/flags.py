"""Flags: what can be told of a piece at a glance, a bit each."""

from typing import Final

ASKS: Final = 1
"""It ends in a question mark."""
TIMED: Final = 2
"""It holds an expression of time."""
NUMBERED: Final = 4
"""It has a digit."""
STANDING: Final = 8
"""It says what is to be done always."""
USER: Final = 16
ASSISTANT: Final = 32
TOOL: Final = 64
SYSTEM: Final = 128
FIRST: Final = 256
"""It is the first piece of its message."""
FOREIGN: Final = 512
"""A tool, the web or an import said it."""
