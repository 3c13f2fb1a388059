"""Token counters: what they cover, which one is chosen, and what they survive."""

import os
import socket
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keepthread import Attachment, Message, Native, ToolCall
from keepthread.context.rendering import indented
from keepthread.errors import InvalidInput, Unavailable
from keepthread.models import tokens
from keepthread.models.tokens import Estimator, Tiktoken, counter


@pytest.fixture(autouse=True)
def fresh_choice() -> Iterator[None]:
    counter.cache_clear()
    yield
    counter.cache_clear()


def test_exact_counts_are_chosen_where_tiktoken_is(vocabularies: Path) -> None:
    assert counter().name == "o200k"
    assert counter("cl100k").name == "cl100k"
    assert counter() is counter()


def test_without_tiktoken_the_estimator_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert counter().name == "~o200k"
    with pytest.raises(Unavailable, match=r"keepthread\[tokens\]"):
        Tiktoken()


def test_without_a_vocabulary_one_warning_and_the_estimator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def offline(name: str) -> None:
        raise OSError("no network")

    monkeypatch.setattr("tiktoken.get_encoding", offline)
    with pytest.warns(UserWarning, match="TIKTOKEN_CACHE_DIR"):
        assert counter().name == "~o200k"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert counter().name == "~o200k"


@pytest.mark.parametrize("answers", [False, True], ids=["silent", "refusing"])
def test_a_vocabulary_that_cannot_be_downloaded_costs_seconds_and_one_line(
    tmp_path: Path, answers: bool
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        host, port = proxy.getsockname()
        if answers:  # nothing listens there any more
            proxy.close()
        environ = {
            **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
            "HTTPS_PROXY": f"http://{host}:{port}",
            "TIKTOKEN_CACHE_DIR": str(tmp_path),
        }
        code = (
            "import asyncio, keepthread, logging, time\n"
            "logging.basicConfig()\n"
            "async def main():\n"
            "    async with keepthread.Memory.open('ram://') as memory:\n"
            "        await memory.session('a')\n"
            "started = time.monotonic()\n"
            "asyncio.run(main())\n"
            "print(time.monotonic() - started < 30)\n"
        )
        result = subprocess.run(
            [sys.executable, "-c", code],
            check=True,
            capture_output=True,
            text=True,
            env=environ,
            timeout=120,
        )
    assert result.stdout == "True\n"
    warning, source = result.stderr.splitlines()
    assert "UserWarning: token counts are estimates: tiktoken cannot download" in warning
    assert "TIKTOKEN_CACHE_DIR" in warning
    assert "openaipublic" not in warning
    assert source.startswith("  ")  # the line of the program, which Python adds


def test_an_unknown_vocabulary_is_refused_by_name() -> None:
    for make in (Estimator, counter):
        with pytest.raises(InvalidInput, match="o200k, cl100k"):
            make("p50k")


@pytest.fixture(params=["exact", "estimate"])
def measure(request: pytest.FixtureRequest, vocabularies: Path) -> Tiktoken | Estimator:
    return Tiktoken() if request.param == "exact" else Estimator()


def test_a_text_is_counted_as_no_less_than_its_text_form(vocabularies: Path) -> None:
    ends = st.sampled_from(
        ["\n", "a\n", "a.\n", "9!\n", "a..\n", "é.\n", "a \n", "a\r\n", "a\nb\n"]
    )

    @given(st.text(st.sampled_from("aB9 .,:!'\u00e9\u65e5\t\n")), ends)
    def law(text: str, end: str) -> None:
        for counts in (Estimator(), Tiktoken()):
            form = counts.measure(indented(text + end, quoted=False))
            counted = counts.count(Message(role="user", content=text + end))
            assert counted >= tokens.MESSAGE_FRAME + form

    law()


def test_every_text_of_a_message_is_counted(measure: Tiktoken | Estimator) -> None:
    bare = measure.count(Message(role="assistant"))
    assert bare == tokens.MESSAGE_FRAME
    words = "several words of text"
    cost = measure.measure(words)
    call = ToolCall(id=words, name=words, arguments=words)
    for message, least in (
        (Message(role="user", content=words), cost),
        (Message(role="user", name=words), cost),
        (Message(role="user", author=words), cost + tokens.AUTHOR_FRAME),
        (Message(role="user", tool_call_id=words), cost),
        (Message(role="assistant", tool_calls=[call]), 3 * cost + tokens.CALL_FRAME),
        (Message(role="user", native=Native(wire="anthropic", items=[words])), cost),
        (Message(role="user", attachments=[Attachment(media_type="x", name=words)]), cost),
        (Message(role="user", content="a\nb\n"), measure.measure("a\nb\n") + 2),
    ):
        assert measure.count(message) >= bare + least


def test_an_image_is_charged_where_a_model_sees_it_and_else_its_name(
    measure: Tiktoken | Estimator,
) -> None:
    picture = Attachment(media_type="image/png", uri="https://example.org/a.png")
    file = Attachment(media_type="application/pdf", name="report.pdf", uri="https://example.org/r")
    for message, shown in (
        (Message(role="user", attachments=[picture]), True),
        (Message(role="tool", tool_call_id="a", attachments=[picture]), True),
        (Message(role="assistant", attachments=[picture]), False),
        (Message(role="system", attachments=[picture]), False),
        (Message(role="user", origin="web", attachments=[picture]), False),
        (Message(role="user", attachments=[file]), False),
    ):
        cost = measure.count(message) - measure.count(replace(message, attachments=()))
        assert cost >= tokens.ATTACHMENT_COST if shown else 5 < cost < 30


def test_special_tokens_in_a_text_are_text(measure: Tiktoken | Estimator) -> None:
    assert measure.measure("<|endoftext|>") > 1


@pytest.mark.parametrize(
    "text", [" " * (1 << 20), "a" * (1 << 20), "\ud800\udc00 \0", "\n" * 99_999]
)
def test_no_text_is_too_odd_to_be_counted(measure: Tiktoken | Estimator, text: str) -> None:
    assert measure.measure(text) > 0
