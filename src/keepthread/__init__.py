"""Keepthread keeps the thread of a conversation for programs that talk to language models."""

from keepthread.context.render import Context
from keepthread.context.view import View
from keepthread.context.why import Why
from keepthread.context.window import Window
from keepthread.errors import KeepthreadError
from keepthread.fit import fit
from keepthread.memory import Memory
from keepthread.session import Session, Status
from keepthread.stores.ram import RamStore
from keepthread.stores.sqlite import SQLiteStore
from keepthread.turn import Turn
from keepthread.types import (
    Attachment,
    Choice,
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
    "Choice",
    "Context",
    "Damage",
    "ForkPoint",
    "KeepthreadError",
    "Memory",
    "Message",
    "Native",
    "RamStore",
    "Record",
    "SQLiteStore",
    "Scope",
    "Session",
    "SessionInfo",
    "SessionKey",
    "Span",
    "Status",
    "ToolCall",
    "Turn",
    "Verification",
    "View",
    "Why",
    "Window",
    "fit",
]

__version__ = "0.1.0"
