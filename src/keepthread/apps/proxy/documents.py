"""Texts of others in a user's message: documents, web pages, files and results of tools.

The role of a message is not its origin: many clients put what they fetched beside the user's
question. Known forms are divided from the user's own words. Where it is uncertain who wrote a text,
it counts as a document: a document may contain the end of its own form, so of several ends the last
counts, and without an end it continues to the end of the message.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from heapq import merge
from typing import Final, NamedTuple

from keepthread.types import Origin


class Piece(NamedTuple):
    """A part of a user's message."""

    text: str
    origin: Origin
    """`user` for the user's own words."""


class Form(NamedTuple):
    """How a client writes texts of others into a user's message."""

    origin: Origin
    mark: str
    """A text that every beginning has."""
    begins: str
    """A regular expression for its beginning, which is at the beginning of a line."""
    ends: str = ""
    """The text after which the user's own words follow; if empty, none follow."""


FORMS: Final[Mapping[str, Form]] = {
    "Open WebUI": Form(
        "web",
        "### Task:",
        r"### Task:\s{1,4}Respond to the user query using the provided context",
        "</context>",
    ),
    "Open WebUI, earlier": Form(
        "web",
        "Use the following context",
        r"Use the following context as your learned knowledge",
        "</context>",
    ),
    "LibreChat": Form("web", "Attached document(s):", r"Attached document\(s\):", "```"),
    "LibreChat's search": Form(
        "web",
        "The user has attached",
        r"The user has attached (?:a|\d{1,4}) files? to the conversation",
        "Use the context as your learned knowledge to better answer the user.",
    ),
    "LangChain": Form(
        "web",
        "Use the following pieces",
        r"Use the following pieces of context to answer the question at the end",
        "Question:",
    ),
    "LangChain's hub": Form(
        "web",
        "question-answering tasks",
        r"You are an assistant for question-answering tasks\. Use the following pieces",
    ),
    "LlamaIndex": Form(
        "web",
        "Context information",
        r"Context information (?:from multiple sources )?is below",
        "Query:",
    ),
    "Cline and Roo Code": Form(
        "tool", "] Result:", r"\[[\w.-]{1,80}(?: (?:for|to|in|with) [^\n]{0,600})?\] Result:"
    ),
    "Cline's errors": Form("tool", "[ERROR] ", r"\[ERROR\] "),
    "Codex in an editor": Form(
        "tool",
        "# Context from my IDE",
        r"# Context from my IDE setup:",
        "## My request for Codex:",
    ),
    "Codex with files": Form(
        "tool", "# Files mentioned", r"# Files mentioned by the user:", "## My request for Codex:"
    ),
    "Aider's map": Form(
        "tool", "present in my git repo", r"Here are summaries of some (?:other )?files present"
    ),
    "Aider's references": Form("tool", "READ ONLY files", r"Here are some READ ONLY files"),
    "Aider's files": Form("tool", "I have *added", r"I have \*added these files to the chat\*"),
    "Aider's pages": Form("web", "Here is the content", r"Here is the content of \w{1,10}://"),
    "Aider's commands": Form("tool", "I ran this command:", r"I ran this command:"),
    "Aider's errors": Form("tool", "# Fix any errors", r"# Fix any errors below, if possible"),
    # A block of code with a path after its marks, as Continue writes files.
    "Continue": Form("tool", "```", r"```(?=[^\n`]*[/\\.])[^\n`]*$", "\n```"),
}

_WEB: Final = (
    *("article", "attachment", "attachments", "context", "doc", "docs", "document", "documents"),
    *("document_content", "excerpt", "excerpts", "fetched_content", "knowledge", "knowledge_base"),
    *("page", "page_content", "passage", "passages", "result", "results", "retrieved_context"),
    *("retrieved_documents", "search_result", "search_results", "source", "sources"),
    *("url_content", "web_page", "web_search_results", "webpage", "website", "website_content"),
)
_TOOL: Final = (
    *("attached-files", "attached_files", "bash-stderr", "bash-stdout", "diagnostics"),
    *("editor_context", "environment_context", "environment_details", "file", "file_content"),
    *("file_contents", "files", "folder_content", "function_result", "function_results"),
    *("git_working_state", "instructions", "local-command-stderr"),
    *("local-command-stdout", "selection", "system-reminder", "terminal_output", "tool_response"),
    *("tool_result", "user-prompt-submit-hook", "user_instructions", "workspace_diagnostics"),
)
ELEMENTS: Final[Mapping[str, Origin]] = {
    **dict.fromkeys(_WEB, "web"),
    **dict.fromkeys(_TOOL, "tool"),
}
"""Elements that clients, and people who follow the advice of providers, put around such texts."""
_FRAMES: Final = ("user_query", "query", "question", "task")
"""Elements around the user's own words, beside a document."""

_ORDERED: Final = tuple(FORMS.values())
_BEGINS: Final = re.compile(
    "|".join(f"^(?P<f{n}>{form.begins})" for n, form in enumerate(_ORDERED)), re.MULTILINE
)
_OPENS: Final = re.compile(r"<([a-z][\w-]{1,30})(?:\s[^<>]{0,400})?>", re.IGNORECASE)
_CLOSES: Final = re.compile(r"</([a-z][\w-]{1,30})\s{0,9}>", re.IGNORECASE)
_INDENT: Final = 40


class _Span(NamedTuple):
    start: int
    end: int
    origin: Origin


def divide(text: str) -> list[Piece]:
    """Return the parts of a user's message in their order, without surrounding spaces.

    The same text always gives the same parts, and they are all of it, but for the tags around the
    user's own words.
    """
    pieces: list[Piece] = []
    done = 0
    for span in _spans(text):
        before = Piece(_unframed(text[done : span.start]), "user")
        pieces += [before, Piece(text[span.start : span.end], span.origin)]
        done = span.end
    pieces.append(Piece(_unframed(text[done:]), "user"))
    found = [piece._replace(text=piece.text.strip()) for piece in pieces]
    return [piece for piece in found if piece.text]


def own_words(pieces: Sequence[Piece]) -> str:
    """Return the user's own words."""
    return "\n".join(piece.text for piece in pieces if piece.origin == "user")


def _spans(text: str) -> Iterator[_Span]:
    """Yield where documents begin and end."""
    done = 0
    for span in merge(_forms(text), _elements(text)):
        if span.start >= done:
            yield span
            done = span.end


def _forms(text: str) -> Iterator[_Span]:
    if not any(form.mark in text for form in _ORDERED):
        return
    last = {form.ends: text.rfind(form.ends) for form in _ORDERED if form.ends}
    for found in _BEGINS.finditer(text):
        form = _ORDERED[int(str(found.lastgroup)[1:])]
        at = last.get(form.ends, -1)
        end = len(text) if at < found.end() else at + len(form.ends)
        yield _Span(found.start(), end, form.origin)


def _elements(text: str) -> Iterator[_Span]:
    closed: dict[str, int] | None = None
    for found in _OPENS.finditer(text):
        name = found[1].lower()
        if name not in ELEMENTS:
            continue
        if closed is None:
            closed = {each[1].lower(): each.end() for each in _CLOSES.finditer(text)}
        end = closed.get(name, 0)
        if end < found.end():
            if found[0].endswith("/>") or not _begins_line(text, found.start()):
                continue  # an element that the user mentions
            end = len(text)
        yield _Span(found.start(), end, ELEMENTS[name])


def _begins_line(text: str, at: int) -> bool:
    before, line, indent = text[max(0, at - _INDENT) : at].rpartition("\n")
    return not indent.strip() and (bool(line) or len(before) + len(indent) == at)


def _unframed(text: str) -> str:
    text = text.strip()
    for name in _FRAMES:
        if text.startswith(f"<{name}>") and text.endswith(f"</{name}>"):
            return text.removeprefix(f"<{name}>").removesuffix(f"</{name}>")
    return text
