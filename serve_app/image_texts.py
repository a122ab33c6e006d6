"""Reads the texts in image files that callers send, within limits."""

from __future__ import annotations

import io

from PIL import Image, UnidentifiedImageError

from engine.interface import image_texts
from serve_app.refusals import InvalidImage

_MAX_CHUNKS = 256
"""The largest number of chunks that a PNG may have before its pixels. Each may be a text."""
_MAX_TEXT_CHARS = 2**20
"""The largest number of characters of all texts of an image together."""


def texts_of(data: bytes) -> tuple[dict[str, str], tuple[int, int]]:
    """Return the texts of an image by name, and its width and height in pixels.

    Pixels are not decoded, and Pillow limits the size of the texts. Raises InvalidImage.
    """
    _require_few_chunks(data)
    try:
        with Image.open(io.BytesIO(data), formats=["PNG", "JPEG", "WEBP"]) as image:
            texts, size = image_texts(image), image.size
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise InvalidImage("image is not a PNG, JPEG or WebP image, or is damaged.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise InvalidImage("image has too many pixels.") from error
    if sum(map(len, texts.values())) > _MAX_TEXT_CHARS:
        raise InvalidImage(f"image has texts of more than {_MAX_TEXT_CHARS} characters.")
    return texts, size


def _require_few_chunks(data: bytes) -> None:
    """Raise InvalidImage for a PNG with too many chunks. Pillow would read any number of them."""
    if not data.startswith(b"\x89PNG"):
        return
    at = 8
    for _ in range(_MAX_CHUNKS):
        if data[at + 4 : at + 8] in (b"", b"IDAT"):
            return
        at += int.from_bytes(data[at : at + 4], "big") + 12
    raise InvalidImage(f"image has more than {_MAX_CHUNKS} chunks before its pixels.")
