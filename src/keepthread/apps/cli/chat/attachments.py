"""Files in a message: `@path` in its text, and `--attach`. Text is quoted, an image is attached."""

import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from keepthread.context.context import Context
from keepthread.context.full_text import BLOB_URI
from keepthread.context.rendering import ATTACHMENT_COST
from keepthread.errors import Damaged, InvalidInput, NotFound
from keepthread.memory.owner import OwnerMemory
from keepthread.protocols import TokenCounter
from keepthread.types import Attachment, Message

_LARGEST_TEXT: Final = 900_000
"""Bytes of all text files of a message: a message holds a little more."""
_LARGEST_IMAGE: Final = 5_000_000
"""Bytes of an image; providers refuse larger ones."""
_MOST: Final = 20
"""Files of one message."""
_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", b"", "image/png"),
    (b"\xff\xd8\xff", b"", "image/jpeg"),
    (b"GIF8", b"", "image/gif"),
    (b"RIFF", b"WEBP", "image/webp"),
)
"""How an image begins, what it has at byte 8, and its type."""
# An @ inside a word, as in an address, or after a quotation mark, as in code, names no file.
_MENTION: Final = re.compile(r"""(?<![^\s(\[{])@(?:"([^"\n]+)"|'([^'\n]+)'|([^\s"'@][^\s]*))""")
_AFTER: Final = ".,;:!?)]}>\"'"
_PATHS: Final = ("/", "./", "../", "~", ".\\", "..\\", "\\")
_FAMILIAR: Final = (
    ".c .cfg .cpp .css .csv .diff .docx .gif .go .h .html .ini .java .jpeg .jpg .js .json .jsonl"
    " .log .md .pdf .png .py .rb .rs .rst .sh .sql .toml .ts .tsv .txt .webp .xml .yaml .yml"
)
_SUFFIXES: Final = frozenset(_FAMILIAR.split())
"""Ends of names that are surely meant as a file."""
_FILE: Final = re.compile(r"\n\n\[file .+, [\d,]+ bytes\]\n```")


class AttachedFile(NamedTuple):
    """A file that goes with a message."""

    name: str
    """Its path, as it was written."""
    path: Path
    data: bytes
    image: str = ""
    """The media type of an image; empty for text."""

    @property
    def quoted(self) -> str:
        """Return a text file as a part of the message."""
        text = self.data.decode("utf-8-sig").rstrip("\n")
        longest = max((len(run) for run in re.findall("`+", text)), default=0)
        fence = "`" * max(3, longest + 1)
        return f"[file {self.name}, {len(self.data):,} bytes]\n{fence}\n{text}\n{fence}"

    def about(self, counter: TokenCounter) -> str:
        """Return its name, kind, size and tokens in one line."""
        kind = self.image.removeprefix("image/").upper() or "text"
        bare = counter.count(Message(role="user"))
        counted = 0 if self.image else counter.count(Message(role="user", content=self.quoted))
        tokens = ATTACHMENT_COST if self.image else counted - bare
        return f"+ {self.name}: {kind}, {len(self.data):,} bytes, about {tokens:,} tokens"


def mentioned(text: str) -> list[AttachedFile]:
    """Return the files that a text names by `@path`, each once; an @ that names none is text.

    A file that is surely meant and is missing, a folder, or a file that cannot be sent raises
    `InvalidInput`.
    """
    found: dict[Path, AttachedFile] = {}
    for match in _MENTION.finditer(text):
        quoted, bare = match[1] or match[2], match[3]
        name = quoted or _existing(bare)
        if name is None:
            name = bare.rstrip(_AFTER)
            if not (_is_path(name) or Path(name).suffix in _SUFFIXES):
                continue
        file = read_file(name, hint=f"; to send @{name} as text, put a space after the @")
        found.setdefault(file.path, file)
    return checked(list(found.values()))


def _is_path(word: str) -> bool:
    return word.startswith(_PATHS) and any(map(str.isalnum, word))


def _existing(word: str) -> str | None:
    """Return the longest beginning of a word that is a path, without the signs that end it."""
    while any(map(str.isalnum, word)):
        with suppress(OSError, RuntimeError, ValueError):  # too long, or nobody's home
            if Path(word).expanduser().exists():
                return word
        if word[-1] not in _AFTER:
            return None
        word = word[:-1]
    return None


def read_file(name: str, *, hint: str = "") -> AttachedFile:
    """Read a file to send, or raise `InvalidInput` with the reason why it cannot be sent."""
    if not name.isprintable():
        raise InvalidInput(f"{name!r} is not a file name: it has control characters")
    try:
        path = Path(name).expanduser()
        if path.is_dir():
            raise InvalidInput(f"{name} is a folder; name a file in it{hint}")
        if not path.exists():
            raise InvalidInput(f"there is no file {name} here{hint}")
        if not path.is_file():
            raise InvalidInput(f"{name} is not a regular file{hint}")
        with path.open("rb") as file:
            data = file.read(_LARGEST_IMAGE + 1)
            size = path.stat().st_size
    except RuntimeError:
        raise InvalidInput(f"{name}: there is no such home folder{hint}") from None
    except OSError as error:
        raise InvalidInput(f"{name} cannot be read: {error.strerror or error}{hint}") from None
    image = _image_type(data)
    most = _LARGEST_IMAGE if image else _LARGEST_TEXT
    if image == "" and not _is_text(data[:_LARGEST_TEXT]):
        raise InvalidInput(
            f"{name} is neither text in UTF-8 nor an image (PNG, JPEG, GIF, WebP);"
            f" save it as one of these{hint}"
        )
    if len(data) > most:
        what = "an image" if image else "text files together"
        raise InvalidInput(
            f"{name} has {size:,} bytes, but the limit for {what} is {most:,}; send a part of "
            f"it{hint}"
        )
    return AttachedFile(name, path, data, image)


def checked(files: Sequence[AttachedFile]) -> list[AttachedFile]:
    """Return files that may go with one message, or raise `InvalidInput`."""
    texts = sum(len(file.data) for file in files if not file.image)
    if texts > _LARGEST_TEXT:
        raise InvalidInput(
            f"the files have {texts:,} bytes of text, and a message may have {_LARGEST_TEXT:,};"
            " send fewer of them"
        )
    if len(files) > _MOST:
        raise InvalidInput(f"{len(files)} files are too many for one message; send up to {_MOST}")
    return list(files)


def is_outside(file: AttachedFile, folder: Path) -> bool:
    """Return whether a file is not below a folder."""
    return not file.path.resolve().is_relative_to(folder.resolve())


def with_files(text: str, files: Iterable[AttachedFile]) -> str:
    """Return a message with its text files quoted after it."""
    return "\n\n".join([text, *(file.quoted for file in files if not file.image)])


def typed_part(text: str) -> str:
    """Return what a person typed of a message, without the files that were quoted after it."""
    found = _FILE.search(text)
    return text[: found.start()] if found else text


def _image_type(data: bytes) -> str:
    for begin, inside, media_type in _SIGNATURES:
        if data.startswith(begin) and data[8 : 8 + len(inside)] == inside:
            return media_type
    return ""


def _is_text(data: bytes) -> bool:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.start < len(data) - 3:  # the last character may be cut
            return False
        text = data[: error.start].decode()
    return "\0" not in text


class Images:
    """The images of a conversation, by the addresses of their blobs."""

    def __init__(self) -> None:
        """Begin with none."""
        self._data: dict[str, bytes] = {}
        self._new: set[str] = set()
        """Digests of blobs that no message referred to when they were stored."""

    def attach(self, files: Iterable[AttachedFile]) -> list[Attachment]:
        """Take the images among files, and return them as a message refers to them."""
        found: list[Attachment] = []
        for file in files:
            if file.image:
                uri = f"{BLOB_URI}{sha256(file.data).hexdigest()}"
                self._data[uri] = file.data
                found.append(Attachment(media_type=file.image, name=file.path.name, uri=uri))
        return found

    async def keep(self, memory: OwnerMemory, attachments: Sequence[Attachment]) -> None:
        """Store images that a memory lacks."""
        for each in attachments:
            digest = each.uri.removeprefix(BLOB_URI)
            if each.uri not in self._data:
                continue
            try:
                await memory.blobs.info(digest)
            except NotFound:
                data = self._data[each.uri]
                await memory.blobs.put(data, media_type=each.media_type, name=each.name)
                self._new.add(digest)

    async def release(self, memory: OwnerMemory) -> None:
        """Let images go with the last message that refers to them; by now, one does."""
        while self._new:
            with suppress(NotFound):
                await memory.blobs.delete(self._new.pop())

    async def load(self, memory: OwnerMemory, attachments: Iterable[Attachment]) -> None:
        """Read images that are not known yet; what is missing or damaged stays unknown."""
        for each in attachments:
            if each.uri.startswith(BLOB_URI) and each.uri not in self._data:
                with suppress(NotFound, Damaged, InvalidInput):
                    digest = each.uri.removeprefix(BLOB_URI)
                    self._data[each.uri] = await memory.blobs.read(digest)

    async def shown(self, memory: OwnerMemory, context: Context) -> Context:
        """Return a context with the bytes of its images, as models take them."""
        if not any(_are_stored(message.attachments) for message in context.messages):
            return context
        messages: list[Message] = []
        for message in context.messages:
            await self.load(memory, message.attachments)
            attachments = tuple(map(self._with_data, message.attachments))
            messages.append(replace(message, attachments=attachments))
        return Context(context.selection._replace(messages=tuple(messages)))

    def _with_data(self, given: Attachment) -> Attachment:
        data = self._data.get(given.uri)
        if data is None or not given.media_type.startswith("image/"):
            return given
        encoded = b64encode(data).decode()
        return replace(given, uri=f"data:{given.media_type};base64,{encoded}")


def _are_stored(attachments: Sequence[Attachment]) -> bool:
    return any(each.uri.startswith(BLOB_URI) for each in attachments)
