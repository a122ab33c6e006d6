"""Makes a plain PNG of whatever picture a caller sends.

What was sent is never kept: pixels alone come through, turned as EXIF says, with their alpha. So
metadata, trailing data and files that are two formats at once end here.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

_FORMATS = ("PNG", "JPEG", "WEBP")
_COMPRESSION = 3  # quick: such a file is read a few times and then goes


class UploadRefused(Exception):
    """This file is not taken as an input of a workflow; the message says why."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of an upload. Sides in pixels; a latent's are those of its image."""

    data: bytes
    width: int
    height: int


def read_input_image(data: bytes, *, max_pixels: int) -> Kept:
    """Blocks for as long as decoding takes. Raises UploadRefused."""
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _require_size(image, max_pixels)
            _require_still(image)
            image.load()
            plain = _plain(ImageOps.exif_transpose(image))
    except UploadRefused:
        raise
    except UnidentifiedImageError as error:
        raise UploadRefused("The file is no PNG, JPEG or WebP image.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_many_pixels(max_pixels) from error
    except Exception as error:  # decoders raise whatever damage makes them stumble on
        raise UploadRefused("The image is damaged or cut off.") from error
    out = io.BytesIO()
    plain.save(out, "PNG", compress_level=_COMPRESSION)
    return Kept(out.getvalue(), plain.width, plain.height)


def _require_size(image: Image.Image, max_pixels: int) -> None:
    """By the header, before anything is decoded."""
    if image.width * image.height > max_pixels:
        raise _too_many_pixels(max_pixels)


def _require_still(image: Image.Image) -> None:
    """Phones put a second picture behind a JPEG (MPO); that is no animation."""
    if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
        raise UploadRefused("The image is animated; send a single picture.")


def _plain(image: Image.Image) -> Image.Image:
    """As RGB, or RGBA where it has transparency, 8 bits each, and nothing beside."""
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would cut off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    plain = image.convert("RGBA" if image.has_transparency_data else "RGB")
    plain.info = {}
    return plain


def _too_many_pixels(max_pixels: int) -> UploadRefused:
    return UploadRefused(f"The image has more than {max_pixels} pixels.")
