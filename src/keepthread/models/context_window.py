"""The context window of a model: as reported by its service, as known, or a safe default."""

import asyncio
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, cast

DEFAULT_WINDOW: Final = 32_768
"""The assumed context window of an unknown model."""
_OLLAMA_DEFAULT: Final = 4096
"""Tokens that Ollama gives a model if neither the model nor the server sets another number."""
_SECONDS: Final = 5.0
_LARGEST: Final = 100_000_000
_FIELDS: Final = (
    "loaded_context_length",  # LM Studio, of a loaded model
    "max_model_len",  # vLLM
    "context_length",  # OpenRouter, Ollama's list of loaded models
    "context_window",  # Groq
    "max_context_length",  # LM Studio, of a model that is not loaded
)
_KNOWN: Final[Sequence[tuple[str, int]]] = (
    # As of November 2026; the first prefix that fits counts. Too small a number is safe.
    ("gpt-5", 400_000),
    ("gpt-4.1", 1_047_576),
    ("gpt-4o", 128_000),
    ("gpt-4-turbo", 128_000),
    ("gpt-4", 8_192),
    ("gpt-3.5-turbo", 16_385),
    ("o1", 128_000),
    ("o3", 200_000),
    ("o4", 200_000),
    ("claude-", 200_000),
)
_NUM_CTX: Final = re.compile(r"^num_ctx\s+(\d+)", re.MULTILINE)


class ModelService(Protocol):
    """The service of a model, as far as it can be asked about it."""

    async def json(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Return the JSON at a path, or the one that answers a body; None if there is none."""
        ...


def known_window(name: str) -> int | None:
    """Return the tokens that a model of OpenAI or Anthropic takes, if it is known."""
    return next((tokens for prefix, tokens in _KNOWN if name.startswith(prefix)), None)


async def window_of_service(service: ModelService, name: str, models: str) -> int | None:
    """Return the tokens that a service says a model takes, or None if it does not say.

    `models` is the path of its list of models; other paths begin at the host. A service that does
    not answer quickly counts as unknown.
    """
    try:
        async with asyncio.timeout(_SECONDS):
            return (
                _window_in(await service.json(models), name)
                or _window_in(await service.json("/api/v0/models"), name)  # LM Studio
                or await _of_ollama(service, name)
            )
    except TimeoutError:
        return None


async def _of_ollama(service: ModelService, name: str) -> int | None:
    """Return the context length that Ollama uses: it silently truncates longer prompts."""
    loaded = await service.json("/api/ps")
    if not isinstance(loaded, Mapping) or "models" not in loaded:
        return None
    if found := _window_in(cast(Any, loaded), name):
        return found
    shown = await service.json("/api/show", {"model": name})
    if not isinstance(shown, Mapping):
        return None
    set_to = _NUM_CTX.search(str(cast(Mapping[str, Any], shown).get("parameters", "")))
    return _number(int(set_to[1])) if set_to else _OLLAMA_DEFAULT


def _window_in(listed: Any, name: str) -> int | None:
    """Return what a list of models says of one of them."""
    for entry in _entries(listed):
        names = (entry.get("id"), entry.get("name"), entry.get("model"))
        if name in names or f"{name}:latest" in names:  # as Ollama names it
            for field in _FIELDS:
                if found := _number(entry.get(field)):
                    return found
    return None


def _entries(listed: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(listed, Mapping):
        found = cast(Mapping[str, Any], listed)
        listed = found.get("data") or found.get("models")
    if isinstance(listed, list):
        for entry in cast(list[Any], listed):
            if isinstance(entry, Mapping):
                yield cast(Mapping[str, Any], entry)


def _number(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and 0 < value <= _LARGEST else None
