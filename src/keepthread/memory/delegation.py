"""Delegation: run a task in an isolated child session, which sees nothing of the conversation.

All ids are derived from the turn and the task. So when a turn is resumed after a crash, it finds
the child that worked on the task, with its answer if there is one, and the call and its result are
recorded in the parent once. A task that failed, or that the same turn already delegated, gets a new
child.
"""

import json
from itertools import count
from typing import Final, NamedTuple

from keepthread.context.ids import derived_id, derived_ids
from keepthread.errors import Conflict, InvalidInput, SessionExists
from keepthread.memory.conversation import Conversation
from keepthread.memory.notes import add_note
from keepthread.memory.tool_calls import ToolRequest, pair, tool_request
from keepthread.stores.kinds import DELEGATED
from keepthread.stores.validation import check_id, check_text, show
from keepthread.types import JSON, Message, Scope, SessionInfo, Span

DELEGATE: Final = "delegate"
SNIPPET: Final = "snippet"
CUT: Final = "truncated"
"""In the meta of a child's answer, and of its result: whether the answer was cut off."""
_CUT_OFF: Final = "[cut off here: this is only the beginning]"


class Task(NamedTuple):
    """The input of a child."""

    text: str
    agent: str | None = None
    system_prompt: str | None = None
    snippet: str | None = None
    facts: bool = False
    own_facts: bool = True
    """Whether the agent sees and notes facts of its own."""
    recorded: bool = True
    """Whether the parent's log gets the call and its result."""

    def check(self) -> None:
        """Refuse a task that could not be stored."""
        check_text(self.text, "a task")
        if self.agent is not None:
            check_id(self.agent, "agent")
        for text in (self.system_prompt, self.snippet):
            if text is not None:
                check_text(text, "a system prompt or a snippet")
        for name in ("facts", "own_facts", "recorded"):
            if type(value := getattr(self, name)) is not bool:
                raise InvalidInput(f"{name} must be True or False, not {show(value)}")

    def request(self) -> ToolRequest:
        """Return it as the call of a tool."""
        args: dict[str, JSON] = {"task": self.text}
        return tool_request(DELEGATE, args if self.agent is None else {**args, "agent": self.agent})

    def seed(self) -> list[JSON]:
        """Return the values that distinguish it from other tasks."""
        seed: list[JSON] = [self.text, self.agent, self.system_prompt, self.snippet, self.facts]
        seed += [] if self.own_facts else ["no facts of its own"]
        return seed if self.recorded else [*seed, "unrecorded"]


class DelegatedTask:
    """A task that a turn delegates to a child, and the report of its answer."""

    def __init__(self, parent: Conversation, user: Message, task: Task, taken: set[str]) -> None:
        """Hold the task; `user` is the parent's user message, `taken` the turn's other children."""
        if not user.seq:
            raise InvalidInput("the turn's user message is in the outbox; delegate once it arrives")
        task.check()
        self._parent = parent
        self._user = user
        self._task = task
        self._request = task.request()
        self._taken = taken
        self._id = ""
        self._reported = False

    async def begin(self) -> tuple[Conversation, Message, bool]:
        """Make a child, or find the one that worked on the task before a crash.

        Returns the child's conversation, its user message, and whether the child is new.
        """
        self._id = await self._free_id()
        info, is_new = await self._session()
        parent = self._parent
        conversation = parent._replace(
            id=info.id,
            key=info.key,
            tools=parent.tools or parent.key,
            asked_in=parent.asked_in or self._user.turn,
            isolated=True,
            knows=self._task.facts,
            agent=(self._task.agent or "") if self._task.own_facts else "",
        )
        await self._link(conversation)
        if self._task.snippet is not None:
            await add_note(conversation, SNIPPET, self._task.snippet)
        return conversation, self.message(derived_id("task", self._id)), is_new

    def message(self, id: str = "") -> Message:
        """Return the task as the child's user message."""
        return Message(role="user", content=self._task.text, author=self._user.author, id=id)

    async def report_answer(self, answer: Message) -> None:
        """Record the child's answer, and whether it was cut off."""
        truncated = answer.meta.get(CUT) is True
        text = f"{answer.content}\n\n{_CUT_OFF}" if truncated else answer.content
        await self.report(text, truncated=truncated)

    async def report(self, text: str, *, failed: bool = False, truncated: bool = False) -> None:
        """Record the call and its result in the parent's turn; the first result stays."""
        if self._reported or not self._task.recorded:
            return
        call, result = self._pair(self._id, text, failed=failed, truncated=truncated)
        try:
            await self._parent.append([call, result], turn=self._user.turn)
        except Conflict:
            if not await self._found(result.id):
                raise
        self._reported = True

    # --- inside ---

    async def _free_id(self) -> str:
        """Return the id of the first child that is not taken and did not fail."""
        seed: list[JSON] = [self._parent.key, self._user.id, *self._task.seed()]
        for number in count():
            id = f"{DELEGATE}:{derived_id(DELEGATE, json.dumps([*seed, number]))}"
            if id in self._taken:
                continue
            self._taken.add(id)
            found = await self._found(self._pair(id)[1].id) if self._task.recorded else None
            if not found or (found.state == "live" and not found.meta.get("failed")):
                return id
        raise AssertionError

    async def _found(self, id: str) -> Message | None:
        """Return the message that the parent's log has under an id."""
        found = await self._parent.store.find(self._parent.key, ids=[id])
        return found[0] if found else None

    def _pair(
        self, id: str, text: str = "", *, failed: bool = False, truncated: bool = False
    ) -> tuple[Message, Message]:
        """Return the call and the result that the parent records for a child."""
        meta: dict[str, JSON] = {"session": id}
        if failed:
            meta["failed"] = True
        if truncated:
            meta[CUT] = True
        return pair(self._request, text, derived_ids(DELEGATE, id), meta=meta)

    async def _session(self) -> tuple[SessionInfo, bool]:
        """Return the child's session, and whether it is new."""
        store, task = self._parent.store, self._task
        new = SessionInfo(
            id=self._id,
            owner=self._parent.owner,
            title=task.agent or "",
            system_prompt=task.system_prompt,
            meta={
                "facts": task.facts,
                "agent": task.agent,
                "parent_turn": self._user.turn,
            },
            kind="delegate",
            parent=self._parent.id,
        )
        try:
            return await store.put_session(new), True
        except SessionExists:
            found = await store.get_session(self._id, self._parent.owner)
            if found is None or found.kind != "delegate":
                raise
            return found, False

    async def _link(self, child: Conversation) -> None:
        """Record which message the child was made from, so that forgetting can follow it."""
        call, result = self._pair(self._id)
        user = self._user.seq
        await child.store.put(
            Scope(session=child.key),
            DELEGATED,
            DELEGATED,
            {"turn": self._user.turn, "call": call.id, "result": result.id},
            made_of=[Span(session=self._parent.key, first=user, last=user)],
        )
