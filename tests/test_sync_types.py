"""The blocking API has the types of the asynchronous one, as pyright sees them."""

import inspect
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import keepthread
from keepthread import sync
from keepthread.memory.facts.facts import Facts
from keepthread.orchestrator import Orchestrator
from keepthread.stores.outbox.store import Outbox

PAIRS = [
    (keepthread.Memory, sync.Memory),
    (keepthread.Session, sync.Session),
    (keepthread.Turn, sync.Turn),
    (Facts, sync.Facts),
    (Outbox, sync.Outbox),
    (Orchestrator, sync.Orchestrator),
]
RIGHT = """
from collections.abc import Callable
from typing import assert_type

from keepthread import Context, Message, Receipt, SessionInfo, Verification
from keepthread.interchange.copy import Copied
from keepthread.interchange.export import Exported
from keepthread.interchange.import_ import Imported
from keepthread.memory.facts.types import Fact
from keepthread.orchestrator import Models
from keepthread.sync import Admin, Facts, Memory, Orchestrator, OwnerMemory, Session, Turn
from keepthread.sync import interchange
from keepthread.testing.model import ScriptedModel
from keepthread.types import Page

with Memory.open("ram://", tenant="a", keep_why=2) as memory:
    assert_type(memory, Memory)
    assert_type(memory.tenant("b"), Memory)
    session = memory.session("s", owner="ana", tags=["x"])
    assert_type(session, Session)
    assert_type(memory.get_session("s", owner="ana").fork(), Session)
    assert_type(memory.list_sessions(limit=3), Page[SessionInfo])
    assert_type(memory.for_owner("ana"), OwnerMemory)
    assert_type(memory.for_owner("ana").session("s"), Session)
    assert_type(memory.for_owner("ana").join(session), Session)
    assert_type(memory.for_owner("ana").facts, Facts)
    assert_type(memory.admin, Admin)
    assert_type(memory.admin.list_sessions(), Page[SessionInfo])
    assert_type(memory.forget(session="s", dry_run=True, progress=print), Receipt)
    assert_type(memory.admin.verify(), Verification)
    assert_type(memory.for_owner("ana").facts, Facts)
    assert_type(memory.for_owner("ana").facts.get("key"), Fact | None)
    assert_type(memory.create_session(), Session)
    assert_type(session.messages(limit=3), list[Message])
    assert_type(session.append(Message(role="user", content="a"), expect=0), list[Message])
    with session.turn("hello") as turn:
        assert_type(turn, Turn)
        assert_type(turn.context("chat", budget=500), Context)
        assert_type(turn.finish("hi"), Message)
    clear: Callable[[], None] = session.clear
    orchestrator = Orchestrator(memory, Models.all(ScriptedModel([])), [])
    assert_type(orchestrator.process("hello", "ana"), str)
    assert_type(orchestrator.session("ana"), Session)
    lines: list[bytes] = []
    assert_type(interchange.export(memory, lines.append, owner="ana", progress=print), Exported)
    assert_type(interchange.import_lines(memory, lines, prefix="b:"), Imported)
    assert_type(interchange.copy(memory, Memory.open("ram://"), replace=True), Copied)
    Session.clear(session)
"""
WRONG = """
from keepthread.sync import Memory, Session, interchange

memory = Memory.open("ram://")
session = memory.session("s")
memory.forget(session=1)  # reportArgumentType
session.append("text")  # reportArgumentType
session.pin()  # reportCallIssue
memory.delete_session()  # reportCallIssue
memory.session("s", color="red")  # reportCallIssue
Memory.open("ram://", keep_why="2")  # reportArgumentType
number: str = memory.admin.prune()  # reportAssignmentType
Session.clear(memory)  # reportArgumentType
interchange.export(memory)  # reportCallIssue
interchange.copy(memory, memory.store)  # reportArgumentType

async def wait() -> None:
    await session.status()  # reportGeneralTypeIssues
    await memory.admin.verify()  # reportGeneralTypeIssues
"""


def test_pyright_accepts_right_calls_and_refuses_wrong_ones(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(RIGHT)
    (tmp_path / "wrong.py").write_text(WRONG)
    source = str(Path(keepthread.__file__).parents[1])
    config = {"typeCheckingMode": "strict", "extraPaths": [source], "include": ["."]}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [sys.executable, "-m", "pyright", "--outputjson", "-p", str(tmp_path)]
    command += ["--pythonpath", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    found = {
        (Path(each["file"]).name, each["range"]["start"]["line"], each.get("rule"))
        for each in json.loads(done.stdout)["generalDiagnostics"]
        if each["severity"] == "error"
    }
    wanted = {
        ("wrong.py", number, rule[1])
        for number, line in enumerate(WRONG.split("\n"))
        if (rule := re.search(r"# (report\w+)", line))
    }
    assert len(wanted) == 12
    assert found == wanted


def coroutines(cls: type) -> dict[str, Any]:
    return {
        name: method
        for name, method in vars(cls).items()
        if not name.startswith("_") and inspect.iscoroutinefunction(method)
    }


@pytest.mark.parametrize(("asynchronous", "blocking"), PAIRS, ids=lambda cls: cls.__module__)
def test_every_coroutine_has_a_blocking_method_with_its_parameters(
    asynchronous: type, blocking: type
) -> None:
    methods = coroutines(asynchronous)
    assert methods
    for name, method in methods.items():
        derived = getattr(blocking, name)
        assert not inspect.iscoroutinefunction(derived), name
        wanted = inspect.signature(method).parameters
        assert inspect.signature(derived).parameters == wanted, name
        assert inspect.getdoc(derived), name
        # The thread that waits is called back; a positional argument would be missed.
        assert "progress" not in wanted or wanted["progress"].kind is inspect.Parameter.KEYWORD_ONLY


def test_what_is_wrapped_is_shown_as_the_blocking_class() -> None:
    for name in ("session", "create_session", "get_session"):
        signature = inspect.signature(getattr(sync.Memory, name))
        assert signature.return_annotation is sync.Session
    assert inspect.signature(sync.Memory.open).return_annotation == "Memory"
    assert sync.Memory.forget.__doc__ == keepthread.Memory.forget.__doc__
