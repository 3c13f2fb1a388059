"""What a person may do when a model gives no answer: what its own error cannot know."""

from typing import TYPE_CHECKING

from keepthread.errors import ModelDenied, ModelError, ModelRefused

if TYPE_CHECKING:
    from keepthread.apps.cli.settings.settings import ModelSettings


def inside(failure: ModelError, settings: "ModelSettings") -> str:
    """Say what to do in a chat."""
    if isinstance(failure, ModelDenied):
        return f"The key is in {settings.key_variable}; with another, `keepthread chat -c` goes on"
    if isinstance(failure, ModelRefused):
        return "/model NAME lets another model answer, /retry asks again"
    return "/retry asks again"


def outside(failure: ModelError, settings: "ModelSettings") -> str:
    """Say where to look when one question was asked."""
    if isinstance(failure, ModelDenied):
        return f"the key is in {settings.key_variable}"
    named = "--model NAME asks another, and " if isinstance(failure, ModelRefused) else ""
    return f"{named}`keepthread config model` shows what is set"
