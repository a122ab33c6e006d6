"""Makes a plain PNG of an image that a caller sends.

The file itself is never stored. Only its pixels are, turned as EXIF says, with their alpha. So no
metadata, no trailing data and no file that is valid in two formats gets past this.
"""

from __future__ import annotations

import io

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from serve_app.refusals import InvalidImage
from serve_app.uploads.sanitized_file import SanitizedFile

_FORMATS = ("PNG", "JPEG", "WEBP")
_COMPRESSION = 3  # fast: such a file is read a few times and then removed


def read_input_image(data: bytes, *, max_pixels: int) -> SanitizedFile:
    """Blocks for as long as decoding takes. Raises InvalidImage."""
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            _require_size(image, max_pixels)
            _require_still(image)
            image.load()
            plain = _plain(ImageOps.exif_transpose(image))
    except InvalidImage:
        raise
    except UnidentifiedImageError as error:
        raise InvalidImage("The file is no PNG, JPEG or WebP image.") from error
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise _too_many_pixels(max_pixels) from error
    except Exception as error:  # decoders raise anything on a damaged file
        raise InvalidImage("The image is damaged or cut off.") from error
    out = io.BytesIO()
    plain.save(out, "PNG", compress_level=_COMPRESSION)
    return SanitizedFile(out.getvalue(), plain.width, plain.height)


def has_transparency(data: bytes) -> bool:
    """Whether an image that `read_input_image` takes may be transparent; reads its header alone."""
    with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
        return image.has_transparency_data


def _require_size(image: Image.Image, max_pixels: int) -> None:
    """The header tells the size, so nothing has been decoded yet."""
    if image.width * image.height > max_pixels:
        raise _too_many_pixels(max_pixels)


def _require_still(image: Image.Image) -> None:
    """An MPO, a JPEG to which a phone added a second image, is not an animation."""
    if image.format != "MPO" and getattr(image, "n_frames", 1) > 1:
        raise InvalidImage("The image is animated; send a single picture.")


def _plain(image: Image.Image) -> Image.Image:
    """The pixels as RGB, or as RGBA where the image has transparency, 8 bits each."""
    if image.mode.startswith("I"):  # 16 bits of grey, which Pillow would clip at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    plain = image.convert("RGBA" if image.has_transparency_data else "RGB")
    plain.info = {}
    return plain


def _too_many_pixels(max_pixels: int) -> InvalidImage:
    return InvalidImage(f"The image has more than {max_pixels} pixels.")
