"""The lines of an export: one JSON object each, in valid UTF-8, exact in both directions.

The first line is the header, the last one the end; between them come the sessions, each followed by
its messages and its records, and then the records of owners and of the tenant. A session that was
deleted while its messages were written ends with a line that says so, and is not imported. JSON
cannot write two lone surrogates side by side: a reader takes them for one character. A line with a
lone surrogate is therefore wrapped: `{"base64": …}` around its JSON, in our codec's bytes.
"""

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, Final, NoReturn, cast

from keepthread.errors import InvalidInput, WrongFormat
from keepthread.stores.codec import dumps
from keepthread.stores.validation import show
from keepthread.types import JSON

FORMAT: Final = "keepthread"
VERSION: Final = 2
MAX_LINE: Final = 16 << 20
"""Larger than any line of ours: a message has 1 MiB, and JSON may write a byte as six."""

HEADER: Final[Mapping[str, JSON]] = {"format": FORMAT, "version": VERSION}


def encode_line(value: Mapping[str, JSON]) -> bytes:
    """Return one line with its line end."""
    data = dumps(value, "the line", limit=MAX_LINE)
    try:
        data.decode()
    except UnicodeDecodeError:
        data = dumps({"base64": b64encode(data).decode()}, "the line", limit=2 * MAX_LINE)
    return data + b"\n"


def decode_line(data: bytes) -> dict[str, Any]:
    """Return the object of one line."""
    value = _parse(data, "strict")
    if value.keys() == {"base64"}:
        try:
            value = _parse(b64decode(value["base64"], validate=True), "surrogatepass")
        except (TypeError, binascii.Error):
            raise InvalidInput("its base64 cannot be read") from None
    return value


def _parse(data: bytes, errors: str) -> dict[str, Any]:
    try:
        value = json.loads(data.decode("utf-8", errors), parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"it is not valid JSON: {error}") from None
    if type(value) is not dict:
        raise InvalidInput("it is not a JSON object")
    return cast(dict[str, Any], value)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def lines_of(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; refuse a line that would fill the memory."""
    while line := file.readline(MAX_LINE + 1):
        if len(line) > MAX_LINE:
            raise InvalidInput(f"a line has more than {MAX_LINE} bytes")
        yield line


def check_header(value: dict[str, Any]) -> None:
    """Refuse a file that is not a keepthread export, or a newer one."""
    if value.get("format") != FORMAT:
        raise WrongFormat('this is not a keepthread export: it does not begin with {"format": …}')
    version = value.get("version")
    if type(version) is not int or version < 1:
        raise WrongFormat(f"the header has no valid version: {show(version)}")
    if version > VERSION:
        raise WrongFormat(
            f"the export has version {version}; this keepthread knows versions up to {VERSION}."
            " Install a newer keepthread."
        )
