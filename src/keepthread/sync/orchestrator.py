"""The orchestrator, blocking: memory, models and tools in one object."""

from collections.abc import Sequence

from keepthread.orchestrator import Limits, Models, NamedAgent, Runnable
from keepthread.orchestrator import Orchestrator as AsyncOrchestrator
from keepthread.orchestrator.types import EventHandler, noop
from keepthread.sync.derive import Wrapper
from keepthread.sync.loop import Call
from keepthread.sync.memory import Memory
from keepthread.sync.session import Session


class Orchestrator(Wrapper[AsyncOrchestrator]):
    """Memory, models and tools in one object, with a session for each user.

    It is `keepthread.orchestrator.Orchestrator` without `await`. Plain functions of tools, and
    `on_event`, are called in the thread that waits, one after another.
    """

    def __init__(
        self,
        memory: Memory,
        models: Models,
        tools: Sequence[Runnable] = (),
        *,
        system_prompt: str | None = None,
        limits: Limits | None = None,
        agents: Sequence[NamedAgent] = (),
        memory_tools: bool = False,
    ) -> None:
        """Take the parts; the caller opens and closes the memory."""
        loop, wrapped = memory._loop, memory._wrapped  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - hidden from users only
        parts = AsyncOrchestrator(
            wrapped,
            models,
            tools,
            system_prompt=system_prompt,
            limits=limits,
            agents=agents,
            memory_tools=memory_tools,
        )
        super().__init__(loop, parts)
        self.memory = memory
        self.models = models
        self.tools = tools
        self.limits = limits
        self.agents = agents
        self.memory_tools = memory_tools
        self.system_prompt = system_prompt

    def process(
        self,
        message: str,
        user_id: str = "default",
        *,
        id: str | None = None,
        on_event: EventHandler = noop,
    ) -> str:
        """See `keepthread.orchestrator.Orchestrator.process`."""
        call = Call(self._loop)
        orchestrator = AsyncOrchestrator(
            self._wrapped.memory,
            self.models,
            [each._replace(run=call.tool_in_caller(each.run)) for each in self.tools],
            system_prompt=self.system_prompt,
            limits=self.limits,
            agents=self.agents,
            memory_tools=self.memory_tools,
        )
        handler = call.notify_caller(on_event)
        return call.run(orchestrator.process, message, user_id, id=id, on_event=handler)

    def session(self, user_id: str = "default") -> Session:
        """See `keepthread.orchestrator.Orchestrator.session`."""
        return Session(self._loop, self._loop.run(self._wrapped.session, user_id))
