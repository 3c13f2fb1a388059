"""Embedders: a model in a folder, and any endpoint that speaks as OpenAI's does."""

import asyncio
import json
import shutil
import sys
import time
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from keepthread.errors import InvalidInput, Unavailable
from keepthread.models.embedders import EndpointEmbedder, OnnxEmbedder
from keepthread.models.embedders.onnx import matrix
from keepthread.testing.embeddings import EmbeddingsServer, Fault, ScriptedEmbedder
from keepthread.types import Embedding

KEY = "sk-not-to-be-seen-0123456789"


def rows(made: Embedding) -> np.ndarray:
    """Return the vectors of an embedding, at length 1."""
    read = np.frombuffer(made.vectors, np.int8).reshape(-1, made.dimensions).astype(float)
    return read / np.linalg.norm(read, axis=1, keepdims=True)


def maxsim(asked: Embedding, said: Embedding) -> float:
    return float((rows(asked) @ rows(said).T).max(axis=1).mean())


# --- a model in a folder ---


@pytest.fixture(scope="session")
def minilm(test_data: Path) -> Path:
    return test_data / "models" / "all-MiniLM-L6-v2-int8"


@pytest.fixture(scope="module")
def by_token(minilm: Path) -> OnnxEmbedder:
    return OnnxEmbedder(minilm)


async def test_each_token_gets_a_vector_and_what_means_the_same_is_near(
    by_token: OnnxEmbedder,
) -> None:
    said = ["Ana: We adopted a kitten last May", "Ben: The meeting was moved to Tuesday"]
    kitten, meeting = await by_token.embed(said)
    (asked,) = await by_token.embed(["When did she get her cat?"])
    assert by_token.by_token
    assert asked.dimensions == 128
    assert len(asked.vectors) == 128 * len(asked.ids) == 128 * 7  # six words and a mark
    assert np.abs(np.linalg.norm(np.frombuffer(asked.vectors, np.int8)[:128]) - 127) < 2
    assert maxsim(asked, kitten) > maxsim(asked, meeting) + 0.1


async def test_a_text_has_the_same_vectors_whatever_is_embedded_with_it(
    by_token: OnnxEmbedder,
) -> None:
    texts = [f"Ana: {'very ' * n}well, thank you" for n in range(40)]
    together = await by_token.embed(texts)
    alone = [made for text in texts for made in await by_token.embed([text])]
    assert together == alone


async def test_pooled_vectors_are_the_models_own(minilm: Path) -> None:
    embedder = OnnxEmbedder(minilm, by_token=False)
    made = await embedder.embed(
        ["That is a happy person", "That is a very happy person", "Today is a sunny day"]
    )
    happy, very, sunny = (rows(each)[0] for each in made)
    assert {(each.dimensions, each.ids) for each in made} == {(384, ())}
    # The figures of the model's own card, as far as eight bits go.
    assert happy @ very == pytest.approx(0.94, abs=0.03)
    assert happy @ sunny == pytest.approx(0.26, abs=0.05)


async def test_any_text_can_be_embedded(by_token: OnnxEmbedder) -> None:
    started = time.process_time()
    hostile = ["", " \n", "\x00", "\ud800", "a" * 1_000_000, "word " * 200_000, "天气", "[SEP]" * 9]
    made = await by_token.embed(hostile)
    assert [len(each.ids) for each in made[:2]] == [0, 0]
    assert made[0].vectors == b""
    assert len(made[5].ids) == 254  # 256, without the marks of beginning and end
    assert all(len(each.vectors) == 128 * len(each.ids) for each in made)
    assert time.process_time() - started < 30  # of CPU: a busy machine is not a slow model


async def test_the_event_loop_goes_on_while_a_model_works(by_token: OnnxEmbedder) -> None:
    await by_token.embed(["loaded"])
    embedding = asyncio.create_task(by_token.embed(["It is a long way to Tipperary. " * 30] * 20))
    ticks = 0
    while not embedding.done():
        await asyncio.sleep(0.005)
        ticks += 1
    assert ticks > 10


def test_a_name_tells_models_settings_and_ways_apart(minilm: Path, tmp_path: Path) -> None:
    other = tmp_path / minilm.name
    other.mkdir()
    for path in minilm.iterdir():
        shutil.copyfile(path, other / path.name)
    same = OnnxEmbedder(other).name
    config = json.loads((other / "config.json").read_bytes())
    (other / "config.json").write_text(json.dumps({**config, "tuned": True}))
    names = [
        OnnxEmbedder(minilm).name,
        OnnxEmbedder(minilm, by_token=False).name,
        OnnxEmbedder(minilm, max_tokens=100).name,
        OnnxEmbedder(other).name,
    ]
    assert same == names[0]
    assert len(set(names)) == 4
    assert all(name.startswith("all-MiniLM-L6-v2-int8:") for name in names)


async def test_a_folder_may_be_laid_out_as_sentence_transformers_does(
    minilm: Path, tmp_path: Path, by_token: OnnxEmbedder
) -> None:
    (tmp_path / "onnx").mkdir()
    (tmp_path / "1_Pooling").mkdir()
    shutil.copyfile(minilm / "model.onnx", tmp_path / "onnx" / "model.onnx")
    for name in ("tokenizer.json", "config.json"):
        shutil.copyfile(minilm / name, tmp_path / name)
    assert await OnnxEmbedder(tmp_path).embed(["Ana"]) == await by_token.embed(["Ana"])

    pooling = tmp_path / "1_Pooling" / "config.json"
    pooling.write_text('{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}')
    first = OnnxEmbedder(tmp_path, by_token=False)
    assert first.name.endswith(":cls")
    assert await first.embed(["Ana"]) != await OnnxEmbedder(minilm, by_token=False).embed(["Ana"])
    pooling.write_text('{"pooling_mode_max_tokens": true}')
    with pytest.raises(
        InvalidInput, match="pooling_mode_max_tokens; only mean and cls pooling are supported"
    ):
        OnnxEmbedder(tmp_path, by_token=False)


async def test_a_folder_that_is_none_says_what_is_missing(minilm: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"no model.onnx and no tokenizer.json and no config"):
        OnnxEmbedder(tmp_path)
    for name in ("tokenizer.json", "config.json"):
        shutil.copyfile(minilm / name, tmp_path / name)
    with pytest.raises(InvalidInput, match=r"no model\.onnx\. Export"):
        OnnxEmbedder(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"no model")
    with pytest.raises(InvalidInput, match="cannot be loaded"):
        await OnnxEmbedder(tmp_path).embed(["Ana"])
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"config\.json is not a JSON object"):
        OnnxEmbedder(tmp_path)


def test_a_missing_package_names_the_extra(minilm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(InvalidInput, match=r"needs onnxruntime: pip install 'keepthread\[embed\]'"):
        OnnxEmbedder(minilm)


def test_the_matrix_of_chance_is_the_same_everywhere() -> None:
    """Another matrix would make nonsense of vectors that are kept: see `projection.VERSION`."""
    made = matrix(384)
    assert made.shape == (384, 128)
    assert np.abs(made.T @ made - np.eye(128)).max() < 1e-5
    assert made[0, :4].tolist() == pytest.approx([0.05119, 0.01700, -0.01738, 0.07986], abs=1e-5)
    assert matrix(64).shape == (64, 64)


# --- an endpoint ---


class Sleeps(list[float]):
    """Remembers pauses instead of making them."""

    async def __call__(self, seconds: float) -> None:
        self.append(seconds)


def embedder(server: EmbeddingsServer, **options: Any) -> EndpointEmbedder:
    return EndpointEmbedder(server.url, server.model, **{"sleep": Sleeps(), **options})


async def test_an_endpoint_is_asked_as_a_provider_wants_it() -> None:
    with EmbeddingsServer(key=KEY) as server:
        asked = embedder(server, key=KEY, batch=2)
        made = await asked.embed(["the cat sat", "the cat", "stocks \ud800 fell", "天气", "a"])
        cat, sat, stocks = (rows(each)[0] for each in made[:3])
        assert [len(request["input"]) for request in server.requests] == [2, 2, 1]
        assert server.refused == []
        assert not asked.by_token
        assert {(each.dimensions, each.ids) for each in made} == {(64, ())}
        assert cat @ sat > cat @ stocks
        assert await asked.embed([]) == []


async def test_dimensions_are_asked_for_and_are_part_of_the_name() -> None:
    with EmbeddingsServer() as server:
        asked = embedder(server, dimensions=16)
        (made,) = await asked.embed(["cat"])
        assert made.dimensions == len(made.vectors) == 16
        assert (asked.name, embedder(server).name) == ("hashed:16", "hashed")


async def test_vectors_are_put_in_order_by_their_index() -> None:
    with EmbeddingsServer(script=[Fault(shuffled=True)]) as server:
        asked = embedder(server)
        texts = ["one", "two", "three"]
        assert await asked.embed(texts) == await asked.embed(texts)


@pytest.mark.parametrize(
    "fault",
    [Fault(429), Fault(500), Fault(503), Fault(cut=True), Fault(wait=30)],
    ids=["busy", "broken", "away", "cut", "slow"],
)
async def test_what_may_be_over_soon_is_asked_again(fault: Fault) -> None:
    with EmbeddingsServer(script=[fault, fault]) as server:
        sleeps = Sleeps()
        asked = embedder(server, sleep=sleeps, timeout=0.5)
        assert len(await asked.embed(["cat"])) == 1
        assert len(server.requests) == 3
        assert 0.25 <= sleeps[0] <= 0.5 <= sleeps[1] <= 1


async def test_a_server_says_how_long_to_wait() -> None:
    with EmbeddingsServer(script=[Fault(429, {"Retry-After": "7"})]) as server:
        sleeps = Sleeps()
        await embedder(server, sleep=sleeps).embed(["cat"])
        assert sleeps == [7]
    hours = EmbeddingsServer(script=[Fault(429, {"Retry-After": "7200"})])
    with hours, pytest.raises(Unavailable, match=r"is overloaded \(429\): try"):
        await embedder(hours).embed(["cat"])


async def test_after_four_tries_it_is_an_error_that_says_why() -> None:
    with EmbeddingsServer(script=[Fault(500)] * 9) as server:
        with pytest.raises(Unavailable, match=r"failed \(500\), after 4 attempts: try later"):
            await embedder(server).embed(["cat"])
        assert len(server.requests) == 4
        asked = embedder(server)
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1:\d+ cannot be reached .*refused"):
        await asked.embed(["cat"])


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Fault(lost=1), "returned 1 vectors for 2 texts: use a smaller batch"),
        (Fault(dimensions=32), "vector of 32 dimensions instead of 64"),
        (Fault(body=b"<html>"), "not with embeddings: check that url"),
        (Fault(body=b'{"data": [{"index": 0, "embedding": [0, 0]}]}'), "not with embeddings"),
        (Fault(body=b'{"data": [{"index": 0, "embedding": [NaN]}]}'), "not with embeddings"),
        (Fault(body=b'{"data": [{"index": 0, "embedding": ["x"]}]}'), "not with embeddings"),
        (Fault(400), r"rejects the request: check .* \(400, scripted\)"),
        (Fault(307, {"Location": "http://127.0.0.1:1/"}), "redirects elsewhere"),
    ],
)
async def test_what_will_not_get_better_is_an_error_at_once(fault: Fault, said: str) -> None:
    with EmbeddingsServer(script=[None, fault]) as server:
        asked = embedder(server)
        await asked.embed(["cat"])
        with pytest.raises(Unavailable, match=said):
            await asked.embed(["cat", "dog"])
        assert len(server.requests) == 2


async def test_a_wrong_model_key_or_address_says_what_to_change() -> None:
    with EmbeddingsServer(key=KEY) as server:
        wrong = [
            (EndpointEmbedder(server.url, "other", key=KEY), r"no such model.*\(404, no_model\)"),
            (EndpointEmbedder(f"{server.url}/v2", "hashed", key=KEY), r"check url and model"),
            (embedder(server, key="another"), r"rejects the key: pass another key \(401"),
            (embedder(server), r"rejects the key"),
            (embedder(server, key=KEY, dimensions=65), r"check model and dimensions.*\(400"),
        ]
        for asked, said in wrong:
            with pytest.raises(Unavailable, match=said):
                await asked.embed(["cat"])
    with pytest.raises(InvalidInput, match="a text is empty"):
        await embedder(server).embed(["cat", ""])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"url": "ftp://host/v1"}, "url must have the form"),
        ({"url": "host/v1"}, "url must have the form"),
        ({"url": f"https://me:{KEY}@host/v1"}, "url contains a user name"),
        ({"url": f"https://host/v1?key={KEY}"}, "url must have the form"),
        ({"key": f"{KEY}\n"}, "the key contains a space"),
        ({"batch": 0}, "batch must be 1 text or more"),
    ],
)
def test_what_cannot_work_is_refused_at_once(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput, match=said) as raised:
        EndpointEmbedder(**{"url": "http://host/v1", "model": "m", **arguments})
    assert KEY not in str(raised.value)


def test_an_address_is_completed() -> None:
    bases = ["http://host", "http://host/", "http://host/v1", "http://host/v1/embeddings/"]
    assert {EndpointEmbedder(base, "m")._url for base in bases} == {"http://host/v1/embeddings"}


async def test_the_key_is_never_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(0)
    script = [None] + [Fault(500)] * 4 + [Fault(status) for status in (400, 401, 403, 307)]
    said: list[str] = []
    with EmbeddingsServer(key=f"{KEY}x", script=script) as server:
        said += [repr(embedder(server, key=KEY)), str(embedder(server, key=KEY))]
        for key in (KEY, *[f"{KEY}x"] * 5):
            with pytest.raises(Unavailable) as raised:
                await embedder(server, key=key).embed(["cat"])
            said.append(f"{raised.getrepr(style='long')}{raised.value.__cause__}")
        assert KEY in server.refused[0]  # the server itself repeats it
    assert len(said) == 8
    assert KEY not in "".join([*said, caplog.text])


def test_a_server_that_does_not_answer_keeps_no_program_from_ending() -> None:
    with EmbeddingsServer(script=[Fault(wait=100)]) as server:
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            asyncio.run(asyncio.wait_for(embedder(server).embed(["cat"]), 0.1))
        assert time.monotonic() - started < 50  # half of what the server takes


# --- what tests are given ---


async def test_the_scripted_embedder_says_the_same_as_the_server() -> None:
    with EmbeddingsServer() as server:
        texts = ["the cat", "the dog", "…"]
        assert await ScriptedEmbedder().embed(texts) == await embedder(server).embed(texts)


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({}, 200),
        ({"input": "cat", "user": "me", "encoding_format": "base64"}, 200),
        ({"model": None}, 404),
        ({"input": []}, 400),
        ({"input": ["x"] * 2049}, 400),
        ({"input": ["x", ""]}, 400),
        ({"input": [[1, 2]]}, 400),
        ({"encoding_format": "int8"}, 400),
        ({"dimensions": 0}, 400),
        ({"dimensions": "64"}, 400),
        ({"temperature": 1}, 400),
    ],
)
def test_the_server_takes_a_request_as_strictly_as_a_provider(
    changes: dict[str, Any], status: int
) -> None:
    body = json.dumps({"model": "hashed", "input": ["cat"], **changes})
    with EmbeddingsServer() as server:
        assert posted(server, body) == status
        assert (len(server.requests), len(server.refused)) == ((1, 0) if status == 200 else (0, 1))
        assert posted(server, "[") == posted(server, "[]") == 400
        assert posted(server, body, "text/plain") == 400


def posted(server: EmbeddingsServer, body: str, kind: str = "application/json") -> int:
    """Post what no embedder would, and return the status."""
    address = urlsplit(server.url)
    with closing(HTTPConnection(address.hostname or "", address.port)) as connection:
        connection.request("POST", "/v1/embeddings", body, {"Content-Type": kind})
        return connection.getresponse().status


async def test_a_scripted_embedder_fails_and_waits_as_it_is_told() -> None:
    asked = ScriptedEmbedder([TimeoutError("late"), 0.01], by_token=True)
    with pytest.raises(TimeoutError):
        await asked.embed(["cat"])
    (made,) = await asked.embed(["cat and cat"])
    assert len(made.ids) == 3
    assert made.ids[0] == made.ids[2]
    assert made.vectors[:64] == made.vectors[128:]
    assert asked.calls == [("cat",), ("cat and cat",)]
