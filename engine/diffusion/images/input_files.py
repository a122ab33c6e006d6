"""Reads the image and latent files of a job into tensors.

Uploads are stored as PNG files, so only Pillow's PNG decoder is used here. Some other decoders of
Pillow start programs and must not get a caller's bytes. Latents are safetensors files in the format
of ComfyUI's SaveLatent.
"""

from __future__ import annotations

import io

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from engine.diffusion.images.latents import (
    CHANNELS,
    FLUX_CHANNELS,
    PIXELS_PER_LATENT,
    Images,
    Latent,
    Mask,
)
from engine.errors import InputFileUnavailable
from engine.graph.limits import Limits

_NO_MASK_SIDE = 64
_SIXTEEN_BITS = ("I", "I;16", "I;16B", "I;16L", "I;16N")


def read_images(content: bytes, name: str, limits: Limits) -> tuple[Images, Mask]:
    """Return the image as a batch of one, and its mask, which is 1 where the image is transparent.

    If the image has no transparency, the mask is 64 x 64 zeros. Raises InputFileUnavailable,
    TooLarge.
    """
    image = _read(content, name, limits)
    return _levels(image.convert("RGB"))[None], _mask(image)


def read_mask(content: bytes, name: str, *, channel: str, limits: Limits) -> Mask:
    """Return a channel of the image, (1, height, width).

    The mask for "alpha" is 1 where the image is transparent. Raises InputFileUnavailable, TooLarge.
    """
    image = _read(content, name, limits)
    mask = _levels(image.convert("RGBA").getchannel(channel[0].upper()))[None]
    return 1.0 - mask if channel == "alpha" else mask


def _read(content: bytes, name: str, limits: Limits) -> Image.Image:
    """Return the image in its upright orientation, with 8 bits per channel."""
    try:
        file = Image.open(io.BytesIO(content), formats=["PNG"])
        limits.require_batch(1, width=file.width, height=file.height)
        upright = ImageOps.exif_transpose(file)
    except UnidentifiedImageError as error:
        raise InputFileUnavailable(f"{name} is not a PNG.") from error
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise InputFileUnavailable(f"The image {name} is damaged: {error}") from error
    if upright.mode in _SIXTEEN_BITS:
        # The exact divisor is 257. ComfyUI divides by 255, which makes images slightly brighter.
        return Image.fromarray((np.asarray(upright) / 255).clip(0, 255).astype(np.uint8))
    return upright


def _mask(image: Image.Image) -> Mask:
    if not image.has_transparency_data:
        return torch.zeros(1, _NO_MASK_SIDE, _NO_MASK_SIDE)
    return 1.0 - _levels(image.convert("RGBA").getchannel("A"))[None]


def _levels(image: Image.Image) -> Tensor:
    """Return (height, width) or (height, width, channels) float32 of 0..1."""
    return torch.from_numpy(np.array(image, dtype=np.float32) / 255.0)


_CHANNELS = {CHANNELS, FLUX_CHANNELS}
_TENSOR = "latent_tensor"
_VERSION = "latent_format_version_0"
_FIRST_SCALE = 0.18215
"""Latents in files without a version have been multiplied by this factor."""


def read_latent(content: bytes, name: str, limits: Limits) -> Latent:
    """Return the latent in a file. Raises InputFileUnavailable, TooLarge."""
    try:
        tensors = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise InputFileUnavailable(f"{name} is not a latent: {error}") from error
    samples = tensors.get(_TENSOR)
    if (
        samples is None
        or samples.ndim != 4
        or samples.shape[1] not in _CHANNELS
        or not len(samples)
    ):
        shape = "no" if samples is None else f"{tuple(samples.shape)} as its"
        raise InputFileUnavailable(
            f"{name} has {shape} {_TENSOR}; it must be (batch, 4 or 16, height, width)."
        )
    height, width = (side * PIXELS_PER_LATENT for side in samples.shape[-2:])
    limits.require_batch(len(samples), width=width, height=height)
    return Latent(samples.float() / (1.0 if _VERSION in tensors else _FIRST_SCALE))
