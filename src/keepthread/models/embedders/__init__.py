"""Embedders, which turn texts into vectors. Each is imported on first use."""

import importlib
import typing

if typing.TYPE_CHECKING:
    from keepthread.models.embedders.http import EndpointEmbedder
    from keepthread.models.embedders.onnx import OnnxEmbedder

__all__ = ["EndpointEmbedder", "OnnxEmbedder"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "http" if name == "EndpointEmbedder" else "onnx"
    return getattr(importlib.import_module(f"{__name__}.{module}"), name)
