"""Attachments: which of them a provider is shown as an image."""

import re
from typing import Final

from keepthread.types import Attachment

# Compiled when first used: whoever imports keepthread need not render anything.
_IMAGES: Final = ("image/png", "image/jpeg", "image/gif", "image/webp")
_WEB: Final = r"https://[a-zA-Z0-9.-]+(?::[0-9]{1,5})?(?:[/?#][^\s\"<>\\]*)?"
_DATA: Final = r"data:(image/(?:png|jpeg|gif|webp));base64,([A-Za-z0-9+/]+={0,2})"


def image(attachment: Attachment) -> tuple[str, str] | None:
    """Return the media type and URI of an image that providers take, else None."""
    if data := re.fullmatch(_DATA, attachment.uri):
        return (data[1], attachment.uri) if len(data[2]) % 4 == 0 else None
    if attachment.media_type in _IMAGES and re.fullmatch(_WEB, attachment.uri):
        return attachment.media_type, attachment.uri
    return None
