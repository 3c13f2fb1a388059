"""The same statements by pgbench, which is written in C: what a server gives at most."""

import re
from pathlib import Path

from bench import Row, Run
from bench.corpus import COUNTER, texts, tokens_of
from bench.postgres.bare import NEWEST
from bench.rates import TASKS
from servers.postgres import PostgresServer

_INSERT = """
\\set sid random(-1000000000, -100)
\\set seq random(1, 1000000000)
INSERT INTO bare (
    sid, seq, tokens, turn, turns, total, created_at, tenant, role, id, counter, digest,
    guard, extra, content
) VALUES (
    :sid, :seq, {tokens}, 1, 1, {tokens}, 1.8e9, {tenant}, 1, int8send(:sid) || int8send(:seq),
    '{counter}', sha256(int8send(:seq)), int8send(:seq), '', '{text}'
)
"""
_SELECT = "\\set n random(1, {number})\n\\set sid case {cases} end\n" + NEWEST
_SESSIONS = 64  # that are read by turns


def insert(tenant: int, size: int) -> str:
    """Return the script of one bare INSERT."""
    text = texts(size)[0]
    return _INSERT.format(tokens=tokens_of(size), tenant=tenant, counter=COUNTER, text=text)


def newest(tenant: int, sids: list[int]) -> str:
    """Return the script of one bare read, of one of some sessions by chance."""
    some = sids[:_SESSIONS]
    cases = " ".join(f"when :n = {n} then {sid}" for n, sid in enumerate(some, 1))
    return _SELECT.format(tenant, ":sid", number=len(some), cases=cases)


def measure(
    run: Run, server: PostgresServer, database: str, group: str, name: str, script: str
) -> list[Row]:
    """Return the rate of a script; nothing if this PostgreSQL came without pgbench."""
    if not (server.programs / "pgbench").exists():
        return []
    file = server.folder / "pgbench.sql"
    file.write_text(script)
    file.chmod(0o644)
    said = _run(run, server, database, file)
    found = re.search(r"tps = ([\d.]+)", said)
    assert found, said
    return [Row(group=group, name=name, value=float(found[1]), unit="/s")]


def _run(run: Run, server: PostgresServer, database: str, file: Path) -> str:
    where = ("--host=127.0.0.1", f"--port={server.port}", "--username=postgres")
    how = (f"--client={TASKS}", "--jobs=1", "--protocol=prepared", "--no-vacuum")
    time = f"--time={1 if run.quick else 4}"
    return server.run("pgbench", *where, *how, time, f"--file={file}", database)
