"""Decodes latents to images, and encodes images to latents."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from torch.nn import functional

from engine.batcher import Request
from engine.diffusion.images.latents import PIXELS_PER_LATENT, Images, Mask
from engine.diffusion.out_of_memory import memory_checked
from engine.errors import EngineError
from engine.stages import Stage

_CELLS_PER_ROW = 128
_GREY = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Vae:
    """An autoencoder, in float32."""

    autoencoder: Any

    @property
    def channels(self) -> int:
        """Those of its latents."""
        found: int = self.autoencoder.config.latent_channels
        return found

    def require_own(self, samples: Tensor) -> None:
        """Raises EngineError for latents of another kind of VAE."""
        if samples.shape[1] != self.channels:
            raise EngineError(
                f"the latent has {samples.shape[1]} channels, and the VAE takes {self.channels}: "
                "take the VAE of the model that made it"
            )

    @property
    def device(self) -> torch.device:
        """That of the first weight. diffusers' own property looks at all layers: a millisecond."""
        weight: Tensor = next(self.autoencoder.parameters())
        return weight.device


@dataclass(slots=True, eq=False)
class Decode(Request):
    """Decodes one latent (1, channels, h, w).

    Only small latents gain from sharing a call. A large one counts as many rows, so that the steps
    of other jobs run between the images of a batch.
    """

    stage: ClassVar[Stage | None] = Stage.VAE
    vae: Vae
    samples: Tensor
    goes_ahead: bool = False
    is_clamped: bool = True
    """Off: what is beyond 0..1 stays, for a mean of several."""

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
        """The images, (1, height, width, 3) of 0..1, on the CPU."""
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
    """Encodes one image (1, height, width, 3), whose sides are multiples of 8; see `Decode`."""

    stage: ClassVar[Stage | None] = Stage.VAE
    vae: Vae
    image: Images
    goes_ahead: bool = False

    @property
    def rows(self) -> int:  # type: ignore[override]  # derived here, a field elsewhere
        height, width = self.image.shape[1:3]
        return max(1, height * width // (_CELLS_PER_ROW * PIXELS_PER_LATENT**2))

    @property
    def key(self) -> Hashable:
        return "encode", id(self.vae.autoencoder), self.image.shape

    @classmethod
    def run_batch(cls, requests: Sequence[Self]) -> Sequence[Tensor]:
        """The latents, (1, channels, h, w): the modes of the encoder's distributions."""
        vae, device = requests[0].vae, requests[0].vae.device
        with memory_checked():
            images = torch.cat([request.image.to(device) for request in requests])
            pixels = images.movedim(-1, 1) * 2.0 - 1.0
            encoded = vae.autoencoder.encode(pixels, return_dict=False)[0]
            modes: Tensor = encoded.mode()
            return list(modes.split(1))


def cropped(planes: Tensor) -> Tensor:
    """Crop (batch, height, width, ...) at the centre to sides that are multiples of 8.

    Raises EngineError for sides below 8.
    """
    if min(planes.shape[1:3]) < PIXELS_PER_LATENT:
        raise EngineError(f"An image of less than {PIXELS_PER_LATENT} pixels cannot be encoded.")
    for side in (1, 2):
        length = planes.shape[side]
        kept = length - length % PIXELS_PER_LATENT
        planes = planes.narrow(side, (length - kept) // 2, kept)
    return planes


def prepared_for_inpainting(images: Images, mask: Mask, grow_by: int) -> tuple[Images, Mask]:
    """The images, grey where the mask is 1, and the mask grown by `grow_by` pixels; both cropped.

    Raises EngineError if there are neither one mask nor as many as images.
    """
    size = images.shape[1:3]
    if (masks := mask[..., 0, 0].numel()) not in {1, len(images)}:
        raise EngineError(f"{masks} masks are too many or too few for {len(images)} images.")
    mask = functional.interpolate(mask.reshape(-1, 1, *mask.shape[-2:]), size=size, mode="bilinear")
    images, mask = cropped(images), cropped(mask[:, 0]).round()
    return (images - _GREY) * (1 - mask)[..., None] + _GREY, _grown(mask, grow_by)


def _grown(mask: Mask, by: int) -> Mask:
    """Grow by the maximum in a square of so many pixels; an even one goes further down and right.

    Rows and columns are pooled one after the other, which is the same in far less time.
    """
    if by == 0:
        return mask
    height, width = mask.shape[1:]
    padding = math.ceil((by - 1) / 2)
    columns = functional.max_pool2d(mask[:, None], (by, 1), stride=1, padding=(padding, 0))
    touched = functional.max_pool2d(columns, (1, by), stride=1, padding=(0, padding))
    return touched[:, 0, :height, :width].clamp(0, 1)
