"""Every error that keepthread raises on purpose; docstrings say what it means and what to do."""


class KeepthreadError(Exception):
    """The base class of all errors that keepthread raises on purpose."""


class InvalidInput(KeepthreadError, ValueError):
    """An argument is invalid or cannot be stored exactly; nothing was stored. The text names it."""


class SessionNotFound(KeepthreadError, LookupError):
    """This tenant has no session with that id. List the sessions, or create it first."""


class SessionExists(KeepthreadError):
    """A session with that id already exists. Get it, or choose another id."""


class SessionGone(KeepthreadError):
    """The session of this handle was deleted. Get a new handle by its id."""


class MessageNotFound(KeepthreadError, LookupError):
    """The session has no message at that position."""


class Conflict(KeepthreadError):
    """This message id is already stored with another body. Give a new message a new id."""


class Stale(KeepthreadError):
    """The data changed since the caller read it. Read it again and retry."""


class BudgetTooSmall(KeepthreadError):
    """The budget cannot hold what must be shown. Raise it, or shorten the system prompt."""


class Unavailable(KeepthreadError):
    """The store cannot do this now; acknowledged writes are safe. Try again later."""


class Busy(Unavailable):
    """Another process held the store for longer than the timeout."""


class StorageFull(Unavailable):
    """There is no space left to write. Free some space; reading still works."""


class ReadOnly(Unavailable):
    """The store can be read but not written: its file, folder or disk is read-only."""


class StoreClosed(KeepthreadError):
    """The store was closed, or was opened by another process (before a fork). Open it again."""


class Damaged(KeepthreadError):
    """Stored data is not what was written. Run `verify`; restore the named part from a backup."""


class WrongFormat(KeepthreadError):
    """The store is not keepthread's, another version of keepthread wrote it, or it was extended."""


class DurabilityTooLow(KeepthreadError):
    """The engine cannot provide the requested durability."""


class NotIsolated(KeepthreadError):
    """The database role bypasses row-level security, so tenants would not be isolated."""


class Unsupported(KeepthreadError):
    """This store's engine does not support that. The text names engines that do."""


class ModelError(KeepthreadError):
    """A model did not answer correctly. The question is stored; nothing else was changed."""


class ModelUnavailable(ModelError):
    """The model cannot be reached, fails or is too slow. Try again later, or use another model."""


class ModelBusy(ModelUnavailable):
    """The provider's rate limit was exceeded. Wait, or raise the limit at the provider."""


class ModelDenied(ModelError):
    """The provider rejects the key, or does not allow this model. Check the key and its rights."""


class ModelRefused(ModelError):
    """The provider rejects the request; the text says why. Change the request."""


class ModelCut(ModelError):
    """The answer broke off; `said` is the text that had arrived."""

    def __init__(self, message: str, said: str = "") -> None:
        """Keep the text that arrived with the reason."""
        super().__init__(message)
        self.said = said


class ToolError(KeepthreadError):
    """A tool call failed; the text says why. Change the call."""


class ToolUnavailable(ToolError):
    """A tool's server cannot be reached, crashed or was too slow. Call it again later."""
