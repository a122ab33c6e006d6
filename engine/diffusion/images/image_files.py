"""Reads the image files that come with a job into tensors."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import torch
from PIL import Image, ImageOps, ImageSequence, UnidentifiedImageError
from torch import Tensor

from engine.diffusion.images.latents import Images, Mask
from engine.errors import InputFileUnavailable
from engine.graph.limits import Limits

_NO_MASK_SIDE = 64
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP")
"""Only some of the formats that Pillow reads: for others it starts programs."""
_FIRST_FRAME_ONLY = "MPO"
"""The further frames of this format are other views of the same moment."""
_SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L", "I;16N")


def read_images(content: bytes, name: str, limits: Limits) -> tuple[Images, Mask]:
    """All frames with the size of the first, and their masks: 1 where a frame is transparent.

    A file without transparency has masks of zeros, 64 x 64. Raises InputFileUnavailable, TooLarge.
    """
    frames: list[Image.Image] = []
    for frame in _frames(content, name):
        limits.require_batch(len(frames) + 1, width=frame.width, height=frame.height)
        upright = _decoded(frame, name)
        if not frames or upright.size == frames[0].size:
            frames.append(upright)
    images = torch.stack([_levels(each.convert("RGB")) for each in frames])
    return images, _masks(frames)


def read_mask(content: bytes, name: str, *, channel: str, limits: Limits) -> Mask:
    """A channel of the first frame, (1, height, width); "alpha" is 1 where it is transparent.

    Raises InputFileUnavailable, TooLarge.
    """
    frame = next(_frames(content, name))
    limits.require_batch(1, width=frame.width, height=frame.height)
    plane = _decoded(frame, name).convert("RGBA").getchannel(channel[0].upper())
    mask = _levels(plane)[None]
    return 1.0 - mask if channel == "alpha" else mask


def _frames(content: bytes, name: str) -> Iterator[Image.Image]:
    """The frames of a file, whose pixels are not decoded yet."""
    try:
        file = Image.open(io.BytesIO(content), formats=_FORMATS)
        for frame in ImageSequence.Iterator(file):
            yield frame
            if file.format == _FIRST_FRAME_ONLY:
                return
    except UnidentifiedImageError as error:
        raise InputFileUnavailable(f"{name} is no image of a kind that can be read.") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputFileUnavailable(f"The image {name} is damaged: {error}") from error


def _decoded(frame: Image.Image, name: str) -> Image.Image:
    """The frame in its upright orientation, with 8 bits per channel."""
    try:
        upright = ImageOps.exif_transpose(frame)
    except (OSError, SyntaxError, ValueError) as error:
        raise InputFileUnavailable(f"The image {name} is damaged: {error}") from error
    if upright.mode in _SIXTEEN_BITS:
        # 257 would be right, but ComfyUI divides by 255, which makes its images a bit brighter.
        return Image.fromarray((np.asarray(upright) / 255).clip(0, 255).astype(np.uint8))
    return upright


def _masks(frames: list[Image.Image]) -> Mask:
    if not any(_has_alpha(each) for each in frames):
        return torch.zeros(len(frames), _NO_MASK_SIDE, _NO_MASK_SIDE)
    return torch.stack([1.0 - _levels(each.convert("RGBA").getchannel("A")) for each in frames])


def _has_alpha(image: Image.Image) -> bool:
    return "A" in image.getbands() or (image.mode == "P" and "transparency" in image.info)


def _levels(image: Image.Image) -> Tensor:
    """(height, width) or (height, width, channels) float32 of 0..1."""
    return torch.from_numpy(np.array(image, dtype=np.float32) / 255.0)
