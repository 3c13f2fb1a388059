"""The design notes, statement by statement: what a person at the command sees."""

import stat
import time
from pathlib import Path

from keepthread import Memory
from keepthread.memory.memory import DAY
from keepthread.testing.server import ScriptedServer
from tests.chatting import Home, home


async def idle_session(place: Home, id: str) -> None:
    """Leave a session that nobody used for 40 days."""
    place.store.parent.mkdir(parents=True, exist_ok=True)
    before = time.time() - 40 * DAY
    async with Memory.open(f"sqlite:///{place.store}", clock=lambda: before) as memory:
        await (await memory.session(id)).add_turn("user", "Hello?")


async def sessions(place: Home) -> set[str]:
    async with Memory.open(f"sqlite:///{place.store}") as memory:
        return {info.id for info in await memory.list_sessions()}


async def test_131_one_question_prunes_idle_sessions_once_a_day(tmp_path: Path) -> None:
    with ScriptedServer(["Yes."] * 3) as server:
        place = home(tmp_path, server)
        await idle_session(place, "old")
        assert place.run("chat", "-p", "Sunny?").returncode == 0
        assert "old" in await sessions(place), "never, unless the settings say so"
        days = {"KEEPTHREAD_MEMORY_AUTO_PRUNE_DAYS": "30"}
        done = place.run("chat", "-p", "Sunny?", **days)
        assert b"deleted 1 session without activity for 30 days" in done.stderr
        assert "old" not in await sessions(place)
        await idle_session(place, "older")
        assert place.run("chat", said="Sunny?", **days).returncode == 0
        assert "older" in await sessions(place), "it was done today"


async def test_131_pruning_is_due_once_a_day() -> None:
    now = [100 * DAY]
    async with Memory.open("ram://", clock=lambda: now[0]) as memory:
        for day in range(4):
            await (await memory.session(f"s{day}")).add_turn("user", "Hello.")
            now[0] += DAY
        assert await memory.prune(2, daily=True) == 2
        now[0] += DAY / 2
        assert await memory.prune(2, daily=True) == 0
        now[0] += DAY
        assert await memory.prune(2, daily=True) == 2


def test_199_202_a_chat_logs_its_contexts(tmp_path: Path) -> None:
    with ScriptedServer(["Sun.", "Rain."]) as server:
        place = home(tmp_path, server)
        log = tmp_path / "contexts.log"
        done = place.run("chat", "-p", "How is Oslo?", "--log", str(log))
        assert done.returncode == 0
        assert b"===" not in done.stderr
        written = log.read_text()
        for block in ("MEMORY STATE", "FUNCTION CACHE STATE", "AGENT RECEIVES (1 messages)"):
            assert f"=== {block} ===" in written
        assert "Summary: 0 bytes | LLM compressions: 0 | Tokens: " in written
        assert "Oslo" not in written, "ids and sizes, no text"
        assert stat.S_IMODE(log.stat().st_mode) == 0o600
        done = place.run("chat", "-p", "How is Rome?", "--debug")
        assert b"How is Rome?" in done.stderr
        refused = place.run("chat", "-p", "How is Rome?", "--log", str(tmp_path))
        assert refused.returncode == 2
        assert b"the file cannot be written" in refused.stderr
