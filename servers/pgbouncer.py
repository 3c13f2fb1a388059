"""A real PgBouncer in front of a PostgreSQL server."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import psycopg

from servers import Missing, did_not_start, free_port, start_anew
from servers.postgres import PostgresServer

_SETTINGS = """
[databases]
* = host=127.0.0.1 port={target}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
auth_file = {folder}/users
pool_mode = {mode}
ignore_startup_parameters = extra_float_digits
"""
_SECONDS_TO_START = 30.0


@contextmanager
def pooled(
    server: PostgresServer, mode: Literal["session", "transaction"], user: str = "postgres"
) -> Iterator[str]:
    """Give the URL of a server behind a pooler, for as long as the block lasts.

    The pooler connects as `user`, whatever a client calls itself.
    """
    program = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise Missing("pgbouncer is missing: scripts/setup --servers installs it")
    with tempfile.TemporaryDirectory(prefix="keepthread-pgbouncer-") as name:
        folder = Path(name)
        process, url = start_anew(lambda: _start(program, folder, server, mode, user))
        try:
            yield url
        finally:
            process.kill()
            process.wait(timeout=_SECONDS_TO_START)


def _start(
    program: str, folder: Path, server: PostgresServer, mode: str, user: str
) -> tuple[subprocess.Popen[Any], str]:
    port = free_port()
    settings = _SETTINGS.format(
        target=f"{server.port} user={user}", port=port, folder=folder, mode=mode
    )
    (folder / "settings.ini").write_text(settings)
    (folder / "users").write_text(f'"{user}" ""\n')
    as_user: dict[str, Any] = {}
    if os.geteuid() == 0:  # PgBouncer refuses to run as root
        nobody = pwd.getpwnam("nobody")
        as_user = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
        folder.chmod(0o755)
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, folder / "settings.ini"], stdout=log, stderr=log, **as_user
        )
    url = f"postgresql://{user}@127.0.0.1:{port}/keepthread"
    try:
        _wait(process, url, folder / "log")
    except BaseException:
        process.kill()
        process.wait(timeout=_SECONDS_TO_START)
        raise
    return process, url


def _wait(process: subprocess.Popen[Any], url: str, log: Path) -> None:
    deadline = time.monotonic() + _SECONDS_TO_START
    while True:
        try:
            psycopg.connect(url, connect_timeout=5).close()
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise did_not_start("PgBouncer", log.read_text()) from error
            time.sleep(0.02)
        else:
            return
