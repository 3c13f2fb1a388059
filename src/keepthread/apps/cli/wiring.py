"""The counter that the command uses: the exact one if it can be had, else the estimator."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from keepthread import models
from keepthread.apps.cli.invocation import Call
from keepthread.apps.cli.settings.secrets import secret_of
from keepthread.apps.cli.settings.settings import EmbedderSettings, ModelSettings, Price, Settings
from keepthread.context.strategies import STRATEGIES
from keepthread.context.views import View
from keepthread.context.window import ToolCalls
from keepthread.errors import InvalidInput, ModelDenied, Unavailable
from keepthread.memory.options import Options
from keepthread.memory.summaries import Compaction
from keepthread.models import embedders
from keepthread.models.context_window import DEFAULT_WINDOW, known_window
from keepthread.models.summarizers import ByModel
from keepthread.models.tokens import VOCABULARIES, Estimator, Tiktoken
from keepthread.protocols import ChatModel, Embedder, RecallScope, TokenCounter
from keepthread.types import Usage

if TYPE_CHECKING:
    from keepthread.models.base import RemoteModel


def best_counter(vocabulary: str = VOCABULARIES[0]) -> tuple[TokenCounter, str]:
    """Return a counter, and what keeps it from being the exact one."""
    try:
        return Tiktoken(vocabulary), ""
    except Unavailable as error:
        return Estimator(vocabulary), str(error)


def current_counter(call: Call) -> TokenCounter:
    """Return the counter; say so if it estimates."""
    counter, reason = best_counter(call.config.settings.tokenizer)
    if reason:
        call.warn(f"token counts are estimates: {reason}")
    return counter


_PROVIDERS: Final = (None, "api.openai.com", "api.anthropic.com")
_MILLION: Final = 1_000_000


def model_of(
    settings: ModelSettings, environ: Mapping[str, str], *, name: str | None = None
) -> "RemoteModel":
    """Return the model that answers, or another of the same service by its name."""
    name = name or settings.name
    if name is None:
        raise InvalidInput("no model is set: run `keepthread init`, or use --model NAME")
    key = key_of(settings, environ)
    kind = models.AnthropicModel if settings.provider == "anthropic" else models.OpenAIModel
    return kind(
        name,
        key=key,
        base_url=settings.base_url,
        timeout=settings.timeout,
        max_seconds=settings.max_seconds,
        retries=settings.retries,
        max_tokens=settings.max_tokens,
    )


def key_of(settings: ModelSettings, environ: Mapping[str, str]) -> str | None:
    """Return the key of the service; None if there is none, and the service may do without."""
    key = secret_of(settings.key_variable, environ, settings.key_command)
    if key is None and needs_key(settings):
        raise ModelDenied(
            f"no API key is set: export {settings.key_variable}=… (model.key_env changes the "
            "variable), or run `keepthread init`; "
            f"`keepthread secrets set {settings.key_variable}` stores it in the system's keyring"
        )
    return key


def needs_key(settings: ModelSettings) -> bool:
    """Return whether a key is required, as at a provider's own address."""
    return urlsplit(settings.base_url or "").hostname in _PROVIDERS


def memory_arguments(
    settings: Settings, model: ChatModel | None = None, environ: Mapping[str, str] = os.environ
) -> dict[str, Any]:
    """Return what `Memory.open` is given beside the address; `model` is the chat's."""
    given: dict[str, Any] = {
        "tenant": settings.memory.tenant,
        "recall": settings.memory.recall,
        "keep_why": settings.memory.keep_why,
        "views": views_of(settings),
        "compaction": _compaction(settings, model, environ),
    }
    if embedder := embedder_of(settings.embedder, environ):
        given["embedder"] = embedder
    return given


def context_options(
    settings: Settings,
    counter: TokenCounter,
    strategy: str | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Options:
    """Return the options of a memory that only shows contexts: the settings, or one strategy."""
    return Options(
        counter=counter,
        views=views_of(settings, strategy),
        compaction=Compaction(**vars(settings.compaction)),
        embedder=embedder_of(settings.embedder, environ),
        recall=cast(RecallScope, settings.memory.recall),
    )


def history_tokens(settings: Settings, window: int | None = None) -> int:
    """Return the budget of the view `chat`; `auto` is a quarter of the model's window."""
    given = settings.memory.max_history_tokens
    if isinstance(given, int):
        return given
    model = settings.model
    window = window or model.context_window or known_window(model.name or "") or DEFAULT_WINDOW
    return window // 4


def views_of(settings: Settings, strategy: str | None = None) -> dict[str, View]:
    """Return the views: `chat` by the memory's settings, others by their own, or all by one."""
    memory = settings.memory
    views = {
        name: View(
            view.tokens,
            STRATEGIES[strategy or view.strategy](
                max_messages=view.max_messages, tool_calls=cast(ToolCalls, view.tool_calls)
            ),
        )
        for name, view in settings.views.items()
    }
    chat = STRATEGIES[strategy or memory.strategy](tool_calls="recent")
    return {**views, "chat": View(history_tokens(settings), chat)}


def _compaction(
    settings: Settings, model: ChatModel | None, environ: Mapping[str, str]
) -> Compaction:
    sizes = vars(settings.compaction)
    if settings.summarizer.by != "model":
        return Compaction(**sizes)
    name = settings.summarizer.name
    if model is None or name not in (None, model.name):
        model = model_of(settings.model, environ, name=name)
    return Compaction(summarizer=ByModel(model), **sizes)


def embedder_of(settings: EmbedderSettings, environ: Mapping[str, str]) -> Embedder | None:
    """Return what makes vectors, or None if words alone are to do."""
    if settings.folder is not None:
        return embedders.OnnxEmbedder(Path(settings.folder).expanduser())
    if settings.url is None:
        return None
    if settings.name is None:
        raise InvalidInput(
            "embedder.url is set but embedder.name is not: set embedder.name to the model's name"
        )
    key = secret_of(settings.key_env, environ) if settings.key_env else None
    if settings.key_env and key is None:
        raise InvalidInput(
            f"embedder.key_env names {settings.key_env}, which is not set: export it"
        )
    return embedders.EndpointEmbedder(settings.url, settings.name, key=key)


def cost_of(usage: Usage, price: Price) -> float | None:
    """Return what an answer cost, or None where a price is not known."""
    if price.input is None or price.output is None:
        return None
    cached = price.input if price.cached is None else price.cached
    new = usage.input - usage.cached
    return (new * price.input + usage.cached * cached + usage.output * price.output) / _MILLION
