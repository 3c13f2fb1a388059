"""A model's folder, as far as it is read before the model is needed."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from keepthread.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


class Folder(NamedTuple):
    """Where a model's files are, and what they say of it."""

    name: str
    digest: str
    """Tells one content of the folder from another, without reading all of it."""
    model: Path
    tokenizer: Path
    max_tokens: int
    pooling: str
    """What makes one vector of many: their `mean`, or the first alone, `cls`."""


def look_into(folder: Path, max_tokens: int) -> Folder:
    """Return what a folder holds, or raise `InvalidInput` saying what is missing."""
    folder = folder.resolve()
    model, other = folder / "model.onnx", folder / "onnx" / "model.onnx"
    if not model.is_file() and other.is_file():
        model = other
    needed = (model, folder / "tokenizer.json", folder / "config.json")
    missing = [path.name for path in needed if not path.is_file()]
    if missing:
        raise InvalidInput(
            f"{folder} is no folder of an ONNX model, for it has no {' and no '.join(missing)}."
            " Export the model with sentence-transformers (backend='onnx'), or name its folder"
        )
    config = _read_json(folder / "config.json")
    longest = config.get("max_position_embeddings")
    max_tokens = min(max_tokens, longest) if isinstance(longest, int) else max_tokens
    sizes = [path.stat().st_size for path in needed]
    seed = json.dumps([config, sizes, max_tokens], sort_keys=True).encode()
    return Folder(
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
        raise InvalidInput(f"{path} asks for {' and '.join(chosen)}; mean and cls can be done")
    return "cls" if "pooling_mode_cls_token" in chosen else "mean"


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except ValueError:
        value = None
    if not isinstance(value, dict):
        raise InvalidInput(f"{path} is no JSON object: fetch the model's folder anew")
    return cast("Mapping[str, Any]", value)
