"""Embed with an ONNX model from a folder."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import importlib.util
import json
import re
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, cast

from keepthread.errors import InvalidInput
from keepthread.types import Embedding

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray


class ModelFolder(NamedTuple):
    """The paths of a model's files, and its settings."""

    name: str
    digest: str
    """Changes with the content of the folder; computed without reading all of it."""
    model: Path
    tokenizer: Path
    max_tokens: int
    pooling: str
    """How many vectors become one: their `mean`, or only the first, `cls`."""


def read_folder(folder: Path, max_tokens: int) -> ModelFolder:
    """Return the model of a folder, or raise `InvalidInput` saying what is missing."""
    folder = folder.resolve()
    model, other = folder / "model.onnx", folder / "onnx" / "model.onnx"
    if not model.is_file() and other.is_file():
        model = other
    needed = (model, folder / "tokenizer.json", folder / "config.json")
    missing = [path.name for path in needed if not path.is_file()]
    if missing:
        raise InvalidInput(
            f"{folder} is not the folder of an ONNX model: it has no {' and no '.join(missing)}."
            " Export the model with sentence-transformers (backend='onnx'), or pass its folder"
        )
    config = _read_json(folder / "config.json")
    longest = config.get("max_position_embeddings")
    max_tokens = min(max_tokens, longest) if isinstance(longest, int) else max_tokens
    sizes = [path.stat().st_size for path in needed]
    seed = json.dumps([config, sizes, max_tokens], sort_keys=True).encode()
    return ModelFolder(
        name=re.sub(r"[^\w.-]+", "-", folder.name, flags=re.ASCII)[:64],
        digest=hashlib.sha256(seed).hexdigest()[:8],
        model=model,
        tokenizer=needed[1],
        max_tokens=max_tokens,
        pooling=_pooling(folder / "1_Pooling" / "config.json"),
    )


def _pooling(path: Path) -> str:
    if not path.is_file():
        return "mean"
    modes = _read_json(path)
    chosen = [name for name, value in modes.items() if name.startswith("pooling_mode") and value]
    if chosen not in ([], ["pooling_mode_mean_tokens"], ["pooling_mode_cls_token"]):
        raise InvalidInput(
            f"{path} requires {' and '.join(chosen)}; only mean and cls pooling are supported"
        )
    return "cls" if "pooling_mode_cls_token" in chosen else "mean"


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidInput(f"{path} is not a JSON object: download the model's folder again")
    return cast("Mapping[str, Any]", value)


VERSION: Final = 1
"""Increase it when the matrix changes: then all texts are embedded again."""
DIMENSIONS: Final = 128
_SEED: Final = 20_240_601
_BLOCK: Final = 8


def matrix(hidden: int) -> NDArray[np.float32]:
    """Return the projection from `hidden` dimensions, with orthogonal columns of length 1."""
    import numpy as np  # noqa: PLC0415 - an optional package

    few = min(hidden, DIMENSIONS)
    raw = np.random.PCG64(_SEED).random_raw(hidden * few)
    spread = (np.asarray(raw, np.uint64) >> np.uint64(11)).astype(np.float64) / (1 << 53) - 0.5
    columns, triangle = np.linalg.qr(spread.reshape(hidden, few))
    # The sign of a column depends on the linear algebra library; fix it.
    return (columns * np.sign(np.diagonal(triangle))).astype(np.float32)


def projected(vectors: NDArray[np.float32], onto: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors in fewer dimensions, scaled to length 1."""
    import numpy as np  # noqa: PLC0415 - an optional package

    # Small blocks keep linear algebra libraries from starting threads, which on busy cores make a
    # product of this size thirty times slower.
    unit = normalized(vectors)
    blocks = [unit[start : start + _BLOCK] @ onto for start in range(0, len(unit), _BLOCK)]
    return normalized(np.concatenate(blocks))


def normalized(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors scaled to length 1; zero vectors stay zero."""
    import numpy as np  # noqa: PLC0415 - an optional package

    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    return vectors / np.maximum(lengths, np.float32(1e-12))


def in_bytes(vectors: NDArray[np.float32]) -> bytes:
    """Return vectors of length 1 in the format of `Embedding`."""
    import numpy as np  # noqa: PLC0415 - an optional package

    return np.rint(vectors * np.float32(127)).astype(np.int8).tobytes()


_NEEDED: Final = ("numpy", "onnxruntime", "tokenizers")
_AT_ONCE: Final = 16
"""Texts per call in a thread; embedding can be canceled between two calls."""
_LONGEST: Final = 16
"""Upper bound of the average characters per token; text beyond that is not read."""


class OnnxEmbedder:
    """Embeds with a model in a folder: `model.onnx`, `tokenizer.json` and `config.json`.

    Each token gets a vector of 128 dimensions; with `by_token=False`, each text gets one vector
    with the model's dimensions. Texts are read up to `max_tokens`. The model is loaded on first
    use and runs outside the event loop, in `threads` threads.
    """

    def __init__(
        self, folder: str | Path, *, by_token: bool = True, max_tokens: int = 256, threads: int = 1
    ) -> None:
        """Check that nothing is missing, or raise `InvalidInput` saying what is."""
        missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
        if missing:
            raise InvalidInput(
                f"an OnnxEmbedder needs {' and '.join(missing)}: pip install 'keepthread[embed]'"
            )
        self._folder = read_folder(Path(folder), max_tokens)
        self._threads = threads
        self._loading = threading.Lock()
        self._model: _Model | None = None
        self.by_token = by_token
        kind = f"tokens-{VERSION}" if by_token else self._folder.pooling
        self.name = f"{self._folder.name}:{self._folder.digest}:{kind}"

    def __repr__(self) -> str:
        return f"OnnxEmbedder({self.name!r})"

    async def embed(self, texts: Sequence[str]) -> Sequence[Embedding]:
        """Return the vectors of each text; a text without tokens has none."""
        made: list[Embedding] = []
        for start in range(0, len(texts), _AT_ONCE):
            made += await asyncio.to_thread(self._embed, texts[start : start + _AT_ONCE])
        return made

    def _embed(self, texts: Sequence[str]) -> list[Embedding]:
        with self._loading:
            if self._model is None:
                self._model = _load(self._folder, self._threads)
        embed = self._model.by_token if self.by_token else self._model.pooled
        longest = _LONGEST * self._folder.max_tokens
        # Half of a surrogate pair cannot be encoded as UTF-8.
        return [embed(text[:longest].encode(errors="replace").decode()) for text in texts]


class _Model(NamedTuple):
    """A loaded model.

    Texts are run one by one. Batches would cost a sixth less; but in a quantized model the texts
    of a batch influence each other, and the same text must always have the same vectors.
    """

    session: Any
    tokenizer: Any
    inputs: Sequence[str]
    output: str
    pooling: str
    projection: NDArray[np.float32]

    def by_token(self, text: str) -> Embedding:
        """Return a vector for each token, except those that mark beginning and end."""
        read = self.tokenizer.encode(text)
        inner = [n for n, special in enumerate(read.special_tokens_mask) if not special]
        dimensions = self.projection.shape[1]
        if not inner:
            return Embedding(b"", dimensions)
        vectors = projected(self._run(read)[inner], self.projection)
        return Embedding(in_bytes(vectors), dimensions, tuple(read.ids[n] for n in inner))

    def pooled(self, text: str) -> Embedding:
        """Return one vector for the whole text."""
        states = self._run(self.tokenizer.encode(text))
        vector = states[:1] if self.pooling == "cls" else states.mean(axis=0, keepdims=True)
        return Embedding(in_bytes(normalized(vector)), vector.shape[1])

    def _run(self, read: Any) -> NDArray[np.float32]:
        import numpy as np  # noqa: PLC0415 - an optional package

        known = {
            "input_ids": read.ids,
            "attention_mask": read.attention_mask,
            "token_type_ids": read.type_ids,
        }
        given = {name: np.array([known[name]], np.int64) for name in self.inputs}
        return np.asarray(self.session.run([self.output], given)[0][0], np.float32)


def _load(folder: ModelFolder, threads: int) -> _Model:
    runtime = importlib.import_module("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        session = runtime.InferenceSession(
            str(folder.model), options, providers=["CPUExecutionProvider"]
        )
        tokenizer = importlib.import_module("tokenizers").Tokenizer.from_file(str(folder.tokenizer))
    except Exception as error:
        raise InvalidInput(
            f"the model in {folder.model.parent} cannot be loaded ({type(error).__name__}):"
            " download or export it again"
        ) from error
    tokenizer.no_padding()
    tokenizer.enable_truncation(folder.max_tokens)
    inputs = [each.name for each in session.get_inputs()]
    outputs = [each for each in session.get_outputs() if len(each.shape) == 3]
    if not outputs or not set(inputs) <= {"input_ids", "attention_mask", "token_type_ids"}:
        raise InvalidInput(
            f"{folder.model} is not a sentence encoder: it takes {', '.join(inputs)} and gives"
            f" {', '.join(each.name for each in session.get_outputs())}. Export it for feature"
            " extraction"
        )
    projection = matrix(int(outputs[0].shape[2]))
    return _Model(session, tokenizer, inputs, outputs[0].name, folder.pooling, projection)
