"""An interpreter that lacks what Windows lacks: a plugin of pytest, and a way to run the command.

Names that only Unix has are removed from `os` and `signal`, modules that only Unix has cannot be
imported, event loops watch neither pipes nor signals, and locks are those of `msvcrt`. What the
standard library and other packages took of them at their import stays: they know Windows.
"""

import asyncio
import importlib
import os
import shutil
import signal
import sys
from types import ModuleType
from typing import Any

LOADED = (
    *("asyncio.subprocess", "concurrent.futures.thread", "logging.handlers", "multiprocessing"),
    *("random", "secrets", "selectors", "ssl", "subprocess", "tempfile", "uuid", "zoneinfo"),
    *("anyio._backends._asyncio", "hypothesis", "openai.resources.chat", "openai.types.chat"),
    *("platformdirs", "prompt_toolkit.shortcuts", "psycopg", "pytest_timeout", "redis.asyncio"),
    *("rich.console", "rich.markdown", "rich.progress", "rich.table", "typer.main", "yaml"),
)
"""Loaded first, as they are on Unix."""
MODULES = (
    "fcntl",
    "grp",
    "posix",
    "pty",
    "pwd",
    "readline",
    "resource",
    "syslog",
    "termios",
    "tty",
)
"""Modules that Windows does not have."""
_OS = """
    EX_OK F_LOCK O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_LARGEFILE O_NDELAY O_NOATIME
    O_NOCTTY O_NOFOLLOW O_NONBLOCK O_PATH O_RSYNC O_SYNC O_TMPFILE P_ALL P_PID POSIX_FADV_NORMAL
    RTLD_NOW SCHED_OTHER WCONTINUED WEXITED WNOHANG WNOWAIT WUNTRACED chown chroot confstr
    copy_file_range ctermid eventfd fchdir fchmod fchown fdatasync fork forkpty fpathconf fstatvfs
    get_blocking getegid geteuid getgid getgroups getloadavg getpgid getpgrp getpriority
    getresuid getsid getuid grantpt initgroups killpg lchown lockf login_tty major makedev
    memfd_create minor mkfifo mknod nice openpty pathconf pidfd_open pipe2 posix_fadvise
    posix_fallocate posix_spawn posix_spawnp pread preadv pwrite pwritev readv register_at_fork
    sched_getaffinity sched_setaffinity sched_yield sendfile set_blocking setegid seteuid setgid
    setgroups setpgid setpriority setsid setuid splice statvfs sync sysconf tcgetpgrp tcsetpgrp
    ttyname uname unshare wait wait3 wait4 waitid writev
"""
OS_NAMES = frozenset(_OS.split())
"""Names of `os` that are missing on Windows, in some version of Python that is supported."""
_SIGNAL = """
    ITIMER_REAL SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGPROF SIGQUIT SIGSTOP
    SIGTSTP SIGTTIN SIGTTOU SIGUSR1 SIGUSR2 SIGWINCH alarm getitimer pause pthread_kill
    pthread_sigmask setitimer siginterrupt sigpending sigtimedwait sigwait sigwaitinfo
"""
SIGNAL_NAMES = frozenset(_SIGNAL.split())
"""Names of `signal` that are missing on Windows."""


def pretend() -> None:
    """Take away what Windows does not have."""
    for name in LOADED:
        importlib.import_module(name)
    sys.modules["msvcrt"] = _locks()
    for name in MODULES:
        sys.modules[name] = None  # type: ignore[assignment] # pyright: ignore[reportArgumentType]
    for module, names in ((os, OS_NAMES), (signal, SIGNAL_NAMES)):
        for name in names & set(vars(module)):
            delattr(module, name)
    shutil._use_fd_functions = False  # type: ignore[attr-defined] # pyright: ignore[reportAttributeAccessIssue]
    for name in ("add_reader", "add_writer", "add_signal_handler"):
        setattr(asyncio.SelectorEventLoop, name, _not_here)
    sys.platform = "win32"


def _not_here(*_: Any) -> None:
    raise NotImplementedError


def _locks() -> ModuleType:
    """Return a module that locks as that of Windows does."""
    import fcntl

    module: Any = ModuleType("msvcrt")
    module.LK_UNLCK, module.LK_NBLCK = 0, 2
    kinds = {module.LK_UNLCK: fcntl.LOCK_UN, module.LK_NBLCK: fcntl.LOCK_EX | fcntl.LOCK_NB}
    module.locking = lambda fd, mode, _: fcntl.flock(fd, kinds[mode])
    return module


def pytest_configure() -> None:
    """Begin: everything that pytest itself needs is loaded."""
    pretend()


if __name__ == "__main__":
    pretend()
    from keepthread.apps.cli import main

    sys.exit(main())
