"""Commands that use other programs of the person: the clipboard and the editor."""

import asyncio
import base64
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from keepthread.apps.cli.chat.chat import Chat
from keepthread.apps.cli.chat.commands.common import brief, parse_number
from keepthread.apps.cli.chat.commands.context import chosen_message
from keepthread.apps.cli.chat.plain import is_dumb
from keepthread.apps.cli.chat.prompt import lent_terminal
from keepthread.apps.cli.report_types import counted
from keepthread.errors import InvalidInput, Unavailable

_SECONDS: Final = 5.0
"""A program that takes the clipboard takes it at once."""
_LARGEST: Final = 74_000
"""Bytes that a terminal takes for the clipboard; many take no more."""


async def copy(chat: Chat, rest: str) -> None:
    """Copy the latest answer, or the message at N, to the clipboard.

    /history shows the positions. Where no program for the clipboard is found, as over SSH, the
    terminal is asked to take it; not every terminal does.
    """
    seq = parse_number(rest, 0, what="a position")
    session = await chat.session()
    message = await chosen_message(session, seq, "to copy")
    text = await session.full_text(message)
    program = _clipboard(chat.environ)
    if program:
        # Windows' own program reads UTF-16.
        encoding = "utf-16" if sys.platform == "win32" else "utf-8"
        await _give(program, text.encode(encoding, "replace"))
        by = Path(program[0]).name
    else:
        _ask_terminal(chat.environ, text.encode("utf-8", "replace"))
        by = "the terminal, if it supports that"
    size = counted(len(text), "character")
    chat.person.say(f"Copied message {message.seq:,}, {brief(text)}, {size}, by {by}")


def _clipboard(environ: Mapping[str, str]) -> Sequence[str]:
    """Return the program that takes the clipboard of the screen one sits at, if there is one."""
    if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"):
        return ()
    known: list[tuple[bool, Sequence[str]]] = [
        (sys.platform == "darwin", ("pbcopy",)),
        (sys.platform == "win32", ("clip",)),
        ("WAYLAND_DISPLAY" in environ, ("wl-copy",)),
        ("DISPLAY" in environ, ("xclip", "-selection", "clipboard")),
        ("DISPLAY" in environ, ("xsel", "--clipboard", "--input")),
    ]
    for here, (name, *options) in known:
        if here and (path := shutil.which(name, path=environ.get("PATH"))):
            return (path, *options)
    return ()


async def _give(program: Sequence[str], data: bytes) -> None:
    name = Path(program[0]).name
    try:
        # Its output is let go: such a program stays, and would keep a pipe open.
        process = await asyncio.create_subprocess_exec(
            *program,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        async with asyncio.timeout(_SECONDS):
            await process.communicate(data)
    except (OSError, TimeoutError):
        raise Unavailable(f"{name} did not accept the text; copy it with the mouse") from None
    if process.returncode:
        raise Unavailable(f"{name} failed with status {process.returncode}; nothing was copied")


def _ask_terminal(environ: Mapping[str, str], data: bytes) -> None:
    """Ask the terminal itself, by the sequence OSC 52."""
    if is_dumb(environ):
        raise InvalidInput("this terminal has no clipboard; /export FILE writes the session")
    if len(data) > _LARGEST:
        raise InvalidInput(
            f"it has {len(data):,} bytes, but terminals accept only {_LARGEST:,}; /export FILE "
            "writes the whole session"
        )
    sys.stdout.write(f"\x1b]52;c;{base64.b64encode(data).decode()}\a")
    sys.stdout.flush()


async def edit(chat: Chat, rest: str) -> None:
    """Write a message in your editor, and send what you saved.

    It is the program in VISUAL or EDITOR. A text after /edit is the beginning; an empty file, or
    one that was not changed, is not sent.
    """
    command = _editor(chat.environ)
    begun = f"{rest}\n" if rest else ""
    with TemporaryDirectory(prefix="keepthread-") as folder:
        file = Path(folder) / "message.md"
        file.write_text(begun, encoding="utf-8")
        with lent_terminal():
            status = await _edited([*command, str(file)])
        if status:
            raise InvalidInput(f"{command[0]} ended with status {status}; nothing was sent")
        text = file.read_text(encoding="utf-8", errors="replace")
    if not text.strip() or text == begun:
        chat.person.say("Nothing was sent: the file was empty or unchanged")
        return
    chat.person.say(text.strip("\n"))
    chat.ask_next = text.strip("\n")


def _editor(environ: Mapping[str, str]) -> list[str]:
    named = environ.get("VISUAL") or environ.get("EDITOR") or ""
    try:
        command = shlex.split(named, posix=os.name == "posix")
    except ValueError:
        raise InvalidInput("VISUAL or EDITOR has an unclosed quotation mark") from None
    for name in ("notepad",) if sys.platform == "win32" else ("nano", "vi"):
        if not command and shutil.which(name, path=environ.get("PATH")):
            command = [name]
    if not command:
        raise InvalidInput("no editor is known: export EDITOR=…, for example EDITOR=nano")
    return command


async def _edited(command: Sequence[str]) -> int:
    """Wait until the person ends the editor; if this is stopped, end it as well."""
    try:
        process = await asyncio.create_subprocess_exec(*command)
    except OSError as error:
        raise InvalidInput(
            f"{command[0]} cannot be started: {error.strerror}; check VISUAL or EDITOR"
        ) from None
    try:
        return await process.wait()
    except asyncio.CancelledError:
        if process.returncode is None:
            process.terminate()
            await process.wait()
        raise
