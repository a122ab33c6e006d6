"""Upscale models: reads them from files and runs them in tiles, so that large images fit."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from engine.batcher import Request, Work
from engine.diffusion.conditioning.feathering import ramp
from engine.diffusion.images.latents import Images
from engine.diffusion.images.upscale_networks import UpscaleNetwork, network_of
from engine.diffusion.out_of_memory import memory_checked
from engine.errors import CheckpointUnavailable, OutOfMemory
from engine.graph.limits import Limits
from engine.stages import Stage

_LARGEST_TILE = 512
_SMALLEST_TILE = 128
_OVERLAP = 32
_PIXELS_PER_ROW = 8192


def read_upscale_model(path: Path, device: torch.device) -> UpscaleNetwork:
    """The network in float32; raises CheckpointUnavailable."""
    try:
        network = network_of(load_file(path))
    except (SafetensorError, OSError, ValueError, RuntimeError, KeyError) as error:
        raise CheckpointUnavailable(f"The upscale model {path.name} is damaged: {error}") from error
    if network is None:
        raise CheckpointUnavailable(
            f"{path.name} is no upscale model of a supported kind: ESRGAN and Real-ESRGAN are."
        )
    return network.to(device, torch.float32).eval().requires_grad_(False)


@dataclass(slots=True, eq=False)
class Upscale(Request):
    """Enlarges a tile (1, 3, height, width). Only small tiles gain from sharing a call."""

    stage: ClassVar[Stage | None] = Stage.UPSCALE
    network: UpscaleNetwork
    tile: Tensor

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        height, width = self.tile.shape[-2:]
        return max(1, height * width // _PIXELS_PER_ROW)

    @property
    def key(self) -> Hashable:
        return "upscale", id(self.network), self.tile.shape

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Tensor]:
        """The enlarged tiles, (1, 3, height, width) on the CPU."""
        network = requests[0].network
        device = next(network.parameters()).device
        with memory_checked():
            enlarged: Tensor = network(torch.cat([each.tile for each in requests]).to(device))
            return list(enlarged.cpu().split(1))


def upscaled(network: UpscaleNetwork, images: Images, limits: Limits) -> Work[Images]:
    """Enlarge images, one after the other; raises TooLarge, OutOfMemory."""
    count, height, width, _ = images.shape
    scale = network.scale
    limits.require_batch(count, width=width * scale, height=height * scale)
    found: list[Images] = []
    for image in images.movedim(-1, 1).split(1):
        enlarged = yield from _in_tiles_that_fit(network, image)
        found.append(enlarged.clamp(0, 1).movedim(1, -1))
    return torch.cat(found)


def _in_tiles_that_fit(network: UpscaleNetwork, image: Tensor) -> Work[Tensor]:
    side = _LARGEST_TILE
    while True:
        try:
            return (yield from _in_tiles(network, image, side))
        except OutOfMemory:
            side //= 2
            if side < _SMALLEST_TILE:
                raise


def _in_tiles(network: UpscaleNetwork, image: Tensor, side: int) -> Work[Tensor]:
    """Enlarge an image in tiles with sides up to `side`, and blend them where they overlap."""
    scale = network.scale
    feather = _OVERLAP * scale
    height, width = (length * scale for length in image.shape[-2:])
    total, weight = (
        image.new_zeros(1, image.shape[1], height, width),
        image.new_zeros(height, width),
    )
    for y in _starts(image.shape[-2], side):
        for x in _starts(image.shape[-1], side):
            tile: Tensor = yield Upscale(network, image[..., y : y + side, x : x + side])
            shares = [ramp(length, feather, first=True, last=True) for length in tile.shape[-2:]]
            share = torch.outer(*shares)
            rows = slice(y * scale, y * scale + len(share))
            columns = slice(x * scale, x * scale + share.shape[1])
            total[..., rows, columns] += tile * share
            weight[rows, columns] += share
    return total / weight


def _starts(length: int, side: int) -> Iterator[int]:
    if length <= side:
        yield 0
    else:
        yield from range(0, length - _OVERLAP, side - _OVERLAP)
