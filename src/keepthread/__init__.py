"""Durable conversation memory for LLM applications, independent of framework and provider."""

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
    from keepthread.context.wires.anthropic import from_anthropic
    from keepthread.context.wires.openai_chat import from_openai_chat
    from keepthread.context.wires.openai_responses import from_openai_responses
    from keepthread.errors import KeepthreadError
    from keepthread.memory.admin import Admin
    from keepthread.memory.blobs.types import Blob
    from keepthread.memory.facts.extraction import Extraction
    from keepthread.memory.facts.types import Fact
    from keepthread.memory.fit import fit
    from keepthread.memory.forgetting.receipt import Receipt
    from keepthread.memory.forgetting.receipts import StoredReceipt
    from keepthread.memory.memory import Memory
    from keepthread.memory.options import Options
    from keepthread.memory.owner import OwnerMemory
    from keepthread.memory.rebuild import PromptChange, Rebuilt
    from keepthread.memory.search.search import Hit
    from keepthread.memory.session import Session, Status
    from keepthread.memory.summaries import Compaction, Costs
    from keepthread.memory.turn import Turn
    from keepthread.memory.why_log import Explanation
    from keepthread.references import Reference, References
    from keepthread.stores import PostgresStore, RamStore, RedisStore, SQLiteStore
    from keepthread.types import (
        Attachment,
        CachedTool,
        Change,
        Choice,
        Damage,
        ForkPoint,
        Message,
        Native,
        Page,
        ProactiveTool,
        ProvidedNote,
        Record,
        Scope,
        SessionInfo,
        SessionKey,
        Span,
        ToolCall,
        Verification,
    )

__all__ = [
    "Admin",
    "Attachment",
    "Blob",
    "CachedTool",
    "Change",
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
    "OwnerMemory",
    "Page",
    "PostgresStore",
    "ProactiveTool",
    "PromptChange",
    "ProvidedNote",
    "RamStore",
    "Rebuilt",
    "Recall",
    "Receipt",
    "Record",
    "RedisStore",
    "Reference",
    "References",
    "SQLiteStore",
    "Scope",
    "Section",
    "Session",
    "SessionInfo",
    "SessionKey",
    "Span",
    "Status",
    "StoredReceipt",
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
    "from_anthropic",
    "from_openai_chat",
    "from_openai_responses",
]

__version__ = "0.1.0"

_NAMES: typing.Final = {
    "context.context": "Context",
    "context.diff": "Difference difference",
    "context.sections": "Section",
    "context.strategies": "Hybrid Recall Summarized Window WindowPlan WindowRules",
    "context.views": "View",
    "context.why": "Why",
    "context.wires.anthropic": "from_anthropic",
    "context.wires.openai_chat": "from_openai_chat",
    "context.wires.openai_responses": "from_openai_responses",
    "errors": "KeepthreadError",
    "memory.admin": "Admin",
    "memory.blobs.types": "Blob",
    "memory.facts.extraction": "Extraction",
    "memory.facts.types": "Fact",
    "memory.fit": "fit",
    "memory.forgetting.receipt": "Receipt",
    "memory.forgetting.receipts": "StoredReceipt",
    "memory.memory": "Memory",
    "memory.options": "Options",
    "memory.owner": "OwnerMemory",
    "memory.rebuild": "PromptChange Rebuilt",
    "memory.search.search": "Hit",
    "memory.session": "Session Status",
    "memory.summaries": "Compaction Costs",
    "memory.turn": "Turn",
    "memory.why_log": "Explanation",
    "references": "Reference References",
    "stores": "PostgresStore RamStore RedisStore SQLiteStore",
    "types": (
        "Attachment CachedTool Change Choice Damage ForkPoint Message Native Page ProactiveTool "
        "ProvidedNote Record Scope SessionInfo SessionKey Span ToolCall Verification"
    ),
}
"""The public names of each module. It is imported on first use: no program needs all of them."""
_MODULES: typing.Final = {
    name: module for module, names in _NAMES.items() for name in names.split()
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module 'keepthread' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"keepthread.{_MODULES[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_MODULES})
