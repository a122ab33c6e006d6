"""Resizes images and latents."""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

Method: TypeAlias = Literal[
    "nearest",
    "nearest-exact",
    "bilinear",
    "bilinear antialiased",
    "area",
    "bicubic",
    "bicubic antialiased",
    "lanczos",
    "bislerp",
]
Crop: TypeAlias = Literal["disabled", "center"]

_NEARLY_PARALLEL = 1 - 1e-5


def resampled(samples: Tensor, width: int, height: int, *, method: str, crop: str) -> Tensor:
    """Resize (batch, channels, height, width) by a `Method` and a `Crop`.

    The crop "center" first cuts off the parts that do not fit the new proportions.
    """
    if crop == "center":
        samples = _centre(samples, width / height)
    match method:
        case "lanczos":
            return torch.stack([_lanczos(each, width, height) for each in samples])
        case "bislerp":
            wide = _along_rows(samples, width)
            return _along_rows(wide.transpose(-1, -2), height).transpose(-1, -2)
        case _:
            mode, _, antialiased = method.partition(" ")
            return functional.interpolate(
                samples, size=(height, width), mode=mode, antialias=bool(antialiased)
            )


def proportional_size(width: int, height: int, *, of: Tensor, least: int = 1) -> tuple[int, int]:
    """Return width and height. A side that is 0 is computed from the proportions of `of`."""
    old_height, old_width = of.shape[-2:]
    if width == 0:
        width = max(least, round(old_width * height / old_height))
    elif height == 0:
        height = max(least, round(old_height * width / old_width))
    return width, height


def _centre(samples: Tensor, ratio: float) -> Tensor:
    height, width = samples.shape[-2:]
    old_ratio = width / height
    x = max(0, round((width - width * (ratio / old_ratio)) / 2))
    y = max(0, round((height - height * (old_ratio / ratio)) / 2))
    x, y = min(x, (width - 1) // 2), min(y, (height - 1) // 2)  # At least one cell stays.
    return samples[..., y : height - y, x : width - x]


def _lanczos(samples: Tensor, width: int, height: int) -> Tensor:
    """Resize by Lanczos' filter. As in ComfyUI, values are first converted to 8 bits."""
    levels = (samples.movedim(0, -1) * 255.0).clamp(0, 255).to(torch.uint8).cpu().numpy()
    if levels.shape[-1] == 1:  # Pillow wants grey images without an axis for their channel.
        levels = levels[..., 0]
    resized = Image.fromarray(levels).resize((width, height), Image.Resampling.LANCZOS)
    found = torch.from_numpy(np.array(resized, dtype=np.float32) / 255.0)
    return found.reshape(height, width, -1).movedim(-1, 0)


def _along_rows(samples: Tensor, width: int) -> Tensor:
    """Resize rows by spherical linear interpolation (Shoemake 1985, "Animating rotation")."""
    old_width = samples.shape[-1]
    places = torch.arange(old_width, dtype=torch.float32)[None, None]
    places = functional.interpolate(places, size=width, mode="linear")[0, 0].to(samples.device)
    left = places.long()
    right = (left + 1).clamp(max=old_width - 1)
    return _slerp(samples[..., left], samples[..., right], places - left)


def _slerp(a: Tensor, b: Tensor, part: Tensor) -> Tensor:
    """Interpolate direction and length of the channels' vectors from `a` to `b` by `part`."""
    lengths = a.norm(dim=1, keepdim=True), b.norm(dim=1, keepdim=True)
    first, second = (
        torch.where(length > 0, each / length, 0.0)
        for each, length in zip((a, b), lengths, strict=True)
    )
    cosine = (first * second).sum(1, keepdim=True)
    angle = cosine.clamp(-1, 1).acos()
    direction = ((1 - part) * angle).sin() * first + (part * angle).sin() * second
    turned = direction / angle.sin() * lengths[0].lerp(lengths[1], part.expand_as(cosine))
    straight = a * (1 - part) + b * part
    turned = torch.where(cosine > _NEARLY_PARALLEL, a, turned)
    return torch.where(cosine < -_NEARLY_PARALLEL, straight, turned)
