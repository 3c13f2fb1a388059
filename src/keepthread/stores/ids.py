"""New ids: UUIDv7 as 32 hexadecimal digits, so that they sort by time and pack into 16 bytes."""

import os
import time


def new_id() -> str:
    """Return a new UUIDv7 as 32 lower-case hexadecimal digits."""
    random = os.urandom(10).hex()
    variant = "89ab"[int(random[3], 16) & 3]
    return f"{time.time_ns() // 1_000_000:012x}7{random[:3]}{variant}{random[4:19]}"
