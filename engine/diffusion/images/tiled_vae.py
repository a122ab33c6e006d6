"""Decodes and encodes tile by tile, for images that do not fit in memory at once."""

from __future__ import annotations

import torch
from torch import Tensor

from engine.batcher import Work
from engine.diffusion.conditioning.feathering import ramp
from engine.diffusion.images.latents import PIXELS_PER_LATENT, Images, Latent
from engine.diffusion.images.vae import Decode, Encode, Vae, cropped
from engine.graph.tiles import tiles_of, tilings


def decoded(vae: Vae, latent: Latent, *, tile: int, overlap: int) -> Work[Images]:
    """The images of a latent. `tile` and `overlap` are in cells of the latent."""
    images = []
    for samples in latent.samples.split(1):
        height, width = samples.shape[2:]
        mean = _Mean(3, height * PIXELS_PER_LATENT, width * PIXELS_PER_LATENT)
        for shape in tilings(tile):
            for rows, columns in tiles_of(width, height, tile=shape, overlap=overlap):
                part: Images = yield Decode(vae, samples[..., rows, columns], is_clamped=False)
                place = rows.start * PIXELS_PER_LATENT, columns.start * PIXELS_PER_LATENT
                mean.add(part.movedim(-1, 1), place, feather=overlap * PIXELS_PER_LATENT)
            mean.end_tiling()
        images.append(mean.planes.movedim(1, -1).clamp(0.0, 1.0))
    return torch.cat(images)


def encoded(vae: Vae, images: Images, *, tile: int, overlap: int) -> Work[Latent]:
    """The latent of images, which are cropped. `tile` and `overlap` are in cells of it."""
    latents = []
    for image in cropped(images).split(1):
        height, width = (side // PIXELS_PER_LATENT for side in image.shape[1:3])
        mean = _Mean(vae.channels, height, width)
        for shape in tilings(tile):
            for rows, columns in tiles_of(width, height, tile=shape, overlap=overlap):
                part: Tensor = yield Encode(vae, image[:, _pixels(rows), _pixels(columns)])
                mean.add(part.cpu(), (rows.start, columns.start), feather=overlap)
            mean.end_tiling()
        latents.append(mean.planes)
    return Latent(torch.cat(latents))


def _pixels(cells: slice) -> slice:
    return slice(cells.start * PIXELS_PER_LATENT, cells.stop * PIXELS_PER_LATENT)


class _Mean:
    """The mean of several tilings of planes (1, channels, height, width)."""

    def __init__(self, channels: int, height: int, width: int) -> None:
        self._ended = torch.zeros(1, channels, height, width)
        self._count = 0
        self._sum = torch.zeros_like(self._ended)
        self._weights = torch.zeros(height, width)

    @property
    def planes(self) -> Tensor:
        return self._ended / self._count

    def add(self, part: Tensor, place: tuple[int, int], *, feather: int) -> None:
        """A tile with its top left corner at that row and column, and soft sides."""
        (top, left), (height, width) = place, part.shape[2:]
        rows, columns = slice(top, top + height), slice(left, left + width)
        weight = _soft(height, feather)[:, None] * _soft(width, feather)
        self._sum[..., rows, columns] += part * weight
        self._weights[rows, columns] += weight

    def end_tiling(self) -> None:
        """The next tile belongs to another tiling."""
        self._ended += self._sum / self._weights
        self._count += 1
        self._sum.zero_()
        self._weights.zero_()


def _soft(length: int, feather: int) -> Tensor:
    if feather >= length:
        return torch.ones(length)
    return ramp(length, feather, first=True, last=True)
