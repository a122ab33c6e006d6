"""Operations on images and masks, which are always on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.diffusion.images.latents import Images, Mask
from engine.diffusion.images.resampling import proportional_size, resampled
from engine.errors import EngineError
from engine.graph.limits import Limits

_CHANNELS = ("red", "green", "blue")
_GREY = 0.5


@dataclass(frozen=True, slots=True)
class ImageOperations:
    """Operations on images. They raise TooLarge if the result would exceed `limits`."""

    limits: Limits

    def empty(self, width: int, height: int, batch_size: int, *, colour: int) -> Images:
        """Return images of one colour, 0xRRGGBB."""
        self.limits.require_batch(batch_size, width=width, height=height)
        levels = [(colour >> shift & 0xFF) / 0xFF for shift in (16, 8, 0)]
        return torch.tensor(levels).repeat(batch_size, height, width, 1)

    def solid_mask(self, width: int, height: int, value: float) -> Mask:
        self.limits.require_batch(1, width=width, height=height)
        return torch.full((1, height, width), value)

    def scaled(self, images: Images, width: int, height: int, *, method: str, crop: str) -> Images:
        """Resize to `width` x `height`.

        If one side is 0, it is computed from the other in proportion. If both sides are 0, the
        images are returned unchanged.
        """
        if width == height == 0:
            return images
        samples = images.movedim(-1, 1)
        width, height = proportional_size(width, height, of=samples)
        self.limits.require_batch(len(images), width=width, height=height)
        return resampled(samples, width, height, method=method, crop=crop).movedim(1, -1)

    def scaled_by(self, images: Images, factor: float, *, method: str) -> Images:
        _, height, width, _ = images.shape
        sides = (max(1, round(width * factor)), max(1, round(height * factor)))
        return self.scaled(images, *sides, method=method, crop="disabled")

    def joined(self, first: Images, second: Images) -> Images:
        """Join both batches. The second images are resized to the size of the first images."""
        _, height, width, _ = first.shape
        self.limits.require_batch(len(first) + len(second), width=width, height=height)
        if first.shape[1:] != second.shape[1:]:
            second = self.scaled(second, width, height, method="bilinear", crop="center")
        return torch.cat((first, second))

    def repeated(self, images: Images, amount: int) -> Images:
        _, height, width, _ = images.shape
        self.limits.require_batch(len(images) * amount, width=width, height=height)
        return images.repeat(amount, 1, 1, 1)

    def padded(
        self, images: Images, *, left: int, top: int, right: int, bottom: int, feathering: int
    ) -> tuple[Images, Mask]:
        """Return the images in a grey frame, and the mask of the frame.

        The mask has a soft inner edge. All lengths are in pixels.
        """
        count, height, width, channels = images.shape
        whole = (height + top + bottom, width + left + right)
        self.limits.require_batch(count, width=whole[1], height=whole[0])
        framed = images.new_full((count, *whole, channels), _GREY)
        framed[:, top : top + height, left : left + width] = images
        mask = torch.ones(1, *whole)
        mask[:, top : top + height, left : left + width] = _soft_edge(
            height,
            width,
            feathering,
            left=left > 0,
            top=top > 0,
            right=right > 0,
            bottom=bottom > 0,
        )
        return framed, mask

    def to_mask(self, images: Images, channel: str) -> Mask:
        """Return a channel as masks. Raises EngineError if there is no such channel."""
        if channel not in _CHANNELS:
            raise EngineError(f"The image has no channel {channel}: it has {', '.join(_CHANNELS)}.")
        return images[..., _CHANNELS.index(channel)]

    def from_mask(self, mask: Mask) -> Images:
        return mask.reshape(-1, *mask.shape[-2:], 1).expand(-1, -1, -1, len(_CHANNELS))


def _soft_edge(
    height: int, width: int, feathering: int, *, left: bool, top: bool, right: bool, bottom: bool
) -> Tensor:
    """Return (height, width): 1 at the chosen sides, and 0 from `feathering` pixels inwards."""
    if feathering == 0 or 2 * feathering >= min(height, width):
        return torch.zeros(height, width)
    rows, columns = torch.arange(height), torch.arange(width)
    never = torch.tensor(feathering)
    from_side = [
        (columns if left else never)[None],
        (rows if top else never)[..., None],
        (width - columns if right else never)[None],
        (height - rows if bottom else never)[..., None],
    ]
    nearest = torch.full((height, width), feathering)
    for distance in from_side:
        nearest = nearest.minimum(distance)
    return ((feathering - nearest).double() / feathering).square().float()
