"""Every error keepthread raises on purpose: one tree, each docstring its meaning and the cure."""


class KeepthreadError(Exception):
    """The root of all errors that keepthread raises on purpose."""


class InvalidInput(KeepthreadError, ValueError):
    """What was given cannot be stored exactly; nothing was stored. The text names the field."""


class SessionNotFound(KeepthreadError, LookupError):
    """No session of that id is visible here. List sessions, or create it first."""


class SessionExists(KeepthreadError):
    """A session of that id is there already. Get it, or choose another id."""


class SessionGone(KeepthreadError):
    """The session behind this handle was deleted. Get a new handle by its id."""


class MessageNotFound(KeepthreadError, LookupError):
    """The session has no message at that position."""


class Conflict(KeepthreadError):
    """This message id is stored with another body. Give a new message a new id."""


class Stale(KeepthreadError):
    """Something moved since the caller looked. Read again, then decide again."""


class BudgetTooSmall(KeepthreadError):
    """The budget cannot hold what must be shown. Raise it, or shorten the system prompt."""


class Unavailable(KeepthreadError):
    """The store cannot do this now; what it acknowledged before is safe. Try again later."""


class Busy(Unavailable):
    """Another process held the store for longer than the timeout."""


class StorageFull(Unavailable):
    """There is no room left to write. Free some; reading goes on."""


class ReadOnly(Unavailable):
    """The store can be read but not written: its file, folder or disk is read-only."""


class StoreClosed(KeepthreadError):
    """The store was closed, or was opened by another process (before a fork). Open it anew."""


class Damaged(KeepthreadError):
    """Stored data is not what was written. Run `verify`; restore the named part from a backup."""


class WrongFormat(KeepthreadError):
    """The store is not keepthread's, another version of keepthread wrote it, or it was extended."""


class DurabilityTooLow(KeepthreadError):
    """The engine cannot give the durability that was asked for."""


class NotIsolated(KeepthreadError):
    """The database role bypasses row-level security, so tenants would not be isolated."""


class Unsupported(KeepthreadError):
    """The engine behind this store cannot do that at all. The text names engines that can."""


class ModelError(KeepthreadError):
    """A model did not answer as it should. What was asked is stored; nothing else is touched."""


class ModelUnavailable(ModelError):
    """The model cannot be reached, is broken or too slow. Ask again later, or another one."""


class ModelBusy(ModelUnavailable):
    """The provider lets nobody ask so much so fast. Wait, or raise the limit there."""


class ModelDenied(ModelError):
    """The provider does not take the key, or not for this model. Check the key and its rights."""


class ModelRefused(ModelError):
    """The provider will not answer such a request; the text says why. Change what is asked."""


class ModelCut(ModelError):
    """The answer broke off on its way; `said` is what had arrived."""

    def __init__(self, message: str, said: str = "") -> None:
        """Keep what arrived beside the reason."""
        super().__init__(message)
        self.said = said


class ToolError(KeepthreadError):
    """A tool did not do what it was asked; the text says why. Ask for something else."""


class ToolUnavailable(ToolError):
    """A tool's server cannot be reached, died or was too slow. Call it again later."""
