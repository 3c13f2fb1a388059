"""`keepthread keys`: a key is made, shown once, listed, replaced and revoked."""

import asyncio
import json
import subprocess
import time
from pathlib import Path

from keepthread.apps.http.keys import check_key
from keepthread.stores.sqlite import SQLiteStore
from tests.preloaded import command


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return command("--store", str(folder / "store.db"), *words)


def accepted(folder: Path, text: str) -> bool:
    async def ask() -> bool:
        async with await SQLiteStore.open(folder / "store.db") as store:
            found = await check_key(store.server_tables(), text.strip(), at=time.time())
            return found.key is not None

    return asyncio.run(ask())


def test_a_key_is_made_replaced_and_revoked(tmp_path: Path) -> None:
    made = run(tmp_path, "keys", "create", "the bot", "--scope", "read,forget", "--owner", "ana")
    assert accepted(tmp_path, made.stdout), made.stderr
    assert "owner ana: read, forget; valid\n" in made.stderr
    assert "shown only once" in made.stderr
    (line,) = run(tmp_path, "--json", "keys").stdout.splitlines()
    key = json.loads(line)
    about = ("tenant", "owner", "scopes", "name", "expires_at", "revoked_at", "valid")
    expected = ("default", "ana", ["read", "forget"], "the bot", None, None, True)
    assert tuple(key[name] for name in about) == expected
    assert "digest" not in key
    assert made.stdout.strip()[16:] not in line
    listed = run(tmp_path, "keys")
    assert key["id"] in listed.stdout
    assert "read, forget" in listed.stdout

    new = run(tmp_path, "--json", "keys", "rotate", key["id"], "--grace", "2")
    assert accepted(tmp_path, json.loads(new.stdout)["key"])
    assert accepted(tmp_path, made.stdout)
    assert "valid until" in run(tmp_path, "keys").stdout
    revoked = run(tmp_path, "keys", "revoke", made.stdout.strip())
    assert revoked.stderr == f"{key['id']} was revoked\n"
    assert not accepted(tmp_path, made.stdout)
    assert "was already revoked" in run(tmp_path, "keys", "revoke", key["id"]).stderr
    actions = {"keys.create", "keys.rotate", "keys.revoke"}

    async def audited() -> set[str]:
        async with await SQLiteStore.open(tmp_path / "store.db") as store:
            return {entry.action for entry in await store.server_tables().list_audit()}

    assert asyncio.run(audited()) == actions
    lines = run(tmp_path, "--json", "keys", "audit").stdout.splitlines()
    entries = [json.loads(line) for line in lines]
    assert [entry["action"] for entry in entries] == ["keys.create", "keys.rotate", "keys.revoke"]
    assert entries[0]["targets"] == [key["id"]]
    shown = run(tmp_path, "keys", "audit", "--days", "1").stdout
    assert "keys.revoke" in shown
    assert key["id"] in shown
    nobody = run(tmp_path, "--tenant", "acme", "keys", "audit")
    assert nobody.stderr == "The audit log of the tenant acme has no entries\n"


def test_keys_of_another_tenant_are_not_shown(tmp_path: Path) -> None:
    run(tmp_path, "--tenant", "acme", "keys", "create", "bot")
    (line,) = run(tmp_path, "--tenant", "acme", "--json", "keys").stdout.splitlines()
    nothing = run(tmp_path, "keys")
    assert nothing.stdout == ""
    assert "The tenant default has no keys; `keepthread keys create NAME`" in nothing.stderr
    for action in ("rotate", "revoke"):
        refused = run(tmp_path, "keys", action, json.loads(line)["id"])
        assert refused.returncode == 2
        assert "there is no key" in refused.stderr


def test_what_is_refused_says_what_to_do(tmp_path: Path) -> None:
    assert "there is no store at" in run(tmp_path, "keys").stderr
    for words, said in (
        (("--scope", "admin"), "give it --days N"),
        (("--scope", "dance"), "'dance' is not a scope; there are read, write"),
        (("--owner", "\n"), "owner must be"),
    ):
        refused = run(tmp_path, "keys", "create", "bot", *words)
        assert (refused.returncode, refused.stdout) == (2, ""), refused.stderr
        assert said in refused.stderr
    made = run(tmp_path, "--json", "keys", "create", "bot", "--scope", "admin", "--days", "30")
    assert json.loads(made.stdout)["expires_at"] > time.time() + 29 * 86_400
    half = run(tmp_path, "keys", "revoke", json.loads(made.stdout)["key"][:-1])
    assert "give its id, the 12 characters after kt_" in half.stderr
    assert json.loads(made.stdout)["key"][16:40] not in half.stderr
