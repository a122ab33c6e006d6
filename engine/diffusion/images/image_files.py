"""Reads the image files that come with a job into tensors.

An upload is stored as a PNG of its pixels. So none of the other decoders of Pillow, some of which
start programs, gets a caller's bytes here.
"""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from engine.diffusion.images.latents import Images, Mask
from engine.errors import InputFileUnavailable
from engine.graph.limits import Limits

_NO_MASK_SIDE = 64
_SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L", "I;16N")


def read_images(content: bytes, name: str, limits: Limits) -> tuple[Images, Mask]:
    """The image as a batch of one, and its mask: 1 where it is transparent.

    Without transparency the mask is of zeros, 64 x 64. Raises InputFileUnavailable, TooLarge.
    """
    image = _read(content, name, limits)
    return _levels(image.convert("RGB"))[None], _mask(image)


def read_mask(content: bytes, name: str, *, channel: str, limits: Limits) -> Mask:
    """A channel of the image, (1, height, width); "alpha" is 1 where it is transparent.

    Raises InputFileUnavailable, TooLarge.
    """
    image = _read(content, name, limits)
    mask = _levels(image.convert("RGBA").getchannel(channel[0].upper()))[None]
    return 1.0 - mask if channel == "alpha" else mask


def _read(content: bytes, name: str, limits: Limits) -> Image.Image:
    """The image in its upright orientation, with 8 bits per channel."""
    try:
        file = Image.open(io.BytesIO(content), formats=["PNG"])
        limits.require_batch(1, width=file.width, height=file.height)
        upright = ImageOps.exif_transpose(file)
    except UnidentifiedImageError as error:
        raise InputFileUnavailable(f"{name} is no PNG.") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputFileUnavailable(f"The image {name} is damaged: {error}") from error
    if upright.mode in _SIXTEEN_BITS:
        # 257 would be right, but ComfyUI divides by 255, which makes its images a bit brighter.
        return Image.fromarray((np.asarray(upright) / 255).clip(0, 255).astype(np.uint8))
    return upright


def _mask(image: Image.Image) -> Mask:
    if not image.has_transparency_data:
        return torch.zeros(1, _NO_MASK_SIDE, _NO_MASK_SIDE)
    return 1.0 - _levels(image.convert("RGBA").getchannel("A"))[None]


def _levels(image: Image.Image) -> Tensor:
    """(height, width) or (height, width, channels) float32 of 0..1."""
    return torch.from_numpy(np.array(image, dtype=np.float32) / 255.0)
