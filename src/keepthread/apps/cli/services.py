"""Services of models: those that are known, and the models that one says it offers."""

import json
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NamedTuple

from keepthread.apps.cli.settings.fields import WEB
from keepthread.apps.cli.settings.settings import ModelSettings
from keepthread.errors import InvalidInput

_SECONDS: Final = 2.0
_MOST: Final = 8
_LARGEST: Final = 1 << 20
_OWN: Final = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
_LISTS: Final = {"openai": "/models", "anthropic": "/v1/models"}
_DENIED: Final = (401, 403)


class Service(NamedTuple):
    """A service of models; None means its default."""

    name: str
    title: str
    model: str | None
    """The model that is proposed."""
    provider: str = "openai"
    base_url: str | None = None
    key_env: str | None = None

    def settings(self, model: str | None = None) -> ModelSettings:
        """Return the settings that reach it."""
        return ModelSettings(
            provider=self.provider, name=model, base_url=self.base_url, key_env=self.key_env
        )


# Others than OpenAI have variables of their own, so that they are not sent OpenAI's key.
SERVICES: Final = (
    Service("openai", "OpenAI", "gpt-6.1-terra"),
    Service("anthropic", "Anthropic", "claude-sonnet-5-5", "anthropic"),
    Service(
        "ollama",
        "Ollama, on this machine",
        "llama3.2",
        base_url="http://localhost:11434/v1",
        key_env="OLLAMA_API_KEY",
    ),
)
OTHER: Final = Service("other", "another OpenAI-compatible URL", None, key_env="MODEL_API_KEY")


def service_of(answer: str) -> Service:
    """Return the service of a name, a number in the list or an address."""
    for number, service in enumerate((*SERVICES, OTHER), 1):
        if answer.lower() in (service.name, str(number)):
            return service
    if "://" in answer:
        return service_at(answer)
    names = ", ".join(service.name for service in SERVICES)
    raise InvalidInput(f"{answer!r} is not a known service; choose one of {names}, or give a URL")


def service_at(address: str) -> Service:
    """Return the service at an address of its own."""
    if not WEB.fits(address) or "@" in address:
        raise InvalidInput(f"give {WEB.expected}, without a name or a password in it")
    return OTHER._replace(base_url=address.rstrip("/"))


def likely(environ: Mapping[str, str]) -> Service:
    """Return the service whose key is set, else the first."""
    keyed = [each for each in SERVICES if environ.get(each.settings().key_variable)]
    return (*keyed, *SERVICES)[0]


class ModelList(NamedTuple):
    """The models that a service lists; `problem` is the reason if it lists none."""

    names: Sequence[str] = ()
    problem: str = ""
    answers: bool = True
    """Whether anything answers at the address."""
    denied: bool = False
    """Whether it asks for a key, or for another."""
    complete: bool = True
    """Whether the service has named all its models: some list them by pages."""

    @property
    def note(self) -> str:
        """Return the problem, if there is one, as a sentence for a person."""
        if not self.problem:
            return ""
        advice = "" if self.answers else ". Start it before you chat, or check the URL"
        return f"{self.problem[:1].upper()}{self.problem[1:]}{advice}"


def address_of(settings: ModelSettings) -> str:
    """Return the address of the service that is set."""
    return (settings.base_url or _OWN[settings.provider]).rstrip("/")


def list_models(settings: ModelSettings, key: str | None) -> ModelList:
    """Ask a service for the names of its models, the newest first; wait for 2 seconds at most."""
    from http.client import HTTPException  # noqa: PLC0415 - not before it is needed
    from urllib.error import HTTPError  # noqa: PLC0415

    address = address_of(settings)
    try:
        page: dict[str, Any] = json.loads(_asked(settings, key))
        models: list[dict[str, Any]] = page["data"]
        newest = sorted(models, key=lambda each: -each.get("created", 0))
        names = [each["id"] for each in newest if isinstance(each["id"], str)]
        return ModelList(names, complete=not page.get("has_more"))
    except HTTPError as error:
        if error.code in _DENIED:
            refused = "rejects the key" if key else "requires a key, and none is set"
            return ModelList(problem=f"{address} {refused} ({error.code})", denied=True)
        return ModelList(problem=f"{address} does not list its models ({error.code})")
    except (OSError, HTTPException) as error:
        reason = getattr(error, "reason", None) or error
        reason = getattr(reason, "strerror", None) or reason
        return ModelList(problem=f"nothing answers at {address}: {reason}", answers=False)
    except (ValueError, LookupError, TypeError, AttributeError):
        return ModelList(problem=f"{address} answers, but not with a list of models")


def offers(names: Sequence[str], name: str) -> bool:
    """Return whether a model is among those that a service names, as Ollama names it too."""
    return name in names or f"{name}:latest" in names


def refusal(settings: ModelSettings, key: str | None, name: str) -> str:
    """Return why a service has no model of that name; nothing if it may have one.

    Anthropic and OpenAI also accept names without the date, which they do not list.
    """
    found = list_models(settings, key)
    alias = f"{name.removesuffix('-latest')}-"
    if not (found.names and found.complete) or offers(found.names, name):
        return ""
    if any(each.startswith(alias) for each in found.names):
        return ""
    near = get_close_matches(name, found.names, 3) or found.names[:3]
    return f"{address_of(settings)} does not offer {name}; did you mean {' or '.join(near)}?"


def models_at(service: Service, key: str | None) -> ModelList:
    """Return some of the models at an address, or at a provider whose key is known."""
    if service.base_url is None and key is None:
        return ModelList()
    found = list_models(service.settings(), key)
    return found._replace(names=found.names[:_MOST])


def _asked(settings: ModelSettings, key: str | None) -> bytes:
    from urllib.request import HTTPRedirectHandler, Request, build_opener  # noqa: PLC0415 - as above

    class Stay(HTTPRedirectHandler):
        """Follows nobody elsewhere: the key would go along."""

        def redirect_request(self, *_: Any, **__: Any) -> None:
            return None

    headers = {"User-Agent": "keepthread"}
    if key and settings.provider == "anthropic":
        headers |= {"X-Api-Key": key, "Anthropic-Version": "2023-06-01"}
    elif key:
        headers["Authorization"] = f"Bearer {key}"
    request = Request(address_of(settings) + _LISTS[settings.provider], headers=headers)  # noqa: S310 - the scheme was checked
    with build_opener(Stay).open(request, timeout=_SECONDS) as answer:
        return answer.read(_LARGEST)
