"""Operations on images and masks, which are always on the CPU."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from engine.diffusion.images.latents import COLOURS, Images, Mask, repeated_to, with_channels
from engine.diffusion.images.resampling import proportional_size, resampled
from engine.errors import EngineError
from engine.graph.limits import Limits

_CHANNELS = ("red", "green", "blue", "alpha")
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
        channels = max(first.shape[3], second.shape[3])
        first, second = (with_channels(each, channels) for each in (first, second))
        if first.shape[1:] != second.shape[1:]:
            second = self.scaled(second, width, height, method="bilinear", crop="center")
        return torch.cat((first, second))

    def stitched(
        self,
        first: Images,
        second: Images,
        *,
        direction: str,
        resized: bool,
        spacing: int,
        colour: tuple[float, ...],
    ) -> Images:
        """Join the images of both batches in pairs, with a stripe of `spacing` pixels between them.

        `direction` is the side of the first images on which the second are added. With `resized`,
        the second images get the length of the joined side. Otherwise, the shorter ones are centred
        on black, or on white if `colour` is white. Of a smaller batch, the last image is repeated.
        """
        axis = 2 if direction in ("left", "right") else 1
        across = 3 - axis
        if resized:
            side = first.shape[across]
            length = max(1, int(side * (second.shape[axis] / second.shape[across])))
            to = (length, side) if axis == 2 else (side, length)
            second = self.scaled(second, *to, method="lanczos", crop="disabled")
        count = max(len(first), len(second))
        side = max(first.shape[across], second.shape[across])
        channels = max(first.shape[3], second.shape[3])
        whole = [count, side, side, channels]
        whole[axis] = first.shape[axis] + spacing + second.shape[axis]
        self.limits.require_batch(count, width=whole[2], height=whole[1])
        # As in ComfyUI, the opacity of this frame is 0 if it is black, and 1 if it is white.
        stitched = torch.full(whole, colour[0] if len(set(colour)) == 1 else 0.0)
        order = (second, first) if direction in ("left", "up") else (first, second)
        start = 0
        for images in order:
            place = stitched.narrow(axis, start, images.shape[axis])
            place[..., images.shape[3] :] = 1.0
            place = place.narrow(across, (side - images.shape[across]) // 2, images.shape[across])
            place[: len(images)] = with_channels(images, channels)
            place[len(images) :] = place[len(images) - 1]
            start += images.shape[axis] + spacing
        stripe = stitched.narrow(axis, order[0].shape[axis], spacing)
        stripe[:] = torch.tensor((*colour, 1.0)[:channels])
        return stitched

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
        present = _CHANNELS[: images.shape[-1]]
        if channel not in present:
            raise EngineError(f"The image has no channel {channel}: it has {', '.join(present)}.")
        return images[..., present.index(channel)]

    def joined_with_alpha(self, images: Images, mask: Mask) -> Images:
        """Return the images with an opacity of 1 where the mask is 0. A mask is resized to the size
        of the images. Of a smaller batch, the items are repeated.
        """
        height, width = images.shape[1:3]
        planes = mask.reshape(-1, 1, *mask.shape[-2:])
        count = max(len(images), len(planes))
        self.limits.require_batch(count, width=width, height=height)
        planes = functional.interpolate(planes, size=(height, width), mode="bilinear")
        colours = repeated_to(images[..., :COLOURS], count)
        return torch.cat((colours, 1.0 - repeated_to(planes, count).movedim(1, -1)), dim=-1)

    def from_mask(self, mask: Mask) -> Images:
        return mask.reshape(-1, *mask.shape[-2:], 1).expand(-1, -1, -1, COLOURS)


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
