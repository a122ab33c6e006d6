"""Images as the files that their caller wants: PNG, WebP or JPEG, with what made them.

A JPEG and a WebP have texts as ComfyUI and the WebUI write them into EXIF: the graph is `Model`, as
`prompt:{...}`, what a front end sent along is `Make` and the tags below it, and the WebUI's
`parameters` are the user comment.
"""

from __future__ import annotations

import io
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from PIL.ExifTags import IFD, Base

from actors.worker.png import encode_png
from engine.webui.infotext.exif import USER_COMMENT, user_comment
from storage.keys import JPEG, WEBP

LOSSLESS = 100
_LOSSLESS_EFFORT = {"method": 2, "quality": 50}
_FULL_COLOUR_FROM = 90
"""From that quality on a JPEG has as many samples of colour as of brightness."""
_MAX_SIDE = {WEBP: 16_383, JPEG: 65_535}
_MAX_EXIF_BYTES = {WEBP: 2**20, JPEG: 65_000}
"""A JPEG has it in one segment, whose length has 16 bits."""
_BYTES_OF_TAG = 32
_OWN_TAGS = range(65_000, 65_536)
"""Those that TIFF leaves to private use."""


@dataclass(frozen=True, slots=True)
class ImageEncoding:
    media_type: str | None = None
    """One of WebP and JPEG; None is PNG."""
    quality: int = LOSSLESS
    """1 to 100; a WebP of 100 is lossless."""

    @classmethod
    def asked(cls, image_format: str | None, quality: int | None) -> ImageEncoding:
        """As a job recorded it. A format that only a later version knows is a PNG here."""
        media_type = {"webp": WEBP, "jpeg": JPEG}.get(image_format or "")
        return cls(media_type, quality or LOSSLESS)


AS_PNG = ImageEncoding()


def encode_image(
    pixels: NDArray[np.uint8], text: Mapping[str, str], encoding: ImageEncoding
) -> tuple[bytes, str | None]:
    """The file and its media type, None for a PNG, which an image too large for others is.

    `pixels`: (height, width, 3).
    """
    media_type = encoding.media_type
    if media_type is None or max(pixels.shape[:2]) > _MAX_SIDE[media_type]:
        return encode_png(pixels, text), None
    options: dict[str, Any] = {"quality": encoding.quality}
    if media_type == JPEG:
        options["subsampling"] = "4:4:4" if encoding.quality >= _FULL_COLOUR_FROM else "4:2:0"
    elif encoding.quality == LOSSLESS:
        options = {"lossless": True, **_LOSSLESS_EFFORT}
    if text:
        options["exif"] = _exif(text, max_bytes=_MAX_EXIF_BYTES[media_type])
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, media_type.partition("/")[2], **options)
    return file.getvalue(), media_type


def _exif(text: Mapping[str, str], *, max_bytes: int) -> Image.Exif:
    """With the texts for which there is room, the WebUI's and the graph first."""
    exif = Image.Exif()
    for tag, value in _tags(text):
        size = len(value) + _BYTES_OF_TAG
        if size > max_bytes:
            continue
        max_bytes -= size
        if tag == USER_COMMENT:
            exif.get_ifd(IFD.Exif)[tag] = value
        else:
            exif[tag] = value
    return exif


def _tags(text: Mapping[str, str]) -> Generator[tuple[int, str | bytes]]:
    if "parameters" in text:
        yield USER_COMMENT, user_comment(text["parameters"])
    if "prompt" in text:
        yield Base.Model, f"prompt:{text['prompt']}"
    others = sorted(text.keys() - {"parameters", "prompt"}, key=lambda name: name != "workflow")
    tags = chain((Base.Make, Base.ImageDescription, Base.DocumentName), _OWN_TAGS)
    for tag, name in zip(tags, others, strict=False):
        yield tag, f"{name}:{text[name]}"
