"""The name of the index of words, which stores know without knowing how words are told apart."""

from typing import Final

VIEW: Final = "words:2"
"""The index of words. Another way of telling words apart gets another number."""
