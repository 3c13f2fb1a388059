"""Keepthread keeps the thread of a conversation for programs that talk to language models."""

import importlib
import typing

if typing.TYPE_CHECKING:
    from keepthread.context.context import Context
    from keepthread.context.diff import Difference, difference
    from keepthread.context.sections import Section
    from keepthread.context.strategies import (
        Hybrid,
        Recall,
        Summarized,
        Window,
        WindowPlan,
        WindowRules,
    )
    from keepthread.context.views import View
    from keepthread.context.why import Why
    from keepthread.errors import KeepthreadError
    from keepthread.memory.facts.extraction import Extraction
    from keepthread.memory.facts.types import Fact
    from keepthread.memory.fit import fit
    from keepthread.memory.forgetting.receipt import Receipt
    from keepthread.memory.memory import Memory
    from keepthread.memory.options import Options
    from keepthread.memory.search.search import Hit
    from keepthread.memory.session import Session, Status
    from keepthread.memory.summaries import Compaction, Costs
    from keepthread.memory.turn import Turn
    from keepthread.memory.why_log import Explanation
    from keepthread.stores import PostgresStore, RamStore, RedisStore, SQLiteStore
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
    "Compaction",
    "Context",
    "Costs",
    "Damage",
    "Difference",
    "Explanation",
    "Extraction",
    "Fact",
    "ForkPoint",
    "Hit",
    "Hybrid",
    "KeepthreadError",
    "Memory",
    "Message",
    "Native",
    "Options",
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
    "WindowPlan",
    "WindowRules",
    "difference",
    "fit",
]

__version__ = "0.1.0"

_LATER: typing.Final = {
    "Attachment": "keepthread.types",
    "CachedTool": "keepthread.types",
    "Choice": "keepthread.types",
    "Context": "keepthread.context.context",
    "Costs": "keepthread.memory.summaries",
    "Damage": "keepthread.types",
    "Difference": "keepthread.context.diff",
    "Extraction": "keepthread.memory.facts.extraction",
    "Fact": "keepthread.memory.facts.types",
    "Compaction": "keepthread.memory.summaries",
    "ForkPoint": "keepthread.types",
    "Hit": "keepthread.memory.search.search",
    "Hybrid": "keepthread.context.strategies",
    "KeepthreadError": "keepthread.errors",
    "Explanation": "keepthread.memory.why_log",
    "Memory": "keepthread.memory.memory",
    "Message": "keepthread.types",
    "Native": "keepthread.types",
    "Options": "keepthread.memory.options",
    "PostgresStore": "keepthread.stores",
    "ProactiveTool": "keepthread.types",
    "RamStore": "keepthread.stores",
    "Recall": "keepthread.context.strategies",
    "Receipt": "keepthread.memory.forgetting.receipt",
    "Record": "keepthread.types",
    "RedisStore": "keepthread.stores",
    "SQLiteStore": "keepthread.stores",
    "Scope": "keepthread.types",
    "Section": "keepthread.context.sections",
    "Session": "keepthread.memory.session",
    "SessionInfo": "keepthread.types",
    "SessionKey": "keepthread.types",
    "Span": "keepthread.types",
    "Status": "keepthread.memory.session",
    "Summarized": "keepthread.context.strategies",
    "ToolCall": "keepthread.types",
    "Turn": "keepthread.memory.turn",
    "Verification": "keepthread.types",
    "View": "keepthread.context.views",
    "Why": "keepthread.context.why",
    "Window": "keepthread.context.strategies",
    "WindowPlan": "keepthread.context.strategies",
    "WindowRules": "keepthread.context.strategies",
    "difference": "keepthread.context.diff",
    "fit": "keepthread.memory.fit",
}
"""Where each is. It is loaded when it is first asked for: nobody uses all of it."""


def __getattr__(name: str) -> object:
    if name not in _LATER:
        raise AttributeError(f"module 'keepthread' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_LATER[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})
