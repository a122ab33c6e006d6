"""Resizes and blurs images as planes of integer levels.

Planes are (channels, height, width) of 0..255 in float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Self, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from engine.batcher import Request
from engine.diffusion.images.latents import Images

Change: TypeAlias = Callable[[Tensor], Tensor]
_TRUNCATED_AT = 4.0


@dataclass(slots=True, eq=False)
class Preprocess(Request):
    """Applies `change` to the planes of one image (1, height, width, 3) on the device."""

    image: Images
    change: Change
    device: torch.device
    rows: int = 1

    @property
    def key(self) -> Hashable:
        return self

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Images]:
        """Return the changed image. A grey plane becomes three equal channels."""
        request = requests[0]
        levels = (request.image[0].movedim(-1, 0) * 255.0).to(torch.uint8)
        changed = request.change(levels.to(request.device, torch.float32))
        return [changed.expand(3, -1, -1).movedim(0, -1)[None].cpu().contiguous() / 255.0]


def sides_at(width: int, height: int, resolution: int) -> tuple[int, int]:
    """Return width and height of an image after its shorter side is resized to `resolution`."""
    scale = resolution / min(width, height)
    return max(1, round(width * scale)), max(1, round(height * scale))


def at_resolution(planes: Tensor, resolution: int, *, upscaled_by_area: bool = False) -> Tensor:
    """Resize planes so that their shorter side is `resolution`."""
    height, width = planes.shape[1:]
    own_width, own_height = sides_at(width, height, resolution)
    if upscaled_by_area or own_height <= height:
        return by_area(planes, own_width, own_height)
    return cubic(planes, own_width, own_height)


def by_area(planes: Tensor, width: int, height: int) -> Tensor:
    """Resize planes. Each new pixel is the mean of the area that it covers."""
    resized = _along_last(_along_last(planes, width).transpose(1, 2), height).transpose(1, 2)
    return resized.round()


def _along_last(planes: Tensor, size: int) -> Tensor:
    """Average the last dimension to `size` pixels, by differences of the cumulative sum."""
    length = planes.shape[-1]
    edges = torch.arange(size + 1, device=planes.device, dtype=torch.float64) * (length / size)
    left = edges.long().clamp(max=length - 1)
    sums = functional.pad(planes.double().cumsum(-1), (1, 0))
    up_to_edges = sums[..., left] + planes.double()[..., left] * (edges - left)
    return (up_to_edges.diff(dim=-1) * (size / length)).float()


def cubic(planes: Tensor, width: int, height: int) -> Tensor:
    resized = functional.interpolate(planes[None], size=(height, width), mode="bicubic")[0]
    return resized.clamp(0, 255).round()


def blurred(planes: Tensor, sigma: float) -> Tensor:
    """Blur planes by a Gaussian function. Planes are mirrored at their edges."""
    radius = round(_TRUNCATED_AT * sigma)
    if sigma <= 0 or radius == 0:
        return planes
    offsets = torch.arange(-radius, radius + 1, device=planes.device, dtype=torch.float32)
    weights = (-(offsets**2) / (2 * sigma**2)).exp()
    kernel = (weights / weights.sum()).view(1, 1, 1, -1)
    for _ in range(2):
        framed = _mirrored(planes[:, None], radius)
        planes = functional.conv2d(framed, kernel)[:, 0].transpose(1, 2)
    return planes


def _mirrored(planes: Tensor, radius: int) -> Tensor:
    """Return planes padded at the left and the right by repeated mirroring."""
    length = planes.shape[-1]
    positions = torch.arange(-radius, length + radius, device=planes.device)
    period = max(1, 2 * (length - 1))
    folded = positions % period
    return planes[..., torch.minimum(folded, period - folded).clamp(max=length - 1)]


def grey(planes: Tensor) -> Tensor:
    """Return the brightness of colours, (1, height, width), by ITU-R BT.601."""
    weights = planes.new_tensor([0.299, 0.587, 0.114])
    return (planes * weights[:, None, None]).sum(0, keepdim=True).round()


def enlarged(planes: Tensor) -> Tensor:
    """Return planes of twice the size (Burt and Adelson 1983, "The Laplacian Pyramid")."""
    for _ in range(2):
        before = torch.cat([planes[..., 1:2] if planes.shape[-1] > 1 else planes, planes], -1)
        after = torch.cat([planes, planes[..., -1:]], -1)[..., 1:]
        even = (before[..., :-1] + 6 * planes + after) / 8
        odd = (planes + after) / 2
        planes = torch.stack([even, odd], -1).flatten(-2).transpose(1, 2)
    return (planes + 0.5).floor()


def median(values: Tensor) -> float:
    """Return the median (of two middle values: the mean), or nan if there are no values."""
    if not len(values):
        return math.nan
    ordered, middle = values.sort().values, len(values) // 2
    if len(values) % 2:
        return float(ordered[middle])
    return float(ordered[middle - 1 : middle + 1].mean())
