"""Makes a plain PNG of whatever picture a caller sends.

What was sent is never kept: pixels alone come through, turned as EXIF says, with their alpha. So
metadata, trailing data and files that are two formats at once end here.
"""

from __future__ import annotations

import asyncio
import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

_FORMATS = ("PNG", "JPEG", "WEBP")
_COMPRESSION = 3  # quick: such a file is read a few times and then goes


class ImageRefused(Exception):
    """This file is not taken as an input image; the message says why."""


@dataclass(frozen=True, slots=True)
class InputImage:
    png: bytes
    width: int
    height: int


def read_input_image(data: bytes, *, max_pixels: int) -> InputImage:
    """Blocks for as long as decoding takes. Raises ImageRefused."""
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _require_size(image, max_pixels)
            _require_still(image)
            image.load()
            plain = _plain(ImageOps.exif_transpose(image))
    except ImageRefused:
        raise
    except UnidentifiedImageError as error:
        raise ImageRefused("The file is no PNG, JPEG or WebP image.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_many_pixels(max_pixels) from error
    except Exception as error:  # decoders raise whatever damage makes them stumble on
        raise ImageRefused("The image is damaged or cut off.") from error
    out = io.BytesIO()
    plain.save(out, "PNG", compress_level=_COMPRESSION)
    return InputImage(out.getvalue(), plain.width, plain.height)


def _require_size(image: Image.Image, max_pixels: int) -> None:
    """By the header, before anything is decoded."""
    if image.width * image.height > max_pixels:
        raise _too_many_pixels(max_pixels)


def _require_still(image: Image.Image) -> None:
    """Phones put a second picture behind a JPEG (MPO); that is no animation."""
    if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
        raise ImageRefused("The image is animated; send a single picture.")


def _plain(image: Image.Image) -> Image.Image:
    """As RGB, or RGBA where it has transparency, 8 bits each, and nothing beside."""
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    plain = image.convert("RGBA" if image.has_transparency_data else "RGB")
    plain.info = {}
    return plain


def _too_many_pixels(max_pixels: int) -> ImageRefused:
    return ImageRefused(f"The image has more than {max_pixels} pixels.")


class InputImages:
    """Reads input images in threads, `at_once` of them: each may take hundreds of megabytes."""

    def __init__(self, *, max_pixels: int, at_once: int) -> None:
        self._max_pixels = max_pixels
        self._turn = asyncio.Semaphore(at_once)

    async def read(self, data: bytes) -> InputImage:
        """Raises ImageRefused."""
        async with self._turn:
            return await asyncio.to_thread(read_input_image, data, max_pixels=self._max_pixels)
