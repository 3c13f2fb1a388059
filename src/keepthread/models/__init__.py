"""Chat models: each uses its provider's SDK, which is imported on first use."""

import importlib
import typing

if typing.TYPE_CHECKING:
    from keepthread.models.anthropic import AnthropicModel
    from keepthread.models.openai import OpenAIModel

__all__ = ["AnthropicModel", "OpenAIModel"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{name.removesuffix('Model').lower()}")
    return getattr(module, name)
