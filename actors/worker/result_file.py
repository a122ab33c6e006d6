"""Encodes results as files: images as PNG, WebP or JPEG, and latents as safetensors.

The metadata in a file states how its image or latent was made. In JPEG and WebP files the metadata
is in the EXIF tags that ComfyUI and the WebUI use:

- The graph is in `Model`, as `prompt:{...}`.
- Additional data of a front end is in `Make` and further tags.
- The WebUI's `parameters` are in the user comment.
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
from PIL.PngImagePlugin import PngInfo
from safetensors.numpy import save

from engine.interface import ImageReady, LatentReady, ResultReady, TextReady
from storage.file_names import JPEG, PNG, SAFETENSORS, TEXT, WEBP

LOSSLESS = 100
_LOSSLESS_EFFORT = {"method": 2, "quality": 50}
_FULL_COLOUR_FROM = 90
"""Lowest quality with which a JPEG stores colour at full resolution."""
_MAX_SIDE = {WEBP: 16_383, JPEG: 65_535}
_COLOURS = 3
"""The number of channels of an image without an opacity."""
_MAX_EXIF_BYTES = {WEBP: 2**20, JPEG: 65_000}
"""Largest size of EXIF in bytes. A JPEG stores EXIF in one segment with a length of 16 bits."""
_BYTES_OF_TAG = 32
_OWN_TAGS = range(65_000, 65_536)
"""Tags of the range that TIFF leaves to private use."""
_USER_COMMENT_CODE = b"UNICODE\0"
"""The character code before the text of a user comment in EXIF."""
_PNG_COMPRESSION = 4
_PIXELS_PER_CELL = 8
_MOST_TEXT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class ImageEncoding:
    media_type: str | None = None
    """The media type of WebP or JPEG, or None for PNG."""
    quality: int = LOSSLESS
    """From 1 to 100. A PNG has no quality, and a WebP with quality 100 is lossless."""

    @classmethod
    def asked(cls, image_format: str | None, quality: int | None) -> ImageEncoding:
        """Return the encoding for the values in `Submitted`. An unknown format becomes PNG."""
        media_type = {"webp": WEBP, "jpeg": JPEG}.get(image_format or "")
        return cls(media_type, quality or LOSSLESS)


AS_PNG = ImageEncoding()


@dataclass(frozen=True, slots=True)
class FileReady:
    """A finished file of any kind, from an engine that encodes its results itself."""

    index: int
    node_id: str
    content: bytes
    media_type: str
    seed: int | None = None


@dataclass(frozen=True, slots=True)
class ResultFile:
    content: bytes
    width: int
    """Width in pixels; 0 if the file has none."""
    height: int
    media_type: str | None = None
    """None means PNG."""
    text: str | None = None
    """The content of a plain text of at most `_MOST_TEXT_BYTES`."""


def encode_result(
    result: ResultReady | FileReady,
    text: Mapping[str, str],
    encoding: ImageEncoding = AS_PNG,
) -> ResultFile:
    """Encode a result with the metadata `text`. `encoding` applies to images only.

    A text has no metadata. A finished file stays as it is.
    """
    match result:
        case ImageReady(pixels=pixels):
            height, width, _ = pixels.shape
            content, media_type = encode_image(pixels, text, encoding)
            return ResultFile(content, width, height, media_type)
        case LatentReady(samples=samples):
            height, width = (side * _PIXELS_PER_CELL for side in samples.shape[-2:])
            return ResultFile(_encode_latent(samples, text), width, height, SAFETENSORS)
        case TextReady(text=found):
            content = found.encode()
            return ResultFile(content, 0, 0, TEXT, _text_of(content))
        case FileReady(content=content, media_type=media_type):
            width, height = _size_of(content) if media_type.startswith("image/") else (0, 0)
            return ResultFile(
                content,
                width,
                height,
                None if media_type == PNG else media_type,
                _text_of(content) if media_type == TEXT else None,
            )


def _size_of(content: bytes) -> tuple[int, int]:
    """Return the width and height of an image, or zeros if Pillow cannot read it."""
    try:
        with Image.open(io.BytesIO(content)) as image:
            return image.size
    except (OSError, ValueError, Image.DecompressionBombError):
        return 0, 0


def _text_of(content: bytes) -> str | None:
    if len(content) > _MOST_TEXT_BYTES:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError:
        return None


def _encode_latent(samples: NDArray[np.float32], text: Mapping[str, str]) -> bytes:
    """Encode a latent as ComfyUI does."""
    tensors = {
        "latent_tensor": np.ascontiguousarray(samples),
        # This empty tensor marks samples that are not multiplied by the scale factor of the VAE.
        "latent_format_version_0": np.zeros(0, np.float32),
    }
    return save(tensors, metadata=dict(text))


def encode_image(
    pixels: NDArray[np.uint8], text: Mapping[str, str], encoding: ImageEncoding
) -> tuple[bytes, str | None]:
    """Encode `pixels` of the shape (height, width, 3 or 4). Returns the file, and its media type or
    None for a PNG. An image that is too large for its format, or transparent and a JPEG, becomes a
    PNG.
    """
    media_type = encoding.media_type
    if (
        media_type is None
        or max(pixels.shape[:2]) > _MAX_SIDE[media_type]
        or (media_type == JPEG and pixels.shape[2] > _COLOURS)
    ):
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
    """Make EXIF with the texts that fit. The WebUI's text and the graph are added first."""
    exif = Image.Exif()
    for tag, value in _tags(text):
        size = len(value) + _BYTES_OF_TAG
        if size > max_bytes:
            continue
        max_bytes -= size
        if tag == Base.UserComment:
            exif.get_ifd(IFD.Exif)[tag] = value
        else:
            exif[tag] = value
    return exif


def _tags(text: Mapping[str, str]) -> Generator[tuple[int, str | bytes]]:
    if "parameters" in text:
        comment = text["parameters"].encode("utf-16-be", "surrogatepass")
        yield Base.UserComment, _USER_COMMENT_CODE + comment
    if "prompt" in text:
        yield Base.Model, f"prompt:{text['prompt']}"
    others = sorted(text.keys() - {"parameters", "prompt"}, key=lambda name: name != "workflow")
    tags = chain((Base.Make, Base.ImageDescription, Base.DocumentName), _OWN_TAGS)
    for tag, name in zip(tags, others, strict=False):
        yield tag, f"{name}:{text[name]}"


def encode_png(pixels: NDArray[np.uint8], text: Mapping[str, str]) -> bytes:
    """Encode `pixels` of the shape (height, width, 3 or 4).

    Pillow stores a text as iTXt if it is not Latin-1.
    """
    info = PngInfo()
    for name, value in text.items():
        info.add_text(name[:79], value)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", pnginfo=info, compress_level=_PNG_COMPRESSION)
    return file.getvalue()
