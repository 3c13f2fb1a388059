"""Keepthread keeps the thread of a conversation for programs that talk to language models."""

from keepthread.errors import KeepthreadError
from keepthread.stores.ram import RamStore
from keepthread.stores.sqlite import SQLiteStore
from keepthread.types import (
    Attachment,
    Damage,
    ForkPoint,
    Message,
    Native,
    Record,
    Scope,
    SessionInfo,
    SessionKey,
    Span,
    ToolCall,
    Verification,
)

__all__ = [
    "Attachment",
    "Damage",
    "ForkPoint",
    "KeepthreadError",
    "Message",
    "Native",
    "RamStore",
    "Record",
    "SQLiteStore",
    "Scope",
    "SessionInfo",
    "SessionKey",
    "Span",
    "ToolCall",
    "Verification",
]

__version__ = "0.1.0"
