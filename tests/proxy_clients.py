"""Programs that speak to a provider as well-known clients do, in their headers and their bodies.

Each keeps its history as the client does, sends it again with every request, and knows the messages
that a memory between it and the provider should have recorded.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Self

import httpx2
import zstandard

from keepthread.testing.server import Received, Say
from keepthread.types import ToolCall


class Exchange(NamedTuple):
    """A request as it was sent, and the head of its answer."""

    raw: bytes
    headers: Mapping[str, str]
    status: int


class ProgramOfClient:
    """One conversation of a client."""

    path: ClassVar[str]

    def __init__(self, base: str, *, key: str = "sk-of-the-user") -> None:
        """Take the base URL without the version, and the provider's key."""
        self.base, self.key = base, key
        self.exchanges: list[Exchange] = []
        self.recorded: list[tuple[str, str]] = []
        """Role and text of each message that belongs to the conversation, in order."""
        self._http = httpx2.Client(timeout=30)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def post(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> bytes:
        """Send a body, and return the whole answer."""
        raw = self.encoded(body)
        given = {"content-type": "application/json", **headers}
        answer = self._http.post(self.base + self.path, content=raw, headers=given)
        self.exchanges.append(Exchange(raw, answer.headers, answer.status_code))
        answer.raise_for_status()
        return answer.content

    def encoded(self, body: Mapping[str, Any]) -> bytes:
        """Return a body as JavaScript's clients write it."""
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()


def events(stream: bytes) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream."""
    for event in stream.decode().split("\n\n"):
        data = event.rpartition("data: ")[2].strip()
        if data and data != "[DONE]":
            yield json.loads(data)


# --- Anthropic's messages ---

REMINDER = "<system-reminder>\nThe user opened src/app.py in the IDE.\n</system-reminder>\n"
_MARK = {"type": "ephemeral"}
_BASH = {
    "name": "Bash",
    "description": "Runs a command.",
    "input_schema": {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
        "additionalProperties": False,
    },
}


class ClaudeCode(ProgramOfClient):
    """Claude Code: thinking, tools, cache marks that move, and reminders beside the question."""

    path = "/v1/messages?beta=true"

    def __init__(self, base: str, session: str, *, agent: str | None = None) -> None:
        super().__init__(base)
        self.session, self.agent = session, agent
        self.messages: list[dict[str, Any]] = []

    def ask(self, text: str, run: Callable[[str], str] = str.upper) -> str:
        """Ask, run the commands that the model calls, and return its answer."""
        reminder = {"type": "text", "text": REMINDER}
        parts = [*([reminder] if not self.messages else []), {"type": "text", "text": text}]
        self.messages.append({"role": "user", "content": parts})
        self.recorded.append(("user", text))
        while True:
            content = self._answer()
            said = "".join(block.get("text", "") for block in content)
            self.recorded.append(("assistant", said))
            calls = [block for block in content if block["type"] == "tool_use"]
            if not calls:
                return said
            results = [(call["id"], run(call["input"]["command"])) for call in calls]
            self.recorded += [("tool", result) for _, result in results]
            blocks = [
                {"type": "tool_result", "tool_use_id": id, "content": result, "is_error": False}
                for id, result in results
            ]
            self.messages.append({"role": "user", "content": blocks})

    def sub_agent(self, agent: str) -> "ClaudeCode":
        """Return an agent that this conversation starts, with a history of its own."""
        return ClaudeCode(self.base, self.session, agent=agent)

    def title(self, of: str) -> str:
        """Ask for a title of the conversation, beside it."""
        system = "Generate a concise, sentence-case title (3-7 words) that captures the main topic."
        body = self._body([{"role": "user", "content": [{"type": "text", "text": of}]}])
        body |= {"system": [{"type": "text", "text": system}], "tools": [], "max_tokens": 512}
        return "".join(block.get("text", "") for block in self._heard(body))

    def quota(self) -> None:
        """Ask whether the key works, as it does at its start."""
        body = {"model": "claude-haiku", "max_tokens": 1}
        self.post({**body, "messages": [{"role": "user", "content": "quota"}]}, self._headers())

    def _answer(self) -> list[dict[str, Any]]:
        content = self._heard(self._body(_marked(self.messages)))
        self.messages.append({"role": "assistant", "content": content})
        return content

    def _heard(self, body: dict[str, Any]) -> list[dict[str, Any]]:
        blocks: list[dict[str, Any]] = []
        inputs: dict[int, str] = {}
        for event in events(self.post(body, self._headers())):
            if event["type"] == "content_block_start":
                blocks.append(event["content_block"])
            if event["type"] == "content_block_delta":
                delta, block = event["delta"], blocks[event["index"]]
                for name in ("text", "thinking", "signature"):
                    if name in delta:
                        block[name] = block.get(name, "") + delta[name]
                inputs[event["index"]] = inputs.get(event["index"], "") + delta.get(
                    "partial_json", ""
                )
        for index, block in enumerate(blocks):
            if block["type"] == "tool_use":
                block["input"] = json.loads(inputs.get(index) or "{}")
        return blocks

    def _body(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        who = "a sub-agent of Claude Code" if self.agent else "Claude Code"
        system = [
            "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli;",
            f"You are {who}",
        ]
        user = {"device_id": "d" * 64, "account_uuid": "", "session_id": self.session}
        return {
            "model": "claude-opus",
            "messages": messages,
            "system": [
                {"type": "text", "text": system[0]},
                {"type": "text", "text": system[1], "cache_control": _MARK},
            ],
            "tools": [_BASH],
            "metadata": {"user_id": json.dumps(user, separators=(",", ":"))},
            "max_tokens": 32000,
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"},
            "stream": True,
        }

    def _headers(self) -> dict[str, str]:
        agent = {"x-claude-code-agent-id": self.agent} if self.agent else {}
        return {
            "accept": "application/json",
            "anthropic-version": "2023-06-01",
            "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14",
            "anthropic-dangerous-direct-browser-access": "true",
            "user-agent": "claude-cli/2.1.228 (external, cli)",
            "x-api-key": self.key,
            "x-app": "cli",
            "x-claude-code-session-id": self.session,
            "x-stainless-lang": "js",
            **agent,
        }


def _marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return messages with the cache mark at the newest block; it moves with every request."""
    *before, last = messages
    *blocks, newest = last["content"]
    return [*before, {**last, "content": [*blocks, {**newest, "cache_control": _MARK}]}]


# --- OpenAI's Responses ---

ENVIRONMENT = "<environment_context>\n  <cwd>/home/me/app</cwd>\n</environment_context>"


class Codex(ProgramOfClient):
    """Codex: nothing is kept by the provider, thoughts are encrypted, and bodies are zstd."""

    path = "/v1/responses"

    def __init__(
        self, base: str, session: str, *, thread: str | None = None, subagent: str | None = None
    ) -> None:
        super().__init__(base)
        self.session, self.thread, self.subagent = session, thread or session, subagent
        self.items: list[dict[str, Any]] = [
            _input(
                "developer", "<permissions instructions>\nread-only\n</permissions instructions>"
            ),
            _input("user", ENVIRONMENT),
        ]

    def encoded(self, body: Mapping[str, Any]) -> bytes:
        return zstandard.compress(super().encoded(body))

    def ask(self, text: str, run: Callable[[str], str] = str.upper) -> str:
        """Ask, run the commands that the model calls, and return its answer."""
        self.items.append(_input("user", text))
        self.recorded.append(("user", text))
        while True:
            output = self._answer()
            said = "".join(
                part["text"]
                for item in output
                if item["type"] == "message"
                for part in item["content"]
            )
            self.recorded.append(("assistant", said))
            calls = [item for item in output if item["type"] == "function_call"]
            if not calls:
                return said
            for call in calls:
                result = run(json.loads(call["arguments"])["command"])
                self.recorded.append(("tool", result))
                self.items.append(
                    {
                        "type": "function_call_output",
                        "call_id": call["call_id"],
                        "output": result,
                    }
                )

    def sub_agent(self, thread: str, kind: str = "collab_spawn") -> "Codex":
        """Return an agent that this conversation starts, with a history of its own."""
        return Codex(self.base, self.session, thread=thread, subagent=kind)

    def _answer(self) -> list[dict[str, Any]]:
        shell = {"type": "object", "properties": {"command": {"type": "string"}}}
        body = {
            "model": "gpt-codex",
            "instructions": "You are Codex, a coding agent.",
            "input": self.items,
            "tools": [
                {"type": "function", "name": "shell", "strict": False, "parameters": shell},
                {"type": "custom", "name": "apply_patch", "description": "Edits files."},
                {"type": "web_search", "external_web_access": False},
            ],
            "tool_choice": "auto",
            "parallel_tool_calls": True,
            "reasoning": {"effort": "medium", "summary": "auto"},
            "store": False,
            "stream": True,
            "include": ["reasoning.encrypted_content"],
            "prompt_cache_key": self.thread,
            "client_metadata": {"x-codex-installation-id": "0f0f"},
        }
        found = events(self.post(body, self._headers()))
        output = [e["item"] for e in found if e["type"] == "response.output_item.done"]
        # Nothing is kept there, so it sends its items without their ids and states.
        self.items += [
            {name: value for name, value in item.items() if name not in ("id", "status")}
            for item in output
        ]
        return output

    def _headers(self) -> dict[str, str]:
        subagent = {"x-openai-subagent": self.subagent} if self.subagent else {}
        return {
            "accept": "text/event-stream",
            "authorization": f"Bearer {self.key}",
            "content-encoding": "zstd",
            "originator": "codex_cli_rs",
            "session-id": self.session,
            "thread-id": self.thread,
            "user-agent": "codex_cli_rs/0.120.0 (Debian 12.0.0; x86_64) xterm",
            "x-client-request-id": self.thread,
            **subagent,
        }


def _input(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


# --- OpenAI's chat completions ---


class ChatProgram(ProgramOfClient):
    """A client of chat completions; it sends the history as it is."""

    path = "/v1/chat/completions"
    spaced: ClassVar[bool] = False
    """Whether it writes its JSON with spaces and escapes, as Python's clients once did."""

    def __init__(self, base: str) -> None:
        super().__init__(base)
        self.messages: list[dict[str, Any]] = []

    def encoded(self, body: Mapping[str, Any]) -> bytes:
        return json.dumps(body).encode() if self.spaced else super().encoded(body)

    def ask(self, text: str) -> str:
        """Ask, and return the answer."""
        self.messages.append({"role": "user", "content": self.content(text)})
        said = self.stream({**self.fields(), "messages": self.sent()})
        self.messages.append({"role": "assistant", "content": said})
        self.recorded += [("user", text), ("assistant", said)]
        return said

    def stream(self, body: Mapping[str, Any]) -> str:
        """Send a body, and return the text of the answer."""
        found = events(self.post({**body, "stream": True}, self.headers()))
        choices = [event["choices"][0] for event in found if event["choices"]]
        return "".join(choice["delta"].get("content") or "" for choice in choices)

    def whole(self, body: Mapping[str, Any]) -> str:
        """Send a body, and return the text of the answer, which comes in one piece."""
        answer = json.loads(self.post({**body, "stream": False}, self.headers()))
        return answer["choices"][0]["message"]["content"]

    def content(self, text: str) -> Any:
        """Return a question as the client sends it."""
        return text

    def sent(self) -> list[dict[str, Any]]:
        """Return the messages of a request."""
        return self.messages

    def fields(self) -> dict[str, Any]:
        """Return the other fields of a request."""
        return {"model": "gpt"}

    def headers(self) -> dict[str, str]:
        """Return the headers of a request."""
        return {"authorization": f"Bearer {self.key}"}


class OpenWebUI(ChatProgram):
    """Open WebUI, with the setting that forwards who asks; it asks for titles in the same chat."""

    spaced = True

    def __init__(self, base: str, chat: str, *, user: str = "u-1") -> None:
        super().__init__(base)
        self.chat, self.user = chat, user

    def headers(self) -> dict[str, str]:
        return {
            **super().headers(),
            "X-OpenWebUI-User-Name": "Ada",
            "X-OpenWebUI-User-Id": self.user,
            "X-OpenWebUI-User-Email": "ada@example.org",
            "X-OpenWebUI-User-Role": "user",
            "X-OpenWebUI-Chat-Id": self.chat,
        }

    def fields(self) -> dict[str, Any]:
        return {"model": "gpt", "stream_options": {"include_usage": True}}

    def task(self, what: str = "Generate a concise, 3-5 word title with an emoji.") -> str:
        """Ask for a title, tags or more questions, in the same chat."""
        history = "\n".join(f"{m['role'].upper()}: {m['content']}" for m in self.messages[-2:])
        text = f"### Task:\n{what}\n### Output:\nJSON format\n### Chat History:\n"
        text += f"<chat_history>\n{history}\n</chat_history>"
        return self.whole({"model": "gpt", "messages": [{"role": "user", "content": text}]})


class LibreChat(ChatProgram):
    """LibreChat with the header `X-Session-Id: {{LIBRECHAT_BODY_CONVERSATIONID}}`."""

    def __init__(self, base: str, conversation: str) -> None:
        super().__init__(base)
        self.conversation = conversation

    def headers(self) -> dict[str, str]:
        named = {"X-Session-Id": self.conversation, "user-agent": "OpenAI/JS 5.12.2"}
        return {**super().headers(), **named}

    def fields(self) -> dict[str, Any]:
        return {"model": "gpt", "user": "66f0c0ffee", "stream_options": {"include_usage": True}}

    def sent(self) -> list[dict[str, Any]]:
        return [{"role": "system", "content": "You are LibreChat."}, *self.messages]

    def title(self) -> str:
        """Ask for a title of the conversation."""
        text = "Please generate a concise, 5-word-or-less title for the conversation, "
        text += f"using its same language.\n\nUser: {self.messages[0]['content']}"
        return self.whole({"model": "gpt", "messages": [{"role": "user", "content": text}]})


class Aider(ChatProgram):
    """Aider: no name of the conversation; examples before it, and files in the midst of it."""

    spaced = True

    def headers(self) -> dict[str, str]:
        named = {"HTTP-Referer": "https://aider.chat", "X-Title": "Aider"}
        return {**super().headers(), **named, "user-agent": "OpenAI/Python 2.8.0"}

    def fields(self) -> dict[str, Any]:
        return {"model": "gpt", "temperature": 0}

    def sent(self) -> list[dict[str, Any]]:
        *done, newest = self.messages
        files = f"I have *added these files to the chat* so you can edit them.\n\nv = {len(done)}"
        chunks = [
            ("system", "Act as an expert software developer."),
            ("user", "Change get_factorial() to use math.factorial"),
            ("assistant", "mathweb/flask/app.py: import math"),
            ("user", "I switched to a new code base. Please don't consider the above files"),
            ("assistant", "Ok."),
            ("user", "Here are summaries of some files present in my git repository.\n│def f():"),
            ("assistant", "Ok, I won't try and edit those files without asking first."),
            *((message["role"], message["content"]) for message in done),
            ("user", files),
            ("assistant", "Ok, any changes I propose will be to those files."),
            ("user", newest["content"]),
            ("system", "# *SEARCH/REPLACE block* Rules:"),
        ]
        return [{"role": role, "content": content} for role, content in chunks]

    def commit(self, diff: str) -> str:
        """Ask for the message of a commit, beside the conversation."""
        system = "You are an expert software engineer that generates concise, "
        system += "one-line Git commit messages based on the provided diffs."
        said = [{"role": "system", "content": system}, {"role": "user", "content": diff}]
        return self.whole({"model": "gpt", "messages": said})


class Continue(ChatProgram):
    """Continue: no name of the conversation; questions are lists of parts."""

    def headers(self) -> dict[str, str]:
        return {**super().headers(), "x-api-key": self.key, "user-agent": "node"}

    def fields(self) -> dict[str, Any]:
        options = {"include_usage": True}
        return {"model": "gpt", "max_tokens": 4096, "stream_options": options}

    def content(self, text: str) -> Any:
        return [{"type": "text", "text": text}]

    def sent(self) -> list[dict[str, Any]]:
        return [{"role": "system", "content": "You are in chat mode."}, *self.messages]


# --- the provider ---


def provider(asked: Received) -> Say:
    """Answer each question by repeating it, after a tool if the question asks for one."""
    last = asked.messages[-1]
    results = [part for part in _parts(last) if part.get("type", "").endswith(("result", "output"))]
    if results:
        given = results[0].get("content") or results[0].get("output")
        return Say(f"The tool said: {given}", thinking="It is done.")
    question = question_of(asked)
    if "run " in question:
        command = json.dumps({"command": question.rpartition("run ")[2]})
        name = "Bash" if asked.wire == "anthropic" else "shell"
        id = f"call_{len(asked.messages)}"
        call = ToolCall(id=id, name=name, arguments=command)
        return Say("Let me look.", thinking="A tool.", tool_calls=[call])
    return Say(f"You said: {question}", thinking="Hm.")


def question_of(asked: Received) -> str:
    """Return the newest question without anything that others added to it."""
    said = [message for message in asked.messages if message.get("role") == "user"]
    texts = [part["text"] for part in _parts(said[-1]) if "text" in part]
    own = [text.partition("<keepthread-memory")[0].strip() for text in texts]
    return [text for text in own if text and not text.startswith("<")][-1]


def _parts(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content", [dict(message)])
    return content if isinstance(content, list) else [{"type": "text", "text": content}]
