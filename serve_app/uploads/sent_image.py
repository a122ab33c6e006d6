"""An image as a text of a request: a data URL, base64, or the URL where it is."""

from __future__ import annotations

import binascii
import re
from enum import Enum, auto

from serve_app.refusals import InvalidImage

_LONGEST_NAME = 1024
"""No upload has a name so long."""
_SHORTEST_IMAGE = 64
_BEGINNINGS = ("iVBORw0KGgo", "/9j/", "UklGR")
"""Of PNG, JPEG and WebP, in base64."""
_URL = re.compile(r"https?://", re.IGNORECASE)
_DATA_URL = re.compile(
    r"data:(?P<type>[a-z0-9.+-]*/?[a-z0-9.+-]*)(?:;[^;,]*)*?(?P<base64>;base64)?,", re.IGNORECASE
)
_LONGEST_HEAD = 200
TYPES = frozenset(
    {"image/png", "image/jpeg", "image/jpg", "image/webp", "application/octet-stream"}
    | {"binary/octet-stream"}
)
"""Which media types an image may be said to have. What it is, its bytes tell."""
_SPACE = " \t\r\n"
_CHUNK_CHARS = 2**20
"""A multiple of four. The decoder lets no other thread run meanwhile."""


class SentAs(Enum):
    URL = auto()
    DATA_URL = auto()
    BASE64 = auto()


def sent_as(text: str) -> SentAs | None:
    """How an image is sent that stands where an upload's name may; None: it is a name."""
    if _URL.match(text):
        return SentAs.URL
    if text[:5].lower() == "data:":
        return SentAs.DATA_URL
    is_image = text.startswith(_BEGINNINGS) and len(text) >= _SHORTEST_IMAGE and "." not in text
    return SentAs.BASE64 if is_image or len(text) > _LONGEST_NAME else None


def decoded(text: str, *, max_bytes: int) -> bytes:
    """The bytes of a data URL, or of base64. Raises InvalidImage. Blocks for some milliseconds."""
    if sent_as(text) is SentAs.DATA_URL:
        text = text[_end_of_head(text) :]
    if len(text) // 4 * 3 > max_bytes + 3:
        raise InvalidImage(f"The image has more than {max_bytes} bytes.")
    for space in _SPACE:
        text = text.replace(space, "")
    text += "=" * (-len(text) % 4)
    try:
        chunks = (text[at : at + _CHUNK_CHARS] for at in range(0, len(text), _CHUNK_CHARS))
        data = b"".join([binascii.a2b_base64(each, strict_mode=True) for each in chunks])
    except ValueError as error:
        raise InvalidImage("The image is no base64.") from error
    if len(data) > max_bytes:
        raise InvalidImage(f"The image has more than {max_bytes} bytes.")
    return data


def _end_of_head(text: str) -> int:
    head = _DATA_URL.match(text[:_LONGEST_HEAD])
    if head is None or head["base64"] is None:
        raise InvalidImage("The data URL must have the form data:image/png;base64,…")
    if head["type"].lower() not in TYPES:
        raise InvalidImage("The data URL must be of image/png, image/jpeg or image/webp.")
    return head.end()
