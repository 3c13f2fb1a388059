"""Import the session files of coding agents: Claude Code and Codex, lines of JSON each.

Both programs only append to these files. Lines are read in their order, so a later import adds what
was written since and changes nothing else; a question that was taken back is imported, too. Calls
of tools and their results are the largest part, and are shortened; the texts of people and models
are not. Lines that people were not shown are left out: thoughts, settings, notes for the model.
"""

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple

from keepthread.context.ids import derived_call_id, derived_id
from keepthread.errors import InvalidInput, WrongFormat
from keepthread.interchange.conversations import (
    Arrivals,
    Arrived,
    ImportedConversation,
    OpenCalls,
    fitted,
    session_id,
    short,
    source_of,
    time_of,
)
from keepthread.interchange.files import CLAUDE_CODE, CODEX, agent_of
from keepthread.interchange.foreign import dicts, listed, mapped, paragraphs, text_in
from keepthread.interchange.jsonl import decode_line, lines_of
from keepthread.models.tokens import Estimator
from keepthread.protocols import Progress, Store, TokenCounter
from keepthread.stores.validation import check_id
from keepthread.types import Message, Role, ToolCall

MAX_TOOL_TEXT: Final = 1000
"""Characters of a tool's result, and of the arguments of a call, that are imported."""
_HEAD: Final = 1 << 16
_TITLE: Final = 80
_NOT_SHOWN: Final = ("<command-", "<local-command-", "<system-reminder>", "<environment_context>")
"""Beginnings of texts that a program writes on the user's behalf."""
_NONE: Final = "the file contains no session of Claude Code or Codex"


async def import_agents(
    store: Store,
    files: Iterable[BinaryIO],
    *,
    counter: TokenCounter | None = None,
    owner: str = "default",
    prefix: str = "",
    size: int = 0,
    progress: Progress | None = None,
) -> Arrived:
    """Import session files of Claude Code or Codex into a store, each as one session or several.

    `size` is the size of all files in bytes, for `progress`. A file that cannot be read is named in
    the report.
    """
    arrivals = Arrivals(
        store, counter or Estimator(), owner=check_id(owner, "owner"), prefix=prefix
    )
    read = 0
    for number, file in enumerate(files, 1):
        name = str(getattr(file, "name", "")) or f"file {number}"
        try:
            found = await asyncio.to_thread(read_agent_file, file)
        except (InvalidInput, WrongFormat) as error:
            arrivals.done.refuse(name, str(error))
            continue
        _add(arrivals.done, found)
        for conversation in found.conversations:
            await arrivals.take(conversation)
        read += found.size
        if progress:
            progress(read, max(size, read))
    return arrivals.done


class AgentSessions(NamedTuple):
    """The sessions of one file, and what was left out of it."""

    conversations: Sequence[ImportedConversation]
    hidden: int = 0
    shortened: int = 0
    repeated: int = 0
    left_out: int = 0
    size: int = 0


def _add(done: Arrived, found: AgentSessions) -> None:
    done.empty += not found.conversations
    done.hidden += found.hidden
    done.shortened += found.shortened
    done.repeated += found.repeated
    done.left_out += found.left_out


def session_files(folder: Path) -> list[Path]:
    """Return the session files of coding agents in a folder and below, sorted by their paths."""
    return [path for path in sorted(folder.rglob("*.jsonl")) if path.is_file() and _is_one(path)]


def _is_one(path: Path) -> bool:
    with path.open("rb") as file:
        return agent_of(file.read(_HEAD)) is not None


def read_agent_file(file: BinaryIO) -> AgentSessions:
    """Return the sessions of a file; the program is known by its lines."""
    reader: _LineReader | None = None
    left_out = size = 0
    for line in lines_of(file):
        size += len(line)
        try:
            value = decode_line(line) if line.strip() else {}
        except InvalidInput:  # the last line may be written just now
            left_out += 1
            continue
        if reader is None and (make := _reader_of(value)):
            reader = make()
        if reader is not None:
            reader.add(value)
    if reader is None:
        raise WrongFormat(_NONE)
    return reader.sessions()._replace(left_out=left_out, size=size)


def _reader_of(value: Mapping[str, Any]) -> "Callable[[], _LineReader] | None":
    if text_in(value, "sessionId"):
        return _ClaudeCodeLines
    return _CodexLines if text_in(value, "type") == "session_meta" else None


class _AgentSession:
    """A session that is read line by line."""

    def __init__(self, program: str, id: str, **about: str) -> None:
        self.program = program
        self.id = id
        self.about = {name: text for name, text in about.items() if text}
        self.title = ""
        self.title_seq = 0
        self.messages: list[Message] = []
        self.shortened = 0
        self._waiting = OpenCalls()
        self._pieces = 0

    def say(self, role: Role, text: str, at: float) -> None:
        """Add a text of a person or a model."""
        content = fitted(text)
        self.shortened += content != text
        if role == "user" and not self.title:
            self.title = short(text[:_TITLE])
            self.title_seq = len(self.messages) + 1
        self._append(Message(role=role, content=content, created_at=at))

    def call(self, id: str, name: str, arguments: str, at: float) -> None:
        """Add the call of a tool, as a message of its own: an earlier one is stored already."""
        call = ToolCall(
            id=short(id) or derived_call_id(self.program, self.id, str(self._pieces)),
            name=short(name) or "tool",
            arguments=_reduced_arguments(arguments),
        )
        self._append(Message(role="assistant", tool_calls=(call,), created_at=at))

    def result(self, call: str, text: str, at: float) -> None:
        """Add the result of a tool; one that no call waits for is left out."""
        call = short(call)
        if (id := self._waiting.answered(call)) is not None:
            content = _reduced(text)
            self._append(
                Message(role="tool", content=content, tool_call_id=call, created_at=at), id
            )

    def _append(self, message: Message, id: str = "") -> None:
        self._pieces += 1
        id = id or derived_id(self.program, self.id, str(self._pieces))
        source = source_of(self.program, self.id)
        message = replace(message, id=id, origin="import", source=source)
        self._waiting.called(message)
        self.messages.append(message)

    def conversation(self) -> ImportedConversation:
        """Return all of it."""
        return ImportedConversation(
            id=session_id(self.program, *self.id.split("/")),
            messages=self.messages,
            title=self.title,
            title_seq=self.title_seq,
            created_at=self.messages[0].created_at,
            meta={"imported_from": self.program, **self.about},
        )


class _LineReader:
    """Reads the lines of one file into sessions."""

    def __init__(self) -> None:
        self.found: dict[str, _AgentSession] = {}
        self.hidden = self.repeated = 0

    def add(self, value: Mapping[str, Any]) -> None:
        """Add what a line says."""
        raise NotImplementedError

    def sessions(self) -> AgentSessions:
        """Return the sessions that have messages."""
        some = [each for each in self.found.values() if each.messages]
        shortened = sum(each.shortened for each in some)
        talks = [each.conversation() for each in some]
        return AgentSessions(talks, self.hidden, shortened, self.repeated)


class _ClaudeCodeLines(_LineReader):
    """Claude Code: a line is a message of the API, or something about the session."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: set[str] = set()

    def add(self, value: Mapping[str, Any]) -> None:
        kind, uuid = text_in(value, "type"), text_in(value, "uuid")
        if kind not in ("user", "assistant") or not text_in(value, "sessionId"):
            return
        if uuid in self._seen:
            self.repeated += 1
            return
        self._seen.add(uuid)
        message = mapped(value, "message")
        blocks = _blocks(message)
        if value.get("isMeta") or value.get("isCompactSummary") or not blocks:
            self.hidden += 1
            return
        session, at = self._session(value), _time(value)
        for block in blocks:
            self._block(session, kind, block, at)

    def _session(self, value: Mapping[str, Any]) -> _AgentSession:
        """Return the session of a line; a sub-agent has one of its own."""
        id = text_in(value, "sessionId")
        agent = text_in(value, "agentId") or "agent" if value.get("isSidechain") else ""
        name = f"{id}/{agent}" if agent else id
        if name not in self.found:
            about = {"project": short(text_in(value, "cwd")), "parent": id if agent else ""}
            self.found[name] = _AgentSession(CLAUDE_CODE, name, **about)
        return self.found[name]

    def _block(
        self, session: _AgentSession, kind: str, block: Mapping[str, Any], at: float
    ) -> None:
        match text_in(block, "type"):
            case "text" if _is_shown(text_in(block, "text")):
                session.say("user" if kind == "user" else "assistant", text_in(block, "text"), at)
            case "tool_use":
                arguments = json.dumps(block.get("input"), ensure_ascii=False)
                session.call(text_in(block, "id"), text_in(block, "name"), arguments, at)
            case "tool_result":
                session.result(text_in(block, "tool_use_id"), _text_of(block), at)
            case "image" | "document":
                session.say("user", f"[attached: {text_in(block, 'type')}]", at)
            case _:
                self.hidden += 1


class _CodexLines(_LineReader):
    """Codex: a line is an item of the Responses API, or something about the session."""

    def __init__(self) -> None:
        super().__init__()
        self._session: _AgentSession | None = None

    def add(self, value: Mapping[str, Any]) -> None:
        payload, kind = mapped(value, "payload"), text_in(value, "type")
        if kind == "session_meta" and text_in(payload, "id"):
            id, project = text_in(payload, "id"), short(text_in(payload, "cwd"))
            if id not in self.found:
                self.found[id] = _AgentSession(CODEX, id, project=project)
            self._session = self.found[id]
        elif kind == "response_item" and self._session is not None:
            self._item(self._session, payload, _time(value))

    def _item(self, session: _AgentSession, item: Mapping[str, Any], at: float) -> None:
        role = text_in(item, "role")
        match text_in(item, "type"):
            case "message" if role in ("user", "assistant"):
                texts = [each for each in map(_part_text, _blocks(item)) if _is_shown(each)]
                if texts:
                    session.say("user" if role == "user" else "assistant", paragraphs(*texts), at)
                else:
                    self.hidden += 1
            case "function_call" | "custom_tool_call":
                arguments = text_in(item, "arguments") or text_in(item, "input")
                session.call(text_in(item, "call_id"), text_in(item, "name"), arguments, at)
            case "function_call_output" | "custom_tool_call_output":
                session.result(text_in(item, "call_id"), _output_of(item), at)
            case _:
                self.hidden += 1


# --- texts ---


def _blocks(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(dicts(listed(message, "content")))


def _part_text(block: Mapping[str, Any]) -> str:
    if text_in(block, "type") == "input_image":
        return "[attached: image]"
    return text_in(block, "text")


def _text_of(block: Mapping[str, Any]) -> str:
    """Return the text of a tool's result."""
    return paragraphs(*map(_part_text, _blocks(block)))


def _output_of(item: Mapping[str, Any]) -> str:
    """Return the output of a tool, which may be a text, an object or a text that is one."""
    output = item.get("output")
    if isinstance(output, str):
        with suppress(ValueError, RecursionError):
            inner: Any = json.loads(output)
            return text_in(inner, "output") or output
        return output
    return text_in(output, "content") or _text_of({"content": output})


def _is_shown(text: str) -> bool:
    return bool(text.strip()) and not text.lstrip().startswith(_NOT_SHOWN)


def _reduced(text: str) -> str:
    if len(text) <= MAX_TOOL_TEXT:
        return text
    return f"{text[:MAX_TOOL_TEXT]}\n[… {len(text) - MAX_TOOL_TEXT:,} more characters]"


def _reduced_arguments(arguments: str) -> str:
    if len(arguments) <= MAX_TOOL_TEXT:
        return arguments or "{}"
    return json.dumps({"shortened": _reduced(arguments)}, ensure_ascii=False)


def _time(value: Mapping[str, Any]) -> float:
    try:
        moment = datetime.fromisoformat(text_in(value, "timestamp"))
        return time_of(moment.timestamp()) if moment.tzinfo else 0.0
    except (ValueError, OverflowError):
        return 0.0
