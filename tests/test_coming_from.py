"""The pages for those who know the design notes: every name is there, and what it became exists."""

import importlib
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import keepthread
from keepthread import Memory, Session, Turn, sync
from keepthread.apps.cli.settings.settings import MemorySettings
from keepthread.memory.facts.facts import Facts
from keepthread.orchestrator import Orchestrator

REFERENCE = Path(__file__).parents[1] / "docs" / "reference"
NAMES = {
    "her": """
        SessionMemory Turn _turns _encoder add_turn get_context token_limit _format_turns clear
        turn_count SessionManager get_session clear_session remove_session cl100k_base tiktoken
        SESSION_TOKEN_LIMIT_ROUTER SESSION_TOKEN_LIMIT_PLANNER ROUTER_TOKEN_LIMIT
        PLANNER_TOKEN_LIMIT Orchestrator JITOrchestrator _sessions _get_session process user_id
        MCPManager mcp_manager mcp_command Router route RouteDecision Planner plan ExecutionPlan
        generate_execution_plan available_tools execute Synthesizer synthesize orchestrate
        run_terminal_async memory:clear memory:status
    """,
    "harombe": """
        MemoryManager create_session load_session save_message get_recent_messages max_tokens
        list_sessions delete_session prune_old_sessions Message estimate_tokens Agent AgentState
        _load_session_state LLMClient memory_manager sessions messages created_at updated_at
        metadata system_prompt tool_calls tool_call_id name idx_messages_session
        idx_messages_created idx_sessions_updated simple summarization hybrid
        get_context_with_summary summarize_conversation /sessions /load /save /history /clear
        /forget enabled storage_path max_history_tokens auto_prune_days strategy storage.py
        manager.py strategies.py schema.py
    """,
    "memory-manager": """
        conversation_memory exchanges summary current_cycle user_question agent_messages
        final_answer tool_cache screen_injection_done summarize_to_500_bytes format_exchange
        llm_compress _generate_tool_cache_key tool_name parameters result remaining_duration
        original_duration call_id cached_at llm_cache_duration inject_screen_context json_data
        channel_logger get_proactive_tool_messages prompt_injection _cache_proactive_tool_results
        initialize_session_memory prepare_messages_for_agent finalize_current_cycle
        add_tool_to_cache lookup_tool_in_cache
    """,
    "mac-stats": """
        conversation_history ollama_chat_with_execution answer_with_ollama_and_fetch
        session_memory::add_message get_messages session-memory- run_skill_ollama_session
        run_agent_ollama_session user-<discord_id>.json agent-<id>-memory.md fact updated
    """,
}
OBJECTS = {
    "memory": Memory,
    "session": Session,
    "turn": Turn,
    "facts": Facts,
    "orchestrator": Orchestrator,
}
GIVEN = {"session": {"info"}, "memory": {"store", "counter"}, "turn": {"user", "answer"}}
"""Attributes that an object has, but not its class."""
SETTINGS = {each.name for each in fields(MemorySettings)}


def page(note: str) -> str:
    return (REFERENCE / f"coming-from-{note}.md").read_text()


@pytest.mark.parametrize("note", NAMES)
def test_every_name_of_a_note_is_on_its_page(note: str) -> None:
    text = page(note)
    left = text.partition("## Left out")
    assert left[1]
    assert [name for name in NAMES[note].split() if name not in text] == []


@pytest.mark.parametrize("note", NAMES)
def test_what_a_page_names_exists(note: str) -> None:
    found = 0
    for name, attribute in re.findall(r"\b(memory|session|turn|facts)\.(\w+)", _ours(page(note))):
        known = hasattr(OBJECTS[name], attribute) or attribute in GIVEN.get(name, ())
        assert known or attribute in SETTINGS, (name, attribute)
        found += 1
    for name in re.findall(r"\bkeepthread((?:\.\w+)+)", page(note)):
        assert _found(name[1:].split(".")), name
        found += 1
    assert found > 5


def _ours(text: str) -> str:
    """Return the columns of a page's tables that name what is ours."""
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return re.sub(r"\]\([^)]*\)", "]", "\n".join(" ".join(row[1:]) for row in rows))


def _found(path: list[str]) -> bool:
    """Return whether a dotted name is a module of ours, a name in one, or a logger."""
    thing: Any = keepthread
    for number, part in enumerate(path, 1):
        try:
            thing = importlib.import_module(f"keepthread.{'.'.join(path[:number])}")
        except ModuleNotFoundError:
            thing = getattr(thing, part, None)
    return thing is not None or path == ["context", "text"]


def test_the_names_without_await_are_the_same() -> None:
    assert hasattr(sync.Orchestrator, "process")
    assert hasattr(sync.Session, "provide")
