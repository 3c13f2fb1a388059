"""Keepthread keeps the thread of a conversation for programs that talk to language models."""

import importlib
import typing

from keepthread.accounts import KeptWhy
from keepthread.context.render import Context
from keepthread.context.sections import Section
from keepthread.context.strategies import Hybrid, Recall, Summarized, Window
from keepthread.context.view import View
from keepthread.context.why import Why
from keepthread.errors import KeepthreadError
from keepthread.fit import fit
from keepthread.memory import Memory
from keepthread.session import Session, Status
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

if typing.TYPE_CHECKING:
    from keepthread.context.difference import Difference, difference
    from keepthread.facts.extracting import Extraction
    from keepthread.facts.nouns import Fact
    from keepthread.forgetting.receipt import Receipt
    from keepthread.searching import Hit
    from keepthread.stores import PostgresStore, RamStore, RedisStore, SQLiteStore

__all__ = [
    "Attachment",
    "CachedTool",
    "Choice",
    "Context",
    "Costs",
    "Damage",
    "Difference",
    "Extraction",
    "Fact",
    "Folding",
    "ForkPoint",
    "Hit",
    "Hybrid",
    "KeepthreadError",
    "KeptWhy",
    "Memory",
    "Message",
    "Native",
    "PostgresStore",
    "ProactiveTool",
    "RamStore",
    "Recall",
    "Receipt",
    "Record",
    "RedisStore",
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

_LATER: typing.Final = {
    "Difference": "keepthread.context.difference",
    "Extraction": "keepthread.facts.extracting",
    "Fact": "keepthread.facts.nouns",
    "Hit": "keepthread.searching",
    "PostgresStore": "keepthread.stores",
    "RamStore": "keepthread.stores",
    "Receipt": "keepthread.forgetting.receipt",
    "RedisStore": "keepthread.stores",
    "SQLiteStore": "keepthread.stores",
    "difference": "keepthread.context.difference",
}
"""What is loaded when it is first asked for: a store with its engine, and what few programs use."""


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'keepthread' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATER])
