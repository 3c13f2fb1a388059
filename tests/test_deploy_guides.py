"""The guides to deployment, backup and upgrade: their commands work, or are shown to be valid."""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from string import Template
from typing import Any

import psycopg
import pytest
import yaml
from typer.main import get_command

from keepthread import sync
from keepthread.apps.cli.app import app
from keepthread.apps.cli.settings.load import read_config
from keepthread.apps.http.routes.events import HEARTBEAT, LIFETIME
from keepthread.apps.http.settings import MIB, HttpSettings
from servers import start_anew
from servers.postgres import PostgresServer, new_server
from servers.redis import RedisServer
from tests import preloaded

ROOT = Path(__file__).parents[1]
DEPLOY = (ROOT / "docs/how-to/deploy-server.md").read_text()
BACKUP = (ROOT / "docs/how-to/backup.md").read_text()
FENCED = re.compile(r"^```\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVER = HttpSettings()


def lines(text: str, start: str = "") -> list[str]:
    """Return the command lines of a page that begin with some words."""
    found = [line for block in FENCED.findall(text) for line in block.splitlines()]
    return [line for line in found if line.startswith(start)]


def block(text: str, start: str) -> str:
    """Return the block of a page that begins with some words."""
    (found,) = [each for each in FENCED.findall(text) if each.startswith(start)]
    return found


def shell(script: str, folder: Path, programs: Path | None = None, **variables: str) -> str:
    """Run commands as a person would type them; each must succeed. Return what they printed."""
    variables |= {"HOME": str(folder), "XDG_CONFIG_HOME": str(folder)}
    printed = ""
    for ours, given in groupby(script.splitlines(), lambda line: line.startswith("keepthread ")):
        for line in given if ours else ["\n".join(given)]:
            if ours:
                words = shlex.split(Template(line).safe_substitute(variables))[1:]
                done = preloaded.command(*words, cwd=folder, env=variables)
            else:
                path = f"{programs}:{os.environ['PATH']}" if programs else os.environ["PATH"]
                done = subprocess.run(
                    ["sh", "-euc", line],
                    cwd=folder,
                    env={"PATH": path, **variables},
                    capture_output=True,
                    text=True,
                    check=False,
                )
            assert done.returncode == 0, done.stderr
            printed += done.stdout
    return printed


# --- commands that need containers or root are compared with the files they name ---


def check_call(words: list[str]) -> None:
    """Check that a call of the command names things that exist."""
    program: Any = get_command(app)
    command = program.commands[words[0]]
    if actions := getattr(command, "commands", {}):
        command = actions[words[1]]
    known = {name for each in (*program.params, *command.params) for name in each.opts}
    assert {word for word in words if word.startswith("--")} <= known


@pytest.mark.parametrize("page", [DEPLOY, BACKUP], ids=["deploy-server", "backup"])
def test_every_compose_command_names_a_file_and_a_service(page: str) -> None:
    found = [shlex.split(line) for line in lines(page, "docker compose ")]
    assert found
    for _, _, option, file, action, *rest in found:
        assert option == "--file"
        services = yaml.safe_load((ROOT / file).read_text())["services"]
        words = [word for word in rest if not word.startswith("-")]
        if action == "cp":
            assert words[0].partition(":")[0] in services
        elif action in ("run", "exec"):
            name, *call = words
            assert name in services
            call = call[1:] if action == "exec" else call or services[name]["command"]
            check_call(call)
        else:
            assert action in ("up", "build")
            assert set(words) <= services.keys()


def test_the_image_is_run_as_the_compose_file_runs_it() -> None:
    build, create, run = (
        shlex.split(line) for line in lines(DEPLOY, "docker ") if "compose" not in line
    )
    assert (ROOT / build[build.index("--file") + 1]).exists()
    service = yaml.safe_load((ROOT / "deploy/compose.sqlite.yaml").read_text())["services"][
        "server"
    ]
    volume, port = service["volumes"][0], service["ports"][0]
    for words in (create, run):
        assert words[words.index("--volume") + 1] == volume
    check_call(create[create.index("keepthread") + 1 :])
    assert {"--read-only", *service["cap_drop"], *service["tmpfs"], port} <= set(run)


def test_the_unit_is_installed_where_it_expects_things() -> None:
    script = block(DEPLOY, "useradd")
    unit = (ROOT / "deploy/keepthread.service").read_text()
    for place in ("/opt/keepthread", "/var/lib/keepthread", "deploy/keepthread.service"):
        assert place in script
    (call,) = re.findall(r"-- /opt/keepthread/bin/keepthread (.*)", script)
    check_call(shlex.split(call))
    assert f"sqlite:///{shlex.split(call)[-1]}" in unit
    assert "User=keepthread\n" in unit


def test_secrets_and_a_certificate_for_a_trial_are_made(tmp_path: Path) -> None:
    (tmp_path / "deploy").mkdir()
    shell(block(DEPLOY, "umask"), tmp_path)
    made = tmp_path / "deploy"
    given = dict(line.split("=") for line in (made / ".env").read_text().splitlines())
    wanted = set(re.findall(r"\$\{(\w+)", (ROOT / "deploy/compose.postgres.yaml").read_text()))
    assert given.keys() == wanted
    assert len(set(given.values())) == len(given)
    assert all(path.stat().st_mode & 0o077 == 0 for path in made.iterdir())
    pem = (made / "tls.pem").read_text()
    assert pem.count("BEGIN CERTIFICATE") == pem.count("PRIVATE KEY-----\n") - 1 == 1
    settings = {**os.environ, "KEEPTHREAD_CERTIFICATE": str(made / "tls.pem")}
    haproxy = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
    assert haproxy, "haproxy is missing: scripts/setup --servers installs it"
    subprocess.run([haproxy, "-c", "-f", ROOT / "deploy/haproxy.cfg"], env=settings, check=True)


def test_variables_of_the_page_are_settings() -> None:
    for name, value in re.findall(r"`(KEEPTHREAD_SERVER_\w+)=(\S+)`", DEPLOY):
        read_config({name: value}, ROOT)


def test_the_numbers_of_the_page_are_those_of_the_server() -> None:
    for text in (
        f"a request may take {SERVER.deadline:g} s",
        f"sends a line every {HEARTBEAT:g} s and ends after {LIFETIME / 60:g} minutes",
        f"bodies up to {SERVER.max_upload // MIB} MiB",
    ):
        assert text in DEPLOY


# --- backups ---


def fill(url: str, tenant: str = "acme") -> None:
    """Write a conversation."""
    with (
        sync.Memory.open(url, tenant=tenant) as memory,
        memory.session("trip", owner="ana").turn("I am allergic to hazelnuts.") as turn,
    ):
        turn.finish("I will remember it.")


def texts(url: str, tenant: str = "acme") -> list[str]:
    """Return the conversation."""
    with sync.Memory.open(url, tenant=tenant) as memory:
        return [message.content for message in memory.session("trip", owner="ana").messages()]


SAID = ["I am allergic to hazelnuts.", "I will remember it."]


def test_a_sqlite_file_in_use_is_copied_and_restored_with_its_keys(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/memory.db"
    with sync.Memory.open(url, tenant="acme") as memory:  # in use until the copy is made
        with memory.session("trip", owner="ana").turn(SAID[0]) as turn:
            turn.finish(SAID[1])
        shell("keepthread keys create bot --store memory.db", tmp_path)
        shell(block(BACKUP, "keepthread backup"), tmp_path)
        with memory.session("trip", owner="ana").turn("Later.") as turn:
            turn.finish("Too late for the copy.")
    shell(block(BACKUP, "mkdir before"), tmp_path)
    assert texts(url) == SAID
    assert "bot" in shell("keepthread keys --store memory.db", tmp_path)


def test_a_new_format_is_reached_by_an_export_without_keys(tmp_path: Path) -> None:
    fill(f"sqlite:///{tmp_path}/memory.db", "default")
    shell("keepthread keys create bot --store memory.db", tmp_path)
    shell(block(BACKUP, "keepthread export"), tmp_path)
    assert texts(f"sqlite:///{tmp_path}/memory-new.db", "default") == SAID
    assert "bot" not in shell("keepthread keys --store memory-new.db", tmp_path)


@pytest.fixture
def new_postgres() -> Iterator[PostgresServer]:
    server = new_server()
    try:
        yield server
    finally:
        server.close()


def test_a_postgresql_database_is_restored_on_a_new_server(
    postgres: PostgresServer, new_postgres: PostgresServer, tmp_path: Path
) -> None:
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    url = postgres.create_database("backed_up")
    fill(url)
    variables = {
        "DATABASE_URL": url,
        "NEW_DATABASE_URL": new_postgres.url(),
        "KEEPTHREAD_DATABASE_PASSWORD": "a password",
    }
    programs = postgres.programs
    shell(f"keepthread keys create bot --store {url}", tmp_path)
    shell(block(BACKUP, "pg_dump"), tmp_path, programs, **variables)
    shell(block(BACKUP, "psql"), tmp_path, programs, **variables)
    login = new_postgres.url(user="keepthread_api")
    assert texts(login) == SAID
    assert "bot" in shell(f"keepthread keys --store {login}", tmp_path)
    with psycopg.connect(login) as db, pytest.raises(psycopg.errors.InsufficientPrivilege):
        db.execute("CREATE TABLE keepthread.mine (id int)")


def test_pg_dump_refuses_an_owner_whom_row_level_security_holds(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    url = postgres.create_database("owned")
    postgres.execute("DROP ROLE IF EXISTS owner_of_tables")
    postgres.execute("CREATE ROLE owner_of_tables LOGIN CREATEROLE")
    postgres.execute("ALTER DATABASE owned OWNER TO owner_of_tables")
    owned = postgres.url("owned", user="owner_of_tables")
    fill(owned)
    dump = block(BACKUP, "pg_dump")
    with pytest.raises(AssertionError, match="row-level security"):
        shell(dump, tmp_path, postgres.programs, DATABASE_URL=owned)
    shell(dump, tmp_path, postgres.programs, DATABASE_URL=url)
    postgres.execute('DROP DATABASE "owned" WITH (FORCE)', database="postgres")
    postgres.execute("DROP ROLE owner_of_tables")


def test_a_redis_server_is_restored_from_its_file(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    redis_server.ask("FLUSHALL")
    fill(redis_server.url)
    shell(block(BACKUP, 'redis-cli -u "$REDIS_URL"'), tmp_path, REDIS_URL=redis_server.url)

    def start() -> RedisServer:
        restored = RedisServer(redis_server.program)
        shutil.copy(tmp_path / "memory.rdb", restored.folder / "dump.rdb")
        try:
            restored.start()
        except BaseException:
            restored.close()
            raise
        return restored

    restored = start_anew(start)
    try:
        script = block(BACKUP, 'redis-cli -u "$NEW_REDIS_URL"')
        shell(script, tmp_path, NEW_REDIS_URL=restored.url)
        assert texts(restored.url) == SAID
    finally:
        restored.close()
