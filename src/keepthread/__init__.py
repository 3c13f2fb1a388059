"""Keepthread keeps the thread of a conversation for programs that talk to language models."""

import importlib
import typing

if typing.TYPE_CHECKING:
    from keepthread.accounts import KeptWhy
    from keepthread.context.difference import Difference, difference
    from keepthread.context.render import Context
    from keepthread.context.sections import Section
    from keepthread.context.strategies import Hybrid, Recall, Summarized, Window
    from keepthread.context.view import View
    from keepthread.context.why import Why
    from keepthread.errors import KeepthreadError
    from keepthread.facts.extracting import Extraction
    from keepthread.facts.nouns import Fact
    from keepthread.fitting import fit
    from keepthread.forgetting.receipt import Receipt
    from keepthread.memory import Memory
    from keepthread.searching import Hit
    from keepthread.session import Session, Status
    from keepthread.stores import PostgresStore, RamStore, RedisStore, SQLiteStore
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
    "Attachment": "keepthread.types",
    "CachedTool": "keepthread.types",
    "Choice": "keepthread.types",
    "Context": "keepthread.context.render",
    "Costs": "keepthread.summaries",
    "Damage": "keepthread.types",
    "Difference": "keepthread.context.difference",
    "Extraction": "keepthread.facts.extracting",
    "Fact": "keepthread.facts.nouns",
    "Folding": "keepthread.summaries",
    "ForkPoint": "keepthread.types",
    "Hit": "keepthread.searching",
    "Hybrid": "keepthread.context.strategies",
    "KeepthreadError": "keepthread.errors",
    "KeptWhy": "keepthread.accounts",
    "Memory": "keepthread.memory",
    "Message": "keepthread.types",
    "Native": "keepthread.types",
    "PostgresStore": "keepthread.stores",
    "ProactiveTool": "keepthread.types",
    "RamStore": "keepthread.stores",
    "Recall": "keepthread.context.strategies",
    "Receipt": "keepthread.forgetting.receipt",
    "Record": "keepthread.types",
    "RedisStore": "keepthread.stores",
    "SQLiteStore": "keepthread.stores",
    "Scope": "keepthread.types",
    "Section": "keepthread.context.sections",
    "Session": "keepthread.session",
    "SessionInfo": "keepthread.types",
    "SessionKey": "keepthread.types",
    "Span": "keepthread.types",
    "Status": "keepthread.session",
    "Summarized": "keepthread.context.strategies",
    "ToolCall": "keepthread.types",
    "Turn": "keepthread.turn",
    "Verification": "keepthread.types",
    "View": "keepthread.context.view",
    "Why": "keepthread.context.why",
    "Window": "keepthread.context.strategies",
    "difference": "keepthread.context.difference",
    "fit": "keepthread.fitting",
}
"""Where each is. It is loaded when it is first asked for: nobody uses all of it."""


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'keepthread' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
