"""Every error that keepthread raises on purpose; docstrings say what it means and what to do."""

from typing import ClassVar


class KeepthreadError(Exception):
    """The base class of all errors that keepthread raises on purpose."""

    code: ClassVar[str] = "error"
    """A stable name of the kind of error, for programs."""
    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later, without any change."""


class InvalidInput(KeepthreadError, ValueError):
    """An argument is invalid or cannot be stored exactly; nothing was stored. The text names it."""

    code = "invalid_input"


class TooLarge(InvalidInput):
    """The data is larger than the store's limit; nothing was stored. The text has both numbers."""

    code = "too_large"


class NotFound(KeepthreadError, LookupError):
    """Something that was asked for does not exist; the text names it."""

    code = "not_found"


class SessionNotFound(NotFound):
    """This tenant has no session with that id. List the sessions, or create it first."""

    code = "session_not_found"


class SessionExists(KeepthreadError):
    """A session with that id already exists. Get it, or choose another id."""

    code = "session_exists"


class SessionGone(KeepthreadError):
    """The session of this handle was deleted or forgotten. Get a new handle by its id."""

    code = "session_gone"


class MessageNotFound(NotFound):
    """The session has no message at that position."""

    code = "message_not_found"


class Conflict(KeepthreadError):
    """This message id is already stored with another body. Give a new message a new id."""

    code = "conflict"


class Stale(KeepthreadError):
    """The data changed since the caller read it. Read it again and retry."""

    code = "stale"


class CursorExpired(KeepthreadError):
    """Changes after this cursor were deleted. Read everything, then continue from the present."""

    code = "cursor_expired"


class BudgetTooSmall(KeepthreadError):
    """The budget cannot hold what must be shown. Raise it, or shorten the system prompt."""

    code = "budget_too_small"


class Unavailable(KeepthreadError):
    """The store cannot do this now; acknowledged writes are safe. Try again later."""

    code = "unavailable"
    retryable = True


class Busy(Unavailable):
    """Another process held the store for longer than the timeout."""

    code = "busy"


class StorageFull(Unavailable):
    """There is no space left to write. Free some space; reading still works."""

    code = "storage_full"
    retryable = False


class ReadOnly(Unavailable):
    """The store can be read but not written: its file, folder or disk is read-only."""

    code = "read_only"
    retryable = False


class StoreClosed(KeepthreadError):
    """The store was closed, or was opened by another process (before a fork). Open it again."""

    code = "store_closed"


class Damaged(KeepthreadError):
    """Stored data is not what was written. Run `verify`; restore the named part from a backup."""

    code = "damaged"


class WrongFormat(KeepthreadError):
    """The store is not keepthread's, another version of keepthread wrote it, or it was extended."""

    code = "wrong_format"


class DurabilityTooLow(KeepthreadError):
    """The engine cannot provide the requested durability."""

    code = "durability_too_low"


class Denied(KeepthreadError):
    """A keepthread server refuses the key, or the key lacks a right. Use another key."""

    code = "denied"


class NotIsolated(KeepthreadError):
    """The database role bypasses row-level security, so tenants would not be isolated."""

    code = "not_isolated"


class Unsupported(KeepthreadError):
    """This store's engine does not support that. The text names engines that do."""

    code = "unsupported"


class ModelError(KeepthreadError):
    """A model did not answer correctly. The question is stored; nothing else was changed."""

    code = "model_error"


class ModelUnavailable(ModelError):
    """The model cannot be reached, fails or is too slow. Try again later, or use another model."""

    code = "model_unavailable"
    retryable = True


class ModelBusy(ModelUnavailable):
    """The provider's rate limit was exceeded. Wait, or raise the limit at the provider."""

    code = "model_busy"


class ModelDenied(ModelError):
    """The provider rejects the key, or does not allow this model. Check the key and its rights."""

    code = "model_denied"


class ModelRefused(ModelError):
    """The provider rejects the request; the text says why. Change the request."""

    code = "model_refused"


class ModelCut(ModelError):
    """The answer broke off; `partial` is the text that had arrived."""

    code = "model_cut"
    retryable = True

    def __init__(self, message: str, partial: str = "") -> None:
        """Store the reason and the text that had arrived."""
        super().__init__(message)
        self.partial = partial


class ToolError(KeepthreadError):
    """A tool call failed; the text says why. Change the call."""

    code = "tool_error"


class ToolUnavailable(ToolError):
    """A tool's server cannot be reached, crashed or was too slow. Call it again later."""

    code = "tool_unavailable"
    retryable = True
