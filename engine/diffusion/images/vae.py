"""Decodes latents to images and encodes images to latents.

An image that does not fit in memory is processed in overlapping tiles, which are then blended.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor
from torch.nn import functional

from engine.batcher import Request, Work
from engine.diffusion.device_error import memory_checked
from engine.diffusion.images.compositing import ramp
from engine.diffusion.images.latents import PIXELS_PER_LATENT, Images, Latent, Mask
from engine.errors import EngineError, OutOfMemory
from engine.graph.tiles import tiles_of, tilings
from engine.stages import Stage

_CELLS_PER_ROW = 128
_GREY = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Vae:
    """An autoencoder, in float32."""

    autoencoder: Any

    @property
    def channels(self) -> int:
        """The number of channels of the VAE's latents."""
        found: int = self.autoencoder.config.latent_channels
        return found

    def require_own(self, samples: Tensor) -> None:
        """Raise EngineError for latents with another number of channels."""
        if samples.shape[1] != self.channels:
            raise EngineError(
                f"the latent has {samples.shape[1]} channels, but the VAE needs {self.channels}: "
                "use the VAE of the model that made the latent"
            )

    @property
    def device(self) -> torch.device:
        # diffusers' own property iterates over all layers and takes a millisecond.
        weight: Tensor = next(self.autoencoder.parameters())
        return weight.device


@dataclass(slots=True, eq=False)
class Decode(Request):
    """Decodes one latent (1, channels, h, w).

    Only small latents become faster in a shared call. A large latent counts as many rows, so that
    the steps of other jobs can run between the images of a batch.
    """

    stage: ClassVar[Stage | None] = Stage.VAE
    vae: Vae
    samples: Tensor
    is_urgent: bool = False
    is_clamped: bool = True
    """If false, values outside of 0..1 are kept, so that the mean of several tiles is exact."""

    def __post_init__(self) -> None:
        self.vae.require_own(self.samples)

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        height, width = self.samples.shape[2:]
        return max(1, height * width // _CELLS_PER_ROW)

    @property
    def key(self) -> Hashable:
        return "decode", id(self.vae.autoencoder), self.samples.shape

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Images]:
        """Return the images, (1, height, width, 3) of 0..1, on the CPU."""
        vae, device = requests[0].vae, requests[0].vae.device
        with memory_checked():
            samples = torch.cat([request.samples.to(device) for request in requests])
            decoded: Tensor = vae.autoencoder.decode(samples, return_dict=False)[0]
            images = ((decoded + 1.0) / 2.0).movedim(1, -1).cpu().split(1)
            return [
                each.clamp(0.0, 1.0) if request.is_clamped else each
                for request, each in zip(requests, images, strict=True)
            ]


@dataclass(slots=True, eq=False)
class Encode(Request):
    """Encodes one image (1, height, width, 3), whose sides are multiples of 8."""

    stage: ClassVar[Stage | None] = Stage.VAE
    vae: Vae
    image: Images
    is_urgent: bool = False

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        height, width = self.image.shape[1:3]
        return max(1, height * width // (_CELLS_PER_ROW * PIXELS_PER_LATENT**2))

    @property
    def key(self) -> Hashable:
        return "encode", id(self.vae.autoencoder), self.image.shape

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Tensor]:
        """Return the latents, (1, channels, h, w): the modes of the encoder's distributions.

        Each image is encoded by itself. The normalization of a flat image enlarges rounding errors,
        so a batch of several images would make its latent depend on the other images.
        """
        vae, found = requests[0].vae, []
        with memory_checked():
            for request in requests:
                pixels = request.image.to(vae.device).movedim(-1, 1) * 2.0 - 1.0
                encoded = vae.autoencoder.encode(pixels, return_dict=False)[0]
                found.append(encoded.mode())
        return found


def cropped(planes: Tensor) -> Tensor:
    """Crop (batch, height, width, ...) at the centre to sides that are multiples of 8.

    Raises EngineError for sides below 8.
    """
    if min(planes.shape[1:3]) < PIXELS_PER_LATENT:
        raise EngineError(
            f"An image with a side of less than {PIXELS_PER_LATENT} pixels cannot be encoded."
        )
    for side in (1, 2):
        length = planes.shape[side]
        kept = length - length % PIXELS_PER_LATENT
        planes = planes.narrow(side, (length - kept) // 2, kept)
    return planes


def prepared_for_inpainting(images: Images, mask: Mask, grow_by: int) -> tuple[Images, Mask]:
    """Make images grey where the mask is 1, and grow the mask by `grow_by` pixels; see `greyed`."""
    images, mask = greyed(images, mask)
    return images, _grown(mask.round(), grow_by)


def greyed(images: Images, mask: Mask) -> tuple[Images, Mask]:
    """Make images grey where the mask rounds to 1. Returns also the mask in the images' size.

    Images and mask are cropped; see `cropped`. Raises EngineError unless there is one mask, or one
    mask for each image.
    """
    size = images.shape[1:3]
    if (masks := mask[..., 0, 0].numel()) not in {1, len(images)}:
        raise EngineError(
            f"the number of masks ({masks}) does not fit the number of images ({len(images)})."
        )
    mask = functional.interpolate(mask.reshape(-1, 1, *mask.shape[-2:]), size=size, mode="bilinear")
    images, mask = cropped(images), cropped(mask[:, 0])
    return (images - _GREY) * (1 - mask.round())[..., None] + _GREY, mask


def _grown(mask: Mask, by: int) -> Mask:
    """Return the maximum in a square around each pixel. `by` is the side of the square in pixels.

    An even `by` grows the mask further down and right. Pooling columns and then rows is much faster
    than pooling squares, with the same result.
    """
    if by == 0:
        return mask
    height, width = mask.shape[1:]
    padding = math.ceil((by - 1) / 2)
    columns = functional.max_pool2d(mask[:, None], (by, 1), stride=1, padding=(padding, 0))
    touched = functional.max_pool2d(columns, (1, by), stride=1, padding=(0, padding))
    return touched[:, 0, :height, :width].clamp(0, 1)


T = TypeVar("T")
_TILES = (64, 32)
"""Sides of tiles in cells of the latent. If memory runs out, the sides are tried in this order."""
_OVERLAP = 8


def decoded_within_memory(vae: Vae, latent: Latent, on_tiled: Callable[[], None]) -> Work[Images]:
    """Decode the images of a latent one after the other.

    If memory runs out, the image is decoded tile by tile and `on_tiled` is called. Raises
    OutOfMemory if the smallest tiles do not fit either.
    """
    images: list[Images] = []
    for samples in latent.samples.split(1):
        try:
            # Only the first image has `is_urgent`, so that other runs can make steps between the
            # images.
            images.append((yield Decode(vae, samples, is_urgent=not images)))
            continue
        except OutOfMemory:
            # The traceback of the error keeps the tensors of the failed call in memory until the
            # end of this block. So tiling begins only after this block.
            pass

        def in_tiles(tile: int, samples: Tensor = samples) -> Work[Images]:
            return decoded(vae, Latent(samples), tile=tile, overlap=_OVERLAP)

        images.append((yield from _tiled(samples.shape[2:], in_tiles)))
        on_tiled()
    return torch.cat(images)


def encoded_within_memory(vae: Vae, images: Images, on_tiled: Callable[[], None]) -> Work[Latent]:
    """Crop images and encode them. Tiles and errors are as in `decoded_within_memory`."""
    samples: list[Tensor] = []
    for image in cropped(images).split(1):
        try:
            samples.append((yield Encode(vae, image, is_urgent=not samples)))
            continue
        except OutOfMemory:
            pass  # Tiling begins after this block, as in `decoded_within_memory`.

        def in_tiles(tile: int, image: Images = image) -> Work[Latent]:
            return encoded(vae, image, tile=tile, overlap=_OVERLAP)

        cells = [side // PIXELS_PER_LATENT for side in image.shape[1:3]]
        latent = yield from _tiled(cells, in_tiles)
        samples.append(latent.samples)
        on_tiled()
    return Latent(torch.cat(samples))


def _tiled(cells: Sequence[int], work: Callable[[int], Work[T]]) -> Work[T]:
    """Run `work` with the largest tiles that fit into memory.

    `cells` are the height and width of the whole latent. Raises OutOfMemory if no tile fits.
    """
    height, width = cells
    for tile in _TILES:
        # A tile of more than half the image would need about as much memory as the whole image.
        if 2 * tile**2 <= height * width:
            try:
                return (yield from work(tile))
            except OutOfMemory:
                continue
    raise OutOfMemory


def decoded(vae: Vae, latent: Latent, *, tile: int, overlap: int) -> Work[Images]:
    """Decode a latent tile by tile. `tile` and `overlap` are in cells of the latent."""
    images = []
    for samples in latent.samples.split(1):
        height, width = samples.shape[2:]
        mean = _Mean(3, height * PIXELS_PER_LATENT, width * PIXELS_PER_LATENT)
        for shape in tilings(tile):
            for rows, columns in tiles_of(width, height, tile=shape, overlap=overlap):
                part: Images = yield Decode(vae, samples[..., rows, columns], is_clamped=False)
                corner = rows.start * PIXELS_PER_LATENT, columns.start * PIXELS_PER_LATENT
                mean.add(part.movedim(-1, 1), corner, feather=overlap * PIXELS_PER_LATENT)
            mean.end_tiling()
        images.append(mean.planes.movedim(1, -1).clamp(0.0, 1.0))
    return torch.cat(images)


def encoded(vae: Vae, images: Images, *, tile: int, overlap: int) -> Work[Latent]:
    """Crop images and encode them tile by tile. `tile` and `overlap` are in cells of the latent."""
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

    def add(self, part: Tensor, corner: tuple[int, int], *, feather: int) -> None:
        """Add a tile with soft sides. `corner` is the row and column of its top left pixel."""
        (top, left), (height, width) = corner, part.shape[2:]
        rows, columns = slice(top, top + height), slice(left, left + width)
        weight = _soft(height, feather)[:, None] * _soft(width, feather)
        # The weight of a tile falls towards its sides, where the VAE lacks the pixels beyond the
        # tile. Division by the sum of the weights keeps the border of the image at full value.
        self._sum[..., rows, columns] += part * weight
        self._weights[rows, columns] += weight

    def end_tiling(self) -> None:
        """Add the finished tiling to the mean. The next tile belongs to another tiling."""
        self._ended += self._sum / self._weights
        self._count += 1
        self._sum.zero_()
        self._weights.zero_()


def _soft(length: int, feather: int) -> Tensor:
    if feather >= length:
        return torch.ones(length)
    return ramp(length, feather, first=True, last=True)
