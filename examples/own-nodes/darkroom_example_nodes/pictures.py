"""The computations of the nodes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.nn import functional

from engine.batcher import Request
from engine.diffusion.images.latents import Images


def falloff(width: int, height: int) -> Tensor:
    """Return a tensor (height, width) with values from 0 in the middle to 1 in the corners."""
    rows, columns = torch.linspace(-1, 1, height), torch.linspace(-1, 1, width)
    return (rows[:, None] ** 2 + columns[None] ** 2) / 2


@dataclass(slots=True, eq=False)
class BoxBlur(Request):
    """A request to replace each pixel of images by the mean of a square around the pixel."""

    images: Images
    radius: int
    device: torch.device

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        return len(self.images)

    @property
    def key(self) -> Hashable:
        return "box blur", self.radius, self.images.shape[1:]

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Images]:
        """Return the blurred images of each request, on the CPU."""
        device, radius = requests[0].device, requests[0].radius
        planes = torch.cat([each.images for each in requests]).to(device).movedim(-1, 1)
        framed = functional.pad(planes, (radius,) * 4, mode="replicate")
        means = functional.avg_pool2d(framed, 2 * radius + 1, stride=1).movedim(1, -1).cpu()
        return means.split([len(each.images) for each in requests])
