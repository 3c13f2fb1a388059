"""Keepthread keeps the thread of a conversation for programs that talk to language models."""

__version__ = "0.1.0"
