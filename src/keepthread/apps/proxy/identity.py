"""Detect which conversation a request belongs to, and requests that are only about one.

A name that a client sends is a label inside the credential it uses: it reaches no session of
another credential.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from keepthread.apps.proxy.types import ClientIdentity

SESSION_HEADER: Final = "keepthread-session"
USER_HEADER: Final = "keepthread-user"
MODE_HEADER: Final = "keepthread-mode"

_MOST: Final = 200
"""Characters of a name; a longer one is not used."""
_SESSION_HEADERS: Final = re.compile(r"x-.+-session-id")
_CHAT_HEADERS: Final = ("x-openwebui-chat-id", "x-session-id")
_AGENT_HEADER: Final = "x-claude-code-agent-id"
_USER_HEADERS: Final = (USER_HEADER, "x-openwebui-user-id")
_CODEX_SESSIONS: Final = ("session-id", "session_id", "thread-id")
_SUBAGENT: Final = "x-openai-subagent"
_SPAWNED: Final = "collab_spawn"
"""Codex's sub-agents that work on a task; the others compact, review or collect memories."""

_TEMPLATE: Final = re.compile(r"\{\{.*\}\}|\$\{.*\}")
"""A placeholder that a client was to replace (LibreChat's `{{LIBRECHAT_USER_ID}}`)."""
_CLAUDE_SESSION: Final = re.compile(
    r"_session_([0-9a-f-]{36})$|\"session_id\": ?\"([0-9a-f-]{36})\""
)
"""The session in Claude Code's `metadata.user_id`, for versions that send no header."""
_UNIQUE_KEY: Final = re.compile(r"(?=(?:.*[0-9]){4})[\w:./-]{16,}")
"""A `prompt_cache_key` that names one conversation; a short word may name a whole program."""

_USER_SIGNS: Final = (
    "### Task:\n",  # Open WebUI: titles, tags, follow-up questions, queries, completions
    "[SUGGESTION MODE:",  # Claude Code
    "Your task is to create a detailed summary of the conversation so far",
    "CRITICAL: Respond with TEXT ONLY. Do NOT call any tools.",
    "Provide a concise, 5-word-or-less title for the conversation",  # LibreChat
    "Please generate a concise, 5-word-or-less title",
    "Given the following... please reply with a title for the chat",  # Continue
    "Generate a title for this conversation:",  # opencode
)
"""Beginnings of the newest user text in requests about a conversation."""
_USER_TASKS: Final = ("### Task:\nRespond to the user query using the provided context",)
"""Similar beginnings that contain a real user question (Open WebUI's documents)."""
_SYSTEM_SIGNS: Final = (
    "Analyze if this message indicates a new conversation topic",  # Claude Code
    "Generate a concise, sentence-case title",
    "Summarize this coding conversation in under 50 characters",
    "You are a title generator. You output ONLY",  # opencode
    "*Briefly* summarize this partial conversation about programming.",  # Aider
    "one-line Git commit messages based on the provided diffs",
)
"""Parts of system prompts in requests about a conversation."""
_QUOTA: Final = "quota"
"""Claude Code's one-token request at startup."""


def identify(
    headers: Mapping[str, str], fields: Mapping[str, Any], *, newest: str, system: Sequence[str]
) -> ClientIdentity:
    """Return whom and what a request names.

    `headers` have lower-case names, `fields` are the top level of the body, `newest` is the newest
    text of the user, and `system` are the texts of the system prompt.
    """
    is_codex = _is_codex(headers)
    session = _session(headers, fields, is_codex)
    subagent = _name(headers.get(_SUBAGENT)) if is_codex else None
    agent = _name(headers.get(_AGENT_HEADER))
    if is_codex and (thread := _name(headers.get("thread-id"))) not in (None, session):
        agent = thread
    user = next((name for each in _USER_HEADERS if (name := _name(headers.get(each)))), None)
    return ClientIdentity(
        session=session,
        agent=agent,
        user=user or _name(fields.get("user")),
        is_side=(subagent is not None and subagent != _SPAWNED)
        or _is_about_a_conversation(newest, system, fields),
    )


def is_off(headers: Mapping[str, str]) -> bool:
    """Return whether a client disables the memory."""
    return headers.get(MODE_HEADER, "").strip().lower() == "off"


def _is_codex(headers: Mapping[str, str]) -> bool:
    names = (headers.get("originator", ""), headers.get("user-agent", ""))
    return any(name.lower().startswith("codex") for name in names)


def _session(headers: Mapping[str, str], fields: Mapping[str, Any], is_codex: bool) -> str | None:
    named = sorted(name for name in headers if _SESSION_HEADERS.fullmatch(name))
    codex = _CODEX_SESSIONS if is_codex else ()
    for header in (SESSION_HEADER, *named, *codex, *_CHAT_HEADERS):
        if name := _name(headers.get(header)):
            return name
    metadata = fields.get("metadata")
    if isinstance(metadata, Mapping):
        given = cast("Mapping[str, Any]", metadata).get("user_id")
        if isinstance(given, str) and (found := _CLAUDE_SESSION.search(given)):
            return found[1] or found[2]
    key = _name(fields.get("prompt_cache_key"))
    return key if key and _UNIQUE_KEY.fullmatch(key) else None


def _name(given: object) -> str | None:
    """Return a name that a client sent; None if it cannot be used."""
    if not isinstance(given, str):
        return None
    name = given.strip()
    good = 0 < len(name) <= _MOST and name.isprintable() and not _TEMPLATE.fullmatch(name)
    return name if good else None


def _is_about_a_conversation(newest: str, system: Sequence[str], fields: Mapping[str, Any]) -> bool:
    text = newest.lstrip()
    if text.startswith(_USER_SIGNS) and not text.startswith(_USER_TASKS):
        return True
    if text == _QUOTA and fields.get("max_tokens") == 1:
        return True
    return any(sign in prompt for prompt in system for sign in _SYSTEM_SIGNS)
