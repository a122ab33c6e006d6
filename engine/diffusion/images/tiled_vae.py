"""Decodes and encodes tile by tile, for images that do not fit in memory at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from engine.batcher import Work
from engine.diffusion.conditioning.feathering import ramp
from engine.diffusion.images.latents import PIXELS_PER_LATENT, Images, Latent
from engine.diffusion.images.vae import Decode, Encode, Vae, cropped
from engine.errors import OutOfMemory
from engine.graph.tiles import tiles_of, tilings

T = TypeVar("T")
_TILES = (64, 32)
"""Sides in cells of the latent, tried one after the other where memory runs out."""
_OVERLAP = 8


def decoded_within_memory(vae: Vae, latent: Latent, on_tiled: Callable[[], None]) -> Work[Images]:
    """The images of a latent, decoded one after the other; tile by tile where memory runs out.

    `on_tiled` is called then. Raises OutOfMemory where that does not help.
    """
    images: list[Images] = []
    for samples in latent.samples.split(1):
        try:
            # Only the first goes ahead: others take steps between the images of a batch.
            images.append((yield Decode(vae, samples, goes_ahead=not images)))
            continue
        except OutOfMemory:
            pass  # it holds what the call had in memory, so it is let go of first

        def in_tiles(tile: int, samples: Tensor = samples) -> Work[Images]:
            return decoded(vae, Latent(samples), tile=tile, overlap=_OVERLAP)

        images.append((yield from _tiled(samples.shape[2:], in_tiles)))
        on_tiled()
    return torch.cat(images)


def encoded_within_memory(vae: Vae, images: Images, on_tiled: Callable[[], None]) -> Work[Latent]:
    """The latent of images, cropped (see `cropped`); otherwise as `decoded_within_memory`."""
    samples: list[Tensor] = []
    for image in cropped(images).split(1):
        try:
            samples.append((yield Encode(vae, image, goes_ahead=not samples)))
            continue
        except OutOfMemory:
            pass  # as above

        def in_tiles(tile: int, image: Images = image) -> Work[Latent]:
            return encoded(vae, image, tile=tile, overlap=_OVERLAP)

        cells = [side // PIXELS_PER_LATENT for side in image.shape[1:3]]
        latent = yield from _tiled(cells, in_tiles)
        samples.append(latent.samples)
        on_tiled()
    return Latent(torch.cat(samples))


def _tiled(cells: Sequence[int], work: Callable[[int], Work[T]]) -> Work[T]:
    """The work tile by tile, with the largest tiles for which there is memory.

    Raises OutOfMemory where there are none that are smaller than the whole, which is that high and
    that wide.
    """
    height, width = cells
    for tile in _TILES:
        if 2 * tile**2 <= height * width:
            try:
                return (yield from work(tile))
            except OutOfMemory:
                continue
    raise OutOfMemory


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
