"""A search of this process's own memory: every text that an object still holds."""

import gc
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from proofs.marked import Marker

_MASK = 0x55


class Masked(NamedTuple):
    """A marker in a form in which the search does not find itself."""

    forms: tuple[bytes, ...]

    @classmethod
    def of(cls, marker: Marker) -> "Masked":
        return cls(tuple(_masked(form.encode()) for form in {marker.text, *marker.stems}))


def held_by_objects(markers: Sequence[Masked]) -> list[int]:
    """Return the numbers of the markers that an object of this process holds.

    Freed memory isn't searched: Python does not overwrite it.
    """
    gc.unfreeze()  # what is frozen is not among the collector's objects
    gc.collect()
    data = b"\0".join(_texts())
    return [
        number
        for number, marker in enumerate(markers)
        if any(_masked(form) in data for form in marker.forms)
    ]


def _masked(data: bytes) -> bytes:
    return bytes(byte ^ _MASK for byte in data)


def _texts() -> Iterator[bytes]:
    """Yield every text that a container holds, each object once."""
    seen: set[int] = set()
    for container in gc.get_objects():
        for each in gc.get_referents(container):
            if isinstance(each, str | bytes | bytearray) and id(each) not in seen:
                seen.add(id(each))
                text = isinstance(each, str)
                yield each.encode("utf-8", "surrogatepass") if text else bytes(each)
