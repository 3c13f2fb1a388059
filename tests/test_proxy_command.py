"""`keepthread proxy`: its token, its options and its one line; and `/proxy` of the server."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from keepthread.apps.proxy.app import Proxy
from keepthread.apps.proxy.local import Local, kept_token, run, split_path
from keepthread.apps.proxy.settings import ProxySettings, base_url, upstream_of
from keepthread.errors import InvalidInput, Unavailable
from tests.proxy_world import TOKEN, WIRES, FixedMemory, RawUpstream, answering


def test_the_token_is_made_once_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "proxy-token"
    token = kept_token(path)
    assert len(token) >= 43
    assert kept_token(path) == token
    if os.name == "posix":
        assert path.stat().st_mode & 0o077 == 0
    path.write_text("short")
    assert kept_token(path) not in ("short", token)


@pytest.mark.skipif(os.name != "posix", reason="Windows has no such modes")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666])
def test_a_token_that_others_can_read_or_write_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "proxy-token"
    token = kept_token(path)
    path.chmod(mode)
    with pytest.raises(InvalidInput, match="other users") as refusal:
        kept_token(path)
    assert token not in str(refusal.value)
    path.chmod(0o600)
    assert kept_token(path) == token


def test_upstreams_are_named_on_the_command_line() -> None:
    assert upstream_of("openai=https://host/v1") == ("openai", "https://host/v1")
    assert upstream_of("Anthropic=http://127.0.0.1:1") == ("anthropic", "http://127.0.0.1:1")
    for text in ("openai", "other=https://host", "https://host", "openai=host", "openai="):
        with pytest.raises(InvalidInput):
            upstream_of(text)


def test_base_urls_are_taken_as_the_sdks_take_them() -> None:
    assert base_url("http://localhost:11434", "openai") == "http://localhost:11434/v1"
    assert base_url("https://host/openai/v1/", "openai") == "https://host/openai/v1"
    assert base_url("https://host/v1", "anthropic") == "https://host"


def test_the_credential_is_taken_out_of_the_path() -> None:
    assert split_path("/k/abc/v1/models") == ("abc", "/v1/models")
    assert split_path("/k/abc") == ("abc", "/")
    assert split_path("/v1/models") == ("", "/v1/models")
    assert split_path("/k/a%2Fb/v1") == ("a%2Fb", "/v1")


async def test_it_serves_until_it_is_stopped_and_closes_the_memory() -> None:
    upstream = RawUpstream(answering(b"END"))
    server = await asyncio.start_server(upstream.serve, "127.0.0.1", 0)
    upstream.port = server.sockets[0].getsockname()[1]
    memory, closed = FixedMemory(), asyncio.Event()
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def opened() -> AsyncGenerator[FixedMemory]:
        yield memory
        assert len(memory.recorded) == 1  # it is open until all is recorded
        closed.set()

    def build(settings: ProxySettings) -> Proxy:
        return Proxy(settings, WIRES)

    local = Local(
        build=build,
        open_memory=opened,
        settings=ProxySettings(openai=f"{upstream.url}/v1", memory_deadline=30),
        token=TOKEN,
        port=0,
    )
    serving = asyncio.create_task(run(local, address.set_result))
    url = await address
    assert url.endswith(f"/k/{TOKEN}/v1")
    async with httpx2.AsyncClient(trust_env=False) as client:
        response = await client.post(f"{url}/chat/completions", content=b'"Q"')
        assert response.content == b"END"
    taken = replace(local, port=int(url.split(":")[2].split("/")[0]))
    with pytest.raises(Unavailable, match="--port"):
        await run(taken, str)
    signal.raise_signal(signal.SIGTERM)
    await serving
    assert closed.is_set()
    server.close()
    await asyncio.gather(*upstream.tasks)
