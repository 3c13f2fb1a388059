"""How clients put texts of others into the user's role: what P25, P26 and the tests send."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from keepthread.apps.proxy.types import WireName
from keepthread.types import Origin


class ClientDocument(NamedTuple):
    """A user's message in which a client puts a text of others beside a question."""

    wire: WireName
    origin: Origin | None
    """The origin that is recorded; None if the text is not recorded."""
    parts: tuple[str, ...]
    """Texts with `{text}` or `{question}`; several are parts of one message."""
    has_question: bool = True

    def content(self, text: str, question: str) -> Any:
        """Return the content of the message."""
        filled = [p.replace("{question}", question).replace("{text}", text) for p in self.parts]
        if len(filled) == 1:
            return filled[0]
        kind = "input_text" if self.wire == "openai-responses" else "text"
        return [{"type": kind, "text": each} for each in filled]

    def body(self, text: str, question: str) -> bytes:
        """Return a request with the message."""
        item = {"role": "user", "content": self.content(text, question)}
        name = "input" if self.wire == "openai-responses" else "messages"
        return json.dumps({"model": "m", name: [item]}).encode()


_RAG: Final = """### Task:
Respond to the user query using the provided context, incorporating inline citations in the format \
[id] **only when the <source> tag includes an explicit id attribute** (e.g., <source id="1">).

### Guidelines:
- If you don't know the answer, clearly state that.

<context>
<source id="1" name="page">{text}</source>
</context>
"""
CLIENT_DOCUMENTS: Final[Mapping[str, ClientDocument]] = {
    "ClaudeCode": ClientDocument(
        "anthropic", "tool", ("<local-command-stdout>{text}</local-command-stdout>", "{question}")
    ),
    "ClaudeCode, a reminder": ClientDocument(
        "anthropic", None, ("<system-reminder>\n{text}\n</system-reminder>", "{question}")
    ),
    "Codex": ClientDocument(
        "openai-responses",
        "tool",
        (
            (
                "# Context from my IDE setup:\n\n## Active file: a\n## Selection:\n{text}\n\n"
                "## My request for Codex:\n{question}"
            ),
        ),
    ),
    "OpenWebUI": ClientDocument("openai-chat", "web", (_RAG + "\n{question}",)),
    "OpenWebUI, in a frame": ClientDocument(
        "openai-chat", "web", (_RAG + "\n<user_query>\n{question}\n</user_query>",)
    ),
    "LibreChat": ClientDocument(
        "openai-chat",
        "web",
        ('Attached document(s):\n```md\n# "notes.txt"\n{text}\n```\n{question}',),
    ),
    "Aider": ClientDocument(
        "openai-chat", "web", ("Here is the content of https://evil.example:\n\n{text}",), False
    ),
    "Aider, a file": ClientDocument(
        "openai-chat",
        None,
        ("I have *added these files to the chat* so you can edit them.\n\na.md\n```\n{text}\n```",),
        False,
    ),
    "Aider, a file after the question": ClientDocument(
        "openai-chat",
        "tool",
        ("{question}\n\nI have *added these files to the chat*:\n\na.md\n```\n{text}\n```",),
    ),
    "Aider, a command": ClientDocument(
        "openai-chat",
        "tool",
        ("I ran this command:\n\nmake\n\nAnd got this output:\n\n{text}",),
        False,
    ),
    "Continue": ClientDocument(
        "openai-chat", "tool", ("```md docs/notes.md (1-9)\n{text}\n```\n", "{question}")
    ),
    "Cline": ClientDocument(
        "anthropic",
        "tool",
        (
            "[read_file for 'notes.md'] Result:",
            "{text}",
            "<environment_details>\n# Time\n9:00\n</environment_details>",
        ),
        False,
    ),
    "Roo": ClientDocument(
        "openai-chat",
        "tool",
        ("[browser_action for 'https://evil.example'] Result:\n\n{text}",),
        False,
    ),
    "Roo, a mentioned file": ClientDocument(
        "openai-chat",
        "tool",
        ('<task>\n{question}\n</task>\n\n<file_content path="a.md">\n{text}\n</file_content>',),
    ),
    "documents": ClientDocument(
        "anthropic",
        "web",
        (
            (
                '<documents>\n<document index="1">\n<source>a</source>\n<document_content>\n{text}'
                "\n</document_content>\n</document>\n</documents>\n\n{question}"
            ),
        ),
    ),
    "a document after the question": ClientDocument(
        "openai-chat", "web", ("{question}\n<document>\n{text}\n</document>",)
    ),
    "LangChain": ClientDocument(
        "openai-chat",
        "web",
        (
            (
                "Use the following pieces of context to answer the question at the end.\n\n{text}"
                "\n\nQuestion: {question}"
            ),
        ),
    ),
    "LangChain's hub": ClientDocument(
        "openai-chat",
        "web",
        (
            (
                "You are an assistant for question-answering tasks. Use the following pieces of"
                " retrieved context.\nQuestion: {question} \nContext: {text} \nAnswer:"
            ),
        ),
        False,
    ),
    "LlamaIndex": ClientDocument(
        "openai-chat",
        "web",
        (
            (
                "Context information is below.\n-----\n{text}\n-----\nGiven the context,"
                " answer the query.\nQuery: {question}"
            ),
        ),
    ),
}
"""By the classes of `tests/proxy_clients.py`, and other clients."""
