"""Keepthread keeps the thread of a conversation for programs that talk to language models."""

from keepthread.accounts import KeptWhy
from keepthread.context.difference import Difference, difference
from keepthread.context.render import Context
from keepthread.context.sections import Section
from keepthread.context.strategies import Hybrid, Summarized, Window
from keepthread.context.view import View
from keepthread.context.why import Why
from keepthread.errors import KeepthreadError
from keepthread.fit import fit
from keepthread.memory import Memory
from keepthread.session import Session, Status
from keepthread.stores.ram import RamStore
from keepthread.stores.sqlite import SQLiteStore
from keepthread.summaries import Costs, Folding
from keepthread.turn import Turn
from keepthread.types import (
    Attachment,
    CachedTool,
    Choice,
    Damage,
    ForkPoint,
    Message,
    Native,
    ProactiveTool,
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
    "CachedTool",
    "Choice",
    "Context",
    "Costs",
    "Damage",
    "Difference",
    "Folding",
    "ForkPoint",
    "Hybrid",
    "KeepthreadError",
    "KeptWhy",
    "Memory",
    "Message",
    "Native",
    "ProactiveTool",
    "RamStore",
    "Record",
    "SQLiteStore",
    "Scope",
    "Section",
    "Session",
    "SessionInfo",
    "SessionKey",
    "Span",
    "Status",
    "Summarized",
    "ToolCall",
    "Turn",
    "Verification",
    "View",
    "Why",
    "Window",
    "difference",
    "fit",
]

__version__ = "0.1.0"
