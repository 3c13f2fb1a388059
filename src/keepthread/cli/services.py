"""The services that `keepthread init` knows, and which models they offer."""

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from keepthread.cli.kinds import WEB
from keepthread.cli.settings import ModelSettings
from keepthread.errors import InvalidInput

_SECONDS: Final = 2.0
_MOST: Final = 8
_LARGEST: Final = 1 << 20
_OWN: Final = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com/v1"}


class Service(NamedTuple):
    """Somebody who answers; what is None is left to the defaults."""

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
OTHER: Final = Service(
    "other", "another address that speaks as OpenAI does", None, key_env="MODEL_API_KEY"
)


def service_of(answer: str) -> Service:
    """Return the service of a name, a number in the list or an address."""
    for number, service in enumerate((*SERVICES, OTHER), 1):
        if answer.lower() in (service.name, str(number)):
            return service
    if "://" in answer:
        return service_at(answer)
    names = ", ".join(service.name for service in SERVICES)
    raise InvalidInput(f"{answer!r} is no service; there are {names}, or give an address")


def service_at(address: str) -> Service:
    """Return the service at an address of its own."""
    if not WEB.fits(address) or "@" in address:
        raise InvalidInput(f"give {WEB.expected}, without a name or a password in it")
    return OTHER._replace(base_url=address.rstrip("/"))


def likely(environ: Mapping[str, str]) -> Service:
    """Return the service whose key is there, else the first."""
    keyed = [each for each in SERVICES if environ.get(each.settings().key_variable)]
    return (*keyed, *SERVICES)[0]


def models_at(service: Service, key: str | None) -> list[str]:
    """Return some names of models if the service tells them within 2 seconds, else none."""
    if service.base_url is None and key is None:
        return []
    try:
        told: list[dict[str, Any]] = json.loads(_asked(service, key))["data"]
        newest = sorted(told, key=lambda each: -each.get("created", 0))
        names = [each["id"] for each in newest if isinstance(each["id"], str)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return []
    return names[:_MOST]


def _asked(service: Service, key: str | None) -> bytes:
    from http.client import HTTPException  # noqa: PLC0415 - not before it is needed
    from urllib.request import HTTPRedirectHandler, Request, build_opener  # noqa: PLC0415

    class Stay(HTTPRedirectHandler):
        """Follows nobody elsewhere: the key would go along."""

        def redirect_request(self, *_: Any, **__: Any) -> None:
            return None

    headers = {"User-Agent": "keepthread"}
    if key and service.provider == "anthropic":
        headers |= {"X-Api-Key": key, "Anthropic-Version": "2023-06-01"}
    elif key:
        headers["Authorization"] = f"Bearer {key}"
    address = f"{service.base_url or _OWN[service.provider]}/models"
    request = Request(address, headers=headers)  # noqa: S310 - the scheme was checked
    try:
        with build_opener(Stay).open(request, timeout=_SECONDS) as answer:
            return answer.read(_LARGEST)
    except HTTPException as error:
        raise OSError(str(error)) from None
