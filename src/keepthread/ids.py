"""New ids: UUIDv7 as 32 hexadecimal digits, so that they sort by time and pack into 16 bytes."""

import os
import time


def new_id() -> str:
    """Return a new UUIDv7 as 32 lower-case hexadecimal digits."""
    random = int.from_bytes(os.urandom(10), "big")
    milliseconds = time.time_ns() // 1_000_000
    high, low = random >> 68 & 0xFFF, random & 0x3FFF_FFFF_FFFF_FFFF | 1 << 63
    return f"{milliseconds & 0xFFFF_FFFF_FFFF:012x}7{high:03x}{low:016x}"
